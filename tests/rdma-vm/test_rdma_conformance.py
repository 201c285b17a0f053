"""The conformance suite of all transports (tests/conformance) over RDMA, on one host of a bed: both ends are in one process, packets go
through rxe0. And daemons that cannot use their device say why."""

import os
import sys

from bed import Bed, Failed, require_bed, skip
from daemons_in_bed import BIN, BUILD, Daemons

SUITE = os.path.join(BUILD, "tests", "rdma_conformance")


def test_suite(bed):
    out = bed.run("h0", "env", f"TENSORLANE_RDMA_ADDRESS={bed.rdma_address('h0')}", "TMPDIR=/run", SUITE, timeout=300)
    print(out.splitlines()[-1], flush=True)
    assert "[  PASSED  ]" in out and "SKIPPED" not in out, out


def said(bed, daemons, host="h0", before="true", **settings):
    """What a daemon says that cannot start."""
    path = daemons.configuration(host, **settings)
    try:
        bed.run(host, "sh", "-c", f"{before} && exec {BIN}/tensorlaned --config {path}", timeout=15)
    except Failed as failure:
        return str(failure)
    raise AssertionError("the daemon has started")


def test_errors(bed):
    daemons = Daemons(bed, "rdma", 7400, hosts=[])
    with daemons:
        text = said(bed, daemons, rdma="{device: mlx5_9}")
        assert "tensorlane: error: this host has no RDMA device 'mlx5_9': /sys/class/infiniband: set `rdma: device` in daemon.yaml to one of rxe0" in text, text
        text = said(bed, daemons, rdma="{port: 2}")
        assert "tensorlane: error: the device has no port 2: rxe0: set `rdma: port` to 1 to 1" in text, text
        # No such GID: the address of another subnet, or of a VLAN that does not exist.
        address = bed.rdma_address("h0")
        bed.run("h0", "ip", "-4", "address", "flush", "dev", "eth0")
        text = said(bed, daemons)
        assert f"no RoCE v2 GID has this host's rdma address {address}: rxe0 port 1: its GIDs are fe80::" in text, text
        bed.run("h0", "ip", "link", "set", "eth0", "down")
        text = said(bed, daemons)
        assert "tensorlane: error: the port is down: rxe0 port 1: bring its network interface up and look at the cable" in text, text


def main():
    require_bed()
    if not os.path.exists(SUITE):
        skip("no rdma_conformance: built without libibverbs")
    with Bed(hosts=2, speed="1 Gbit/s", memory=1024) as bed:
        test_suite(bed)
        test_errors(bed)


if __name__ == "__main__":
    sys.exit(main())
