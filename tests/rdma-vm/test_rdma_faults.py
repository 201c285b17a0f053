"""Faults under a job over RDMA: a link that is down for less than the detection time costs time and nothing else; one that stays down, and
a daemon that is killed, are named errors on every host."""

import os
import re
import sys
import time

from bed import Bed, require_bed, skip
from daemons_in_bed import PYTHON, Daemons, start_job

RANK = os.path.join(os.path.dirname(os.path.abspath(__file__)), "allreduce.py")
ELEMENTS = 100_000
DETECTION = 15
OUTAGE = 4  # heartbeats come back some seconds after the link: TCP retransmits ever more rarely


def start(bed, daemons, job, seconds):
    ranks = start_job(bed, [PYTHON, RANK, str(seconds), str(ELEMENTS)], {"TENSORLANE_SOCKET": daemons.socket(), "TENSORLANE_JOB": job})
    for rank in ranks:
        line = rank.stdout.readline()
        assert line == "running\n", line + rank.communicate(timeout=30)[0]
    return ranks


def ends(ranks, timeout):
    return [(*rank.communicate(timeout=timeout), rank.returncode) for rank in ranks]


def link(bed, host, state):
    """Of the switch's port to a host."""
    bed.run("s0", "ip", "link", "set", host, state)


def test_short_outage(bed, daemons):
    ranks = start(bed, daemons, "short", 12)
    link(bed, "h1", "down")
    time.sleep(OUTAGE)
    link(bed, "h1", "up")
    for out, err, code in ends(ranks, 90):
        assert code == 0, out + err
        longest = float(re.search(r"longest (\S+) s", out).group(1))
        assert longest >= OUTAGE - 1, f"{out}: nothing waited for the link"
    flows = daemons.status("h0")["lane"]["transport_choices"]
    assert flows[bed.address("h1")] == "rdma", flows
    print("short outage:", out.strip(), flush=True)


def test_long_outage(bed, daemons):
    ranks = start(bed, daemons, "long", 300)
    link(bed, "h1", "down")
    try:
        results = ends(ranks, 90)
    finally:
        link(bed, "h1", "up")
    for host, (out, err, code) in enumerate(results):
        assert code == 1 and "error: " in out, out + err
        # h1 has lost both others, they have lost h1.
        assert ("h1" in out) if host != 1 else ("h0" in out or "h2" in out), out
    print("long outage:", results[0][0].strip(), flush=True)


def test_killed_daemon(bed, daemons):
    ranks = start(bed, daemons, "killed", 300)
    bed.run("h2", "sh", "-c", "kill -9 $(pidof tensorlaned)")
    results = ends(ranks, 60)
    for out, err, code in results:
        assert code == 1 and "error: " in out, out + err
    for out, _, _ in results[:2]:
        assert "h2" in out, out
    print("killed daemon:", results[0][0].strip(), flush=True)
    # It comes back, and a job runs again.
    daemons.start("h2")
    daemons.wait_ready("h2")
    for out, err, code in ends(start(bed, daemons, "again", 2), 60):
        assert code == 0, out + err


def main():
    require_bed()
    if not os.path.exists(PYTHON):
        skip("no Python with NumPy: run deploy/install-deps python client")
    with Bed(hosts=3, speed="100 Mbit/s", memory=768) as bed:
        with Daemons(bed, "rdma", 7500, settings={"detection": f"{DETECTION} s"}) as daemons:
            test_short_outage(bed, daemons)
            test_long_outage(bed, daemons)
            test_killed_daemon(bed, daemons)


if __name__ == "__main__":
    sys.exit(main())
