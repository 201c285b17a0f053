"""One rank of a group whose traffic stands in for that of an NCCL communicator, which needs GPUs: for test_nccl_classes.py. TCP connections join the ranks to a ring, and they have the
class that a policy's rules give to the group's name. Standard library only.

usage: nccl_group.py POLICY GROUP COLLECTIVE BYTES PORT RANK ADDRESSES [--untagged]

POLICY is a file with what `tensorlane classes --for nccl --json` prints, ADDRESSES the ranks' in their order, with commas between. COLLECTIVE is one of

    all_gather      every rank contributes BYTES / ranks
    reduce_scatter  every rank contributes BYTES and gets its share of the sum
    send            the first rank sends BYTES to the second and last one

It prints "listening", connects when it reads a line, prints "connected", and then carries out as many rounds as each further line says. After a round it compares the result with what
it must be. If they differ, it ends with status 1; else it prints when the round began and ended, in nanoseconds of the monotonic clock. A receiver tells the sender that it is ready, as
NCCL's do, so each connection carries data in both directions."""

import fnmatch
import json
import random
import select
import socket
import sys
import time

# RoCE's fabrics lose nothing. Nor do ports that have room for the send buffers of all connections, and then the windows of this congestion control stay open: so connections share a
# FIFO port evenly, where others' shares change from moment to moment.
SEND_BUFFER = 128 << 10
CONGESTION_CONTROL = b"reno"
VALUES = 64  # that a byte of a contribution has: the sum of four ranks is a byte
VARIANTS = 1 << 16  # of a contribution: offsets into one sequence of random bytes
READY = b"r"  # what a receiver sends when it has room
COMPUTATION = 0.005  # seconds between the rounds of an all-gather, in which other traffic fills the ports


def class_of(policy, group):
    """The class that the first rule that fits gives to the group."""
    name = next(rule["class"] for rule in policy["rules"] if fnmatch.fnmatchcase(group, rule["group"]))
    return next(cls for cls in policy["classes"] if cls["name"] == (policy["mixed"] if name == "mixed" else name))


def tag(connection, cls):
    """The priority comes last, because setting the TOS changes it. Of the TOS byte the kernel takes the DSCP alone: the ECN bits of a TCP socket are its own."""
    if connection.family == socket.AF_INET6:
        connection.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_TCLASS, cls["traffic_class"])
    connection.setsockopt(socket.IPPROTO_IP, socket.IP_TOS, cls["tos"])
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, min(cls["pcp"], 6))


class Ring:
    """The connections of one rank: to the next rank, and from the previous one."""

    def __init__(self, rank, addresses, port, cls):
        self.rank, self.ranks = rank, len(addresses)
        self.cls = cls
        self.next_address = (addresses[(rank + 1) % self.ranks], port)
        self.listener = self.new_socket()
        self.listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.listener.bind((addresses[rank], port))
        self.listener.listen(1)

    def new_socket(self):
        family = socket.AF_INET6 if ":" in self.next_address[0] else socket.AF_INET
        return self.prepared(socket.socket(family))

    def prepared(self, connection):
        if self.cls:
            tag(connection, self.cls)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, CONGESTION_CONTROL)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def connect(self):
        self.next = self.new_socket()
        self.next.connect(self.next_address)
        self.prepared(self.next)
        self.previous = self.prepared(self.listener.accept()[0])
        self.next.setblocking(False)
        self.previous.setblocking(False)

    def step(self, out=b"", into=b""):
        """Sends `out` to the next rank when that is ready, and fills `into` from the previous one, both at once."""
        out, into = memoryview(out), memoryview(into)
        ready = False
        if into:
            self.previous.send(READY)
        while out or into:
            readable = [self.previous] * bool(into) + [self.next] * (bool(out) and not ready)
            can_read, can_write, _ = select.select(readable, [self.next] if out and ready else [], [])
            if self.previous in can_read:
                got = self.previous.recv_into(into)
                if got == 0:
                    raise ConnectionError("the previous rank has ended")
                into = into[got:]
            if self.next in can_read:
                if self.next.recv(1) != READY:
                    raise ConnectionError("the next rank has ended, or says what it must not")
                ready = True
            if can_write:
                out = out[self.next.send(out):]


class Contributions:
    """What each rank contributes in each round: known to all, and different."""

    def __init__(self, size):
        self.size = size
        self.sequence = random.Random(7).randbytes(size + VARIANTS).translate(bytes(i % VALUES for i in range(256)))

    def of(self, rank, number, begin=0, size=None):
        offset = (rank * 7919 + number * 104729) % VARIANTS + begin
        return self.sequence[offset:offset + (self.size if size is None else size)]


def add(a, b):
    """Byte by byte: no sum is more than a byte."""
    return (int.from_bytes(a, "little") + int.from_bytes(b, "little")).to_bytes(len(a), "little")


def all_gather(ring, contributions, number):
    """Returns when the round began, when it ended, and whether the result is right. So do the two below."""
    size = contributions.size // ring.ranks
    gathered = bytearray(size * ring.ranks)
    view = memoryview(gathered)

    def part(rank):
        return view[rank % ring.ranks * size:][:size]

    part(ring.rank)[:] = contributions.of(ring.rank, number, 0, size)
    begin = time.monotonic_ns()
    for i in range(ring.ranks - 1):
        ring.step(part(ring.rank - i), part(ring.rank - i - 1))
    end = time.monotonic_ns()
    right = gathered == b"".join(contributions.of(rank, number, 0, size) for rank in range(ring.ranks))
    time.sleep(COMPUTATION)
    return begin, end, right


def reduce_scatter(ring, contributions, number):
    size = contributions.size // ring.ranks

    def part(rank, index):
        return contributions.of(rank, number, index % ring.ranks * size, size)

    begin = time.monotonic_ns()
    partial = part(ring.rank, ring.rank - 1)
    for i in range(ring.ranks - 1):
        received = bytearray(size)
        ring.step(partial, received)
        partial = add(received, part(ring.rank, ring.rank - i - 2))
    end = time.monotonic_ns()
    expected = part(0, ring.rank)
    for rank in range(1, ring.ranks):
        expected = add(expected, part(rank, ring.rank))
    return begin, end, partial == expected


def send(ring, contributions, number):
    sent = contributions.of(0, number)
    received = bytearray(contributions.size if ring.rank == 1 else 0)
    begin = time.monotonic_ns()
    ring.step(sent if ring.rank == 0 else b"", received)
    return begin, time.monotonic_ns(), ring.rank == 0 or received == sent


def main(policy, group, collective, size, port, rank, addresses, untagged=None):
    with open(policy, encoding="utf-8") as file:
        cls = None if untagged else class_of(json.load(file), group)
    ring = Ring(int(rank), addresses.split(","), int(port), cls)
    contributions = Contributions(int(size))
    one_round = {"all_gather": all_gather, "reduce_scatter": reduce_scatter, "send": send}[collective]
    print("listening", flush=True)
    sys.stdin.readline()
    ring.connect()
    print("connected", flush=True)
    number = 0
    for line in sys.stdin:
        for number in range(number + 1, number + 1 + int(line)):
            try:
                begin, end, right = one_round(ring, contributions, number)
                if not right:
                    sys.exit(f"group {group}, rank {rank}: the result of round {number} is wrong")
                print(begin, end, flush=True)
            except ConnectionError:
                sys.exit(1)  # another rank or the test has ended, and says why


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
