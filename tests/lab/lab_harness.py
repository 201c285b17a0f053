"""What the lab tests share: a lab that is always taken down, and plain-socket traffic with a DSCP. Standard library only."""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time

TENSORLANE = os.path.abspath(sys.argv[1])
SKIP = 77

URGENT, BULK, CONTROL = 43, 27, 51
MIB = 1 << 20


def skip(reason):
    print(f"SKIPPED {os.path.basename(sys.argv[0])}: {reason}", flush=True)
    sys.exit(SKIP)


def require_namespaces():
    if os.geteuid() != 0:
        skip("needs root")
    name = f"tl-probe{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        skip(f"cannot create a network namespace: {made.stderr.strip()}")
    subprocess.run(["ip", "netns", "delete", name], check=True)


def tensorlane(*arguments, check=True, timeout=30, **options):
    """Runs the command; with check, a failure shows what it said."""
    done = subprocess.run([TENSORLANE, *arguments], capture_output=True, text=True, timeout=timeout, **options)
    if check and done.returncode != 0:
        raise AssertionError(f"tensorlane {' '.join(arguments)}: exit status {done.returncode}: {done.stderr}")
    return done


def namespaces(prefix="tl-"):
    text = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    return sorted(line.split()[0] for line in text.splitlines() if line.startswith(prefix))


class Lab:
    """with Lab(hosts=3) as lab: ... The name is of this process, so that tests of two trees do not meet."""

    def __init__(self, policy="strict", hosts=None, speed="500 Mbit/s", config=None, owner=None, tag="", rails=1, routed=False):
        self.name = f"t{os.getpid()}{tag}"
        self.arguments = ["lab", "up", "--name", self.name, "--policy", policy, "--json"]
        if config is not None:
            with tempfile.NamedTemporaryFile("w", suffix=".yaml", delete=False) as file:
                file.write(config)
            self.file = file.name
            self.arguments += ["--config", self.file]
        else:
            self.file = None
            self.arguments += ["--hosts", str(hosts), "--speed", speed, "--rails", str(rails)]
        if routed:
            self.arguments.append("--routed")
        if owner is not None:
            self.arguments += ["--owner", str(owner)]
        self.children = []

    def up(self):
        """What `lab up` printed."""
        return tensorlane(*self.arguments).stdout

    def __enter__(self):
        self.about = json.loads(self.up())
        return self

    def __exit__(self, *failure):
        tensorlane("lab", "down", "--name", self.name)
        try:
            for child in self.children:
                child.wait(timeout=5)  # lab down ended them all
        finally:
            for child in self.children:
                child.kill()
        if self.file:
            os.unlink(self.file)

    def address(self, host):
        return next(h["address"] for h in self.about["hosts"] if h["name"] == host)

    def rails(self, host):
        """The host's addresses, one for each rail."""
        return next([rail["address"] for rail in h["rails"]] for h in self.about["hosts"] if h["name"] == host)

    def addresses(self, node, rail=0):
        """IPv4 and IPv6 of a host's rail or of a switch, in a routed lab."""
        switches = [s["addresses"] for s in self.about["switches"] if s["name"] == node]
        return switches[0] if switches else next(h["rails"][rail]["addresses"] for h in self.about["hosts"] if h["name"] == node)

    def shown(self):
        """What `lab show` says of it now."""
        return next(lab for lab in json.loads(tensorlane("lab", "show", "--json").stdout) if lab["name"] == self.name)

    def policy(self, policy, port=None):
        tensorlane("lab", "policy", policy, "--name", self.name, *(["--port", port] if port else []))

    def command(self, host, *command):
        return [TENSORLANE, "lab", "exec", host, "--name", self.name, "--", *command]

    def python(self, host, code, *arguments, **options):
        child = subprocess.Popen(self.command(host, sys.executable, "-c", code, *map(str, arguments)), text=True, **options)
        self.children.append(child)
        return child

    def run(self, host, *command):
        done = subprocess.run(self.command(host, *command), capture_output=True, text=True, timeout=30)
        assert done.returncode == 0, f"on {host}: {' '.join(command)}: exit status {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    # Traffic. One sink per host takes any connection: its DSCP is the port's last two digits, since an accepted socket takes the listener's.

    def start_sink(self, host, dscps):
        sink = self.python(host, SINK, *dscps, stdout=subprocess.PIPE)
        assert sink.stdout.readline() == "ready\n"

    def start_flood(self, host, to, dscp):
        return self.python(host, FLOOD, self.address(to), dscp)

    def message_times(self, host, to, dscp, size=MIB, count=15):
        """Seconds from the first byte sent to the answer to the last one, one message at a time."""
        child = self.python(host, MESSAGES, self.address(to), dscp, size, count, stdout=subprocess.PIPE)
        text, _ = child.communicate(timeout=30)
        times = [float(word) for word in text.split()]
        assert len(times) == count, "the receiver did not answer"
        return times

    def received_rate(self, host, to, dscp, duration):
        """Bits per second of payload that a flood gets through."""
        child = self.python(host, TIMED_FLOOD, self.address(to), dscp, duration, stdout=subprocess.PIPE)
        text, _ = child.communicate(timeout=30)
        return float(text)

    def forget_urgent(self, node, device):
        """Breaks a port's map of the policy service: of IPv4, only bulk is still told apart from all other traffic."""
        self.run(node, "tc", "filter", "del", "dev", device, "parent", "1:", "protocol", "ip", "prio", "4")
        self.run(node, "tc", "filter", "add", "dev", device, "parent", "1:", "protocol", "ip", "prio", "4",
                 "u32", "match", "ip", "dsfield", hex(BULK << 2), "0xfc", "flowid", "1:13")

    def queue_bytes(self, node, device):
        """Bytes that each HTB leaf of a port has sent, by minor number."""
        text = self.run(node, "tc", "-s", "class", "show", "dev", device)
        found = re.findall(r"class htb 1:(\w+) parent 1:1 .*\n Sent (\d+) bytes", text)
        return {int(minor, 16): int(sent) for minor, sent in found}


SINK = r"""
import socket, struct, sys, threading, time
def listen(dscp):
    s = socket.socket(socket.AF_INET6)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setsockopt(socket.IPPROTO_IPV6, 67, dscp << 2)
    s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    s.bind(("::", 9000 + dscp))
    s.listen(16)
    return s
def accept(s):
    while True:
        connection, _ = s.accept()
        threading.Thread(target=serve, args=(connection,), daemon=True).start()
def serve(c):
    # Head: message size, or 0 for a flood whose byte count is answered when the sender shuts down.
    head = b""
    while len(head) < 8:
        head += c.recv(8 - len(head))
    size, = struct.unpack("<q", head)
    block, got, answered = bytearray(1 << 18), 0, 0
    first = time.perf_counter()
    while True:
        try:
            n = c.recv_into(block)
        except OSError:
            return
        if n == 0:
            break
        got += n
        if size and got - answered >= size:
            c.sendall(b"k")
            answered += size
    if not size:
        c.sendall(struct.pack("<qd", got, time.perf_counter() - first))
sockets = [listen(int(d)) for d in sys.argv[1:]]
threads = [threading.Thread(target=accept, args=(s,)) for s in sockets]
for t in threads: t.start()
print("ready", flush=True)
"""

CONNECT = r"""
import socket, struct, sys, time
def connect(address, dscp, size):
    s = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
    if s.family == socket.AF_INET6:
        s.setsockopt(socket.IPPROTO_IPV6, 67, dscp << 2)
    else:
        s.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, dscp << 2)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    s.connect((address, 9000 + dscp))
    s.sendall(struct.pack("<q", size))
    return s
"""

FLOOD = CONNECT + r"""
s = connect(sys.argv[1], int(sys.argv[2]), 0)
block = bytes(1 << 18)
while True:
    s.sendall(block)
"""

TIMED_FLOOD = CONNECT + r"""
s = connect(sys.argv[1], int(sys.argv[2]), 0)
block, end = bytes(1 << 16), time.perf_counter() + float(sys.argv[3])
while time.perf_counter() < end:
    s.sendall(block)
s.shutdown(socket.SHUT_WR)
answer = b""
while len(answer) < 16:
    answer += s.recv(16 - len(answer))
got, seconds = struct.unpack("<qd", answer)
print(got * 8 / seconds)
"""

MESSAGES = CONNECT + r"""
size, count = int(sys.argv[3]), int(sys.argv[4])
s = connect(sys.argv[1], int(sys.argv[2]), size)
block = bytes(size)
for i in range(count + 2):  # two to open the congestion window
    begin = time.perf_counter()
    s.sendall(block)
    if s.recv(1) != b"k":
        break
    if i >= 2:
        print(time.perf_counter() - begin, flush=True)
    time.sleep(0.03)
"""


def star(classes, hosts=3, qos="{}"):
    """A fabric file: hosts at one switch, with these classes."""
    return "\n".join([f"classes: {classes}", f"qos: {qos}", "hosts:",
                      *(f"  - {{name: h{i}, addresses: {{tcp: 10.77.0.{i + 1}}}, control_port: 7100, data_port: 7110}}" for i in range(hosts)),
                      "switches: [{name: s0}]", "links:", *(f"  - {{from: h{i}, to: s0, speed: 500 Mbit/s}}" for i in range(hosts)), ""])


def two_classes(urgent):
    """Classes as in the presets, but for the DSCP of urgent."""
    return f"{{data: [{{name: urgent, dscp: {urgent}, pcp: 5, rank: 0}}, {{name: bulk, dscp: {BULK}, pcp: 3, rank: 1}}], control: {{dscp: {CONTROL}, pcp: 6}}}}"


def median_ms(times):
    return statistics.median(times) * 1e3


def settle():
    """Lets a change of policy drain the queues that it left."""
    time.sleep(0.5)
