"""Runs the scripts of the folder above in real jobs: `tensorlane run` with daemons on loopback, one per host.

TENSORLANE_BUILD names the build directory (ctest sets it).
"""

import subprocess
import sys

import pytest
from jobs import SCRIPTS, SECONDS, needs_daemons, run

WORLDS = {"ring_4x1": (4, 1, "ring"), "ring_2x2": (4, 2, "ring"), "parameter_server_4x1": (4, 1, "parameter_server"), "parameter_server_2x2": (4, 2, "parameter_server")}
ALWAYS = ("ring_2x2", "parameter_server_4x1")  # the others are thorough

pytestmark = needs_daemons
thorough = pytest.mark.thorough


@pytest.mark.parametrize("ranks, ranks_per_host", [pytest.param(1, 1, marks=thorough), pytest.param(2, 1, marks=thorough), (2, 2)])
def test_array_calls(ranks, ranks_per_host):
    output = run(ranks, ranks_per_host, "ring", "array_calls.py", first_port=7600)
    for rank in range(ranks):
        assert f"rank {rank}: all array calls are right" in output


@thorough
def test_wrapping_many_models():
    output = run(2, 1, "ring", "rewrap.py", first_port=7600, settings=["arena_limit=70 MiB"])
    for rank in range(2):
        assert f"rank {rank}: all models were wrapped" in output


@pytest.mark.parametrize(
    "ranks_per_host, pattern, settings",
    [(2, "parameter_server", []), pytest.param(1, "ring", ["ordering=funnel"], marks=thorough), pytest.param(1, "ring", [], marks=thorough), pytest.param(1, "parameter_server", ["batch=64 KiB"], marks=thorough)],
)
def test_unregistering(ranks_per_host, pattern, settings):
    """200 times 16 MiB where there is room for four, shapes of all kinds, mistakes, and another job beside it."""
    output = run(2 * ranks_per_host, ranks_per_host, pattern, "unregister.py", first_port=7600, settings=["arena_limit=70 MiB", *settings])
    for rank in range(2 * ranks_per_host):
        assert f"rank {rank}: everything was given back" in output


def test_a_rank_that_dies_while_others_unregister():
    with pytest.raises(AssertionError, match="rank 0: was told who died"):
        run(2, 1, "ring", "unregister.py", "dies", first_port=7600)


def test_closing_optimizers():
    output = run(2, 1, "ring", "closing.py", first_port=7600)
    for rank in range(2):
        assert f"rank {rank}: all optimizers were closed" in output


def test_leaving_while_threads_call():
    output = run(2, 1, "ring", "leaving.py", first_port=7600)
    for rank in range(2):
        assert f"rank {rank}: no call has outlived its job" in output


@pytest.mark.parametrize("ranks_per_host", [pytest.param(1, marks=thorough), 2])
def test_process_sets(ranks_per_host):
    output = run(4, ranks_per_host, "ring", "process_sets.py", first_port=7600, settings=["late_after=1 s"])
    for rank in range(4):
        assert f"rank {rank}: all process sets are right" in output


def test_process_set_that_one_leaves():
    output = run(4, 2, "ring", "process_sets.py", "removed", first_port=7612, settings=["late_after=1 s"])
    for rank in range(4):
        assert f"rank {rank}: knows who has left the set" in output


@thorough
def test_many_process_sets():
    output = run(4, 2, "ring", "process_sets.py", "many", "200", "1000", first_port=7624)
    for rank in range(4):
        assert f"rank {rank}: 200 sets at once and 1000 one after the other" in output


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """World -> file of train_equality.py; each world is trained once."""
    folder = tmp_path_factory.mktemp("results")
    made = {}

    def result(world, *flags):
        key = "".join((world, *flags))
        if key not in made:
            made[key] = folder / f"{key}.json"
            flags += ("--numbered",) if world == "ring_4x1" else ()
            run(*WORLDS[world], "train_equality.py", "--json", str(made[key]), *flags, first_port=7640)
        return str(made[key])

    return result


def compare(*files):
    done = subprocess.run(
        [sys.executable, str(SCRIPTS / "train_equality.py"), "--compare", *files], capture_output=True, text=True, timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("world", [world if world in ALWAYS else pytest.param(world, marks=thorough) for world in WORLDS])
def test_training(results, world):
    """Ranks, repeated runs and both modes agree bitwise; one process with the whole batch agrees within the tolerance: see train_equality.py."""
    results(world)


@pytest.mark.parametrize("worlds", [ALWAYS, pytest.param(tuple(WORLDS), marks=thorough)])
def test_worlds_and_patterns_agree(results, worlds):
    compare(*[results(world) for world in worlds])


@thorough
def test_a_second_job_in_the_other_mode_gives_the_same_bits(results):
    assert "bitwise equal" in compare(results("ring_4x1"), results("ring_4x1", "--synchronous"))
