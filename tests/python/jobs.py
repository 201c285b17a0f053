"""Runs the scripts of this folder in real jobs: `tensorlane run` with daemons on loopback, one per host."""

import os
import pathlib
import subprocess
import sys

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


def run(ranks, ranks_per_host, pattern, script, *arguments, first_port, settings=(), variables=(), seconds=SECONDS):
    command = [
        str(COMMAND), "run", "-n", str(ranks), "--ranks-per-host", str(ranks_per_host), "--pattern", pattern, "--first-port", str(first_port),
        *(part for setting in settings for part in ("--set", setting)),
        "--", sys.executable, str(SCRIPTS / script), *arguments,
    ]
    done = subprocess.run(command, env={**environment(), **dict(variables)}, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout
