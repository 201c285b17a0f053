"""The examples, by the commands in their own documentation."""

import ast
import functools
import os
import pathlib
import re
import shlex
import subprocess
import sys

import pytest
from jobs import BUILD, SCRIPTS, SECONDS, environment, needs_backend, needs_daemons, warm_interpreter

pytestmark = [needs_daemons, needs_backend]
FOLDER = SCRIPTS.parents[1] / "client-lib" / "python" / "tensorlane" / "examples"
# What deploy/quickstart and the benchmarks run, and tests of these.
OTHERS = {"__init__", "blocks", "digits", "figure5", "flood", "replay"}
ELSEWHERE = {"fault_tolerant"}  # tests/python/ecosystem
PARAMETERS = 283786  # of the model that most of them train


def commands(example):
    text = ast.get_docstring(ast.parse((FOLDER / f"{example}.py").read_text())).replace("\\\n", "")
    return re.findall(r"^    ((?:tensorlane|python) .*)$", text, re.MULTILINE)


@functools.cache
def printed(command):
    """What ranks print, in the order of ranks, which need not import PyTorch."""
    command = command.replace("-- python -m", f"-- {shlex.join(map(str, warm_interpreter()))} -m")
    programs = os.pathsep.join([str(BUILD / "bin"), str(pathlib.Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(command, shell=True, env={**environment(), "PATH": programs}, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return tuple(sorted(re.findall(r"rank \d: .*?(?=rank \d|\n|$)", re.sub(r"\[rank \d\] ", "", done.stdout))))


def number(line, what):
    """That follows `what`."""
    return float(re.search(rf"{what} ([-\d.e]+)", line)[1])


def has_learnt(lines, ranks, accuracy=0.8):
    assert len(lines) == ranks, lines
    assert all(number(line, "accuracy") > accuracy for line in lines), lines


def test_every_example_is_tested():
    tested = {name.removeprefix("test_") for name in globals() if name.startswith("test_")}
    examples = {path.stem for path in FOLDER.glob("*.py")} - OTHERS
    assert examples <= tested | ELSEWHERE, examples - tested
    assert all(f"tensorlane.examples.{example}" in "".join(commands(example)) for example in examples)


def test_ddp():
    backend, hook = commands("ddp")
    has_learnt(printed(backend), 2)
    assert printed(backend) == printed(hook) == printed(f"{backend} --gloo")


def test_fsdp2():
    (command,) = commands("fsdp2")
    has_learnt(printed(command), 2)
    assert printed(command) == printed(f"{command} --gloo")
    assert sum(int(re.search(r"(\d+) parameters here", line)[1]) for line in printed(command)) == PARAMETERS


def test_optimizer():
    at_once, overlap = commands("optimizer")
    has_learnt(printed(at_once), 2)
    assert printed(at_once) == printed(overlap)


def test_sharded(tmp_path):
    """Two ranks train and save; others go on, with less of the state on each."""
    begin, go_on = (command.replace("gpt.pt", str(tmp_path / "gpt.pt")).replace("--iterations 60", "--iterations 15") for command in commands("sharded"))
    begun, resumed = printed(begin), printed(go_on)
    assert [number(line, "iteration") for line in begun + resumed] == [15] * 2 + [30] * 4, begun + resumed
    assert number(resumed[0], "loss") < number(begun[0], "loss") - 0.2
    kept = [[int(re.search(r"(\d+) numbers of state", line)[1]) for line in lines] for lines in (begun, resumed)]
    assert sum(kept[0]) == sum(kept[1]) and max(kept[1]) < 0.6 * min(kept[0]), kept


def test_process_sets():
    split, whole = (printed(command) for command in commands("process_sets"))
    has_learnt(split, 4)
    assert [re.search(r"row \d, column \d", line)[0] for line in split] == [f"row {rank // 2}, column {rank % 2}" for rank in range(4)]
    for line in split:
        assert number(line, "mean loss") == pytest.approx(number(whole[0], "mean loss"), rel=1e-3), (split, whole)


def test_parameter_server():
    (command,) = commands("parameter_server")
    stale, synchronous = printed(command), printed(f"{command} --staleness 0")
    for lines, most in ((stale, 2), (synchronous, 0)):
        has_learnt(lines, 4)
        assert max(number(line, "values up to") for line in lines) == most, lines
        assert len({number(line, "test loss") for line in lines}) == 1, lines


@pytest.mark.thorough
def test_checkpoint(tmp_path):
    """Started again, it has nothing left to do; test_restarts.py fails ranks."""
    (command,) = commands("checkpoint")
    command = command.replace("FOLDER", str(tmp_path))
    first = printed(command)
    assert len(first) == 4 and len({line.split()[-1] for line in first}) == 1, first
    assert {path.name for path in tmp_path.iterdir()} == {str(done) for done in range(5, 41, 5)}
    again = printed(f"{command} --every 1")
    assert [line.split()[-1] for line in again] == [line.split()[-1] for line in first]
