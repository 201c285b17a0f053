"""Hosts with two rails, one or two lanes, and one host of another number than its peers. The sums are the same to the bit, each rail carries half, the status says how
many lanes there are, and all of them turn. A daemon that dies is an error that names its host, on every rank, in time; then the next job runs. So is a lane that
stands still while the other one turns."""

import glob
import os
import signal
import sys
import time

from daemons import Daemons, StoppedThread, expect, outputs
from test_faults import ALLOWED, MESSAGE, expect_failure, expect_works, start_job

MIB = 1 << 20
SLICE = {"slice_elements": "32768"}  # enough of them that the rails share evenly


def lane_threads(daemons, name):
    """The names of the daemon's lanes, as the kernel has them."""
    names = [open(task + "/comm").read().strip() for task in glob.glob(f"/proc/{daemons.pid(name)}/task/*")]
    return sorted(name for name in names if name.startswith("lane"))


def expect_halves(daemons):
    for name in daemons.names:
        sent = [sum(cls["sent_bytes"] for cls in rail["classes"]) for rail in daemons.status(name)["lane"]["rails"]]
        expect(len(sent) == 2 and min(sent) > MIB and 0.45 <= sent[0] / sum(sent) <= 0.55, f"the rails of {name} sent {sent}")


def sums(daemons, job):
    """The hash that every rank prints. Two ranks on each host, so that the job's own lane sums and copies, too."""
    printed = outputs(daemons.job(job, [MESSAGE, "sum", str(4 * MIB), "5", "0.5"], per_host=2), 60)
    expect(all(status == 0 for _, status in printed), f"{job} failed: {printed}")
    hashes = {text.split()[-1] for text, _ in printed}
    expect(len(hashes) == 1, f"the ranks of {job} have different sums: {hashes}")
    return hashes.pop()


def expect_nothing_left(daemons, name):
    """All lanes have let go of their jobs within a second."""
    for _ in range(20):
        lane = daemons.status(name)["lane"]
        if not lane["jobs"] and not lane["flows"] and lane["staging_bytes"] == 0:
            return
        time.sleep(0.05)
    raise AssertionError(f"{name} still has {lane['jobs']}, {lane['flows']} and {lane['staging_bytes']} bytes of staging")


def killed(daemons):
    ranks = start_job(daemons, "job")
    since = time.monotonic()
    os.kill(daemons.pid("h2"), signal.SIGKILL)
    slowest = expect_failure(ranks, set(), since, "h2|daemon")
    for name in ("h0", "h1"):
        expect_nothing_left(daemons, name)
    expect_works(daemons, "next", ["h0", "h1"])
    return slowest


def lane_stands_still():
    """The second lane of h1 does, and with it rail 1; the job's own lane turns."""
    with Daemons(2, rails=2, settings={**SLICE, "lanes": "2", "detection": "1 s", "late_after": "1 s", "late_error": "3 s"}) as daemons:
        ranks = start_job(daemons, "job")
        since = time.monotonic()
        with StoppedThread(daemons.pid("h1"), "lane1"):
            return expect_failure(ranks, set(), since, r"a lane of host h1 has not turned|the flow from host h\d to host h\d has delivered nothing \(rail 1", allowed=8)


def main():
    with Daemons(3, rails=2, settings=SLICE) as daemons:
        by_one = sums(daemons, "one lane")
        expect(daemons.status("h0")["lane"]["lanes"] == 1 and lane_threads(daemons, "h0") == ["lane"], "not one lane by default")
        expect_halves(daemons)
    with Daemons(3, rails=2, settings={**SLICE, "lanes": "2", "workers": "1", "detection": "1 s"}, of_host={"h1": {"lanes": "1"}}) as daemons:
        shown = [daemons.status(name)["lane"]["lanes"] for name in daemons.names]
        expect(shown == [2, 1, 2], f"the status shows {shown} lanes")
        lane = daemons.status("h0")["lane"]
        expect([rail["lane"] for rail in lane["rails"]] == [0, 1] and len(lane["lane_cpu_seconds"]) == 2, f"the status shows {lane}")
        threads = lane_threads(daemons, "h0")
        expect(threads == ["lane", "lane1"], f"the lanes of h0 are {threads}")
        by_two = sums(daemons, "two lanes")
        expect(by_two == by_one, "other sums by two lanes than by one")
        expect_halves(daemons)
        # A job that comes while another one lives on the first lane lives on the second.
        jobs = [start_job(daemons, f"job {number}", seconds=1) for number in range(2)]
        for job in jobs:
            expect(all(status == 0 for _, status in outputs(job, 30)), "one of two jobs on two lanes failed")
        slowest = killed(daemons)
    still = lane_stands_still()
    print(f"the same sums by one lane and by two; half of the bytes on each rail; every rank failed {slowest:.2f} s after its peer (allowed: {ALLOWED} s), "
          f"and {still:.2f} s after a lane of it stood still")


if __name__ == "__main__":
    sys.exit(main())
