"""Collectives and messages of torch.distributed over tensorlane, beside the same over Gloo in the same run. Every result is checked.

    build/bin/tensorlane run -n 4 --ranks-per-host 1 -- build/venv/bin/python tests/bench/torch_collectives.py
    build/bin/tensorlane run -n 4 --ranks-per-host 1 -- build/venv/bin/python tests/bench/torch_collectives.py --calls all_reduce send --bytes 4 --repeat 200

Blocks of the two take turns. A call's time is that of the rank that took longest; bytes are of the whole tensor of a rank: what all_gather and all_to_all bring,
what reduce_scatter, all_reduce and send take; all_to_all_uneven rounds them down.
"""

import argparse
import json
import statistics
import sys
import time

import torch
import torch.distributed as dist

MIB = 1 << 20
BACKENDS = ("gloo", "tensorlane")


class Call:
    """Of one size, on one group. `begin` gives its input the values of a turn, `run` is what is timed, `check` raises."""

    def __init__(self, group, size_in_bytes):
        self.group, self.size, self.rank = group, dist.get_world_size(), dist.get_rank()
        self.part = max(1, size_in_bytes // 4 // self.size)  # elements for or from one rank
        self.whole = max(1, size_in_bytes // 4)

    def expect(self, got, wanted):
        if not torch.equal(got, torch.as_tensor(wanted, dtype=torch.float32).expand(got.shape)):
            raise SystemExit(f"torch_collectives: {type(self).__name__} is wrong on rank {self.rank}: {got[:3]}")


class AllReduce(Call):
    def begin(self, turn):
        self.tensor = torch.full((self.whole,), float(self.rank + turn))

    def run(self):
        dist.all_reduce(self.tensor, group=self.group)

    def check(self, turn):
        self.expect(self.tensor, float(sum(range(self.size)) + self.size * turn))


class ReduceScatter(Call):
    def begin(self, turn):
        self.source, self.got = torch.full((self.part * self.size,), float(self.rank + turn)), torch.empty(self.part)

    def run(self):
        dist.reduce_scatter_tensor(self.got, self.source, group=self.group)

    def check(self, turn):
        self.expect(self.got, float(sum(range(self.size)) + self.size * turn))


class AllGather(Call):
    def begin(self, turn):
        self.source, self.got = torch.full((self.part,), float(self.rank + turn)), torch.empty(self.part * self.size)

    def run(self):
        dist.all_gather_into_tensor(self.got, self.source, group=self.group)

    def check(self, turn):
        self.expect(self.got.view(self.size, -1), [[float(rank + turn)] for rank in range(self.size)])


class AllToAll(Call):
    def begin(self, turn):
        self.source = torch.arange(self.size).repeat_interleave(self.part) + 10.0 * self.rank + turn
        self.got = torch.empty(self.part * self.size)

    def run(self):
        dist.all_to_all_single(self.got, self.source, group=self.group)

    def check(self, turn):
        self.expect(self.got.view(self.size, -1), [[10.0 * rank + self.rank + turn] for rank in range(self.size)])


class AllToAllUneven(Call):
    """The rank behind gets twice as much as the others, as where experts are not used alike."""

    def begin(self, turn):
        shares = [self.part * (2 if to == (self.rank + 1) % self.size else 1) for to in range(self.size)]
        self.sends = [share * self.size // (self.size + 1) for share in shares]
        left = (self.rank - 1) % self.size
        twice = self.part * 2 * self.size // (self.size + 1)
        once = self.part * self.size // (self.size + 1)
        self.expects = [twice if rank == left else once for rank in range(self.size)]
        self.source = torch.full((sum(self.sends),), float(self.rank + turn))
        self.got = torch.empty(sum(self.expects))

    def run(self):
        dist.all_to_all_single(self.got, self.source, self.expects, self.sends, group=self.group)

    def check(self, turn):
        for rank, part in enumerate(self.got.split(self.expects)):
            self.expect(part, float(rank + turn))


class Send(Call):
    """From rank 0 to rank 1 and back: the time is that of both ways. The others wait."""

    def begin(self, turn):
        self.tensor = torch.full((self.whole,), float(turn) if self.rank == 0 else -1.0)

    def run(self):
        if self.rank == 0:
            dist.send(self.tensor, 1, group=self.group)
            dist.recv(self.tensor, 1, group=self.group)
        elif self.rank == 1:
            dist.recv(self.tensor, 0, group=self.group)
            dist.send(self.tensor, 0, group=self.group)

    def check(self, turn):
        if self.rank < 2:
            self.expect(self.tensor, float(turn))


CALLS = {
    "reduce_scatter": ReduceScatter, "all_gather": AllGather, "all_to_all": AllToAll, "all_to_all_uneven": AllToAllUneven,
    "all_reduce": AllReduce, "send": Send,
}


def block(call, repeat, turn):
    """Seconds of each call, of the slowest rank."""
    times = []
    for each in range(repeat):
        call.begin(turn + each)
        dist.barrier()
        begin = time.perf_counter()
        call.run()
        times.append(time.perf_counter() - begin)
        call.check(turn + each)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return slowest.tolist()


def measure(name, size, groups, args):
    calls = {backend: CALLS[name](groups[backend], size) for backend in BACKENDS}
    times = {backend: [] for backend in BACKENDS}
    for turn in range(args.blocks + 1):  # the first one is left out: tensors are registered in it
        for backend in sorted(BACKENDS, reverse=turn % 2 == 1):
            seconds = block(calls[backend], args.repeat, turn)
            if turn > 0:
                times[backend].append(seconds)
    ratios = sorted(statistics.median(one) / statistics.median(other) for one, other in zip(times["gloo"], times["tensorlane"]))
    flat = {backend: sorted(second for seconds in blocks for second in seconds) for backend, blocks in times.items()}
    return {
        "call": name, "bytes": size, "times_as_fast": statistics.median(ratios), "least": ratios[0], "most": ratios[-1],
        **{f"{backend}_median_us": statistics.median(values) * 1e6 for backend, values in flat.items()},
        **{f"{backend}_p99_us": values[min(len(values) - 1, int(len(values) * 0.99))] * 1e6 for backend, values in flat.items()},
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", nargs="+", choices=list(CALLS), default=["reduce_scatter", "all_gather", "all_to_all", "all_to_all_uneven"])
    parser.add_argument("--bytes", nargs="+", type=int, default=[MIB, 4 * MIB, 16 * MIB, 64 * MIB])
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--repeat", type=int, default=6, help="calls of a block")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    groups = {backend: dist.new_group(backend=backend) for backend in BACKENDS}
    results = []
    for name in args.calls:
        for size in args.bytes:
            results.append(measure(name, size, groups, args))
            if dist.get_rank() == 0:
                print("{call:18}{bytes:>10,} B: {times_as_fast:5.2f} times as fast as Gloo ({least:.2f} to {most:.2f}); {tensorlane_median_us:,.0f} us, p99 "
                      "{tensorlane_p99_us:,.0f}; Gloo {gloo_median_us:,.0f} us, p99 {gloo_p99_us:,.0f}".format(**results[-1]), flush=True)
    if dist.get_rank() == 0 and args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=2)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
