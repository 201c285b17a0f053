"""`transport: auto` between hosts that have both: it takes what it measures to be faster, both ends agree and say why. RDMA has the VLAN device to itself, so a queue there
slows it alone."""

import json

from daemons_in_bed import MESSAGE

DELAY = 100  # ms on the way of RDMA, at both ends
NAMES = ["rdma", "tcp"]


def delay(bed, hosts, vlan, how):
    for host in hosts:
        bed.run(host, "sh", "-c", f"tc qdisc {how} dev eth0.{vlan} root netem delay {DELAY}ms")


def path(daemons, host, peer):
    """{transport: candidate} of the flows between them."""
    paths = [p for p in daemons.status(host)["lane"]["paths"] if p["peer"] == peer]
    assert len(paths) == 1 and [c["transport"] for c in paths[0]["candidates"]] == NAMES, paths
    return {c["transport"]: c for c in paths[0]["candidates"]}


def run_job(daemons, name, hosts):
    for rank in daemons.start_job(name, [MESSAGE, "flood", "65536", "2", "0.0"], hosts):
        out, err = rank.communicate(timeout=60)
        assert rank.returncode == 0, f"{name}: exit status {rank.returncode}: {out}{err}"
    ends = path(daemons, hosts[0], hosts[1]), path(daemons, hosts[1], hosts[0])
    print(name, json.dumps(ends[0]), flush=True)
    chosen = [[t for t in NAMES if end[t]["chosen"]] for end in ends]
    assert chosen[0] == chosen[1] and len(chosen[0]) == 1, f"the ends do not agree: {ends}"
    for end in ends:
        assert all(c["latency_s"] > 0 and c["bits_per_second"] > 0 for c in end.values()), end
    return chosen[0][0], ends[0]


def test_choice(bed, daemons, hosts, vlan):
    """Daemons that have not run a job yet."""
    delay(bed, hosts, vlan, "replace")
    try:
        chosen, figures = run_job(daemons, "delayed", hosts)
    finally:
        delay(bed, hosts, vlan, "delete")
    assert chosen == "tcp", "capability has chosen"
    assert figures["rdma"]["latency_s"] > DELAY / 1000 / 2 and figures["tcp"]["latency_s"] < DELAY / 1000 / 2, figures
    assert "tcp takes" in figures["rdma"]["verdict"] and figures["tcp"]["verdict"] == "fastest", figures
