"""Runs the scripts of this folder in real jobs: `tensorlane run` with daemons on loopback, one per host."""

import atexit
import functools
import os
import pathlib
import subprocess
import sys
import tempfile

import pytest

SCRIPTS = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("TENSORLANE_BUILD", SCRIPTS.parents[1] / "build"))
COMMAND = BUILD / "bin" / "tensorlane"
SECONDS = 240

needs_backend = pytest.mark.skipif(not (BUILD / "lib" / "tensorlane_torch.so").exists(), reason=f"no tensorlane_torch.so in {BUILD}/lib")
needs_daemons = pytest.mark.skipif(not (BUILD / "bin" / "tensorlaned").exists(), reason=f"no tensorlaned in {BUILD}/bin")


def environment():
    """What a script needs to run on what is built here."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SCRIPTS.parents[1] / "client-lib" / "python"), str(SCRIPTS)]),
        "TENSORLANE_LIBRARY": str(BUILD / "lib" / "libtensorlane.so"),
        "TENSORLANE_TORCH_BACKEND": str(BUILD / "lib" / "tensorlane_torch.so"),
        "OMP_NUM_THREADS": "1",
    }


def run_command(ranks, ranks_per_host, pattern, command, *, first_port, settings=(), variables=(), seconds=SECONDS):
    """What a job prints in which every rank executes `command`."""
    whole = [
        COMMAND, "run", "-n", ranks, "--ranks-per-host", ranks_per_host, "--pattern", pattern, "--first-port", first_port,
        *(part for setting in settings for part in ("--set", setting)), "--", *command,
    ]
    whole = [str(part) for part in whole]
    done = subprocess.run(whole, env={**environment(), **dict(variables)}, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{' '.join(whole)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# Variables that act when a process or PyTorch starts.
_AT_START = ("LD_", "PYTHONHASHSEED", "MALLOC_", "TORCH_", "OMP_")


@functools.cache
def _warm_server():
    """The socket of a process that has PyTorch (warm.py). It ends with this one."""
    folder = tempfile.TemporaryDirectory(prefix="tensorlane-warm-")
    path = os.path.join(folder.name, "socket")
    server = subprocess.Popen([sys.executable, SCRIPTS / "warm.py", "--serve", path], env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout.readline() == "ready\n", "the process that has PyTorch did not start: see its messages"

    def end():
        server.communicate()
        folder.cleanup()

    atexit.register(end)
    return path


def warm_interpreter():
    """What stands for `python` where ranks are copies of a process that has PyTorch."""
    return [sys.executable, "-I", "-S", SCRIPTS / "warm.py", _warm_server()]


def run(ranks, ranks_per_host, pattern, script, *arguments, warm=True, **options):
    """A script of this folder. Warm: its ranks are copies of a process that has PyTorch, which waits for them: how one has ended may be
    gone before a daemon looks."""
    interpreter = [sys.executable]
    if warm and not any(name.startswith(_AT_START) for name in dict(options.get("variables", ()))):
        interpreter = warm_interpreter()
    return run_command(ranks, ranks_per_host, pattern, [*interpreter, SCRIPTS / script, *arguments], **options)
