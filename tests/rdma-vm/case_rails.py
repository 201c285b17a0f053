"""A job over two RDMA devices of each host: the slices of its tensors travel over both, with the tags of their class, to the same bits as
over one; and a rail that dies is an error that names it, on every rank, while the hosts are heard over the other."""

import time

from bed import WRITES
from case_faults import DETECTION, link
from case_training import PCP
from daemons_in_bed import MESSAGE, results
from lab_harness import BULK

# The rail's control connections break after 1.5 times the detection time, and control gets a fifth of it to say more; the rest is for
# emulated hosts.
ALLOWED = 2.5 * DETECTION
BYTES, COUNT = 2 << 20, 3


def hash_of_sums(daemons, job, hosts):
    """Of the bits of some sums that depend on the order of summation."""
    words = [out.split() for out in results(daemons.start_job(job, [MESSAGE, "sum", str(BYTES), str(COUNT), "0.0"], hosts))]
    assert len({word[1] for word in words}) == 1, words
    print(f"{job}: {BYTES >> 20} MiB in {words[0][0]} s", flush=True)
    return words[0][1]


def check_packets(bed, hosts, vlan, rail, packets):
    """Each host has written to others on this rail, and nothing on it is of the other or without its tags."""
    addresses = {bed.rdma_address(host, rail) for host in hosts}
    assert {p.source for p in packets} == addresses, f"rail {rail}: {({p.source for p in packets})}"
    assert {p.source for p in packets if p.dscp == BULK and p.opcode in WRITES} == addresses, f"rail {rail}"
    tags = {(p.vlan, p.dscp, p.pcp) for p in packets}
    assert tags <= {(vlan, dscp, pcp) for dscp, pcp in PCP.items()}, f"rail {rail}: {tags}"


def test_both_rails(bed, one_rail, daemons, hosts, vlan):
    expected = hash_of_sums(one_rail, "one", hosts)
    with bed.capture("s0") as first, bed.capture("s1") as second:
        assert hash_of_sums(daemons, "two", hosts) == expected, "other sums over two rails than over one"
    payload = []
    for rail, capture in enumerate((first, second)):
        check_packets(bed, hosts, vlan, rail, capture.packets)
        payload.append(sum(p.bytes for p in capture.packets if p.dscp == BULK and p.opcode in WRITES))
    share = payload[0] / sum(payload)
    print(f"rail 0 carried {share:.3f} of {sum(payload) / (1 << 20):.1f} MiB", flush=True)
    assert 0.4 <= share <= 0.6, f"the rails carried {payload} bytes"
    for rail, status in enumerate(daemons.status("h0")["lane"]["rails"]):
        assert status["transport"] == "rdma" and status["device"].startswith(f"rxe{rail} port 1, GID"), status
        assert bed.rdma_address("h0", rail) in status["device"], status


def test_dead_rail(bed, daemons, hosts):
    running = daemons.start_loop("dead-rail", hosts, 300, BYTES)
    link(bed, "h1", "down", "s1")
    since = time.monotonic()
    try:
        for host, rank in zip(hosts, running, strict=True):
            out, err = rank.communicate(timeout=60)
            took = time.monotonic() - since
            print(f"{host} after {took:.1f} s: {err.strip()}", flush=True)
            assert rank.returncode == 1 and "on rail 1 was lost" in err, f"{host} has ended with {rank.returncode}: {out}{err}"
            assert took <= ALLOWED, f"{host} ended after {took:.1f} s"
    finally:
        link(bed, "h1", "up", "s1")
    results(daemons.start_loop("after-dead-rail", hosts, 0, BYTES))
