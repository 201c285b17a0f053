"""Two hosts whose queue pairs are connected by rdma_cm: a job sums over them, `status` says what connects them and what marks the packets, and a
capture shows that it is so."""

from bed import DATAGRAM
from case_training import PCP, check_packets
from daemons_in_bed import MESSAGE
from lab_harness import BULK, URGENT


def between(packets, addresses):
    """Without the answers to requests that came twice, as they do on a busy machine: the kernel takes their traffic class from a GRH, which packets of
    IPv4 have none of."""
    pair = [p for p in packets if {p.source, p.destination} == addresses]
    return [p for p in pair if not (p.opcode == DATAGRAM and p.dscp == 0 and p.ecn == 0)]


def test_rdma_cm(bed, daemons, hosts, vlan):
    addresses = {bed.rdma_address(host) for host in hosts}
    with bed.capture() as capture:
        jobs = [daemons.start_job(f"cm-{urgency}", [MESSAGE, "loop", "65536", "0.5", str(urgency)], hosts) for urgency in (1.0, 0.0)]
        for ranks in jobs:
            for rank in ranks:
                bed.finish(rank, 60)
    device = daemons.status(hosts[0])["lane"]["rails"][0]["device"]
    print(device, flush=True)
    assert device.endswith(", connected by rdma_cm: DSCP by TOS, PCP only by tc skbedit (software device)"), device
    packets = between(capture.packets, addresses)
    check_packets(bed, hosts, vlan, packets)
    for dscp in PCP:
        askers = {p.source for p in packets if p.opcode == DATAGRAM and p.dscp == dscp}
        assert askers == addresses, f"requests and replies of rdma_cm with DSCP {dscp} come from {askers}"
    for dscp in (URGENT, BULK):
        print(f"DSCP {dscp}:", {source: sum(p.dscp == dscp and p.source == source for p in packets) for source in sorted(addresses)}, flush=True)
