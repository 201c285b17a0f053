"""Tests of the Python package in one process: the source tree's package, an in-process transport. With TENSORLANE_TEST_DEVICE=fake_gpu their tensors are
on a fake GPU (fake_gpu/), unless they say otherwise.
"""

import os
import pathlib
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parents[1] / "client-lib" / "python"))



def pytest_configure(config):
    config.addinivalue_line("markers", "thorough: another case of a kind that others show; tests/run leaves it out without --thorough")


torch = pytest.importorskip("torch")
torch.set_num_threads(1)

if os.environ.get("TENSORLANE_TEST_DEVICE") == "fake_gpu":
    import fake_gpu

    torch.set_default_device(fake_gpu.load())


@pytest.fixture(autouse=True)
def each_parameter_by_itself(monkeypatch):
    """The models of these tests are so small that all of their gradients would travel together."""
    from tensorlane.torch import _gradients

    monkeypatch.setattr(_gradients, "BATCH_BYTES", 0)
