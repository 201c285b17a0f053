"""Faults of a routed lab, for tests: what a wrong switch or a bad cable does, by nftables and tc in the lab's namespaces. Standard library only.

with Lab(routed=True, config=...) as lab:
    fault = rewrite(lab, "spine1", URGENT, BULK, family=6, leaving="leaf1")
    ...
    fault.end()

A fault is of one direction, where one is named, and with `family` of IPv4 (4) or IPv6 (6) alone. Neighbours and devices are as in `tensorlane lab show`.
It ends with `end()`, with the block of `with`, or with the lab. A fault of one spine makes one of several equal paths bad."""

import itertools
import os
import subprocess
import sys

CARRIER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "lab_carrier.py")
COUNT = itertools.count()
IP = {4: "ip", 6: "ip6"}


def protocols(family):
    return [ip for of, ip in IP.items() if family in (None, of)]


class Fault:
    def __init__(self, stop):
        self.stop = stop

    def end(self):
        if self.stop:
            self.stop()
        self.stop = None

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.end()


def device_of(lab, node, neighbour):
    """The node's port of that name, or the one towards that neighbour."""
    found = [port["device"] for port in lab.about["ports"] if port["node"] == node and neighbour in (port["device"], port["towards"])]
    assert len(found) == 1, f"{node}:{neighbour} is {found}"
    return found[0]


def add_table(lab, node, family, hook, rules):
    """A table of one chain with these rules."""
    name = f"{family} fault{next(COUNT)}"
    lab.run(node, "nft", f"table {name} {{ chain faulty {{ type filter hook {hook}; {'; '.join(rules)}; }}; }}")
    return Fault(lambda: lab.run(node, "nft", f"delete table {name}"))


def change_dscp(lab, switch, changes, family, arriving, leaving, early):
    ports = (f'iifname "{device_of(lab, switch, arriving)}" ' if arriving else "") + (f'oifname "{device_of(lab, switch, leaving)}" ' if leaving else "")
    assert not (early and leaving), "where a packet leaves is not known yet when it arrives"
    rules = [f"{ports}{f'meta protocol {ip}' if old is None else f'{ip} dscp {old}'} {ip} dscp set {new} accept" for old, new in changes for ip in protocols(family)]
    return add_table(lab, switch, "inet", f"{'prerouting' if early else 'forward'} priority mangle", rules)


def rewrite(lab, switch, old, new, family=None, arriving=None, leaving=None, early=False):
    """The switch gives packets of DSCP `old` (None: all) that come from neighbour `arriving` and go to `leaving` (None: any) DSCP `new`. It does so on their way out, so
    what it says of a packet whose time to live it ended quotes the old one; with `early` when they come in, and it quotes the new one."""
    return change_dscp(lab, switch, [(old, new)], family, arriving, leaving, early)


def swap(lab, switch, one, other, family=None, arriving=None, leaving=None, early=False):
    """The switch takes two classes for one another, as rewrite()."""
    return change_dscp(lab, switch, [(one, other), (other, one)], family, arriving, leaving, early)


def drop(lab, sender, receiver, percent, family=None, dscp=None):
    """The link from `sender` to `receiver` loses so many of the packets (of one DSCP), at random, behind the queue of the port."""
    kinds = [f"meta protocol {ip}" if dscp is None else f"{ip} dscp {dscp}" for ip in protocols(family)]
    chance = f"numgen random mod 10000 < {round(percent * 100)}" if percent < 100 else ""
    rules = [f"{kind} {chance} drop" for kind in kinds]
    return add_table(lab, receiver, "netdev", f'ingress device "{device_of(lab, receiver, sender)}" priority 0', rules)


def silence(lab, switch, family=None):
    """The switch says nothing of packets whose time to live it has ended."""
    rules = [f"{ {'ip': 'icmp', 'ip6': 'icmpv6'}[ip] } type time-exceeded drop" for ip in protocols(family)]
    return add_table(lab, switch, "inet", "output priority 0", rules)


def overtake(lab, sender, receiver, percent, milliseconds):
    """So many of the packets on the link from `sender` to `receiver`, at random, come so much later, and others overtake them."""
    return carrier_of(lab, sender, receiver, milliseconds, percent)


def delay(lab, sender, receiver, milliseconds):
    """Each packet on the link from `sender` to `receiver` comes so much later, in the order in which they were sent. A process carries them, in time to some tenths of a
    millisecond and tens of thousands a second: kernels without netem have no other way."""
    return carrier_of(lab, sender, receiver, milliseconds)


def carrier_of(lab, sender, receiver, *arguments):
    device = device_of(lab, receiver, sender)
    carrier = subprocess.Popen(lab.command(receiver, sys.executable, CARRIER, device, *map(str, arguments)), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    lab.children.append(carrier)
    assert carrier.stdout.readline() == "ready\n"

    def stop():
        carrier.stdin.close()
        assert carrier.wait(timeout=5) == 0
    return Fault(stop)
