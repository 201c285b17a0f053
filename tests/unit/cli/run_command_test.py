"""`tensorlane run` does what it was told or says why not, and leaves what a person needs to find out what went wrong. On loopback."""

import glob
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

TENSORLANE = os.path.abspath(sys.argv[1])
EXAMPLE = os.path.join(os.path.dirname(TENSORLANE), "tensorlane-example-allreduce")


def run(*arguments, cwd=None, status=0):
    done = subprocess.run([TENSORLANE, "run", *arguments], capture_output=True, text=True, timeout=60, cwd=cwd)
    assert done.returncode == status, f"{arguments}: {done}"
    return done.stdout + done.stderr


def refusals():
    """Usage and configuration are exit status 2; another one would be taken for a failure of the job."""
    for arguments, words in ((("-n", "0", "--", "true"), "expected at least 1 rank"),
                             (("-n", "1", "--lab", "nosuchlab", "--", "true"), "no lab 'nosuchlab'"),
                             (("-n", "1", "--lab", "nosuchlab", "--hosts", "local", "--", "true"), "leave out one of them"),
                             (("-n", "1", "--speed", "1 Gbit/s", "--", "true"), "loopback has no ports"),
                             (("-n", "1", "--policy", "fifo", "--", "true"), "loopback has no ports"),
                             (("-n", "1", "--", "nosuchcommand"), "cannot run 'nosuchcommand'"),
                             (("-n", "1", "--set", "foo=bar", "--", "true"), "unknown key 'foo'"),
                             (("-n", "1", "--pattern", "rings", "--", "true"), "expected ring"),
                             (("-n", "1", "--timeline", "/proc/no/folder", "--", "true"), "cannot write to the folder")):
        said = run(*arguments, status=1 if "no lab" in words else 2)
        assert words in said, f"{arguments}: {said}"


def files(folder):
    """They count from the caller's folder, are made, and stay."""
    said = run("-n", "2", "--timeline", "traces", "--logs", "logs", "--set", "record=.", "--", EXAMPLE, cwd=folder)
    assert "warnings and errors" not in said, said
    for host in ("h0", "h1"):
        with open(os.path.join(folder, "traces", host + ".json")) as file:
            assert any(event.get("ph") == "X" for event in json.load(file)), f"an empty timeline of {host}"
        assert os.path.getsize(os.path.join(folder, "logs", host + ".log")) > 0
    assert glob.glob(os.path.join(folder, "*h1*")), f"no engine log: {os.listdir(folder)}"


def complaints(folder):
    """What a daemon could not do is said where the user looks."""
    said = run("-n", "1", "--set", "record=no/such/folder", "--", EXAMPLE, cwd=folder)
    assert "warnings and errors of the daemons:" in said and "no engine log" in said and folder + "/no/such/folder" in said, said


def dead_daemon():
    """A daemon that dies is named, and the logs are kept, without the keys."""
    child = subprocess.Popen([TENSORLANE, "run", "-n", "2", "--detection", "1 s", "--", "sh", "-c", f"while {EXAMPLE}; do :; done; exit 3"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    folder = None
    deadline = time.monotonic() + 30
    victim = None
    while victim is None and time.monotonic() < deadline:
        for line in glob.glob("/proc/[0-9]*/cmdline"):
            try:
                with open(line) as file:
                    words = file.read().split("\0")
                with open(os.path.join(os.path.dirname(line), "stat")) as file:
                    parent = int(file.read().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == child.pid and words[-2].endswith("/h1.yaml"):
                victim, folder = int(line.split("/")[2]), os.path.dirname(words[-2])
        time.sleep(0.05)
    time.sleep(1)
    os.kill(victim, signal.SIGKILL)
    said = child.communicate(timeout=60)[0]
    assert child.returncode != 0 and "the daemon of host h1 ended with status 137" in said, said
    kept = re.search(r"the daemons' logs are in (\S+)", said)
    assert kept and sorted(os.listdir(kept[1])) == ["h0.log", "h1.log"] and not os.path.exists(folder), said


def closed_pipe():
    """`| head` ends the run as Ctrl-C does, and its name can be used again."""
    name = f"pipe{os.getpid()}"
    for _ in range(2):
        child = subprocess.Popen([TENSORLANE, "run", "-n", "1", "--name", name, "--", "sh", "-c", "while echo line; do sleep 0.05; done"], stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, text=True)
        assert child.stdout.readline() == "line\n"
        child.stdout.close()
        said = child.stderr.read()
        child.stderr.close()
        assert child.wait(timeout=30) == 128 + signal.SIGPIPE and "exists" not in said, f"{child.returncode}: {said}"


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        for part, arguments in ((refusals, ()), (files, (folder,)), (complaints, (folder,)), (dead_daemon, ()), (closed_pipe, ())):
            part(*arguments)
            print(f"{part.__name__}: as it must be", flush=True)


if __name__ == "__main__":
    sys.exit(main())
