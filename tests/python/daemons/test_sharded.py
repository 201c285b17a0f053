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


def test_a_rank_that_dies():
    with pytest.raises(AssertionError) as raised:
        run(2, 1, "ring", "sharded.py", "dies", first_port=PORT, settings=["detection=2 s"])
    assert "rank 0: was told who died" in str(raised.value), raised.value


def test_example(tmp_path):
    """Two ranks train and save; three go on, with less of the state on each."""
    example = "../../client-lib/python/tensorlane/examples/sharded.py"
    saved = str(tmp_path / "gpt.pt")

    def train(ranks, *arguments):
        output = run(ranks, 1, "ring", example, "--iterations", "15", *arguments, first_port=PORT)
        lines = sorted(line for line in output.splitlines() if ", loss " in line)
        assert len(lines) == ranks, output
        return [(int(line.split("iteration ")[1].split(",")[0]), float(line.split("loss ")[1].split(",")[0]), int(line.split(", ")[2].split()[0])) for line in lines]

    begun, resumed = train(2, "--save", saved), train(3, "--resume", saved)
    assert [iteration for iteration, _, _ in begun + resumed] == [15, 15, 30, 30, 30]
    assert resumed[0][1] < begun[0][1] - 0.2
    assert sum(kept for _, _, kept in begun) == sum(kept for _, _, kept in resumed)
    assert max(kept for _, _, kept in resumed) < 0.7 * min(kept for _, _, kept in begun)
