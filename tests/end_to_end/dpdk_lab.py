"""What the tests of daemons that drive a port themselves share: how jobs run over it, and what its packets are on the wire."""

import collections
import os
import re
import struct
import subprocess
import tempfile
import time

from daemons import BUILD, expect, outputs

MESSAGE = os.path.join(BUILD, "tests", "message")
PORT = 7109  # where the daemons receive


def chosen(daemons, host):
    """By peer, over what its flows go."""
    return {path["peer"]: next(c["transport"] for c in path["candidates"] if c["chosen"]) for path in daemons.status(host)["lane"]["paths"]}


def lines_of(ranks, timeout):
    """What each rank printed; all have ended well."""
    texts = []
    for index, (text, status) in enumerate(outputs(ranks, timeout)):
        expect(status == 0, f"rank {index} ended with status {status}: {text}")
        texts.append(text)
    return texts


def start_loop(daemons, job, size, seconds, urgency="0.9", hosts=None):
    """Sums, each checked, until a time or SIGTERM at one rank; they run when this comes back."""
    ranks = daemons.job(job, [MESSAGE, "loop", str(size), str(seconds), urgency], hosts=hosts)
    for rank in ranks:
        line = rank.stdout.readline()
        expect(line == "running\n", f"the job did not start: {line}{rank.stdout.read() if rank.poll() is not None else ''}")
    return ranks


Packet = collections.namedtuple("Packet", "at bytes vlan pcp dscp frame")  # seconds; of the frame; vlan and pcp are None where there is no tag; the frame's first bytes


class Capture:
    """with Capture(lab, node, device, "udp port 7109", "in") as capture: what passes the device of a node; then capture.packets, and what the kernel dropped instead."""

    def __init__(self, lab, node, device, what, direction, snap=64):
        self.file = tempfile.NamedTemporaryFile(suffix=".pcap")
        self.command = lab.command(node, "tcpdump", "-Z", "root", "-i", device, "-Q", direction, "-s", str(snap), "-B", "32768", "-w", self.file.name, what)

    def __enter__(self):
        self.child = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        line = self.child.stderr.readline()
        expect("listening" in line or "tcpdump" in line, line)
        time.sleep(0.3)
        return self

    def __exit__(self, *failure):
        time.sleep(1.2)  # the kernel gives tcpdump what has come in a second at once
        self.child.terminate()
        _, said = self.child.communicate(timeout=20)
        self.dropped = int(re.search(r"(\d+) packets? dropped by kernel", said).group(1))
        self.packets = read_packets(self.file.read())
        self.file.close()


def read_packets(text):
    """Of a file of tcpdump: what is IPv4 in it."""
    packets, place = [], 24
    while place + 16 <= len(text):
        seconds, micros, kept, length = struct.unpack_from("<IIII", text, place)
        frame = text[place + 16:place + 16 + kept]
        place += 16 + kept
        tag = struct.unpack_from("!H", frame, 14)[0] if frame[12:14] == b"\x81\x00" else None
        ip = 14 if tag is None else 18
        if frame[ip - 2:ip] == b"\x08\x00":
            packets.append(Packet(seconds + micros / 1e6, length, None if tag is None else tag & 0xfff, None if tag is None else tag >> 13, frame[ip + 1] >> 2, frame))
    return packets
