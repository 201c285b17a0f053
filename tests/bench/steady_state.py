"""What lane, engine and transport do for each slice in steady state, counted from outside: allocations, and system calls by strace, of the
rounds that lane_bench measures. As a test: fails when a slice costs more than the limits below. Standard library only.

    tests/bench/steady_state.py build/bin/lane_bench
"""

import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile

BEGIN, END = "/lane_bench/begin", "/lane_bench/end"
# A round costs some, whatever the number of its slices: a submission that wakes the lane, a completion that wakes the client.
PER_ROUND = 20
ROUNDS, ATTEMPTS = 10, 3


def measure(run, folder, bench, *options):
    """(lane_bench's line, system calls of the lanes' threads by name). `run(command)` returns what the command wrote; it sees `folder`."""
    log = f"{folder}/strace"
    line = json.loads(run(["strace", "-f", "-qq", "-o", log, bench, *options]))
    with open(log) as file:
        return line, count(file)


def count(lines):
    """System calls between the two marks, of threads that are not the one that marks."""
    calls = collections.Counter()
    marking = None
    for line in lines:
        thread, rest = line.split(maxsplit=1)
        if BEGIN in rest:
            marking = thread
        elif END in rest:
            return calls
        elif marking not in (None, thread) and (name := re.match(r"(\w+)\(", rest)):
            calls[name[1]] += 1
    raise AssertionError("no marks in what strace wrote")


def table(line, calls):
    slices = line["slices"]
    print(f"{line['transport']}, {line['slice_bytes']} bytes: {slices} slices, {line['frames']} frames, {line['allocations']} allocations; for each slice:",
          ", ".join(f"{name} {n / slices:.2f}" for name, n in calls.most_common()), flush=True)


# For each slice; one call more for each breaks every one of these. What is not named costs nothing.
TCP = {"sendmsg": 0.9, "recvmsg": 1.5, "epoll_wait": 1, "ioctl": 0.9, "timerfd_settime": 0.9, "setsockopt": 0.9}
# A post rings Soft-RoCE's doorbell by a write; everything else is the transport's look at its descriptors, by the clock.
RDMA = {"write": 1}
# For each second and lane: descriptors are looked at every millisecond, the thread's processor time every 100 ms.
RDMA_TIMED = {"epoll_wait": 1000, "clock_gettime": 20}
LANES = 2


def check(line, calls, rounds, limits, timed=None):
    """Nothing is allocated, and nothing is called beyond what is allowed, but for what each round costs."""
    slices = line["slices"]
    assert line["allocations"] == 0, f"{line['allocations']} allocations for {slices} slices"
    for name, n in calls.items():
        allowed = PER_ROUND * rounds + limits.get(name, 0) * slices + (timed or {}).get(name, 0) * LANES * line["seconds"]
        assert n <= allowed, f"{name}: {n} calls for {slices} slices, {n / slices:.2f} each; at most {allowed:.0f}"


def main(bench):
    if shutil.which("strace") is None:
        print("skipped: no strace: run deploy/install-deps packages")
        return 77
    if subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], capture_output=True).returncode != 0:
        print("skipped: strace may not trace: this container or kernel forbids ptrace")
        return 77
    # On a busy machine lanes may wake for every frame; that passes, one call more for each slice does not.
    for attempt in range(ATTEMPTS):
        with tempfile.TemporaryDirectory() as folder:
            line, calls = measure(run_here, folder, bench, "--slice-bytes", "4096", "--slices", "256", "--rounds", str(ROUNDS), "--warm-up", "10")
        table(line, calls)
        try:
            check(line, calls, ROUNDS, TCP)
            return 0
        except AssertionError as failure:
            print(f"attempt {attempt + 1}: {failure}", flush=True)
    return 1


def run_here(command):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=100).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
