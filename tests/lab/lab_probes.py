"""UDP probes over a lab: what switches answer to them by ICMP, and how they arrive. Standard library only."""

import collections
import json
import subprocess
import sys

PORT = 9500
FAR = 64  # a time to live that reaches every host: no switch is expected to answer

Answer = collections.namedtuple("Answer", "family port ttl switch dscp")  # the probe's, the address of who ended it, and the DSCP that this quotes
Arrival = collections.namedtuple("Arrival", "family port sent dscp seconds")  # the probe's, its DSCP as sent and as it came, and its time on the way


def probe(lab, host, probes):
    """Sends probes (address, DSCP, time to live, source port) and says what switches answer. After a second of silence it waits no longer."""
    child = lab.python(host, PROBE, PORT, FAR, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    text, _ = child.communicate(json.dumps(probes), timeout=30)
    return [Answer(*one) for one in json.loads(text)]


class Catcher:
    """Takes probes at a host: with Catcher(lab, "h2") as catcher: probe(...); catcher.arrivals(expected=16)."""

    def __init__(self, lab, host):
        self.child = lab.python(host, CATCH, PORT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.child.stdout.readline() == "ready\n"

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.child.kill()

    def arrivals(self, expected):
        """Those until so many are there, or nothing has come for half a second; ends the catching."""
        text, _ = self.child.communicate(str(expected), timeout=30)
        return [Arrival(*one) for one in json.loads(text)]


# The payload is the time when it was sent, its DSCP, and as many bytes as its time to live, so that the length, which a switch quotes, tells probes of one flow apart.
PROBE = r"""
import json, select, socket, struct, sys, time
V6, TCLASS, HOPS = socket.IPPROTO_IPV6, 67, 16
port, far = map(int, sys.argv[1:])
raw4 = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
raw6 = socket.socket(socket.AF_INET6, socket.SOCK_RAW, socket.IPPROTO_ICMPV6)
for raw in (raw4, raw6):
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
def said(raw):
    data, (address, *_) = raw.recvfrom(2048)
    if raw is raw4:
        icmp = data[(data[0] & 15) * 4:]
        quoted, ended = icmp[8:], icmp[0] == 11
        dscp, udp = quoted[1] >> 2, quoted[(quoted[0] & 15) * 4:]
    else:
        quoted, ended = data[8:], data[0] == 3
        dscp, udp = (struct.unpack_from(">H", quoted)[0] >> 6 & 63, quoted[40:]) if ended else (0, b"")
    if not ended:
        return []
    source, destination, length = struct.unpack_from(">HHH", udp)
    return [(4 if raw is raw4 else 6, source, length - 17, address, dscp)] if destination == port else []
probes, answers = json.load(sys.stdin), []
def listen(seconds):
    ready = select.select([raw4, raw6], [], [], seconds)[0]
    for raw in ready:
        answers.extend(said(raw))
    return ready
sockets = {}
for address, dscp, ttl, source in probes:
    v6 = ":" in address
    if (v6, source) not in sockets:
        s = sockets[v6, source] = socket.socket(socket.AF_INET6 if v6 else socket.AF_INET, socket.SOCK_DGRAM)
        if v6:
            s.setsockopt(V6, socket.IPV6_V6ONLY, 1)
        s.bind(("", source))
    s = sockets[v6, source]
    for option in ((V6, TCLASS, dscp << 2), (V6, HOPS, ttl)) if v6 else ((0, socket.IP_TOS, dscp << 2), (0, socket.IP_TTL, ttl)):
        s.setsockopt(*option)
    payload = struct.pack("dB", time.monotonic(), dscp) + bytes(ttl)
    try:
        s.sendto(payload, (address, port))
    except OSError:  # what the kernel has heard of an earlier one
        s.sendto(payload, (address, port))
    listen(0)
while len(answers) < sum(ttl < far for _, _, ttl, _ in probes) and listen(1.0):
    pass
print(json.dumps(answers))
"""

CATCH = r"""
import json, select, socket, struct, sys, time
s = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
s.setsockopt(socket.IPPROTO_IPV6, 66, 1)  # IPV6_RECVTCLASS
s.setsockopt(socket.IPPROTO_IP, 13, 1)  # IP_RECVTOS
s.bind(("::", int(sys.argv[1])))
print("ready", flush=True)
caught, expected = [], None
while expected is None or len(caught) < expected:
    ready, _, _ = select.select([s] if expected is not None else [s, sys.stdin], [], [], None if expected is None else 0.5)
    if s in ready:
        data, control, _, (address, source, *_) = s.recvmsg(2048, 512)
        then, sent = struct.unpack_from("dB", data)
        caught.append((4 if address.startswith("::ffff:") else 6, source, sent, control[0][2][0] >> 2, time.monotonic() - then))
    elif expected is not None:
        break
    if sys.stdin in ready:
        expected = int(sys.stdin.read())
print(json.dumps(caught))
"""
