"""Every host reaches every other: one switch, several switches, IPv6."""

import sys

from lab_harness import BULK, CONTROL, URGENT, Lab, require_namespaces

TREE = """
hosts:
  - {name: red, addresses: {tcp: 10.1.0.1}}
  - {name: a-host-with-a-long-name, addresses: {tcp: 192.168.7.9}}
  - {name: blue, addresses: {tcp: 10.2.0.1}}
switches: [{name: leaf0}, {name: leaf1}, {name: spine}]
links:
  - {from: red, to: leaf0, speed: 1 Gbit/s}
  - {from: a-host-with-a-long-name, to: leaf0, speed: 1 Gbit/s}
  - {from: blue, to: leaf1, speed: 1 Gbit/s, mtu: 9000}
  - {from: leaf0, to: spine, speed: 100 Mbit/s, buffer: 256 KiB}
  - {from: leaf1, to: spine, speed: 1 Gbit/s}
"""

IPV6 = """
hosts:
  - {name: h0, addresses: {tcp: "fd00:77::1"}}
  - {name: h1, addresses: {tcp: "fd00:77::2"}}
switches: [{name: s0}]
links:
  - {from: h0, to: s0, speed: 500 Mbit/s}
  - {from: h1, to: s0, speed: 500 Mbit/s}
"""


def all_pairs(lab):
    hosts = [host["name"] for host in lab.about["hosts"]]
    for host in hosts:
        lab.start_sink(host, [URGENT])
    for one in hosts:
        for other in hosts:
            if one != other:
                assert len(lab.message_times(one, other, URGENT, size=1000, count=2)) == 2


def test_one_switch():
    with Lab(hosts=4) as lab:
        all_pairs(lab)


def test_a_tree_of_switches():
    with Lab(config=TREE) as lab:
        all_pairs(lab)
        ports = {(p["node"], p["towards"]): p for p in lab.about["ports"]}
        assert ports["leaf0", "a-host-with-a-long-name"]["device"] == "port1"  # too long for a device
        assert ports["spine", "leaf0"]["bits_per_second"] == 100_000_000
        assert ports["leaf0", "spine"]["buffer_bytes"] == 256 << 10
        # The slowest link of the way decides.
        rate = lab.received_rate("blue", "red", URGENT, 1.0)
        assert 85e6 <= rate <= 100e6, rate


def test_ipv6_is_classified_too():
    with Lab(config=IPV6) as lab:
        all_pairs(lab)
        lab.start_sink("h1", [CONTROL, BULK, URGENT + 1])
        before = lab.queue_bytes("s0", "h1")
        for leaf, dscp in ((0x10, CONTROL), (0x11, URGENT), (0x12, BULK), (0x13, URGENT + 1)):
            lab.message_times("h0", "h1", dscp, size=100_000, count=2)
            after = lab.queue_bytes("s0", "h1")
            assert after[leaf] - before[leaf] >= 200_000, (hex(leaf), dscp, before, after)
            before = after


if __name__ == "__main__":
    require_namespaces()
    test_one_switch()
    test_a_tree_of_switches()
    test_ipv6_is_classified_too()
    sys.exit(0)
