"""Tests of the Python package in one process: the source tree's package, an in-process transport."""

import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "client-lib" / "python"))

torch = pytest.importorskip("torch")
torch.set_num_threads(1)
