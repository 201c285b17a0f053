"""DistributedOptimizer(sharded=True) in real jobs."""

import pytest
from jobs import needs_daemons, run

pytestmark = needs_daemons
PORT = 7760


@pytest.mark.parametrize("ranks, ranks_per_host, pattern", [(1, 1, "ring"), (2, 1, "ring"), (4, 1, "ring"), (4, 2, "parameter_server")])
def test_training(ranks, ranks_per_host, pattern):
    output = run(ranks, ranks_per_host, pattern, "sharded.py", first_port=PORT)
    for rank in range(ranks):
        assert f"rank {rank}: sharded training is right" in output
