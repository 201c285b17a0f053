"""One packet in a thousand is lost, and one in a hundred comes late, so that others overtake it: an urgent message of 1 MiB over ports that the daemons drive themselves
takes at most twice as long as without, at the 99th percentile.

    test_dpdk_loss.py BUILD"""

import contextlib
import statistics
import sys

from daemons import Daemons, expect, require_namespaces
from dpdk_lab import MESSAGE, lines_of
from lab_faults import drop, overtake
from lab_harness import Lab

HOSTS = ("h0", "h1")
SIZE = 1 << 20
LOST, LATE, LATER_MS = 0.1, 1.0, 0.4  # percent, percent, milliseconds
BLOCKS, MESSAGES = 3, 60  # in turn without and with the fault, as the machine's own noise is
MOST = 2.0


def percentile(times, share):
    return sorted(times)[min(len(times) - 1, int(len(times) * share))]


def faulty(lab):
    """Both ways: acknowledgements are lost, too."""
    stack = contextlib.ExitStack()
    for host in HOSTS:
        stack.enter_context(overtake(lab, host, "s0", LATE, LATER_MS))
        stack.enter_context(drop(lab, host, "s0", LOST))
    return stack


def measure(lab, speed):
    with Daemons(2, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk"}) as daemons:
        def times(job):
            return [float(line) for line in lines_of(daemons.job(job, [MESSAGE, "time", str(SIZE), str(MESSAGES), "0.9"]), 60)[-1].split()]
        times("warm")
        good, bad = [], []
        for block in range(BLOCKS):
            good += times(f"good{block}")
            with faulty(lab):
                bad += times(f"bad{block}")
    base, p99 = percentile(good, 0.99), percentile(bad, 0.99)
    print(f"1 MiB at {speed}: without, median {statistics.median(good) * 1e3:.2f} ms and p99 {base * 1e3:.2f} ms; with {LOST} % lost and {LATE} % overtaken, median "
          f"{statistics.median(bad) * 1e3:.2f} ms and p99 {p99 * 1e3:.2f} ms: {p99 / base:.2f} times the p99, {p99 / statistics.median(good):.2f} times the median", flush=True)
    return p99 / base


def main():
    require_namespaces()
    speed = "500 Mbit/s"
    with Lab(hosts=2, speed=speed) as lab:
        ratio = measure(lab, speed)
    expect(ratio <= MOST, f"{ratio:.2f} times as long, at most {MOST} allowed")


if __name__ == "__main__":
    sys.exit(main())
