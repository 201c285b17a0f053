"""The backend of torch.distributed where something beside it goes wrong, in real jobs of two ranks."""

import os
import subprocess
import sys

import pytest
from jobs import BUILD, SCRIPTS, environment, needs_backend, needs_daemons, run

PORT = 7860
ALTERED, SLOW_WORKS = (BUILD / "tests" / "backend" / f"{name}.so" for name in ("altered_library", "slow_works"))
pytestmark = [needs_daemons, needs_backend, pytest.mark.skipif(not ALTERED.exists() or not SLOW_WORKS.exists(), reason=f"no {ALTERED} or {SLOW_WORKS}")]


def faults(what, **options):
    return run(2, 1, "auto", "torch_backend_faults.py", what, first_port=PORT, seconds=60, **options)


@pytest.mark.parametrize("what", ["kept", pytest.param("refuses", marks=pytest.mark.thorough)])
def test_a_library_that_does_less(what):
    assert faults(what, variables={"TENSORLANE_LIBRARY": str(ALTERED)}).count(f"{what} is right") == 2


def test_a_group_that_is_left_while_an_operation_begins():
    assert faults("leaves", variables={"SLOW_WORKS": str(SLOW_WORKS)}).count("leaves is right") == 2


def test_a_rank_that_leaves_while_the_other_waits():
    assert faults("left", settings=["detection=2 s"]).count("left is right") == 2


def test_a_store_that_hangs():
    assert "rank 0: hangs is right" in faults("hangs", settings=["detection=2 s"])


@pytest.mark.parametrize("what", ["forks", pytest.param("barrier", marks=pytest.mark.thorough), pytest.param("dropped", marks=pytest.mark.thorough)])
def test_ranks_that(what):
    assert faults(what).count(f"{what} is right") == 2


def test_an_exception_ends_a_rank():
    with pytest.raises(AssertionError, match="rank 0: raises is right"):
        faults("raises")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_no_threads():
    done = subprocess.run([sys.executable, str(SCRIPTS / "torch_backend_faults.py"), "threads"], env=environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "threads is right" in done.stdout, done.stderr
