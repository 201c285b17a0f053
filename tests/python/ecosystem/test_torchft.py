"""torchft on the backend, in real jobs."""

import importlib.util
import re

import pytest
from jobs import needs_backend, needs_daemons, run

needs_torchft = pytest.mark.skipif(importlib.util.find_spec("torchft") is None, reason="no torchft: run deploy/install-deps python")
pytestmark = [needs_daemons, needs_backend, needs_torchft]
thorough = pytest.mark.thorough
PORT = 7940


def groups(ranks, what):
    return run(ranks, 1, "auto", "torchft_groups.py", what, first_port=PORT, settings=["detection=5 s"])


@thorough
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_operations(ranks):
    assert groups(ranks, "works").count("works is right") == ranks


@thorough
@pytest.mark.parametrize("what, ranks", [("again", 4), ("aborts", 3), ("late", 3)])
def test_groups_that(what, ranks):
    assert groups(ranks, what).count(f"{what} is right") == ranks


@thorough
def test_a_rank_that_dies():
    with pytest.raises(AssertionError) as raised:
        groups(3, "dies")
    assert str(raised.value).count("goes on without rank 2") == 2


def test_a_replica_that_dies():
    """torchft's manager and lighthouse, a replica that kills itself and is started again."""
    example = "../../client-lib/python/tensorlane/examples/fault_tolerant.py"
    output = run(2, 1, "auto", example, "--kill", "20", first_port=PORT)
    assert "replica 0: 1 lives, status 0" in output and "replica 1: 2 lives, status 0" in output
    ends = re.findall(r"replica \d: (\d+) iterations, accuracy ([\d.]+), parameters (\w+)", output)
    assert len(ends) == 2 and ends[0] == ends[1] and int(ends[0][0]) >= 60 and float(ends[0][1]) > 0.6, ends


@thorough
def test_torchfts_own_tests():
    pytest.importorskip("parameterized")
    output = run(1, 1, "auto", "torchft_upstream.py", first_port=PORT)
    outcomes = re.findall(r"^\[rank 0\] (pass|skip|fail) (\w+)|^(pass|skip|fail) (\w+)", output, re.M)
    passed = [first[1] or first[3] for first in outcomes if "pass" in first]
    assert len(passed) >= 25 and not any("fail" in each for each in outcomes), output
