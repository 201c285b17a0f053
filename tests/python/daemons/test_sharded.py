"""DistributedOptimizer(sharded=True) in real jobs."""

import pytest
from jobs import needs_daemons, run

pytestmark = needs_daemons
PORT = 7760


@pytest.mark.parametrize("ranks, ranks_per_host, pattern", [pytest.param(1, 1, "ring", marks=pytest.mark.thorough), pytest.param(2, 1, "ring", marks=pytest.mark.thorough), (4, 1, "ring"), (4, 2, "parameter_server")])
def test_training(ranks, ranks_per_host, pattern):
    output = run(ranks, ranks_per_host, pattern, "sharded.py", first_port=PORT)
    for rank in range(ranks):
        assert f"rank {rank}: sharded training is right" in output


def test_a_rank_that_dies():
    with pytest.raises(AssertionError) as raised:
        run(2, 1, "ring", "sharded.py", "dies", first_port=PORT, settings=["detection=2 s"])
    assert "rank 0: was told who died" in str(raised.value), raised.value
