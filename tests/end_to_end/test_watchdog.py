"""The service manager is told that the daemon is alive while all of its threads that jobs wait for turn: one that stands still is noticed, however idle the daemon."""

import os
import socket
import sys
import tempfile
import time

from daemons import Daemons, StoppedThread, expect

WATCHDOG = 2.0
THREADS = ("lane", "lane1", "tl-prepare", "tl-control", "tl-sessions")


def heard(notify, seconds):
    """How often the daemon says that it is alive."""
    count, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        notify.settimeout(max(0.01, end - time.monotonic()))
        try:
            count += notify.recv(4096) == b"WATCHDOG=1"
        except TimeoutError:
            pass
    return count


def main():
    with tempfile.TemporaryDirectory(prefix="tl-watchdog-") as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = os.path.join(folder, "notify")
        notify.bind(path)
        os.environ.update(NOTIFY_SOCKET=path, WATCHDOG_USEC=str(int(WATCHDOG * 1e6)))
        with Daemons(1, settings={"lanes": "2"}) as daemons:
            expect(heard(notify, 2 * WATCHDOG) >= 4, "an idle daemon does not say that it is alive")
            for thread in THREADS:
                with StoppedThread(daemons.pid("h0"), thread):
                    heard(notify, WATCHDOG)  # half of it is patience
                    expect(heard(notify, WATCHDOG) == 0, f"the daemon says that it is alive though {thread} stands still")
                    expect(f"the thread {thread.removeprefix('tl-')} stands still" in daemons.log("h0"), daemons.log("h0"))
                expect(heard(notify, 2 * WATCHDOG) >= 2, f"the daemon does not say that {thread} turns again")
    print(f"threads that stand still, each noticed: {', '.join(THREADS)}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
