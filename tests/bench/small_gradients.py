"""An iteration of a model of many small parameters with DistributedOptimizer, beside PyTorch's DDP over Gloo in the same run; all must train the same model.

    build/bin/tensorlane run -n 2 -- build/venv/bin/python tests/bench/small_gradients.py --parameters 2000
"""

import argparse
import statistics
import time

import torch
from torch import nn

import tensorlane.torch as tl

WIDTH = 16  # 1 KiB a parameter
TOLERANCE = 1e-5


def model(parameters):
    torch.manual_seed(1)
    net = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(parameters)])
    for layer in net:
        nn.init.orthogonal_(layer.weight)
    return net


class Arm:
    def __init__(self, name, parameters):
        self.name, self.net, self.iteration, self.times = name, model(parameters), 0, []
        self.forward = self.net
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3, momentum=0.9)
        if name == "ddp":
            self.forward = nn.parallel.DistributedDataParallel(self.net)
        elif name != "alone":
            self.optimizer = tl.DistributedOptimizer(self.optimizer, self.net.named_parameters(), overlap=name == "overlap")

    def step(self):
        x = torch.randn(8, WIDTH, generator=torch.Generator().manual_seed(10 * self.iteration + tl.rank()))
        self.iteration += 1
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.forward(x).square().mean().backward()
        self.optimizer.step()
        self.times.append(time.perf_counter() - begin)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=2000)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=6, help="of a block; its first is left out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tl.init()
    torch.distributed.init_process_group("gloo")
    arms = [Arm(name, args.parameters) for name in ("alone", "ddp", "default", "overlap")]
    medians = {arm.name: [] for arm in arms}
    for block in range(args.blocks):
        for arm in arms[block % len(arms) :] + arms[: block % len(arms)]:
            tl.barrier()
            arm.times.clear()
            for _ in range(args.iterations):
                arm.step()
            medians[arm.name].append(statistics.median(arm.times[1:]))
    ddp = arms[1].net
    for arm in arms[2:]:
        for one, other in zip(arm.net.parameters(), ddp.parameters()):
            if (one - other).abs().max().item() > TOLERANCE:
                raise SystemExit(f"small_gradients: {arm.name} trained another model than DDP")
    if tl.rank() == 0:
        for name, times in medians.items():
            pairs = [one / other for one, other in zip(times, medians["ddp"])]
            print(f"{name:8} {statistics.median(times) * 1e3:7.1f} ms an iteration (median), {statistics.median(pairs):.2f} of DDP's (median of paired blocks)")
    torch.distributed.destroy_process_group()
    tl.shutdown()


if __name__ == "__main__":
    main()
