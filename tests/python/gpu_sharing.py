"""DistributedOptimizer where the ranks of a host share gradients on their (fake) GPUs, in real jobs. A script, run by daemons/test_gpus.py:

    TENSORLANE_GPU_SUMS=1 tensorlane run -n 4 --ranks-per-host 2 -- python tests/python/gpu_sharing.py

A model that is large enough is trained in float32 and bfloat16, with averages and sums, and must come to the same bits as where each rank's gradients are copied to the host.
"""

import sys

import fake_gpu
import tensorlane
import tensorlane.torch as tl
import torch
from torch import nn

FIRST = fake_gpu.load()
REFUSED = sys.argv[1] if len(sys.argv) > 1 else None  # a call of the driver that fails at first: nothing is shared, and all is right
WIDTH, STEPS = 384, 3  # 147,456 parameters in a layer: 288 KiB in bfloat16


def train(dtype, op, rank, wrap, reduce=lambda parameter: None):
    """The parameters, of a model on a GPU whose optimizer is wrap()ed, or whose gradients are reduce()d; and that optimizer."""
    torch.manual_seed(7)
    model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)).to(dtype).to(FIRST)
    optimizer = wrap(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), model)
    generator = torch.Generator().manual_seed(100 + rank)
    for _ in range(STEPS):
        optimizer.zero_grad()
        x = torch.randn(4, WIDTH, generator=generator).to(dtype).to(FIRST)
        model(x).square().mean().backward()
        for parameter in model.parameters():
            reduce(parameter)
        optimizer.step()
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()]), optimizer


def train_sharing(dtype, op, overlap, rank, **options):
    def wrap(optimizer, model):
        return tl.DistributedOptimizer(optimizer, model.named_parameters(), op=op, overlap=overlap, **options)

    numbers, optimizer = train(dtype, op, rank, wrap)
    groups = tensorlane.status()["gpus"]["groups"]
    if REFUSED:
        assert not any(group["shared"] for group in groups) and any(f"{REFUSED} failed" in group["not_shared_because"] for group in groups), groups
    else:
        assert any(group["shared"] for group in groups), groups
    optimizer.close()
    assert fake_gpu.driver.fake_cuda_alive(b"imports") == 0  # nothing of the other ranks' stays mapped
    return numbers


def train_plainly(dtype, op, rank):
    """Each gradient is copied to the host as a whole."""

    def reduce(parameter):
        parameter.grad.copy_(tl.allreduce(parameter.grad, op=op))

    return train(dtype, op, rank, lambda optimizer, model: optimizer, reduce)[0]


def memory_of_a_process_set_is_given_back(rank):
    """What it has allocated may be in use when it is removed, and goes with the next registration."""
    found = []
    for _ in range(6):
        everybody = tensorlane.add_process_set(range(tensorlane.size()))
        train_sharing(torch.float32, tl.Sum, False, rank, process_set=everybody)
        tensorlane.remove_process_set(everybody)
        found.append(fake_gpu.driver.fake_cuda_alive(b"driver_allocations"))
    assert max(found[3:]) <= max(found[:3]), found


def main():
    tensorlane.init()
    rank = tensorlane.rank()
    for dtype in (torch.float32, torch.bfloat16)[: 1 if REFUSED else 2]:
        for op in (tl.Average, tl.Sum)[: 1 if REFUSED else 2]:
            expected = train_plainly(dtype, op, rank)
            for overlap in (False, True)[: 1 if REFUSED else 2]:
                found = train_sharing(dtype, op, overlap, rank)
                assert torch.equal(found.view(torch.int16), expected.view(torch.int16)), (dtype, op, overlap, (found - expected).abs().max())
    if not REFUSED:
        memory_of_a_process_set_is_given_back(rank)
    violations = fake_gpu.violations()
    assert not violations, violations
    print(f"rank {rank}: what GPUs share is right", flush=True)
    tensorlane.shutdown()


if __name__ == "__main__":
    main()
