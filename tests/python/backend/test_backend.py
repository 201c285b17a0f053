"""The backend of torch.distributed in real jobs."""

import re
import subprocess
import sys

import pytest
from jobs import SCRIPTS, environment, needs_backend, needs_daemons, run

pytestmark = [needs_daemons, needs_backend]
PORT = 7820


def backend(ranks, ranks_per_host, *arguments, **options):
    return run(ranks, ranks_per_host, "auto", "torch_backend.py", *arguments, first_port=PORT, seconds=60, **options)


@pytest.mark.parametrize("ranks, ranks_per_host", [pytest.param(2, 1, marks=pytest.mark.thorough), (3, 1), (4, 2)])
def test_operations(ranks, ranks_per_host):
    output = backend(ranks, ranks_per_host, "works")
    for rank in range(ranks):
        assert f"rank {rank}: works is right" in output


def messages(ranks, *arguments, **options):
    return run(ranks, 1, "auto", "torch_messages.py", *arguments, first_port=PORT, seconds=60, **options)


def test_messages():
    assert messages(3, "works").count("works is right") == 3


@pytest.mark.parametrize("kind", ["dtype", "count"])
def test_messages_that_differ(kind):
    output = messages(2, "differs", kind)
    assert output.count("was told") == 2 and output.count("differs is right") == 2


def test_a_receiver_that_dies():
    with pytest.raises(AssertionError) as raised:
        messages(2, "dies", settings=["detection=2 s"])
    assert "was told who died" in str(raised.value)


def test_a_message_that_nobody_receives():
    output = messages(2, "left")
    assert "was told: " in output and output.count("left is right") == 2


def test_refusals():
    assert backend(2, 2, "refusals").count("refusals is right") == 2


@pytest.mark.parametrize("kind", ["count", "operation", "known", "order", pytest.param("dtype", marks=pytest.mark.thorough), pytest.param("root", marks=pytest.mark.thorough)])
def test_ranks_that_differ(kind):
    assert backend(2, 1, "differs", kind).count("was told") == 2


def test_a_rank_that_dies():
    with pytest.raises(AssertionError) as raised:
        backend(3, 1, "dies", settings=["detection=2 s"])
    for rank in range(2):
        assert f"rank {rank}: was told who died" in str(raised.value)


def test_a_rank_that_is_late():
    assert backend(3, 1, "late").count("was told who is late") == 2


@pytest.mark.parametrize("times", [20, pytest.param(50, marks=pytest.mark.thorough)])
def test_groups_are_made_again(times):
    """In the same processes: after an end in peace, and after operations that never end."""
    output = run(4, 2, "auto", "torch_backend_again.py", str(times), first_port=PORT)
    assert output.count(f"is left of {times} groups") == 4, output


def test_one_rank_needs_no_daemon():
    done = subprocess.run([sys.executable, str(SCRIPTS / "torch_backend.py"), "alone"], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "alone is right" in done.stdout, done.stderr


@pytest.mark.parametrize("what", ["ddp", "fsdp", pytest.param("dtensor", marks=pytest.mark.thorough)])
def test_training_is_that_of_gloo(what):
    assert run(2, 1, "auto", "torch_backend_training.py", what, first_port=PORT, seconds=90).count("as over Gloo") == 2


def test_the_benchmark_looks_for_it(monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS.parent / "bench")
    import sharded_training

    for path, is_there in ((environment()["TENSORLANE_TORCH_BACKEND"], True), ("/no/such/backend.so", False)):
        monkeypatch.setenv("TENSORLANE_TORCH_BACKEND", path)
        assert sharded_training.has_backend() == is_there, path


def test_the_bench_checks_every_call_and_says_how_fast_it_was():
    calls = ["reduce_scatter", "all_gather", "all_to_all", "all_to_all_uneven", "all_reduce", "send"]
    short = ["--blocks", "1", "--repeat", "1", "--bytes", "4096", "65536", "--calls", *calls]
    output = run(3, 1, "ring", "../bench/torch_collectives.py", *short, first_port=PORT, seconds=60)
    for call in calls:
        assert re.search(rf"{call} +65,536 B: +[0-9.]+ times as fast as Gloo \([0-9.]+ to [0-9.]+\); [0-9,]+ us, p99", output), output
