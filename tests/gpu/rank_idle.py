"""One process: what an idle daemon and a joined job cost a training loop that does not use them.

Turns alternate, and which comes first does, too: a segment of iterations with the daemon stopped (SIGSTOP) and no job joined, and one with the daemon running,
the job joined, the library's threads there (a tensor of the GPU was summed once), and nothing asked of them. Each pair of neighbours gives a ratio.
"""

import os
import pathlib
import signal
import statistics
import time

import torch
from torch import nn

import devices


def daemon():
    """The process id of the daemon: `tensorlane run` is its parent, as it is this process's."""
    for stat in pathlib.Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = stat.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue
        if name == "tensorlaned" and int(rest.split()[1]) == os.getppid():
            return int(stat.parent.name)
    raise RuntimeError("the daemon is not among the children of this process's parent: start this by `tensorlane run -n 1`")


class Loop:
    """Iterations that keep a GPU and the thread that launches its kernels busy."""

    def __init__(self, device, fake):
        torch.manual_seed(1)
        width, depth = (16, 2) if fake else (1024, 12)
        self.device = device
        self.model = nn.Sequential(*(layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.ReLU()))).to(device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.x = torch.randn(256 if not fake else 4, width).to(device)

    def seconds(self, iterations):
        """The median of an iteration."""
        times = []
        for _ in range(iterations):
            start = time.perf_counter()
            self.optimizer.zero_grad()
            self.model(self.x).square().mean().backward()
            self.optimizer.step()
            devices.synchronize(self.device)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


def main():
    args = devices.arguments(__doc__)
    device = devices.open_device(args.fake)
    torch.use_deterministic_algorithms(False)
    import tensorlane.torch as tl

    pid = daemon()
    loop = Loop(device, args.fake)
    iterations, pairs = (3, 2) if args.fake else (150, 20)
    loop.seconds(iterations)

    def without():
        os.kill(pid, signal.SIGSTOP)
        try:
            return loop.seconds(iterations)
        finally:
            os.kill(pid, signal.SIGCONT)

    def joined():
        tl.init()
        tl.allreduce(torch.ones(1000).to(device))
        devices.synchronize(device)
        try:
            return loop.seconds(iterations)
        finally:
            tl.shutdown()

    alone, idle = [], []
    for pair in range(pairs):
        for measure, times in ((without, alone), (joined, idle))[:: 1 if pair % 2 == 0 else -1]:
            times.append(measure())
    ratios = sorted(after / before for before, after in zip(alone, idle))
    figures = {
        "pairs": pairs, "iterations": iterations, "alone_ms": statistics.median(alone) * 1e3, "joined_ms": statistics.median(idle) * 1e3,
        "ratio": statistics.median(ratios), "lowest_ratio": ratios[0], "highest_ratio": ratios[-1],
    }
    devices.write(args.out, 0, figures)


if __name__ == "__main__":
    main()
