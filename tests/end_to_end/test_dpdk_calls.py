"""The system calls of a daemon that drives a port itself, counted by strace while a job keeps it busy: beside those of the driver (DPDK's packet sockets kick the kernel by
sendto, and look at their rings by poll) there is none for each packet, only those of turns and of operations of clients.

    test_dpdk_calls.py BUILD"""

import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from daemons import Daemons, expect, require_namespaces, skip
from dpdk_lab import lines_of, start_loop
from lab_harness import Lab

HOSTS = ("h0", "h1")
SIZE = 8 << 20
SECONDS = 4
DRIVER = {"sendto", "poll"}
MOST_OF_DRIVER, MOST = 0.5, 0.2  # calls for each packet; turns that find nothing to do have some of the others, too


def packets(lab, host):
    """That the host's NIC has sent and received."""
    return sum(int(number) for number in lab.run(host, "sh", "-c", "cat /sys/class/net/eth0/statistics/[rt]x_packets").split())


def count_calls(pid, seconds):
    """By name; of the daemon's lane alone, which moves the packets."""
    lane = next(tid for tid, name in threads(pid) if name == "lane")
    with tempfile.NamedTemporaryFile("r") as file:
        tracer = subprocess.Popen(["strace", "-c", "-o", file.name, "-p", lane], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        expect("attached" in tracer.stderr.readline(), "strace does not trace the daemon")
        time.sleep(seconds)
        tracer.send_signal(signal.SIGINT)
        tracer.communicate(timeout=10)
        return {name: int(calls) for calls, name in re.findall(r"^\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)(?:\s+\d+)?\s+(\w+)$", file.read(), re.MULTILINE) if name != "total"}


def threads(pid):
    for tid in subprocess.run(["ls", f"/proc/{pid}/task"], capture_output=True, text=True, check=True).stdout.split():
        with open(f"/proc/{pid}/task/{tid}/comm") as file:
            yield tid, file.read().strip()


def main():
    require_namespaces()
    if shutil.which("strace") is None or subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        skip("needs strace, and to be allowed to trace")
    with Lab(hosts=2, speed="10 Gbit/s") as lab, Daemons(2, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk"}) as daemons:
        ranks = start_loop(daemons, "busy", SIZE, 60)
        time.sleep(1)
        before = packets(lab, "h0")
        calls = count_calls(daemons.pid("h0"), SECONDS)
        moved = packets(lab, "h0") - before
        ranks[0].terminate()
        lines_of(ranks, 30)
    others = {name: count for name, count in calls.items() if name not in DRIVER}
    print(f"{moved} packets; calls of the driver {({name: calls[name] for name in DRIVER if name in calls})}, others {others}: {sum(others.values()) / moved:.4f} for each packet", flush=True)
    driver = sum(calls.values()) - sum(others.values())
    expect(moved > 10000 and driver < MOST_OF_DRIVER * moved and sum(others.values()) < MOST * moved, "too many system calls")


if __name__ == "__main__":
    sys.exit(main())
