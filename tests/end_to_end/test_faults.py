"""Faults in the middle of a job of four hosts: kill -9 and SIGSTOP of a daemon and of a rank, and a cut in one direction. Every surviving rank fails with an error
that names the cause within the detection time, other jobs and daemons live on, and nothing is left behind."""

import os
import re
import signal
import subprocess
import sys
import time

from daemons import BUILD, Daemons, Lab, expect, require_namespaces

MESSAGE = f"{BUILD}/tests/message"
DETECTION = 1.0
# From the fault to the last rank's exit: detection, and the time a process takes to leave on a busy machine.
ALLOWED = DETECTION + 0.5


def start_job(daemons, name, hosts=None, per_host=1, seconds=60):
    ranks = daemons.job(name, [MESSAGE, "loop", str(1 << 20), str(seconds), "0.5"], hosts=hosts, per_host=per_host)
    for rank in ranks:
        expect(rank.stdout.readline() == "running\n", "the job did not start")
    return ranks


def expect_failure(ranks, dead, since, named, allowed=ALLOWED):
    """Every rank but `dead` ends with status 1 and one error line that matches, in time. Returns the slowest."""
    slowest = 0.0
    for index, rank in enumerate(ranks):
        if index in dead:
            continue
        text, _ = rank.communicate(timeout=20)
        took = time.monotonic() - since
        slowest = max(slowest, took)
        expect(rank.returncode == 1, f"rank {index} ended with status {rank.returncode}: {text}")
        lines = [line for line in text.splitlines() if line.startswith("tensorlane: error: ")]
        expect(len(lines) == 1 and re.search(named, lines[0]), f"rank {index} says {text!r}, expected one error that matches {named!r}")
        expect(took <= allowed, f"rank {index} failed after {took:.2f} s, allowed are {allowed} s")
    return slowest


def expect_works(daemons, name, hosts):
    ranks = daemons.job(name, [MESSAGE, "loop", "65536", "0.2", "0.5"], hosts=hosts)
    for index, rank in enumerate(ranks):
        text, _ = rank.communicate(timeout=20)
        expect(rank.returncode == 0, f"the next job failed: rank {index}: {text}")


def daemon_fault(number):
    """kill -9 or SIGSTOP of the daemon of h2."""
    with Daemons(4, settings={"detection": "1 s"}) as daemons:
        other = start_job(daemons, "other", hosts=["h0", "h1"])
        ranks = start_job(daemons, "job")
        since = time.monotonic()
        os.kill(daemons.pid("h2"), number)
        # The clients of the daemon itself see its socket close, or nothing at all while it is stopped.
        dead = {2} if number == signal.SIGSTOP else set()
        named = r"h2|daemon" if number == signal.SIGKILL else r"host h2 "
        slowest = expect_failure(ranks, dead, since, named)
        for rank in other:
            expect(rank.poll() is None, "the job that does not use h2 has noticed")
        if number == signal.SIGSTOP:
            os.kill(daemons.pid("h2"), signal.SIGCONT)
            text, _ = ranks[2].communicate(timeout=10)
            expect(ranks[2].returncode == 1 and "tensorlane: error: " in text, f"the rank of the stopped daemon: {ranks[2].returncode} {text}")
            expect_works(daemons, "next", ["h0", "h1", "h2", "h3"])
        else:
            expect_works(daemons, "next", ["h0", "h1", "h3"])
            daemons.children["h2"].wait()
            daemons.start("h2")
            daemons.wait_ready("h2")
            expect_works(daemons, "again", ["h0", "h1", "h2", "h3"])
        return slowest


def rank_fault(number):
    """kill -9 or SIGSTOP of rank 1, one of two on its host."""
    with Daemons(4, settings={"detection": "1 s"}) as daemons:
        ranks = start_job(daemons, "job", hosts=["h0", "h1"], per_host=2)
        since = time.monotonic()
        os.kill(ranks[1].pid, number)
        slowest = expect_failure(ranks, {1}, since, r"rank 1 ")
        if number == signal.SIGSTOP:
            os.kill(ranks[1].pid, signal.SIGKILL)
        ranks[1].wait()
        expect_works(daemons, "next", ["h0", "h1", "h2", "h3"])
        return slowest


def one_way_cut():
    """Packets from h1 to h2 are dropped; those from h2 to h1 are not."""
    with Lab(policy="strict", hosts=4) as lab, Daemons(4, lab=lab, settings={"detection": "1 s"}) as daemons:
        ranks = start_job(daemons, "job")
        since = time.monotonic()
        lab.run("h2", "nft", f"add table inet cut; add chain inet cut in {{ type filter hook input priority 0; }}; "
                             f"add rule inet cut in ip saddr {lab.address('h1')} drop")
        slowest = expect_failure(ranks, set(), since, r"h1|h2")
        lab.run("h2", "nft", "delete table inet cut")
        expect_works(daemons, "next", ["h0", "h1", "h2", "h3"])
        return slowest


def leftovers():
    """Processes and shared memory of ours on this machine."""
    text = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    processes = [line for line in text.splitlines() if line.startswith((MESSAGE, f"{BUILD}/bin/tensorlaned"))]
    return processes + [name for name in os.listdir("/dev/shm") if "tensorlane" in name]


def main():
    before = leftovers()
    faults = {"daemon killed": lambda: daemon_fault(signal.SIGKILL), "daemon stopped": lambda: daemon_fault(signal.SIGSTOP),
              "rank killed": lambda: rank_fault(signal.SIGKILL), "rank stopped": lambda: rank_fault(signal.SIGSTOP)}
    if "--lab" in sys.argv:
        require_namespaces()
        faults = {"one-way cut": one_way_cut}
    for name, fault in faults.items():
        print(f"{name}: the last rank failed after {fault():.2f} s (detection time {DETECTION} s)", flush=True)
    expect(leftovers() == before, f"left behind: {set(leftovers()) - set(before)}")


if __name__ == "__main__":
    sys.exit(main())
