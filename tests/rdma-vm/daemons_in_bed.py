"""Daemons on the hosts of a bed, and ranks that use them. Standard library only."""

import json
import os
import re
import secrets
import time

from bed import IMAGE

BUILD = os.path.dirname(IMAGE)
BIN = os.path.join(BUILD, "bin")
PYTHON = os.path.join(BUILD, "venv", "bin", "python")
HERE = os.path.dirname(os.path.abspath(__file__))
MESSAGE = os.path.join(BUILD, "tests", "message")


def read(path):
    """None when there is no such file."""
    try:
        with open(path) as file:
            return file.read()
    except FileNotFoundError:
        return None


class NotInTime(AssertionError):
    pass


def wait_until(condition, timeout, complaint):
    end = time.monotonic() + timeout
    while not condition():
        if time.monotonic() >= end:
            raise NotInTime(complaint())
        time.sleep(0.05)


class Daemons:
    """One daemon on every host, or on those named, started when entered and stopped when left: Daemons(bed, "auto", port=7200). Several of them can be up,
    with ports 100 apart; `name` tells them apart. They use `rails` of the bed's, from `first_rail` on. `preload`: a library that they get in front of all
    others."""

    def __init__(self, bed, transport, port, settings=None, hosts=None, rails=1, first_rail=0, preload=None):
        self.bed, self.name, self.port, self.rails = bed, transport, port, slice(first_rail, first_rail + rails)
        self.environment = ["env", f"LD_PRELOAD={preload}"] if preload else []
        self.settings = {"transport": transport, **(settings or {})}
        self.hosts = [h["name"] for h in bed.about["hosts"]] if hosts is None else hosts
        self.children = {}
        self.write_fabric()

    def write_fabric(self):
        with open(f"{self.bed.shared}/fabric.yaml") as file:
            fabric = file.read().replace("control_port: 7100", f"control_port: {self.port}").replace("data_port: 7110", f"data_port: {self.port + 10}")
        fabric = "".join(self.own_rails(line) if "addresses:" in line else line for line in fabric.splitlines(keepends=True))
        self.fabric = f"{self.bed.shared}/fabric-{self.port}.yaml"
        with open(self.fabric, "w") as file:
            file.write(fabric)

    def __enter__(self):
        for host in self.hosts:
            if host not in self.children:
                self.start(host)
        for host in self.hosts:
            self.wait_ready(host)
        return self

    def __exit__(self, *failure):
        for child in self.children.values():
            if child.poll() is None:
                child.terminate()
        for host, child in self.children.items():
            child.wait(timeout=30)
        if failure[0] is not None:
            self.print_logs()

    def own_rails(self, line):
        """Of the lists of addresses in a line of the fabric file."""
        return re.sub(r"\[(.*?)\]", lambda found: f"[{', '.join(found[1].split(', ')[self.rails])}]", line)

    def socket(self):
        return f"/run/{self.port}.sock"

    def configured(self, host):
        return f"{self.bed.shared}/{host}-{self.port}.yaml"

    def configuration(self, host, **settings):
        """Writes a daemon's file, and says where."""
        path = self.configured(host)
        everything = {"fabric": self.fabric, "host": host, "secret_key_file": f"keys/{host}.secret", "socket": self.socket(), **self.settings, **settings}
        with open(path, "w") as file:
            file.writelines(f"{key}: {value}\n" for key, value in everything.items())
        return path

    def start(self, host, before=(), configured=None):
        """`before`: words in front of the command; `configured`: another file than configuration() writes."""
        # Beside the fabric file the keys belong to root alone, in the guest too.
        command = [*(before or self.environment), f"{BIN}/tensorlaned", "--config", configured or self.configuration(host)]
        with open(self.log_path(host), "a") as log:
            self.children[host] = self.bed.start(host, *command, stderr=log)

    def log_path(self, host):
        return f"{self.bed.shared}/{host}-{self.port}.log"

    def log(self, host):
        """What its daemons have said until now."""
        return read(self.log_path(host)) or ""

    def print_logs(self):
        """Their ends."""
        for host in self.hosts:
            print(f"--- log of {self.name} {self.port} on {host}\n{self.log(host)[-5000:]}", flush=True)

    def pid(self, host):
        """A command of its shell that says it."""
        return f"pgrep -f '[t]ensorlaned --config .*/{host}-{self.port}.yaml'"

    def signal(self, host, name):
        self.bed.run(host, "sh", "-c", f"kill -{name} $({self.pid(host)})")

    def start_job(self, job, command, hosts):
        """One rank of a command's job on each of these hosts: the children, in the order of the ranks."""
        return [self.bed.start(host, "env", *(f"{key}={value}" for key, value in environment.items()), *command)
                for host, environment in zip(hosts, self.environments(job, hosts), strict=True)]

    def start_loop(self, job, hosts, seconds, tensor_bytes=400_000):
        """A job that sums a tensor again and again, and checks every element: its ranks, once all of them have had the first sum."""
        running = self.start_job(job, [MESSAGE, "loop", str(tensor_bytes), str(seconds), "0.0"], hosts)
        for rank in running:
            line = rank.stdout.readline()
            assert line == "running\n", f"{line}{rank.communicate()}"
        return running

    def environments(self, job, hosts):
        common = {"WORLD_SIZE": len(hosts), "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_ADDR": self.bed.rails(hosts[0])[self.rails.start], "MASTER_PORT": 29511,
                  "TENSORLANE_JOB": job, "TENSORLANE_JOB_SECRET": secrets.token_hex(16), "TENSORLANE_SOCKET": self.socket(), "TMPDIR": "/run"}
        return [{key: str(value) for key, value in {**common, "RANK": rank}.items()} for rank in range(len(hosts))]

    def wait_ready(self, host):
        ask = f"{BIN}/tensorlane status --json --socket {self.socket()} >/dev/null 2>&1"
        # Starting the command takes an emulated host half a second.
        asking = self.bed.start(host, "sh", "-c", f"until test -S {self.socket()}; do sleep 0.1; done; until {ask}; do sleep 0.2; done")
        wait_until(lambda: asking.poll() is not None or self.children[host].poll() is not None, 60, lambda: f"the daemon on {host} does not answer")
        asking.terminate()
        assert self.children[host].poll() is None, self.log(host)

    def status(self, host):
        return json.loads(self.bed.run(host, f"{BIN}/tensorlane", "status", "--json", "--socket", self.socket()))


def results(ranks):
    """What each of start_job()'s ranks wrote; fails unless all end well."""
    texts = [rank.communicate(timeout=90) for rank in ranks]
    assert all(rank.returncode == 0 for rank in ranks), texts
    return [out for out, _ in texts]


class Rank:
    """One rank on one host, as seen from here."""

    def __init__(self, host, path):
        self.host, self.path = host, path

    def output(self):
        return read(f"{self.path}.out") or ""

    def wait_for(self, line, timeout=60):
        """Until it has written that line; fails when it has ended without."""
        def seen():
            ended = read(f"{self.path}.status")
            if f"{line}\n" in self.output():
                return True
            assert ended is None, f"{self.host} has ended with {ended}: {self.output()}"
            return False
        wait_until(seen, timeout, lambda: f"{self.host} does not write {line!r}: {self.output()}")

    def end(self, timeout=90):
        """(what it wrote, its exit status)."""
        wait_until(lambda: read(f"{self.path}.status") is not None, timeout, lambda: f"{self.host} does not end: {self.output()}")
        return self.output(), int(read(f"{self.path}.status"))

    def result(self, timeout=90):
        """The JSON line it ends with; fails unless it ends well."""
        out, status = self.end(timeout)
        assert status == 0, f"{self.host} has ended with {status}: {out}"
        return json.loads(out.splitlines()[-1])


class Ranks:
    """One rank of a job on each of some hosts, again and again; what they need is imported once (ranks.py)."""

    def __init__(self, bed, hosts):
        self.bed, self.hosts, self.number = bed, hosts, 0
        self.children = {}
        for host in hosts:
            os.mkdir(self.folder(host))
            self.children[host] = bed.start(host, "env", "OMP_NUM_THREADS=1", "HOME=/run", PYTHON, os.path.join(HERE, "ranks.py"), self.folder(host))

    def folder(self, host):
        return f"{self.bed.shared}/ranks-{host}"

    def wait_ready(self):
        for host, child in self.children.items():
            line = child.stdout.readline()
            assert line == "ready\n", f"{host}: {line}{child.communicate(timeout=30)[1]}"

    def train(self, daemons, job, iterations):
        """Starts training as a job of that name: a Rank for each host."""
        ranks = []
        for host, environment in zip(self.hosts, daemons.environments(job, self.hosts), strict=True):
            path = f"{self.folder(host)}/{self.number}"
            described = {"iterations": iterations, "environment": environment}
            with open(f"{path}.new", "w") as file:
                json.dump(described, file)
            os.rename(f"{path}.new", f"{path}.job")
            ranks.append(Rank(host, path))
        self.number += 1
        return ranks
