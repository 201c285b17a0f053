"""Three hosts train a small model (ranks.py) over RDMA to bitwise the parameters that they get over TCP, an outage of a link in between included;
and every packet of it carries its class: DSCP and PCP, data and acknowledgements, in both directions."""

import json
import time

from bed import ACKNOWLEDGE, ECT0, WRITES
from case_faults import DETECTION, link
from lab_harness import BULK, CONTROL, URGENT

PCP = {CONTROL: 6, URGENT: 5, BULK: 3}  # greenfield, common/fabric/README.md
ITERATIONS = 8
# Heartbeats are TCP, which doubles its pauses: they are silent for twice as long and more, of the six tenths of DETECTION that a host may be silent.
OUTAGE = DETECTION / 6


def check_packets(bed, hosts, vlan, packets):
    addresses = {bed.rdma_address(host) for host in hosts}
    assert packets and {p.source for p in packets} == addresses
    strange = [p for p in packets if (p.vlan, p.ecn) != (vlan, ECT0)]
    assert not strange, f"{len(strange)} of {len(packets)} packets without the VLAN or ECT(0): {strange[:5]}"
    assert {p.dscp for p in packets} == set(PCP), "each class, and nothing beside"
    assert all(p.pcp == PCP[p.dscp] for p in packets)
    for dscp in (URGENT, BULK):
        for source in addresses:
            sent = [p for p in packets if p.dscp == dscp and p.source == source]
            assert any(p.opcode in WRITES for p in sent), f"{source} wrote nothing in the class with DSCP {dscp}"
            assert any(p.opcode == ACKNOWLEDGE for p in sent), f"{source} acknowledged nothing in the class with DSCP {dscp}"


def digest_of(ranks):
    """Of the parameters, which are the same on all ranks."""
    results = [rank.result() for rank in ranks]
    print(json.dumps(results[0]), flush=True)
    digests = {result["digest"] for result in results}
    assert len(digests) == 1, results
    return digests.pop()


def iterations_of(rank):
    return rank.output().count("iteration")


def test_training(bed, ranks, tcp, rdma, vlan):
    """The digest of the parameters."""
    digest = digest_of(ranks.train(tcp, "tcp", ITERATIONS))
    with bed.capture() as capture:
        over_rdma = digest_of(ranks.train(rdma, "rdma", ITERATIONS))
    lane = rdma.status("h0")["lane"]
    chosen = {path["peer"]: [c["transport"] for c in path["candidates"] if c["chosen"]] for path in lane["paths"]}
    print(json.dumps(lane["rails"][0]), json.dumps(chosen), f"{len(capture.packets)} RoCE packets", flush=True)
    assert chosen == {host: ["rdma"] for host in ranks.hosts[1:]}, chosen
    assert lane["rails"][0]["device"].startswith("rxe0 port 1, GID"), lane["rails"]
    assert digest == over_rdma, "other parameters over RDMA than over TCP"
    addresses = {bed.rdma_address(host) for host in ranks.hosts}
    check_packets(bed, ranks.hosts, vlan, [p for p in capture.packets if p.source in addresses and p.destination in addresses])
    return digest


def test_training_through_an_outage(bed, ranks, rdma, digest):
    """A link goes down and comes back within the detection time: nothing is lost, nothing is added twice."""
    running = ranks.train(rdma, "outage", ITERATIONS)
    for rank in running:
        rank.wait_for("iteration 1")
    link(bed, "h1", "down")
    before = [iterations_of(rank) for rank in running]
    time.sleep(OUTAGE)
    during = [iterations_of(rank) - started for rank, started in zip(running, before, strict=True)]
    link(bed, "h1", "up")
    assert max(during) <= 2, f"{during} iterations without h1: nothing waited for the link"
    results = [rank.result() for rank in running]
    print(json.dumps(results[0]), flush=True)
    assert {result["digest"] for result in results} == {digest}, "other parameters than without the outage"
