"""Faults under a job over RDMA: a link that is down for less than the detection time, and queue pairs that are lost, cost time and nothing else; a link that stays down, a
daemon that is stopped for longer, and one that is killed, are named errors on every host, and the next job works."""

import contextlib
import json
import os
import re
import time

from daemons_in_bed import BUILD, NotInTime, results, wait_until

DETECTION = 15
OUTAGE = 4
MOST_OUTAGES = 5
RETRY = 1.5  # what queue pairs of RESUMING's daemons retry for: 1.9 s, the next power of two
# After an outage, heartbeats are silent for up to as long again: TCP doubles its pauses. Six tenths of this have to outlast both, on emulated hosts.
RESUMING = {"detection": f"{2 * DETECTION} s", "on_lost_flow": "resume", "rdma": f"{{retry: {RETRY} s}}"}
FAIL_QUEUE_PAIRS = os.path.join(BUILD, "tests", "libfail_queue_pairs.so")
FOR_EVER = 300  # the fault ends it


def link(bed, host, state, switch="s0"):
    """Of the switch's port to a host."""
    bed.run(switch, "ip", "link", "set", host, state)


def ends_with_error(host, rank, *any_of):
    """The rank fails with an error that holds one of these words."""
    out, err = rank.communicate(timeout=60)
    assert rank.returncode == 1, f"{host} has ended with {rank.returncode}: {out}{err}"
    error = next(line for line in err.splitlines() if line.startswith("tensorlane: error: "))
    assert any(re.search(rf"\b{word}\b", error) for word in any_of), f"{host} names none of {any_of}: {err}"
    print(f"{host}: {error}", flush=True)


def run_next_job(daemons, hosts, job):
    results(daemons.start_loop(job, hosts, 1))


def resumed(daemons):
    """How often flows of each host were resumed, and how many frames were sent again."""
    lanes = {host: daemons.status(host)["lane"] for host in daemons.hosts}
    return {host: (lane["resumed_flows"], lane["resent_frames"]) for host, lane in lanes.items()}


def wait_for_resumed(daemons, running, counts, seconds=60):
    """Until flows of each of these hosts were resumed so often, under a job's ranks; how often they were, on every host."""
    now = {}

    def seen():
        ended = [rank for rank in running if rank.poll() is not None]
        assert not ended, [rank.communicate() for rank in ended]
        now.update(resumed(daemons))
        return all(now[host][0] >= count for host, count in counts.items())
    wait_until(seen, seconds, lambda: f"not resumed {counts} times: {now}")
    return now


def end_well(ranks):
    """Every sum was right."""
    ranks[0].terminate()
    results(ranks)


def test_lost_flows(bed, daemons, hosts):
    """A link is down for longer than queue pairs retry and shorter than the detection time: they are lost, and their flows go on over others. Nothing
    is lost, nothing is added twice."""
    running = daemons.start_loop("lost-flows", hosts, FOR_EVER)
    for _ in range(MOST_OUTAGES):  # one may come while nothing is on its way, or end before a busy host's queue pairs have given up
        before = resumed(daemons)
        link(bed, hosts[1], "down")
        time.sleep(OUTAGE)
        link(bed, hosts[1], "up")
        with contextlib.suppress(NotInTime):
            after = wait_for_resumed(daemons, running, {hosts[1]: before[hosts[1]][0] + 1}, DETECTION)
            print(f"resumed flows, frames sent again: {json.dumps(after)}", flush=True)
            if any(after[host][1] > before[host][1] for host in hosts):
                break
    else:
        raise AssertionError(f"nothing was on its way in {MOST_OUTAGES} outages")
    end_well(running)


def test_failed_queue_pairs(daemons, hosts):
    """Every queue pair of a host fails under a job, again and again: every sum is right."""
    running = daemons.start_loop("failed-pairs", hosts, FOR_EVER)
    for host in hosts:
        counts = {each: count + (2 if each == host else 1) for each, (count, _) in resumed(daemons).items()}
        daemons.signal(host, "USR1")
        print(f"resumed flows, frames sent again: {json.dumps(wait_for_resumed(daemons, running, counts))}", flush=True)
    end_well(running)


def test_long_outage(bed, daemons, hosts, resuming):
    """Either side has lost the other, whether flows may be resumed or not: there is nobody to resume them with."""
    jobs = [(each, each.start_loop("long", hosts, FOR_EVER)) for each in (daemons, resuming)]
    link(bed, hosts[1], "down")
    try:
        for _, running in jobs:
            for host, rank in zip(hosts, running, strict=True):
                ends_with_error(host, rank, *([hosts[0], hosts[2]] if host == hosts[1] else [hosts[1]]))
    finally:
        link(bed, hosts[1], "up")
    for each, _ in jobs:
        run_next_job(each, hosts, "after-outage")


def test_stopped_daemon(daemons, hosts):
    running = daemons.start_loop("stopped", hosts, FOR_EVER)
    daemons.signal(hosts[2], "STOP")
    try:
        for host, rank in zip(hosts[:2], running[:2], strict=True):
            ends_with_error(host, rank, hosts[2])
        ends_with_error(hosts[2], running[2], "the daemon has not been heard")
    finally:
        daemons.signal(hosts[2], "CONT")
    run_next_job(daemons, hosts, "after-stop")


def test_killed_daemon(daemons, hosts):
    running = daemons.start_loop("killed", hosts, FOR_EVER)
    daemons.signal(hosts[2], "KILL")
    for host, rank in zip(hosts[:2], running[:2], strict=True):
        ends_with_error(host, rank, hosts[2])
    ends_with_error(hosts[2], running[2], "daemon")
    daemons.start(hosts[2])
    daemons.wait_ready(hosts[2])
    run_next_job(daemons, hosts, "after-restart")
