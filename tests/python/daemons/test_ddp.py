"""DistributedDataParallel with ddp_comm_hook in real jobs."""

import pytest
from jobs import needs_daemons, run

pytestmark = needs_daemons
PORT = 7720


@pytest.mark.parametrize("ranks, ranks_per_host", [pytest.param(1, 1, marks=pytest.mark.thorough), (2, 1), (2, 2)])
def test_training_is_that_of_gloo(ranks, ranks_per_host):
    output = run(ranks, ranks_per_host, "ring", "ddp_hook.py", first_port=PORT)
    for rank in range(ranks):
        assert f"rank {rank}: DDP with the hook is right" in output


@pytest.mark.parametrize("kind", [[], pytest.param(["static"], marks=pytest.mark.thorough)])
def test_a_rank_that_dies(kind):
    with pytest.raises(AssertionError, match="rank 0: was told who died"):
        run(2, 1, "ring", "ddp_hook.py", "dies", *kind, first_port=PORT, settings=["detection=2 s"])


@pytest.mark.parametrize("framework", ["accelerate", pytest.param("lightning", marks=pytest.mark.thorough)])
def test_frameworks(framework):
    pytest.importorskip(framework)
    output = run(2, 1, "ring", "ddp_frameworks.py", framework, first_port=PORT)
    for rank in range(2):
        assert f"rank {rank}: the same parameters with the hook and without" in output
