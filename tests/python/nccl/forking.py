"""Programs in processes of their own: copies of this one, which has imported PyTorch, or new ones."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[2]
BUILD = pathlib.Path(os.environ["TENSORLANE_BUILD"])
LONGEST_SECONDS = 120


def environment(variables):
    """Ours, without what the preflight looks at."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "UCX_", "NVSHMEM_", "TENSORLANE_NCCL"))}
    paths = [str(HERE), str(ROOT / "client-lib" / "python"), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**own, "PYTHONPATH": ":".join(paths), "TENSORLANE_LIBRARY": str(BUILD / "lib" / "libtensorlane.so"), **variables}


def started(text, variables):
    """(the last line that a new interpreter prints of `text`, as JSON; its standard error)"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, env=environment(variables), timeout=LONGEST_SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def forked(text, arguments, variables):
    """The same, of a copy of this process: it need not import PyTorch again."""
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            _run(text, arguments, variables, output, errors)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        errors.seek(0)
        printed, said = output.read(), errors.read()
    assert status == 0, printed + said
    return json.loads(printed.splitlines()[-1]), said


def _run(text, arguments, variables, output, errors):
    status = 1
    try:
        os.dup2(output.fileno(), 1)
        os.dup2(errors.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
        signal.alarm(LONGEST_SECONDS)
        os.environ.clear()
        os.environ.update(environment(variables))
        sys.argv = ["program", *arguments]
        exec(compile(text, "program", "exec"), {"__name__": "program"})
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)
