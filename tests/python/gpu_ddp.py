"""ddp_comm_hook on (fake) GPUs, in real jobs. A script, run by daemons/test_gpus.py:

    tensorlane run -n 2 -- python tests/python/gpu_ddp.py

DistributedDataParallel takes no devices of this kind. A stand-in calls the hook where it would, and waits where it would: for one bucket of each parameter.
"""

import fake_gpu
import tensorlane.torch as tl
import torch
from torch import nn

STEPS = 6


class Bucket:
    def __init__(self, parameter, last):
        self.parameter, self.last, self.values = parameter, last, parameter.grad.detach().clone().flatten()

    def buffer(self):
        return self.values

    def is_last(self):
        return self.last

    def parameters(self):
        return [self.parameter]


class StandIn:
    """`late`: all buckets are given at the end of the backward pass, as in the first one of a static graph."""

    def __init__(self, model, late):
        self.parameters, self.late, self.ready, self.futures = list(model.parameters()), late, [], []
        for parameter in self.parameters:
            parameter.register_post_accumulate_grad_hook(self.on_gradient)

    def on_gradient(self, parameter):
        self.ready.append(parameter)
        last = len(self.ready) == len(self.parameters)
        if not self.late:
            self.start(parameter, last)
        if last:
            torch.autograd.Variable._execution_engine.queue_callback(self.finish)

    def start(self, parameter, last):
        self.futures.append((parameter, tl.ddp_comm_hook(None, Bucket(parameter, last))))

    def finish(self):
        if self.late:
            for parameter in self.ready:
                self.start(parameter, False)
        for parameter, future in self.futures:
            assert future.done(), "DDP would wait for ever"
            parameter.grad.copy_(future.wait().view_as(parameter))
        self.ready, self.futures = [], []


def train(device, late):
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 300), nn.Tanh(), nn.Linear(300, 8)).to(device)
    start = [p.detach().cpu().clone() for p in model.parameters()]
    StandIn(model, late)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        generator = torch.Generator().manual_seed(100 * number + tl.rank())
        model(torch.randn(4, 8, generator=generator).to(device)).square().mean().backward()
        optimizer.step()
    trained = [p.detach().cpu() for p in model.parameters()]
    assert not any(torch.equal(one, other) for one, other in zip(start, trained)), "nothing was trained"
    return torch.cat([each.flatten() for each in trained])


def main():
    torch.set_num_threads(1)
    gpu = fake_gpu.load()
    tl.init()
    for late in (False, True):
        ours, on_cpu = train(gpu, late), train("cpu", late)
        assert torch.equal(ours, on_cpu), (late, (ours - on_cpu).abs().max())
        everybodys = tl.allgather(ours, name="check").view(tl.size(), -1)
        assert all(torch.equal(each, ours) for each in everybodys)
    tl.barrier()
    assert not fake_gpu.violations(), fake_gpu.violations()
    assert tl.status()["gpus"]["devices"][0]["copied_in_bytes"] > 0
    rank = tl.rank()
    tl.shutdown()
    print(f"rank {rank}: DDP on GPUs is right")


if __name__ == "__main__":
    main()
