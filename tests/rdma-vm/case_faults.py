"""Faults under a job over RDMA: a link that is down for less than the detection time costs time and nothing else; one that stays down, a
daemon that is stopped for longer, and one that is killed, are named errors on every host, and the next job works."""

import re

DETECTION = 15
OUTAGE = 4  # heartbeats come back some seconds after the link: TCP retransmits ever more rarely
ELEMENTS = 100_000


def link(bed, host, state, switch="s0"):
    """Of the switch's port to a host."""
    bed.run(switch, "ip", "link", "set", host, state)


def start(ranks, daemons, job, seconds):
    running = ranks.start(daemons, job, "sum_arrays", seconds, ELEMENTS)
    for rank in running:
        rank.wait_for("running")
    return running


def ends_with_error(rank, *any_of):
    """The rank fails with an error that holds one of these words."""
    out, status = rank.end(60)
    assert status == 1, f"{rank.host} has ended with {status}: {out}"
    error = next(line for line in out.splitlines() if line.startswith("error: "))
    assert any(re.search(rf"\b{word}\b", error) for word in any_of), f"{rank.host} names none of {any_of}: {out}"
    print(f"{rank.host}: {error}", flush=True)


def test_next_job(ranks, daemons, job):
    for rank in start(ranks, daemons, job, 1):
        out, status = rank.end()
        assert status == 0, out


def test_long_outage(bed, ranks, daemons):
    """Either side has lost the other."""
    running = start(ranks, daemons, "long", 300)
    link(bed, "h1", "down")
    try:
        for rank in running:
            ends_with_error(rank, *(["h0", "h2"] if rank.host == "h1" else ["h1"]))
    finally:
        link(bed, "h1", "up")
    test_next_job(ranks, daemons, "after-outage")


def test_stopped_daemon(ranks, daemons):
    running = start(ranks, daemons, "stopped", 300)
    daemons.signal("h2", "STOP")
    try:
        for rank in running[:2]:
            ends_with_error(rank, "h2")
        ends_with_error(running[2], "the daemon has not been heard")
    finally:
        daemons.signal("h2", "CONT")
    test_next_job(ranks, daemons, "after-stop")


def test_killed_daemon(ranks, daemons):
    running = start(ranks, daemons, "killed", 300)
    daemons.signal("h2", "KILL")
    for rank in running[:2]:
        ends_with_error(rank, "h2")
    ends_with_error(running[2], "daemon")
    daemons.start("h2")
    daemons.wait_ready("h2")
    test_next_job(ranks, daemons, "after-restart")
