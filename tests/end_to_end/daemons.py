"""What the end-to-end tests share: daemons on loopback or in a lab, ranks that use them, and what must not be left behind. Standard library only."""

import concurrent.futures
import ctypes
import glob
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time

BUILD = os.path.abspath(sys.argv[1])
BIN = os.path.join(BUILD, "bin")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "lab"))
sys.argv[1] = os.path.join(BIN, "tensorlane")
from lab_harness import Lab, require_namespaces, skip, star, two_classes  # noqa: E402,F401  (tests take them from here)

PYTHON = os.path.join(BUILD, "venv", "bin", "python")
READY_SECONDS = 20


def first_port():
    """Control and data ports of this process's daemons: apart from those of other tests that run now."""
    return 12000 + os.getpid() % 390 * 50


class Daemons:
    """with Daemons(4, settings={"detection": "1 s"}) as daemons: ... One daemon per host; hosts are h0, h1, ...
    In a setting, "{host}" is the host's name, "{address}" its address and "{folder}" a folder that goes with the daemons."""

    def __init__(self, hosts, lab=None, settings=None, port=None, classes="greenfield", rails=1, network=0, machines=None, descriptors=None, of_host=None, dpdk=(), ahead=None):
        self.lab = lab
        self.settings = dict(settings or {})
        self.port = port or first_port()
        self.classes = classes
        self.network = network  # of loopback: others have their own
        self.rails = rails  # of each host; in a lab the first ones
        self.machines = machines  # by host: its `local` address
        self.ahead = ahead or {}  # by host: seconds that its steady clocks, those of its ranks as well, are ahead of this process's
        self.descriptors = descriptors  # that a daemon may have open
        self.of_host = {name: dict(own) for name, own in (of_host or {}).items()}  # by name: settings of that host's own
        for name in dpdk:  # hosts with a packet port beside the kernel's: in a lab on the same NIC
            own = self.of_host.setdefault(name, {})
            if "dpdk" not in own:
                own["dpdk"] = f"{{devices: ['net_af_packet0,iface={self.device(name)},qdisc_bypass=0']}}"
        self.dpdk = set(dpdk)
        self.names = [f"h{i}" for i in range(hosts)]
        self.secret = secrets.token_hex(16)
        self.children = {}
        self.ranks = []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="tl-e2e-")
        try:
            self.write_fabric()
            for name in self.names:
                self.start(name)
            for name in self.names:
                self.wait_ready(name)
        except BaseException:
            self.__exit__(*sys.exc_info())
            raise
        return self

    def __exit__(self, *failure):
        for child in self.ranks + list(self.children.values()):
            if child.poll() is None:
                child.send_signal(signal.SIGCONT)
                child.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        for child in self.ranks + list(self.children.values()):
            try:
                child.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
        if failure[0] is not None:
            for name in self.children:
                print(f"--- log of {name}\n{self.log(name)[-3000:]}", file=sys.stderr)
        shutil.rmtree(self.folder)

    def address(self, name):
        return self.lab.address(name) if self.lab else f"127.0.{1 + self.network}.{10 + int(name[1:])}"

    def addresses(self, name):
        if self.rails == 1:
            return self.address(name)
        mine = self.lab.rails(name) if self.lab else [f"127.{rail}.{1 + self.network}.{10 + int(name[1:])}" for rail in range(self.rails)]
        return "[" + ", ".join(mine[:self.rails]) + "]"

    def device(self, name):
        """The host's NIC, in a lab."""
        return next(port["device"] for port in self.lab.about["ports"] if port["node"] == name)

    def dpdk_address(self, name):
        """Beside that of the kernel."""
        first, _, last = (self.address(name) if self.lab else f"10.77.0.{name[1:]}").rpartition(".")
        return f"{first}.{100 + int(last)}"

    def port_of(self, name):
        return f", dpdk: {self.dpdk_address(name)}" if name in self.dpdk else ""

    def machine(self, name):
        return f", local: {self.machines[self.names.index(name)]}" if self.machines else ""

    def write_fabric(self):
        lines = [f"classes: {self.classes}", "hosts:"]
        for name in self.names:
            keys = json.loads(subprocess.run([os.path.join(BIN, "tensorlane"), "make-key", "--json"], capture_output=True, text=True, check=True).stdout)
            path = os.path.join(self.folder, name + ".secret")
            with open(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
                file.write(keys["secret_key"] + "\n")
            lines.append(f"  - {{name: {name}, addresses: {{tcp: {self.addresses(name)}{self.machine(name)}{self.port_of(name)}}}, control_port: {self.port}, data_port: {self.port + 10}, "
                         f"public_key: {json.dumps(keys['public_key'])}}}")
        if self.lab:
            speed = next(p["bits_per_second"] for p in self.lab.about["ports"])
            lines += ["switches:", *(f"  - {{name: s{rail}}}" for rail in range(self.rails)), "links:"]
            lines += [f"  - {{from: {name}, to: s{rail}, speed: {speed // 1000000} Mbit/s}}" for name in self.names for rail in range(self.rails)]
        with open(os.path.join(self.folder, "fabric.yaml"), "w") as file:
            file.write("\n".join(lines) + "\n")

    def on_host(self, name, command):
        ahead = self.ahead.get(name, 0)
        clocks = ["unshare", "--time", f"--monotonic={ahead}", f"--boottime={ahead}"] if ahead else []
        return self.lab.command(name, *clocks, *command) if self.lab else [*clocks, *command]

    def start(self, name):
        settings = {"fabric": "fabric.yaml", "host": name, "secret_key_file": name + ".secret", "socket": self.socket(name), **self.settings, **self.of_host.get(name, {})}
        config = os.path.join(self.folder, name + ".yaml")
        with open(config, "w") as file:
            file.writelines(f"{key}: {value}\n".replace("{host}", name).replace("{folder}", self.folder).replace("{address}", self.address(name)) for key, value in settings.items())
        log = open(os.path.join(self.folder, name + ".log"), "a")
        limited = ["prlimit", f"--nofile={self.descriptors}"] if self.descriptors else []
        self.children[name] = subprocess.Popen(self.on_host(name, [*limited, os.path.join(BIN, "tensorlaned"), "--config", config]), stdout=log, stderr=log)
        log.close()

    def wait_ready(self, name):
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            if self.children[name].poll() is not None:
                raise AssertionError(f"the daemon of {name} ended: {self.log(name)}")
            done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", self.socket(name)], capture_output=True, text=True)
            if done.returncode == 0:
                return
            time.sleep(0.05)
        raise AssertionError(f"the daemon of {name} does not answer: {self.log(name)}")

    def status(self, name):
        done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", self.socket(name)], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def socket(self, name):
        return os.path.join(self.folder, name + ".sock")

    def log(self, name):
        with open(os.path.join(self.folder, name + ".log")) as file:
            return file.read()

    def pid(self, name):
        """Of the daemon itself; in a lab its parent is what entered the namespace (which executes it, so it is the same process)."""
        return self.children[name].pid

    def environment(self, job, rank, world, host, local_rank=0, local_world=1, leader=None):
        return {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(world), "LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(local_world),
                "MASTER_ADDR": self.address(leader or self.names[0]), "MASTER_PORT": "29511", "TORCHELASTIC_RUN_ID": job,
                "TENSORLANE_SOCKET": self.socket(host), "TENSORLANE_JOB_SECRET": self.secret, "OMP_NUM_THREADS": "1"}

    def rank(self, job, rank, world, host, command, leader=None, local_rank=0, local_world=1, env=None, **options):
        """Starts one rank of a job on a host."""
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.STDOUT)
        environment = {**self.environment(job, rank, world, host, local_rank, local_world, leader), **(env or {})}
        child = subprocess.Popen(self.on_host(host, command), env=environment, text=True, **options)
        self.ranks.append(child)
        return child

    def job(self, name, command, hosts=None, per_host=1, **options):
        """Starts a job with `per_host` ranks on each host, ranks in the order of hosts."""
        hosts = hosts or self.names
        world = len(hosts) * per_host
        return [self.rank(name, h * per_host + r, world, host, command, leader=hosts[0], local_rank=r, local_world=per_host, **options)
                for h, host in enumerate(hosts) for r in range(per_host)]


def outputs(ranks, timeout):
    """What each rank printed, and its exit status. All must end within the time. They are read together: one that nobody reads would block when its pipe is full."""
    with concurrent.futures.ThreadPoolExecutor(len(ranks)) as readers:
        texts = list(readers.map(lambda child: child.communicate(timeout=timeout)[0], ranks))
    return [(text, child.returncode) for text, child in zip(texts, ranks)]


def expect(condition, message):
    if not condition:
        raise AssertionError(message)


def wait_for(condition, missing, seconds=20):
    """The first answer of `condition` that counts as true. `missing` is said where there is none in time: a text, or what makes one then."""
    deadline = time.monotonic() + seconds
    while not (answer := condition()):
        expect(time.monotonic() < deadline, f"not within {seconds:.1f} s: {missing() if callable(missing) else missing}")
        time.sleep(0.05)
    return answer


class StoppedThread:
    """with StoppedThread(pid, "lane"): the thread stands still, all others turn."""

    SEIZE, INTERRUPT, DETACH = 0x4206, 0x4207, 17

    def __init__(self, pid, name):
        self.libc = ctypes.CDLL(None, use_errno=True)
        self.libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        self.tid = next(int(task.split("/")[-1]) for task in glob.glob(f"/proc/{pid}/task/*") if open(task + "/comm").read().strip() == name)

    def __enter__(self):
        for request in (self.SEIZE, self.INTERRUPT):
            expect(self.libc.ptrace(request, self.tid, None, None) == 0, f"ptrace: {os.strerror(ctypes.get_errno())}")
        os.waitpid(self.tid, 0x40000000)  # __WALL
        return self

    def __exit__(self, *failure):
        self.libc.ptrace(self.DETACH, self.tid, None, None)
