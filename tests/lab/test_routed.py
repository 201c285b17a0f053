"""A routed lab: who reaches whom, what switches answer, which paths flows take, and what the faults of lab_faults.py do and what they leave alone."""

import collections
import os
import statistics
import subprocess
import sys
import time

from lab_faults import delay, drop, rewrite, silence, swap
from lab_harness import BULK, CONTROL, TENSORLANE, URGENT, Lab, namespaces, require_namespaces, tensorlane
from lab_probes import FAR, Catcher, probe

CONTROL_LEAF, URGENT_LEAF, BULK_LEAF, OTHER_LEAF, FIFO_LEAF = 0x10, 0x11, 0x12, 0x13, 0xF0
FAMILIES = (4, 6)
BOTH = (URGENT, BULK)
PORTS = range(20000, 20016)  # source ports: of one flow each, over both spines

# Two rails on the same leaves: what bridges could not be. IPv6 in the file, so that IPv4 is what the lab gives.
RAILS = """
hosts:
  - {name: h0, addresses: {tcp: ["fd00:1::1", "fd00:2::1"]}}
  - {name: h1, addresses: {tcp: ["fd00:1::2", "fd00:2::2"]}}
switches: [{name: a}, {name: b}, {name: c}]
links:
  - {from: h0, to: a, speed: 500 Mbit/s}
  - {from: h0, to: b, speed: 500 Mbit/s}
  - {from: h1, to: a, speed: 500 Mbit/s}
  - {from: h1, to: b, speed: 500 Mbit/s}
  - {from: a, to: b, speed: 500 Mbit/s}
  - {from: b, to: c, speed: 500 Mbit/s}
  - {from: c, to: a, speed: 500 Mbit/s}
"""


def example(name):
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "fabrics", name + ".yaml")) as file:
        return file.read()


def address(lab, node, family, rail=0):
    return lab.addresses(node, rail)[family == 6]


def reaches(lab, host, *addresses):
    for one in addresses:
        lab.run(host, "ping", "-c", "1", "-W", "2", one)


def arrivals(lab, sender, receiver, dscps=BOTH, ports=PORTS, families=FAMILIES):
    """One probe of each family, class and source port, as they arrive."""
    with Catcher(lab, receiver) as catcher:
        probes = [(address(lab, receiver, family), dscp, FAR, port) for family in families for dscp in dscps for port in ports]
        probe(lab, sender, probes)
        return catcher.arrivals(expected=len(probes))


def marks(arrived):
    """{(family, DSCP as sent): the DSCPs with which they came}"""
    found = collections.defaultdict(set)
    for one in arrived:
        found[one.family, one.sent].add(one.dscp)
    return dict(found)


def spines(lab, sender, receiver, family, ports=PORTS):
    """The spine on the way of each source port."""
    names = {address(lab, spine, family): spine for spine in ("spine0", "spine1")}
    answers = probe(lab, sender, [(address(lab, receiver, family), URGENT, 2, port) for port in ports])
    assert len(answers) == len(ports), answers
    return {one.port: names[one.switch] for one in answers}


UNCHANGED = {(family, dscp): {dscp} for family in FAMILIES for dscp in BOTH}


def test_everybody_reaches_everybody(lab):
    for host in lab.about["hosts"]:
        others = [n["name"] for n in lab.about["hosts"] + lab.about["switches"] if n["name"] != host["name"]]
        reaches(lab, host["name"], *(one for other in others for one in lab.addresses(other)))


def test_each_switch_answers_for_each_probe(lab):
    count = 40  # kernels would stop at some ten answers
    for family in FAMILIES:
        to, ports = address(lab, "h2", family), range(20000, 20000 + count)
        answers = probe(lab, "h0", [(to, URGENT, ttl, port) for port in ports for ttl in (1, 2, 3)])
        at = {ttl: collections.Counter(one.switch for one in answers if one.ttl == ttl) for ttl in (1, 2, 3)}
        assert at[1] == {address(lab, "leaf0", family): count} and at[3] == {address(lab, "leaf1", family): count}, at
        assert sum(at[2].values()) == count and set(at[2]) == {address(lab, spine, family) for spine in ("spine0", "spine1")}, at
        assert {one.dscp for one in answers} == {URGENT}, "they quote what was sent"


def test_every_dscp_arrives_as_it_was_sent(lab):
    assert marks(arrivals(lab, "h1", "h3", range(64), [20000])) == {(family, dscp): {dscp} for family in FAMILIES for dscp in range(64)}


def test_equal_paths_share_the_flows(lab):
    for family in FAMILIES:
        ports = range(20000, 20064)
        taken = spines(lab, "h0", "h2", family, ports)
        share = collections.Counter(taken.values())["spine0"]
        print(f"IPv{family}: {share} of {len(ports)} flows over spine0", flush=True)
        assert 16 <= share <= 48, taken
        assert spines(lab, "h0", "h2", family, ports) == taken, "a flow stays on its path"


def test_a_rewritten_class_in_one_direction_and_family(lab):
    with rewrite(lab, "leaf1", URGENT, BULK, family=6, leaving="h2"):
        assert marks(arrivals(lab, "h0", "h2")) == UNCHANGED | {(6, URGENT): {BULK}}
        assert marks(arrivals(lab, "h0", "h3")) == UNCHANGED, "the other port of the leaf"
        assert marks(arrivals(lab, "h2", "h0")) == UNCHANGED, "the other direction"
    with rewrite(lab, "leaf0", None, 0, family=4, arriving="h0", early=True):
        assert marks(arrivals(lab, "h0", "h2")) == UNCHANGED | {(4, dscp): {0} for dscp in BOTH}
        assert marks(arrivals(lab, "h2", "h0")) == UNCHANGED
        quoted = probe(lab, "h0", [(one, URGENT, 1, 20000) for one in lab.addresses("h2")])
        assert {one.family: one.dscp for one in quoted} == {4: 0, 6: URGENT}, "as the packet was when its time to live ended"
    with rewrite(lab, "leaf0", URGENT, 0):
        quoted = probe(lab, "h0", [(one, URGENT, ttl, 20000) for one in lab.addresses("h2") for ttl in (1, 2)])
        assert {(one.family, one.ttl): one.dscp for one in quoted} == {(family, ttl): (URGENT, 0)[ttl - 1] for family in FAMILIES for ttl in (1, 2)}
    assert marks(arrivals(lab, "h0", "h2")) == UNCHANGED, "afterwards"


def test_swapped_classes_on_one_of_two_paths(lab):
    with swap(lab, "spine1", URGENT, BULK, leaving="leaf1"):
        other = {URGENT: BULK, BULK: URGENT}
        for family in FAMILIES:
            path = spines(lab, "h0", "h2", family)
            assert set(path.values()) == {"spine0", "spine1"}
            for one in arrivals(lab, "h0", "h2", families=[family]):
                assert one.dscp == (other[one.sent] if path[one.port] == "spine1" else one.sent), (one, path)
        assert marks(arrivals(lab, "h2", "h0")) == UNCHANGED, "the other direction"


def test_losses_on_one_link(lab):
    ports = range(20000, 20100)
    with drop(lab, "h0", "leaf0", 30):
        counts = collections.Counter(one.family for one in arrivals(lab, "h0", "h2", [URGENT], ports))
        assert all(45 <= counts[family] <= 90 for family in FAMILIES), counts
        assert len(arrivals(lab, "h1", "h2", [URGENT], ports)) == 200 == len(arrivals(lab, "h2", "h0", [URGENT], ports))
    with drop(lab, "h0", "leaf0", 100, family=6, dscp=BULK):
        assert collections.Counter((one.family, one.sent) for one in arrivals(lab, "h0", "h2")) == {(4, URGENT): 16, (4, BULK): 16, (6, URGENT): 16}
    with silence(lab, "leaf1", family=4):
        answers = probe(lab, "h0", [(one, URGENT, ttl, 20000) for one in lab.addresses("h2") for ttl in (1, 2, 3)])
        assert sorted((one.family, one.ttl) for one in answers) == [(4, 1), (4, 2), (6, 1), (6, 2), (6, 3)]


def test_delay_on_one_of_two_paths(lab):
    paths = {family: spines(lab, "h0", "h2", family) for family in FAMILIES}
    with delay(lab, "spine0", "leaf1", 60):
        seconds = {name: [one.seconds for one in arrivals(lab, "h0", "h2") if paths[one.family][one.port] == name] for name in ("spine0", "spine1")}
        back = [one.seconds for one in arrivals(lab, "h2", "h0")]
        print({name: f"{statistics.median(some) * 1e3:.2f} ms" for name, some in (seconds | {"back": back}).items()}, flush=True)
        assert len(seconds["spine0"]) + len(seconds["spine1"]) == 64 == len(back)
        assert min(seconds["spine0"]) >= 0.06, seconds
        assert statistics.median(seconds["spine1"]) < 0.05 > statistics.median(back), (seconds, back)
        reaches(lab, "h0", *lab.addresses("h2"))
    assert len(arrivals(lab, "h0", "h2")) == 64, "afterwards"


def test_one_port_is_fifo(lab):
    def leaves(node, device):
        before = lab.queue_bytes(node, device)
        arrivals(lab, "h0", "h2", (CONTROL, *BOTH, BULK + 1))
        after = lab.queue_bytes(node, device)
        return {leaf for leaf in after if after[leaf] > before[leaf]}
    queues = {CONTROL_LEAF, URGENT_LEAF, BULK_LEAF, OTHER_LEAF}
    assert leaves("leaf0", "spine1") == queues == leaves("leaf1", "h2")
    lab.policy("fifo", "leaf0:spine1")
    assert leaves("leaf0", "spine1") == {FIFO_LEAF} and leaves("leaf0", "spine0") == queues == leaves("leaf1", "h2")
    policies = {f"{port['node']}:{port['device']}": port["policy"] for port in lab.shown()["ports"]}
    assert policies.pop("leaf0:spine1") == "fifo" and set(policies.values()) == {"strict"}, policies
    lab.policy("fifo")
    assert leaves("leaf0", "spine1") == {FIFO_LEAF} == leaves("leaf1", "h2")
    lab.policy("strict", "leaf0:spine1")
    assert leaves("leaf0", "spine1") == queues and leaves("leaf1", "h2") == {FIFO_LEAF}
    lab.policy("strict")
    assert leaves("leaf0", "spine1") == queues == leaves("leaf1", "h2")
    refused = tensorlane("lab", "policy", "service", "--port", "leaf0:spine1", "--name", lab.name, check=False)
    assert refused.returncode == 2 and "the policy service is of a whole lab" in refused.stderr, refused


def test_paths_depend_on_the_fabric_alone():
    """Where the kernel lets each switch have a seed (Linux 6.11)."""
    taken = []
    for _ in range(2 if os.path.exists("/proc/sys/net/ipv4/fib_multipath_hash_seed") else 0):
        with Lab(routed=True, config=example("leaf-spine")) as lab:
            taken.append([spines(lab, "h0", "h2", family) for family in FAMILIES])
    assert taken[:1] == taken[1:], taken


def sums(lab, ranks):
    example_job = os.path.join(os.path.dirname(TENSORLANE), "tensorlane-example-allreduce")
    said = tensorlane("run", "--lab", lab.name, "-n", str(ranks), "--", example_job, timeout=60).stdout
    assert said.count("sums of 65536 elements are right") == ranks, said


def test_a_job_over_two_switches():
    before = sorted(os.listdir("/sys/class/net"))
    with Lab(routed=True, config=example("two-switches")) as lab:
        assert lab.about["routed"] and lab.shown()["routed"]
        reaches(lab, "h0", *lab.addresses("h3"))
        sums(lab, 4)
    assert namespaces(f"tl-{lab.name}-") == [] and not os.path.exists(lab.about["runtime"])
    assert sorted(os.listdir("/sys/class/net")) == before


def test_rails_that_meet_and_a_ring_of_switches():
    with Lab(routed=True, config=RAILS) as lab:
        assert lab.addresses("h1", 1) == ["198.18.1.2", "fd00:2::2"]
        for family in FAMILIES:
            for rail, leaf in enumerate("ab"):
                answers = probe(lab, "h0", [(address(lab, "h1", family, rail), URGENT, ttl, 20000 + rail) for ttl in (1, FAR)])
                assert [one.switch for one in answers] == [address(lab, leaf, family)], "rail i by its own switch"
        reaches(lab, "h0", *lab.addresses("h1"), *lab.addresses("h1", 1), *lab.addresses("c"))
        sums(lab, 2)


def test_what_a_routed_lab_cannot_be():
    done = tensorlane("lab", "up", "--routed", "--rdma", "--hosts", "2", check=False)
    assert done.returncode == 2 and done.stderr == "tensorlane: error: --routed excludes --rdma: tensorlane lab up: see `tensorlane lab up --help`\n", done


def main():
    require_namespaces()
    begin = time.monotonic()
    tests = [(name, test) for name, test in globals().items() if name.startswith("test_")]

    def run(name, test, *lab):
        test(*lab)
        print(f"ok {name} after {time.monotonic() - begin:.1f} s", flush=True)
    with Lab(routed=True, config=example("leaf-spine")) as lab:
        for name, test in tests:
            if test.__code__.co_argcount:
                run(name, test, lab)
    for name, test in tests:
        if not test.__code__.co_argcount:
            run(name, test)


if __name__ == "__main__":
    sys.exit(main())
