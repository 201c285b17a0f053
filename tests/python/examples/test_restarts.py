"""A rank under torchrun fails: the others are told in time, and all go on from the last checkpoint, without anybody's help (restarts.py)."""

import re
import sys

import pytest
from jobs import SCRIPTS, needs_backend, needs_daemons, run_command, warm_interpreter

pytestmark = [needs_daemons, needs_backend]
PORT, STORE_PORT = 8020, 8019
DETECTION = 10
ITERATIONS, LAST = 20, 10  # the last checkpoint before all failures


def under_torchrun(hosts, *program):
    """What the ranks of a job of four print, with an agent on every host."""
    options = ["--nproc-per-node", 4 // hosts, "--max-restarts", 1]
    options += ["--standalone"] if hosts == 1 else ["--nnodes", hosts, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{STORE_PORT}"]
    return run_command(hosts, 1, "auto", [sys.executable, "-m", "torch.distributed.run", *options, *program], first_port=PORT, settings=[f"detection={DETECTION} s"])


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """By the number of hosts: the numbers that ranks come to when none fails, without torchrun."""
    made = {}

    def result(hosts):
        if hosts not in made:
            program = [*warm_interpreter(), "-m", "tensorlane.examples.checkpoint", "--iterations", ITERATIONS, "--folder", tmp_path_factory.mktemp("undisturbed")]
            made[hosts] = numbers(run_command(4, 4 // hosts, "auto", program, first_port=PORT))
        return made[hosts]

    return result


def numbers(output):
    found = sorted(set(re.findall(r"rank \d: \d+ iterations, loss [\d.]+, parameters [0-9a-f]{16}", output)))
    assert len(found) == 4, output
    return found


thorough = pytest.mark.thorough


@pytest.mark.parametrize(
    "hosts, how, failing, times", [(1, "killed", 2, 12), pytest.param(2, "raises", 2, 12, marks=thorough), pytest.param(2, "saving", 0, 3, marks=thorough)],
)
def test_training_goes_on(tmp_path, undisturbed, hosts, how, failing, times):
    output = under_torchrun(hosts, SCRIPTS / "restarts.py", how, failing, times, tmp_path, "--iterations", ITERATIONS)
    # Where ranks print at a time, what one prints may follow in another one's line.
    told = {int(rank): (float(seconds), text) for rank, seconds, text in re.findall(r"rank (\d): was told after ([\d.]+) s: (.*?)(?=rank \d: was told|\n)", output)}
    assert sorted(told) == [rank for rank in range(4) if rank != failing], output
    for seconds, text in told.values():
        assert seconds < DETECTION and f"rank {failing} " in text, told
        assert ("closed its session without goodbye" if how == "raises" else "was killed by signal 9") in text, told
    began = [(int(rank), int(done)) for rank, done in re.findall(r"rank (\d) of 4: process \d+ goes on after (\d+) iterations", output)]
    assert sorted(began) == sorted([(rank, 0) for rank in range(4)] + [(rank, LAST) for rank in range(4)]), output
    assert numbers(output) == undisturbed(hosts)
    print({rank: seconds for rank, (seconds, _) in told.items()})
