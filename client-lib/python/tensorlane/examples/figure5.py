"""The placement of Geryon's figure 5: one worker (rank 0) and two servers. A parameter that the worker needs late is on
one server (rank 1), one that it needs first on the other (rank 2). Each server has a single parameter to send, so what
either could reorder by itself changes nothing: the two meet at the worker's port only.

    tensorlane run -n 3 --hosts lab --pattern parameter_server -- python -m tensorlane.examples.figure5

An iteration: both servers send; the worker computes (emulated) with the urgent parameter as soon as that is there, then
with the other one.
"""

import argparse
import sys
import time

import numpy

import tensorlane as tl
from tensorlane.examples.blocks import follow_blocks

WORKER, LATE_SERVER, FIRST_SERVER = 0, 1, 2


class Placement:
    def __init__(self, mib, compute):
        tl.init()
        self.compute = compute
        self.first, self.late = (numpy.zeros(int(mib * (1 << 18)), dtype=numpy.float32) for _ in range(2))
        self.iteration = 0

    def step(self):
        self.iteration += 1
        if tl.rank() == FIRST_SERVER:
            self.first.fill(self.iteration)
        elif tl.rank() == LATE_SERVER:
            self.late.fill(-self.iteration)
        tl.barrier()
        late = tl.broadcast_async_(self.late, LATE_SERVER, name="late", priority=0.0)
        first = tl.broadcast_async_(self.first, FIRST_SERVER, name="first", priority=1.0)
        tl.synchronize(first)
        self.work_with(self.first, self.iteration)
        tl.synchronize(late)
        self.work_with(self.late, -self.iteration)

    def work_with(self, parameter, expected):
        if not (parameter == expected).all():
            raise RuntimeError(f"rank {tl.rank()} got a wrong parameter in iteration {self.iteration}")
        if tl.rank() == WORKER:
            time.sleep(self.compute)

    def run(self, iterations):
        """Seconds of each iteration, on this rank."""
        times = []
        for _ in range(iterations):
            begin = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - begin)
        return {"times": times}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=float, default=1.0, help="size of each parameter")
    parser.add_argument(
        "--compute", type=float, default=0.045, metavar="SECONDS",
        help="what the worker computes with each parameter, emulated",
    )
    parser.add_argument("--iterations", type=int, default=20)
    parser.add_argument("--blocks", metavar="FOLDER", help="run blocks of iterations as files in FOLDER say")
    parser.add_argument("--arm", default="arm", help="this job's name in FOLDER")
    args = parser.parse_args()
    placement = Placement(args.mib, args.compute)
    if args.blocks:
        follow_blocks(tl.rank(), args.blocks, args.arm, placement.run)
    else:
        times = sorted(placement.run(args.iterations)["times"])
        if tl.rank() == WORKER:
            print(f"{args.iterations} iterations of {times[len(times) // 2] * 1e3:.1f} ms (median)")
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
