"""Three hosts train the digits example over RDMA to bitwise the parameters that they get over TCP, and every packet of it carries its
class: DSCP and PCP, data and acknowledgements, in both directions."""

import json
import os
import sys

from bed import ACKNOWLEDGE, ECT0, WRITES, Bed, require_bed, skip
from daemons_in_bed import PYTHON, Daemons, start_job
from lab_harness import BULK, CONTROL, URGENT

VLAN = 100
PCP = {CONTROL: 6, URGENT: 5, BULK: 3}  # greenfield, common/fabric/README.md
ITERATIONS = 8


def check_packets(bed, packets):
    addresses = {bed.rdma_address(host) for host in ("h0", "h1", "h2")}
    assert packets and {p.source for p in packets} == addresses
    assert {(p.vlan, p.ecn) for p in packets} == {(VLAN, ECT0)}
    assert {p.dscp for p in packets} == set(PCP), "each class, and nothing beside"
    assert all(p.pcp == PCP[p.dscp] for p in packets)
    for dscp in (URGENT, BULK):
        for source in addresses:
            sent = [p for p in packets if p.dscp == dscp and p.source == source]
            assert any(p.opcode in WRITES for p in sent), f"{source} wrote nothing in the class with DSCP {dscp}"
            assert any(p.opcode == ACKNOWLEDGE for p in sent), f"{source} acknowledged nothing in the class with DSCP {dscp}"


def main():
    require_bed()
    if not os.path.exists(PYTHON):
        skip("no Python with torch: run deploy/install-deps python client")
    with Bed(hosts=3, policy="strict", speed="40 Mbit/s", vlan=VLAN, memory=1500) as bed:
        with Daemons(bed, "tcp", 7200) as tcp, Daemons(bed, "auto", 7300) as auto:
            train = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train.py")
            command = [PYTHON, train, str(ITERATIONS), *(f"{d.name}={d.socket()}" for d in (tcp, auto))]
            with bed.capture() as capture:
                ranks = start_job(bed, command, {})
                results = [[json.loads(line) for line in bed.finish(rank, timeout=400).splitlines() if line.startswith("{")] for rank in ranks]
            flows = auto.status("h0")["lane"]["transport_choices"]
            print(json.dumps(flows), json.dumps(results[0]), f"{len(capture.packets)} RoCE packets", flush=True)
        assert flows[bed.address("h1")] == "rdma" and flows[bed.address("h2")] == "rdma", flows
        assert "rxe0 port 1, GID" in flows["rdma"], flows
        by_name = {name: {entry["digest"] for result in results for entry in result if entry["name"] == name} for name in ("tcp", "auto")}
        assert len(by_name["tcp"]) == 1 and by_name["tcp"] == by_name["auto"], by_name
        check_packets(bed, capture.packets)


if __name__ == "__main__":
    sys.exit(main())
