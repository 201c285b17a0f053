"""The conformance suite of all transports (tests/conformance) over RDMA, on one host of a bed: both ends are in one process, packets go
through rxe0."""

import os

from daemons_in_bed import BUILD

SUITE = os.path.join(BUILD, "tests", "rdma_conformance")


def start_suite(bed, host):
    return bed.start(host, "env", f"TENSORLANE_RDMA_ADDRESS={bed.rdma_address(host)}", "TMPDIR=/run", SUITE, "--gtest_brief=1")


def test_suite(bed, suite):
    out = bed.finish(suite, timeout=300)
    print(out.splitlines()[-1], flush=True)
    assert "[  PASSED  ]" in out and "SKIPPED" not in out, out
