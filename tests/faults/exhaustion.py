"""One user drives every limit of two daemons over its edge, case by case, while a job of another one runs whose every sum is checked. The first must be refused
with an error that names the limit and says what to do; the second must not notice: its sums are right, it can join and ask for the status as before, and its
iteration takes at most 1.3 times as long as beside as much processor time burned without the daemons, or what a fair share of them leaves where the first one
uses them within his limits.

    exhaustion.py BUILD [CASE...]

Blocks of attack and of burning alternate and their medians are compared, up to three times: what a noisy machine does to one block it does not do to all.
Needs root, to become two other users. Standard library only."""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
import traceback
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "end_to_end"))
import attacks  # noqa: E402
from daemons import BIN, BUILD, Daemons, expect, first_port, outputs, skip  # noqa: E402

MESSAGE = f"{BUILD}/tests/message"
ATTACKER, BYSTANDER = 3001, 3002
BLOCK_SECONDS, BLOCKS, ROUNDS = 1.0, 3, 3
BESIDE_A_BURNER, FAIR_SHARE = 1.3, 2.6
FILL_SECONDS = 40
NOISE_SECONDS = 0.0005  # that a median may differ by in any case

# Small, so that they are reached soon; the share of each of the two users is almost a quarter for sure.
SETTINGS = {"users": f"[{ATTACKER}, {BYSTANDER}]", "max_sessions": 24, "max_pending": 18, "memory_limit": "1024 MiB", "join_timeout": "60 s", "detection": "10 s"}


class Case:
    """What an attack is refused with (None: it stays within its limits), how much slower the bystander may become, and what else the daemons are told."""

    def __init__(self, refusal, slower=BESIDE_A_BURNER, settings=None, descriptors=None):
        self.refusal, self.slower, self.settings, self.descriptors = refusal, slower, settings or {}, descriptors


CASES = {
    "sessions": Case(r"sessions over what one user may have now: 1 needed, user 3001 has \d+ of max_sessions = 24, \d+ are kept for other users: .*max_sessions"),
    "joining": Case(r"sessions over what one user may have now: .* of max_sessions = 24"),
    "pending": Case(r"connections that have not said hello over what one user may have now: .* of max_pending = 18"),
    "descriptors": Case(r"descriptors over what one user may have now: .*LimitNOFILE", descriptors=256),
    "tensors": Case(r"tensors over what one user may have now: 128 needed, user 3001 has \d+ of max_tensors = 24000", settings={"max_tensors": 24000}),
    "scrapes": Case(None),
    "memory": Case(r"memory over what one user may have now: .* of memory_limit = 1024 MiB"),
    "scratch": Case(r"memory over what one user may have now: .* of memory_limit = 1024 MiB"),
    "names": Case(None),
    "status": Case(None, slower=FAIR_SHARE),
    "flood": Case(None, slower=FAIR_SHARE),
    "bulk": Case(None, slower=FAIR_SHARE),
}


def as_user(uid):
    return {"user": uid, "group": uid, "extra_groups": []}


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Helper:
    """Another user's process that runs function(orders, answers), two files: it reads a line and answers with one of JSON. It is a fork, because the other user
    may not be able to execute this Python."""

    def __init__(self, function, uid):
        orders, self._orders = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw"))
        self._answers, answers = (os.fdopen(fd, mode) for fd, mode in zip(os.pipe(), "rw"))
        self.pid = os.fork()
        if self.pid == 0:
            self._orders.close()
            status = 1
            try:
                os.setgroups([])
                os.setgid(uid)
                os.setuid(uid)
                function(orders, answers)
                status = 0
            except BaseException:  # whatever it is: this is the child, which must not run the test a second time
                traceback.print_exc()
            finally:
                os._exit(status)
        orders.close()
        answers.close()

    def tell(self, text):
        self._orders.write(text + "\n")
        self._orders.flush()

    def answer(self):
        line = self._answers.readline()
        expect(line, "a helper of the test has ended")
        return json.loads(line)

    def stop(self):
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


def burn(orders, answers):
    """Uses so much processor time, evenly over so many seconds."""
    for line in orders:
        wanted, seconds = map(float, line.split())
        pieces = max(1, int(seconds / 0.01))
        began, used = time.monotonic(), time.process_time()
        for i in range(1, pieces + 1):
            while time.process_time() - used < wanted * i / pieces and time.monotonic() - began < seconds:
                pass
            time.sleep(max(0.0, began + seconds * i / pieces - time.monotonic()))
        print("{}", file=answers, flush=True)


class Watched:
    """The other user's job on both hosts, and when its iterations began and how long they took."""

    def __init__(self, daemons):
        self.paths = [os.path.join(daemons.folder, f"bystander.{rank}") for rank in (0, 1)]
        self.files = [open(path, "w") for path in self.paths]
        self.ranks = [daemons.rank("bystander", rank, 2, daemons.names[rank], [MESSAGE, "watch", str(256 << 10), "3600", "0.5"], stdout=self.files[rank],
                                   stderr=subprocess.PIPE, **as_user(BYSTANDER)) for rank in (0, 1)]
        deadline = time.monotonic() + 30
        while not self.iterations():
            expect(time.monotonic() < deadline and self.ranks[0].poll() is None, "the bystander's job does not begin")
            time.sleep(0.05)

    def iterations(self):
        with open(self.paths[0]) as file:
            lines = file.read().split("\n")[:-1]
        return [tuple(map(float, line.split())) for line in lines if line[:1].isdigit()]

    def median(self, blocks):
        inside = [took for began, took in self.iterations() for first, last in blocks if first <= began < last]
        expect(inside, "the bystander's job stands still")
        return statistics.median(inside)

    def end(self):
        """Its sums were right to the end."""
        self.ranks[0].terminate()
        for rank in self.ranks:
            _, errors = rank.communicate(timeout=30)
            expect(rank.returncode == 0, f"the bystander's job ended with status {rank.returncode}: {errors}")
        for file in self.files:
            file.close()


def alternate(daemons, watched, attacker, burners):
    """The bystander's median beside the attack and beside burning, what the attack was refused with, and how often it got what it wanted."""
    attacks, rests, answer = [], [], {}
    pids = [daemons.pid(name) for name in daemons.names]

    def block(order, burned):
        """A block of the attacker's doing: when, his answer, and the processor time of the daemons."""
        before, began = sum(map(cpu_seconds, pids)), time.monotonic()
        attacker.tell(f"{order} {BLOCK_SECONDS}")
        for burner in burners if burned else []:
            burner.tell(f"{burned / len(burners)} {BLOCK_SECONDS}")
        said = attacker.answer()
        for burner in burners if burned else []:
            burner.answer()
        return (began, began + BLOCK_SECONDS), said, sum(map(cpu_seconds, pids)) - before

    _, _, idle = block("rest", 0.0)  # what the daemons use in a block without an attack
    for _ in range(BLOCKS):
        when, answer, used = block("go", 0.0)
        attacks.append(when)
        when, _, idle = block("rest", answer["cpu"] + max(0.0, used - idle))
        rests.append(when)
    return watched.median(attacks), watched.median(rests), answer


def compare(daemons, watched, attacker, burners, case, name):
    """How many times longer the bystander's iteration is beside the attack than beside burning, and the attacker's last answer."""
    for _ in range(ROUNDS):
        beside_attack, beside_burning, answer = alternate(daemons, watched, attacker, burners)
        if beside_attack <= case.slower * beside_burning + NOISE_SECONDS:
            return beside_attack / beside_burning, answer
    raise AssertionError(f"{name}: the bystander's iteration takes {1e3 * beside_attack:.2f} ms, and {1e3 * beside_burning:.2f} ms beside a burner")


def expect_nobody_else_notices(daemons, name, address):
    """While the attacker holds what he has, the other user joins as ever, has memory, and sees his own jobs; so does root, and the metrics are served."""
    began = time.monotonic()
    ranks = [daemons.rank("none", rank, 2, daemons.names[rank], [MESSAGE, "sum", str(1 << 20), "3", "0.5"], **as_user(BYSTANDER)) for rank in (0, 1)]
    for text, code in outputs(ranks, 60):
        expect(code == 0, f"{name}: the other user cannot work any more: {text}")
    for who, uid in (("root", 0), ("the bystander", BYSTANDER)):
        done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", daemons.socket("h0")], capture_output=True, text=True, timeout=20,
                              **as_user(uid))
        expect(done.returncode == 0, f"{name}: {who} is not told the status: {done.stderr}")
        jobs = [job["name"] for job in json.loads(done.stdout)["jobs"]]
        expect("bystander" in jobs, f"{name}: {who} does not see the bystander's job: {jobs}")
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
        page = answer.read().decode()
    expect("tensorlane_jobs" in page, f"{name}: no metrics: {page[:200]}")
    return time.monotonic() - began


def run(name, case):
    metrics = first_port() + 30
    with Daemons(2, settings={**SETTINGS, "metrics": f"{{address}}:{metrics}", **case.settings}, descriptors=case.descriptors) as daemons:
        os.chmod(daemons.folder, 0o755)
        watched = Watched(daemons)
        address = f"{daemons.address('h0')}:{metrics}"
        sockets = [daemons.socket(host) for host in daemons.names]
        attacker = Helper(lambda orders, answers: attacks.run(name, sockets, address, orders, answers), ATTACKER)
        burners = [Helper(burn, ATTACKER) for _ in range(2)]
        try:
            ratio, answer = compare(daemons, watched, attacker, burners, case, name)
            deadline = time.monotonic() + FILL_SECONDS
            while case.refusal and not answer["refused"] and time.monotonic() < deadline:  # a large limit takes a while to reach
                attacker.tell(f"go {BLOCK_SECONDS}")
                answer = attacker.answer()
            others = expect_nobody_else_notices(daemons, name, address)
        finally:
            for helper in (attacker, *burners):
                helper.stop()
        watched.end()
        for host in daemons.names:
            expect(daemons.children[host].poll() is None, f"{name}: the daemon of {host} has ended")
    print(f"{name}: {answer['made']} made, then {answer['refused']!r}; the bystander's iteration took {ratio:.2f} times that beside burning; others joined and "
          f"looked in {others:.1f} s", flush=True)
    if case.refusal is None:
        expect(answer["refused"] is None, f"{name}: refused: {answer['refused']}")
    else:
        expect(re.search(case.refusal, answer["refused"] or ""), f"{name}: refused with {answer['refused']!r}, not {case.refusal!r}")


def main():
    if os.geteuid() != 0:
        skip("needs root, to become two other users")
    for name in sys.argv[2:] or CASES:
        run(name, CASES[name])


if __name__ == "__main__":
    sys.exit(main())
