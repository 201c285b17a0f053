"""The conformance suite of all transports (tests/conformance) over RDMA, on one host of a bed: both ends are in one process, packets go
through rxe0."""

import os
import re

from daemons_in_bed import BUILD

SUITE = os.path.join(BUILD, "tests", "rdma_conformance")


def start_suite(bed, host, thorough):
    """All of it, or of other kinds than `rdma` less of what the suite of all transports has been through with that."""
    variables = [f"TENSORLANE_RDMA_ADDRESS={bed.rdma_address(host)}", "TMPDIR=/run"]
    return bed.start(host, "env", *variables, *([] if thorough else ["TENSORLANE_CYCLES=50"]), SUITE, *([] if thorough else ["--gtest_filter=-Transports/*/rdma_three_pairs:Transports/Pressure.*/rdma_cm:Transports/Faults.*/rdma_cm"]))


def test_suite(bed, suite):
    out, err = bed.outcome(suite, timeout=600)
    # Connections that are lost on purpose are logged there, too: what a failed case says comes without them.
    said = [line for line in out.splitlines() if not re.match(r"\[\d{4}-", line)]
    assert suite.returncode == 0 and "[  PASSED  ]" in out and "SKIPPED" not in out, "\n".join([f"exit status {suite.returncode}", *said, err])
    # Every case by name: tests/summarize.py counts no case as skipped that ran here.
    print("\n".join(line for line in said if line.startswith(("[       OK ]", "[  PASSED  ]"))), flush=True)
