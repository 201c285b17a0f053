"""A daemon is stopped in the middle of a sum until its client gives up, and goes on: by then the client's buffer is the program's again, and nobody else's."""

import os
import signal
import subprocess
import sys
import time

from daemons import BUILD, Daemons, expect

BYTES = 128 << 20
TRIES = 5  # the sum may be done before the daemon is stopped


def attempt(daemons, number):
    """Whether the daemon was stopped in time."""
    ranks = daemons.job(f"job{number}", [f"{BUILD}/tests/gave_up", str(BYTES)], per_host=2, stdin=subprocess.PIPE)
    first = ranks[0]
    for rank in ranks:
        expect(rank.stdout.readline() == "posted\n", "the first sum failed")
    os.kill(daemons.pid("h0"), signal.SIGSTOP)
    said = first.stdout.readline()
    if said != "done\n":
        expect("has not been heard" in said and "do not use these buffers" not in said, said)
        expect(first.stdout.readline() == "written\n", "the program went on")
    os.kill(daemons.pid("h0"), signal.SIGCONT)
    time.sleep(1)  # in which the daemon used to write its sum
    for rank in ranks:
        text, _ = rank.communicate("\n", timeout=30)
        expect(rank.returncode == 0, text)
        if "overwritten" in text:
            expect("\n0 overwritten\n" in "\n" + text, text)
    return said != "done\n"


def main():
    with Daemons(1, settings={"detection": "1 s"}) as daemons:
        expect(any([attempt(daemons, number) for number in range(TRIES)]), f"the daemon was stopped too late {TRIES} times")
    print("no element was overwritten after the client had given up")


if __name__ == "__main__":
    sys.exit(main())
