"""Runs PyTorch's tests over one backend: rank 0 of `tensorlane run` starts all ranks of every test by itself, and the other ranks
are there to say where their hosts' daemons listen. Over Gloo it is started alone.

    ranks.py BACKEND WORLD FOLDER [REGEX]      writes FOLDER/BACKEND.json
"""

import json
import os
import pathlib
import re
import sys
import time
import types
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = "60"  # of one test


def reason_of(text):
    """The line of a traceback that says what went wrong."""
    lines = [line.strip() for line in text.splitlines() if re.match(r"\s*[\w.]*(Error|Exception|Exit)\b", line.strip())]
    return (lines[-1] if lines else text.strip().splitlines()[-1])[:300]


class Table(unittest.TestResult):
    """What becomes of each test."""

    def __init__(self, path):
        super().__init__()
        self.tests, self.path = {}, path

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def note(self, test, outcome, reason=""):
        name = test.id().split(".")[-1]
        self.tests[name] = {"outcome": outcome, "reason": reason, "seconds": round(time.monotonic() - self.begin, 1)}
        print(f"{outcome:5} {name} {reason}", file=sys.stderr, flush=True)
        self.path.write_text(json.dumps(self.tests))

    def addSuccess(self, test):
        self.note(test, "pass")

    def addSkip(self, test, reason):
        self.note(test, "skip", reason.split("\n")[0])

    def addFailure(self, test, error):
        self.note(test, "fail", reason_of(str(error[1])))

    addError = addFailure


def test_class(module, world, sockets):
    class Upstream(module.TestDistBackend, module.DistributedTest._DistTestBase):
        @property
        def world_size(self):
            return world

        def setUp(self):
            super().setUp()
            import torch

            self._start_processes(torch.multiprocessing.get_context("fork").Process)

        @classmethod
        def _run(cls, rank, *arguments, **options):
            if sockets:
                os.environ["TENSORLANE_SOCKET"] = sockets[rank]
            super()._run(rank, *arguments, **options)

    return Upstream


def without_expecttest():
    """PyTorch's base class of tests needs a package for comparing texts, which these tests do not use."""
    try:
        import expecttest  # noqa: F401
    except ImportError:
        sys.modules["expecttest"] = types.SimpleNamespace(TestCase=unittest.TestCase)


def prepare(backend, world, folder):
    for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT", "MASTER_ADDR"):
        os.environ.pop(name, None)
    os.environ.update(BACKEND=backend, WORLD_SIZE=str(world), TEMP_DIR=str(folder), DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=SECONDS)
    without_expecttest()
    import torch
    import torch.testing._internal.common_distributed as common

    torch.set_num_threads(1)
    common.DistTestCases.backend_feature["plugin"].add("tensorlane")
    for feature in ("ddp", "gpu", "subgroup"):
        common.DistTestCases.backend_feature[feature].add("tensorlane")
    common.TIMEOUT_OVERRIDE.clear()


def main():
    backend, world, folder = sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3])
    regex = re.compile(sys.argv[4] if len(sys.argv) > 4 else "")
    rank, socket = int(os.environ.get("RANK", 0)), os.environ.get("TENSORLANE_SOCKET", "")
    if backend == "tensorlane":
        (folder / f"socket{rank}").write_text(socket)
    if rank > 0:
        while not (folder / "done").exists():
            time.sleep(0.2)
        return
    sockets = []
    for each in range(world if backend == "tensorlane" else 0):
        path = folder / f"socket{each}"
        while not path.exists() or not path.read_text():
            time.sleep(0.1)
        sockets.append(path.read_text())
    try:
        prepare(backend, world, folder)
        sys.path.insert(0, str(HERE))
        import copy_of

        module, counts = copy_of.load(folder)
        (folder / "rewriting.json").write_text(json.dumps(counts))
        upstream = test_class(module, world, sockets)
        left_out = json.loads((HERE / "left_out.json").read_text())
        names = [name for name in unittest.TestLoader().getTestCaseNames(upstream) if regex.search(name)]
        table = Table(folder / f"{backend}.json")
        for name in names:
            test = upstream(name)
            if backend == "tensorlane" and name in left_out:
                table.startTest(test)
                table.note(test, "skip", f"left out: {left_out[name]}")
            else:
                test.run(table)
    finally:
        (folder / "done").write_text("")


if __name__ == "__main__":
    main()
