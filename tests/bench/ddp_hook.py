"""An iteration of a model under DistributedDataParallel with ddp_comm_hook, beside the same over Gloo in the same run; both must train the same model.

    build/bin/tensorlane run -n 2 -- build/venv/bin/python tests/bench/ddp_hook.py --width 1024 --layers 8
"""

import argparse
import statistics
import time

import torch
from torch import nn

import tensorlane.torch as tl

BATCH = 16


class Arm:
    def __init__(self, hooked, layers, width):
        torch.manual_seed(1)
        net = nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(width, width), nn.Tanh())))
        self.width, self.iteration, self.times = width, 0, []
        self.net = nn.parallel.DistributedDataParallel(net)
        if hooked:
            self.net.register_comm_hook(None, tl.ddp_comm_hook)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=1e-3)

    def step(self):
        x = torch.randn(BATCH, self.width, generator=torch.Generator().manual_seed(10 * self.iteration + tl.rank()))
        self.iteration += 1
        begin = time.perf_counter()
        self.optimizer.zero_grad()
        self.net(x).square().mean().backward()
        self.optimizer.step()
        self.times.append(time.perf_counter() - begin)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(len(values) * share))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=8, help="of a block; its first is left out")
    args = parser.parse_args()
    torch.set_num_threads(1)
    tl.init()
    torch.distributed.init_process_group("gloo")
    arms = {"gloo": Arm(False, args.layers, args.width), "hook": Arm(True, args.layers, args.width)}
    medians, times = {name: [] for name in arms}, {name: [] for name in arms}
    for block in range(args.blocks + 1):  # the first one is left out: DDP makes other buckets in it, which are registered
        for name in sorted(arms, reverse=block % 2 == 1):
            tl.barrier()
            arms[name].times.clear()
            for _ in range(args.iterations):
                arms[name].step()
            if block > 0:
                medians[name].append(statistics.median(arms[name].times[1:]))
                times[name] += arms[name].times[1:]
    for one, other in zip(arms["hook"].net.parameters(), arms["gloo"].net.parameters()):
        if tl.size() <= 2 and not torch.equal(one, other):
            raise SystemExit("ddp_hook: the two have trained different models")
    if tl.rank() == 0:
        pairs = sorted(one / other for one, other in zip(medians["hook"], medians["gloo"]))
        for name in arms:
            print(f"{name}: {statistics.median(times[name]) * 1e3:.1f} ms an iteration (median), {percentile(times[name], 0.99) * 1e3:.1f} ms (p99)")
        print(f"hook over gloo: {statistics.median(pairs):.2f} (median of {len(pairs)} pairs of blocks, {pairs[0]:.2f} to {pairs[-1]:.2f})")
    torch.distributed.destroy_process_group()
    tl.shutdown()


if __name__ == "__main__":
    main()
