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
GUEST = 64002


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
    said = run("-n", "1", "--set", "foo=bar", "--", "true", status=2).splitlines()
    assert "tensorlane: the last lines of the log of host h0's daemon:" in said and any(line.startswith("  ") and "unknown key 'foo'" in line for line in said), said
    assert said[-1] == "tensorlane: error: its daemon did not start: host h0: mend what its log says, above", said


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


def interrupted():
    """Ctrl-C ends everything, and one line says so: nothing of ranks that died or of checkpoints."""
    child = subprocess.Popen([TENSORLANE, "run", "-n", "2", "--name", f"calm{os.getpid()}", "--", "sh", "-c", f"while {EXAMPLE}; do :; done"], stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True)
    while not child.stdout.readline().startswith("[rank"):
        assert child.poll() is None, "it did not start"
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=30)[0]
    ours = [line for line in said.splitlines() if not line.startswith("[rank")]
    assert child.returncode == 130, f"{child.returncode}: {said}"
    assert ours == [f"tensorlane: stopped by signal 2 (Interrupt): job 'calm{os.getpid()}', its 2 ranks and 2 daemons"], said


def killed():
    """A run that is killed leaves its folder, with keys in it, until the next run begins, whatever of its program lives on; one that goes on keeps its own."""
    name = f"dead{os.getpid()}"
    program = "setsid sleep 20 >/dev/null & echo $TENSORLANE_SOCKET; exec sleep 60"
    child = subprocess.Popen([TENSORLANE, "run", "-n", "1", "--name", name, "--", "sh", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    folder = os.path.dirname(child.stdout.readline())
    assert os.path.basename(folder) == name, folder
    run("-n", "1", "--", "true")
    assert os.path.isdir(os.path.join(folder, "keys")), "a run has removed the folder of another one"
    child.kill()
    child.wait()
    child.stdout.close()
    assert os.path.isdir(os.path.join(folder, "keys")), "the test shows nothing: a killed run leaves no folder"
    run("-n", "1", "--", "true")
    assert not os.path.exists(folder), os.listdir(folder)


class Several:
    """with Several(folder, ...) as runs: runs side by side, each with a program that works and then waits for the others."""

    def __init__(self, folder, *each):
        """By run: its arguments, and its user or None."""
        self.go = os.path.join(folder, f"go{time.monotonic_ns()}")
        program = f"{EXAMPLE} && while [ ! -e {self.go} ]; do sleep 0.05; done"
        self.children = [subprocess.Popen([TENSORLANE, "run", *arguments, "--", "sh", "-c", program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, user=user, cwd="/")
                         for arguments, user in each]

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        for child in self.children:
            child.terminate()  # what has ended is left alone
        for child in self.children:
            child.communicate(timeout=60)

    def metrics(self):
        """Where each serves them, once the daemons of all are up."""
        found = []
        for child in self.children:
            said = ""
            while (address := re.search(r"metrics of h0 at (\S+)\n.*TENSORLANE_SOCKET=/\S+\n", said)) is None:
                line = child.stdout.readline()
                assert line, f"it did not start: {said}"
                said += line
            found.append(address[1])
        return found

    def end(self):
        with open(self.go, "w"):
            pass
        for child in self.children:
            said = child.communicate(timeout=60)[0]
            assert child.returncode == 0, f"{child.args}: {said}"


def at_once(folder):
    """Runs that start at the same moment have ports of their own, whoever starts them."""
    os.chmod(folder, 0o755)
    users = (None, GUEST) if os.geteuid() == 0 else (None, None)
    with Several(folder, *((("-n", "2"), user) for user in users * 3)) as runs:
        assert len(set(runs.metrics())) == 6
        runs.end()


def first_ports(folder):
    """Runs whose first ports differ have metrics of their own, and a block of ports is one run's."""
    with Several(folder, (("-n", "2", "--first-port", "17140"), None), (("-n", "2", "--first-port", "17180"), None)) as runs:
        first, second = runs.metrics()
        assert first != second, first
        assert "another command has the ports from 17140 on" in run("-n", "1", "--first-port", "17140", "--", "true", status=1)
        runs.end()
    assert "no 100 ports from 65500 on" in run("-n", "1", "--first-port", "65500", "--", "true", status=2)


def main():
    with tempfile.TemporaryDirectory() as folder:
        folder = os.path.realpath(folder)
        for part, arguments in ((refusals, ()), (files, (folder,)), (complaints, (folder,)), (dead_daemon, ()), (closed_pipe, ()), (interrupted, ()), (killed, ()), (at_once, (folder,)), (first_ports, (folder,))):
            part(*arguments)
            print(f"{part.__name__}: as it must be", flush=True)


if __name__ == "__main__":
    sys.exit(main())
