"""The RDMA test bed for tests: a lab whose hosts are virtual machines, commands on them, and what a capture shows of their RoCE packets.

    with Bed(hosts=3, vlan=100) as bed:
        with bed.capture() as capture:
            bed.run("h0", "ib_write_bw", ...)
        assert {p.dscp for p in capture.packets} == {43}

Needs the command's path as the first argument of the test (like tests/lab, whose harness this builds on). Standard library only."""

import collections
import contextlib
import os
import shutil
import signal
import struct
import subprocess
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../lab"))
from lab_harness import TENSORLANE, Lab, namespaces, require_namespaces, skip, tensorlane  # noqa: E402

IMAGE = os.path.join(os.path.dirname(os.path.dirname(TENSORLANE)), "rdma-vm")
BOOT_TIMEOUT = 150
CLEAN_UP_LIMIT = 15
ECT0 = 2  # the two ECN bits below the DSCP


def require_bed(*programs):
    """Skips the test, by name, where a bed cannot be."""
    require_namespaces()
    for program in ("qemu-system-x86_64", "tcpdump", *programs):
        if shutil.which(program) is None:
            skip(f"no {program}: run deploy/install-deps packages")
    if not os.path.exists(f"{IMAGE}/initrd"):
        skip(f"no guest in {IMAGE}: run deploy/install-deps rdma-vm")


class Failed(Exception):
    """A command on a host: its exit status was not 0, or its time was over."""


class Bed(Lab):
    """Up when entered, down when left, and down by itself when this process is killed. Addresses: `address(host)` of the host,
    `rdma_address(host)` for RDMA (on the VLAN where there is one), both on the first rail unless asked for another."""

    def __init__(self, hosts=3, policy="strict", speed="20 Mbit/s", vlan=0, memory=512, config=None, rails=1, iommu=False):
        super().__init__(policy=policy, hosts=hosts, speed=speed, config=config, owner=os.getpid(), rails=rails)
        self.arguments += ["--rdma", "--memory", str(memory), "--vlan", str(vlan), *(["--iommu"] if iommu else [])]

    def up(self):
        return tensorlane(*self.arguments, timeout=BOOT_TIMEOUT).stdout

    @property
    def shared(self):
        """The folder that this machine and all hosts see at the same path, writable. Sockets in it work on no host: use /run there."""
        return self.about["runtime"]

    def rdma_address(self, host, rail=0):
        about = next(h["rails"][rail] for h in self.about["hosts"] if h["name"] == host)
        return about.get("rdma_address", about["address"])

    # Commands. They run in this process's working folder and environment; this machine's root is there, read-only. Files of the root
    # that change while the bed is up may be seen as they were.

    def start(self, host, *command, **options):
        """A Popen of the command; terminate() reaches it on the host, kill() does not."""
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
        child = subprocess.Popen(self.command(host, *command), **options)
        self.children.append(child)
        return child

    def outcome(self, child, timeout=30):
        """What a started command wrote to both outputs; Failed unless it ends in time."""
        try:
            return child.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            child.terminate()
            out, err = child.communicate(timeout=30)
            raise Failed(f"{child.args} took longer than {timeout} s: {out}{err}") from None

    def finish(self, child, timeout=30):
        """What a started command wrote; Failed unless it ends well in time."""
        out, err = self.outcome(child, timeout)
        if child.returncode != 0:
            raise Failed(f"{child.args}: exit status {child.returncode}: {out}{err}")
        return out

    def run(self, host, *command, timeout=30):
        return self.finish(self.start(host, *command), timeout)

    def wait_for_listener(self, host, port):
        self.run(host, "sh", "-c", f"until ss -Hltn 'sport = :{port}' | grep -q .; do sleep 0.1; done")

    @contextlib.contextmanager
    def capture(self, node="s0", device="br0"):
        """RoCE packets while the body runs, by default all that pass the switch, before its queues. Of a switch's port (device = the
        neighbour's name): what passes that port, behind its queue."""
        capture = Capture(f"{self.shared}/capture-{time.monotonic_ns()}.pcap")
        # Tagged frames are a case of their own to the filter; 4791 is RoCE v2. Not in immediate mode tcpdump gets packets by the block, or after
        # a second, and an interrupt in between loses them.
        child = self.start(node, "tcpdump", "-i", device, "-s", "96", "-B", "8192", "-U", "--immediate-mode", "-w", capture.path,
                           "udp port 4791 or (vlan and udp port 4791)", stdout=None)
        try:
            while "listening on" not in (line := child.stderr.readline()):
                assert line, f"tcpdump ended with exit status {child.wait()}"
            yield capture
            time.sleep(0.3)  # what is on its way to tcpdump
        finally:
            child.send_signal(signal.SIGINT)
            _, said = child.communicate(timeout=10)
        assert "0 packets dropped by kernel" in said, said
        capture.packets = list(read_capture(capture.path))


class Capture:
    def __init__(self, path):
        self.path = path
        self.packets = []


# time: seconds since 1970. vlan, pcp: None without a tag. bytes: on the wire. opcode: of the base transport header. queue_pair: at the
# destination.
Packet = collections.namedtuple("Packet", "time vlan pcp dscp ecn source destination bytes opcode queue_pair")
# Opcodes. Over a reliable connection: RDMA WRITE, whole or in parts, with or without an immediate; the answer to it. Datagrams: SEND,
# which connection management speaks.
WRITES, ACKNOWLEDGE, DATAGRAM = range(0x06, 0x0C), 0x11, 0x64


def read_capture(path):
    """The RoCE v2 packets of a pcap file, IPv4, which may still grow."""
    with open(path, "rb") as file:
        blob = file.read()
    assert blob[:4] == b"\xd4\xc3\xb2\xa1", "a pcap file in this machine's byte order, with microseconds"
    at = 24
    while at + 16 <= len(blob):
        seconds, microseconds, length, wire_bytes = struct.unpack_from("<IIII", blob, at)
        frame = blob[at + 16:at + 16 + length]
        at += 16 + length
        if at > len(blob):
            break
        vlan = pcp = None
        kind, ip = struct.unpack_from("!H", frame, 12)[0], 14
        if kind == 0x8100:
            tag, kind = struct.unpack_from("!HH", frame, 14)
            vlan, pcp, ip = tag & 0xFFF, tag >> 13, 18
        if kind != 0x0800:
            continue
        tos = frame[ip + 1]
        source, destination = (".".join(map(str, frame[ip + n:ip + n + 4])) for n in (12, 16))
        header = ip + 4 * (frame[ip] & 15) + 8  # behind UDP
        queue_pair = int.from_bytes(frame[header + 5:header + 8], "big")
        yield Packet(seconds + microseconds / 1e6, vlan, pcp, tos >> 2, tos & 3, source, destination, wire_bytes, frame[header], queue_pair)


def rate(packets, dscp, begin, end):
    """Bits per second of a class between two times."""
    return sum(p.bytes for p in packets if p.dscp == dscp and begin <= p.time < end) * 8 / (end - begin)


def traces(name):
    """What is left of a lab: its namespaces, processes and devices, and its folder."""
    left = namespaces(f"tl-{name}-")
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline") as file:
            words = file.read().split("\0")
            if int(pid) != os.getpid() and (name in words or any(f"lab-{name}/" in word for word in words)):
                left.append(f"process {pid}: {words[0]}")
    left += [f"/run/tensorlane/{entry}" for entry in os.listdir("/run/tensorlane") if entry == f"lab-{name}"]
    return left


def wait_for_no_traces(name, seconds):
    end = time.monotonic() + seconds
    while (left := traces(name)) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left, left
