"""The classes that `tensorlane classes --for nccl` names for NCCL's communicators act in a network. NCCL over RoCE needs GPUs, so nccl_group.py stands in for its communicators,
over TCP: the policy's rules give each group of ranks a class by its name, and the group's connections are tagged with that class.

Four hosts have a rank each. Their group `mesh_tp` gathers 1 MiB a round, with pauses between. Their group `fsdp_reduce_scatter` sums 4 MiB a round, without pauses. The group `checkpoint`
of another job fills a port of the switch. Every result is compared with what it must be.

    tagged    the test compares a round of mesh_tp on FIFO ports with one on strict ports, in pairs of blocks in alternating order: strict ports make it faster
    untagged  without tags they do not, so it is the tags that do it

A capture at all ports of the switch, from the first connection on and for some rounds, shows that every packet of a group has the DSCP that the policy names for the group, in both
directions, over IPv4 and over IPv6.

usage: test_nccl_classes.py BUILD [--json]      --json prints the figures as one JSON object."""

import collections
import json
import os
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import time

from daemons import Lab, expect, require_namespaces
from lab_harness import tensorlane
from nccl_group import class_of

PROGRAM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "nccl_group.py")
MIB = 1 << 20
RATE = 500e6
RANKS = ["h0", "h1", "h2", "h3"]
OTHER_JOB = ["h4", "h1"]  # sends to a port that a rank is behind
CONNECTIONS = 3  # of the other job
BLOCKS = {"tagged": (8, 13), "untagged": (6, 6)}  # pairs, and rounds of each of their two blocks
URGENT, BULK, OTHER = "mesh_tp", "fsdp_reduce_scatter", "checkpoint"
ENDLESS = 1_000_000  # rounds
POLICIES = ("strict", "fifo")


def fabric(address):
    """Five hosts at one switch, all of whose queues have room for everything that the connections may send at once: so no policy loses a packet."""
    hosts = [*RANKS, OTHER_JOB[0]]
    return "\n".join(["classes: greenfield", "hosts:", *(f"  - {{name: {host}, addresses: {{tcp: \"{address}{i + 1}\"}}}}" for i, host in enumerate(hosts)), "switches: [{name: s0}]",
                      "links:", *(f"  - {{from: {host}, to: s0, speed: {RATE / 1e6:.0f} Mbit/s, buffer: 16 MiB}}" for host in hosts), ""])


class Group:
    """The ranks of one group, each a process on its host. The lab ends them."""

    def __init__(self, lab, policy_file, name, collective, size, port, hosts, tagged):
        addresses = ",".join(lab.address(host) for host in hosts)
        self.name = name
        self.ranks = []
        for rank, host in enumerate(hosts):
            arguments = [policy_file, name, collective, size, port, rank, addresses] + ([] if tagged else ["--untagged"])
            self.ranks.append(subprocess.Popen(lab.command(host, sys.executable, PROGRAM, *map(str, arguments)), text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        lab.children += self.ranks
        self.wait_for("listening")

    def wait_for(self, word):
        for rank in self.ranks:
            expect(rank.stdout.readline().strip() == word, f"a rank of '{self.name}' did not say '{word}'")

    def tell(self, line):
        for rank in self.ranks:
            rank.stdin.write(f"{line}\n")
            rank.stdin.flush()

    def connect(self):
        self.tell("connect")
        self.wait_for("connected")

    def rounds(self, count):
        """Seconds from when the last rank began a round until the last one ended it, for each round."""
        self.tell(count)
        times = []
        for _ in range(count):
            lines = [rank.stdout.readline().split() for rank in self.ranks]
            expect(all(lines), f"a rank of '{self.name}' ended")
            times.append((max(int(end) for _, end in lines) - max(int(begin) for begin, _ in lines)) * 1e-9)
        return times

    def stop(self):
        """The rounds that the slowest rank has carried out and found right, and that nobody has read. (They fit in a pipe.)"""
        expect(all(rank.poll() is None for rank in self.ranks), f"a rank of '{self.name}' ended")
        for rank in self.ranks:
            rank.terminate()
        return min(len(rank.communicate(timeout=10)[0].splitlines()) for rank in self.ranks)


class Traffic:
    """All groups of both jobs. `captured` is what Capture.tags() says of their connecting and of their first rounds."""

    def __init__(self, lab, policy_file, first_port, tagged):
        members = [(URGENT, "all_gather", MIB, RANKS), (BULK, "reduce_scatter", 4 * MIB, RANKS)] + [(OTHER, "send", MIB, OTHER_JOB)] * CONNECTIONS
        self.groups = [Group(lab, policy_file, name, collective, size, first_port + i, hosts, tagged) for i, (name, collective, size, hosts) in enumerate(members)]
        capture = Capture(lab)
        for group in self.groups:
            group.connect()
        self.urgent = self.groups[0]
        for group in self.groups[1:]:
            group.tell(ENDLESS)
        self.urgent.rounds(20)
        self.captured = capture.tags({first_port + i: group.name for i, group in enumerate(self.groups)})

    def stop(self):
        """Rounds that each group but the urgent one has carried out."""
        rounds = collections.Counter()
        for group in self.groups:
            rounds[group.name] += group.stop()
        return {name: rounds[name] for name in (BULK, OTHER)}


class Capture:
    """TCP packets at all ports of the switch, of which each one passes two."""

    HEADER = 16  # of LINUX_SLL

    def __init__(self, lab):
        self.file = tempfile.NamedTemporaryFile(suffix=".pcap")
        command = lab.command("s0", "tcpdump", "-i", "any", "-y", "LINUX_SLL", "-nn", "-s", "80", "-B", "65536", "-U", "-Z", "root", "-w", self.file.name, "tcp")
        self.child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        line = ""
        while "listening" not in line:
            line = self.child.stderr.readline()
            expect(line, "tcpdump does not run")
        time.sleep(0.3)

    def packets(self):
        """Ends the capture. Of each packet, what follows the link's header."""
        self.child.terminate()
        _, said = self.child.communicate(timeout=10)
        expect("\n0 packets dropped by kernel" in "\n" + said, f"the capture is not complete: {said}")
        with self.file as file:
            data = file.read()
        at = 24
        while at < len(data):
            size, = struct.unpack_from("<8xI", data, at)
            yield data[at + 16 + self.HEADER:at + 16 + size]
            at += 16 + size

    def tags(self, ports):
        """By (group, whether to the listening rank, whether with data): packets by DSCP. `ports` has the group that listens at each port."""
        found = collections.defaultdict(collections.Counter)
        for packet in self.packets():
            if packet[0] >> 4 == 4:
                at, size, traffic_class = (packet[0] & 15) * 4, int.from_bytes(packet[2:4], "big"), packet[1]
            else:
                at, size, traffic_class = 40, 40 + int.from_bytes(packet[4:6], "big"), int.from_bytes(packet[:2], "big") >> 4 & 0xff
            source, destination = struct.unpack_from("!HH", packet, at)
            with_data = size > at + (packet[at + 12] >> 4) * 4
            listener = destination if destination in ports else source
            if listener in ports:
                found[ports[listener], listener == destination, with_data][traffic_class >> 2] += 1
        return found


def check_tags(captured, policy, tagged):
    """Every packet of a group must have the DSCP of the group's class, in both directions. Returns packets with data, by group."""
    for name in (URGENT, BULK, OTHER):
        dscp = class_of(policy, name)["dscp"] if tagged else 0
        for to_listener in (True, False):
            for with_data in (True, False):
                seen = captured[name, to_listener, with_data]
                direction = "to" if to_listener else "from"
                expect(not set(seen) - {dscp}, f"'{name}' has packets {direction} listeners whose DSCP is not {dscp}: {seen}")
                expect(seen[dscp] >= 5, f"too few packets of '{name}' {direction} listeners to judge by: {seen}")
    return {name: sum(sum(captured[name, to_listener, True].values()) for to_listener in (True, False)) for name in (URGENT, BULK, OTHER)}


def blocks(lab, group, pairs, rounds):
    """By policy: the seconds of each round, a list for each block; and how much of its rate the port that the other job fills has sent."""
    times, sent, passed = {policy: [] for policy in POLICIES}, collections.Counter(), collections.Counter()
    for pair in range(pairs):
        for policy in POLICIES if pair % 2 == 0 else reversed(POLICIES):
            lab.policy(policy)
            time.sleep(0.1)
            group.rounds(2)  # what the other policy left in the queues
            before, begin = sum(lab.queue_bytes("s0", OTHER_JOB[1]).values()), time.monotonic()
            times[policy].append(group.rounds(rounds))
            sent[policy] += sum(lab.queue_bytes("s0", OTHER_JOB[1]).values()) - before
            passed[policy] += time.monotonic() - begin
    return times, {policy: sent[policy] * 8 / passed[policy] / RATE for policy in POLICIES}


def figures(times, port_shares, rounds, packets):
    """How long a round of the urgent group takes by policy, and how many times as long on FIFO ports: the median over pairs, with the 95% interval by bootstrap (seeded)."""
    result = {}
    for policy in POLICIES:
        every = sorted(time for block in times[policy] for time in block)
        p99 = every[min(len(every) - 1, int(0.99 * len(every)))]
        result[policy] = {"median_ms": statistics.median(every) * 1e3, "p99_ms": p99 * 1e3, "rounds": len(every), "port_share": port_shares[policy]}
    pairs = [statistics.median(fifo) / statistics.median(strict) for strict, fifo in zip(times["strict"], times["fifo"])]
    draw = random.Random(2)
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    ratio = {"median": statistics.median(pairs), "ci95": [medians[50], medians[1949]], "pairs": pairs}
    return {**result, "fifo_over_strict": ratio, "rounds_of_others": rounds, "packets_with_data": packets}


def compare(lab, policy, policy_file, name):
    """Each of the two has ports of its own: what is left of one's connections is not captured with the other's."""
    lab.policy("strict")
    traffic = Traffic(lab, policy_file, {"tagged": 9100, "untagged": 9200}[name], name == "tagged")
    packets = check_tags(traffic.captured, policy, name == "tagged")
    times, port_shares = blocks(lab, traffic.urgent, *BLOCKS[name])
    rounds = traffic.stop()
    return figures(times, port_shares, rounds, packets)


def written_policy(lab, folder):
    """The policy of the lab's fabric file, and the file that it is in."""
    text = tensorlane("classes", "--for", "nccl", "--fabric", lab.about["fabric_file"], "--json").stdout
    path = os.path.join(folder, f"{lab.name}.json")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    policy = json.loads(text)
    classes = {name: class_of(policy, name) for name in (URGENT, BULK, OTHER)}
    names = [classes[name]["name"] for name in (URGENT, BULK, OTHER)]
    expect(names == ["urgent", "bulk", "bulk"], f"the default rules give other classes than this test is about: {names}")
    expect(all(cls["tos"] >> 2 == cls["traffic_class"] >> 2 == cls["dscp"] for cls in classes.values()), f"a TOS byte is not that of its DSCP: {classes}")
    return policy, path


def show(name, result):
    for policy in POLICIES:
        part = result[policy]
        print(f"{name}, {policy} ports: {part['median_ms']:.1f} ms a round (median), {part['p99_ms']:.1f} ms (99th percentile of {part['rounds']}), "
              f"the other job's port sends {part['port_share']:.0%} of its rate")
    ratio = result["fifo_over_strict"]
    print(f"{name}, FIFO over strict ports: {ratio['median']:.2f} ({ratio['ci95'][0]:.2f} to {ratio['ci95'][1]:.2f}, {len(ratio['pairs'])} pairs); "
          f"rounds of the others {result['rounds_of_others']}, packets captured {result['packets_with_data']}", flush=True)


def judge(result):
    for name, arm in result.items():
        for policy in POLICIES:
            expect(arm[policy]["port_share"] > 0.8, f"{name}: the other job does not fill its port: {arm[policy]}")
        expect(min(arm["rounds_of_others"].values()) >= 5, f"{name}: bulk stands still: {arm['rounds_of_others']}")
    (low, _), (control_low, control_high) = (result[name]["fifo_over_strict"]["ci95"] for name in ("tagged", "untagged"))
    expect(low > 1.5, f"strict ports do not make the urgent group faster by much: the 95% interval begins at {low:.2f}")
    expect(control_low <= 1.1, f"strict ports make the urgent group faster without tags, too: the 95% interval begins at {control_low:.2f}")
    expect(control_high < low, f"too noisy to say that it is the tags: {control_high:.2f} without them, {low:.2f} with them")


def main():
    require_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        with Lab(config=fabric("fd00:77::"), tag="v6") as lab:
            policy, policy_file = written_policy(lab, folder)
            traffic = Traffic(lab, policy_file, 9100, tagged=True)
            packets = check_tags(traffic.captured, policy, tagged=True)
            traffic.stop()
        with Lab(config=fabric("10.77.0.")) as lab:
            policy, policy_file = written_policy(lab, folder)
            result = {name: compare(lab, policy, policy_file, name) for name in BLOCKS}
    if "--json" in sys.argv[2:]:
        print(json.dumps({**result, "ipv6_packets_with_data": packets}))
    else:
        for name, arm in result.items():
            show(name, arm)
        print(f"packets captured over IPv6: {packets}")
    judge(result)


if __name__ == "__main__":
    sys.exit(main())
