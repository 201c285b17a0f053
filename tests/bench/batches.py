"""How long 200 allreduces of 1 KiB take together, with `batch: auto` in daemon.yaml and without, on hosts of one rank each on this machine, TCP between them. Two
sets of daemons take turns, so that what else runs meets both; every sum is checked. Fails where batches do not make few operations of many. Standard library only.

    tests/bench/batches.py BUILD [--hosts N] [--rounds N] [--tensors N] [--bytes N] [--batch SIZE] [--json FILE]
"""

import argparse
import json
import os
import statistics
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
from daemons import BUILD, Daemons, expect, outputs  # noqa: E402

ITERATIONS, WARM = 60, 10


def sent_slices(daemons):
    return sum(daemons.status(name)["lane"]["sent_slices"] for name in daemons.names)


def measure(daemons, job, options):
    """Seconds of each iteration, from when the last rank begins until the last has all results; and slices that the hosts sent for it."""
    before = sent_slices(daemons)
    program = [f"{BUILD}/tests/small_tensors", str(ITERATIONS + WARM), str(options.tensors), str(options.bytes)]
    results = outputs(daemons.job(job, program), 120)
    expect(all(status == 0 for _, status in results), f"the job failed: {results}")
    times = []
    for lines in zip(*(text.splitlines() for text, _ in results)):
        ranks = [[float(number) for number in line.split()] for line in lines]
        times.append(max(end for _, end in ranks) - max(begin for begin, _ in ranks))
    return times[WARM:], (sent_slices(daemons) - before) / (ITERATIONS + WARM)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build")
    parser.add_argument("--hosts", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5, help="turns of each set of daemons")
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--bytes", type=int, default=1024)
    parser.add_argument("--batch", default="auto")
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    times, slices = {"off": [], options.batch: []}, {}
    with Daemons(options.hosts, settings={"batch": "off"}) as off, Daemons(options.hosts, settings={"batch": options.batch}, network=1) as on:
        for turn in range(options.rounds):
            for batch, daemons in (("off", off), (options.batch, on)):
                measured, slices[batch] = measure(daemons, f"turn{turn}", options)
                times[batch] += measured
    report = {"hosts": options.hosts, "tensors": options.tensors, "bytes": options.bytes, "arms": {}}
    for batch, measured in times.items():
        measured.sort()
        report["arms"][batch] = {"median_s": statistics.median(measured), "p99_s": measured[int(len(measured) * 0.99)], "sent_slices_per_iteration": slices[batch]}
        print(f"batch: {batch}: {options.tensors} allreduces of {options.bytes} bytes on {options.hosts} hosts: median {statistics.median(measured) * 1e6:.0f} us, "
              f"p99 {measured[int(len(measured) * 0.99)] * 1e6:.0f} us, {len(measured)} iterations, {slices[batch]:.0f} slices sent for each", flush=True)
    report["times_as_fast"] = report["arms"]["off"]["median_s"] / report["arms"][options.batch]["median_s"]
    print(f"batch: {options.batch} is {report['times_as_fast']:.1f} times as fast as off, by the median", flush=True)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(report, file, indent=2)
    expect(slices[options.batch] * 5 < slices["off"], f"batches send {slices[options.batch]:.0f} slices for each iteration, single tensors {slices['off']:.0f}")


if __name__ == "__main__":
    sys.exit(main())
