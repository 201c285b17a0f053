"""All-to-all with parts of different sizes (parts.py) in real jobs."""

import re

import pytest
from jobs import needs_daemons, run

pytestmark = needs_daemons


@pytest.mark.parametrize("ranks, ranks_per_host", [pytest.param(2, 1, marks=pytest.mark.thorough), (3, 3), (4, 2)])
def test_parts_of_different_sizes(ranks, ranks_per_host):
    output = run(ranks, ranks_per_host, "ring", "parts.py", "works", first_port=7880)
    for rank in range(ranks):
        assert f"rank {rank}: all parts are right" in output


def test_rows_of_different_sizes_are_named_at_both_ends():
    output = run(3, 1, "ring", "parts.py", "rows", first_port=7880)
    for rank in range(3):
        assert f"rank {rank}: rank " in output
    assert "rank 0 sends 2 elements of float64, rank 2 receives 3 elements of float64: parts of an all-to-all of job" in output
    assert "use one dtype on all ranks, and expect of each rank as many elements as it sends" in output


def test_a_rank_that_dies_is_named():
    with pytest.raises(AssertionError) as failed:
        run(3, 1, "ring", "parts.py", "dies", first_port=7880, warm=False)
    for rank in (0, 2):
        assert re.search(rf"rank {rank}: was told: .*rank 1 .*was killed by signal 9", str(failed.value))


def test_a_rank_that_cannot_start_its_parts_ends_the_job():
    with pytest.raises(AssertionError) as failed:
        run(3, 1, "ring", "parts.py", "full", first_port=7880)
    assert "rank 0: too many messages of this rank are under way" in str(failed.value)
    assert "rank 1: was told: " in str(failed.value) and "rank 2: was told: " in str(failed.value)
