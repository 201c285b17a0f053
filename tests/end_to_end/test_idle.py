"""An idle daemon uses less than 1% of a core: with a job that has joined and does nothing, and with no job at all. All threads count."""

import os
import sys
import time

from daemons import BUILD, Daemons, expect, outputs

SECONDS = 5
ALLOWED = 0.01  # of a core


def cpu_seconds(pid):
    """Of all threads of the process, since it started."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main():
    with Daemons(3, settings={"metrics": "127.0.0.1:0"}) as daemons:
        ranks = daemons.job("idle", [f"{BUILD}/tests/message", "pause", str(1 << 20), str(SECONDS + 2), "0.9"], hosts=["h0", "h1"])
        for rank in ranks:
            expect(rank.stdout.readline() == "pausing\n", "the job did not start")
        time.sleep(0.5)  # the tail of what the job did
        before = {name: cpu_seconds(daemons.pid(name)) for name in daemons.names}
        since = time.monotonic()
        time.sleep(SECONDS)
        passed = time.monotonic() - since
        share = {name: (cpu_seconds(daemons.pid(name)) - before[name]) / passed for name in daemons.names}
        expect([j["state"] for j in daemons.status("h0")["jobs"]] == ["running"] and not daemons.status("h2")["jobs"],
               "h0 and h1 should have had a job, h2 none")
        for name, used in share.items():
            print(f"{name}: {used:.2%} of a core in {passed:.1f} s")
            expect(used < ALLOWED, f"the idle daemon of {name} used {used:.2%} of a core, allowed are {ALLOWED:.0%}")
        for text, status in outputs(ranks, timeout=20):
            expect(status == 0, f"the job failed after it had been idle: {text}")


if __name__ == "__main__":
    sys.exit(main())
