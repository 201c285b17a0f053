"""GPU tensors in real jobs, without a GPU: fake ones for PyTorch (fake_gpu/), and a fake driver for the client library (tests/cuda)."""

import json

import pytest
from jobs import BUILD, needs_daemons, run

DRIVER = BUILD / "tests" / "fake-cuda" / "libcuda.so.1"

EXTENSION = BUILD / "tests" / "fake-gpu" / "fake_gpu.so"
pytestmark = [needs_daemons, *(pytest.mark.skipif(not needed.exists(), reason=f"no {needed}: build it") for needed in (DRIVER, EXTENSION))]

thorough = pytest.mark.thorough


def on_gpus(ranks, ranks_per_host, script, *arguments, seed=1, delay_us=20, **variables):
    driver = {"FAKE_CUDA_LIBRARY": str(DRIVER), "TENSORLANE_FAKE_CUDA": f"seed={seed},delay_us={delay_us},devices=3,print=1"}
    return run(ranks, ranks_per_host, "ring", script, *arguments, first_port=7680, variables={**driver, **variables})


def all_say(ranks, output, text):
    for rank in range(ranks):
        assert f"rank {rank}: {text}" in output


# With TENSORLANE_STREAM_WAIT=0 the calling thread waits where otherwise a stream does.
@pytest.mark.parametrize("ranks, ranks_per_host, stream_wait", [pytest.param(1, 1, "1", marks=thorough), pytest.param(2, 1, "1", marks=thorough), (4, 2, "1"), (2, 1, "0")])
def test_calls(ranks, ranks_per_host, stream_wait):
    all_say(ranks, on_gpus(ranks, ranks_per_host, "gpu_calls.py", seed=ranks, TENSORLANE_STREAM_WAIT=stream_wait), "all calls on GPUs are right")


@pytest.mark.parametrize("stream_wait", ["1", pytest.param("0", marks=thorough)])
def test_training(stream_wait):
    all_say(2, on_gpus(2, 1, "gpu_training.py", TENSORLANE_STREAM_WAIT=stream_wait), "all training on GPUs is right")


@pytest.mark.parametrize("stream_wait", ["1", pytest.param("0", marks=thorough)])
def test_ddp(stream_wait):
    all_say(2, on_gpus(2, 1, "gpu_ddp.py", TENSORLANE_STREAM_WAIT=stream_wait), "DDP on GPUs is right")


def test_sharing():
    """The fake driver takes anything for kernels, which this build may not have."""
    all_say(4, on_gpus(4, 2, "gpu_sharing.py", TENSORLANE_GPU_SUMS="1", TENSORLANE_GPU_KERNELS=__file__), "what GPUs share is right")


def test_memory_of_other_processes_that_cannot_be_mapped():
    fails = "seed=1,delay_us=20,devices=3,print=1,fail=cuIpcOpenMemHandle_v2:1:999"
    variables = {"TENSORLANE_GPU_SUMS": "1", "TENSORLANE_GPU_KERNELS": __file__, "TENSORLANE_FAKE_CUDA": fails}
    all_say(4, on_gpus(4, 2, "gpu_sharing.py", "cuIpcOpenMemHandle", **variables), "what GPUs share is right")


@pytest.mark.parametrize(
    "part, symbol",
    [
        ("calls", "cuMemcpyDtoHAsync_v2"), ("optimizer", "cuMemcpyHtoDAsync_v2"),
        pytest.param("calls", "cuMemcpyHtoDAsync_v2", marks=thorough), pytest.param("optimizer", "cuMemcpyDtoHAsync_v2", marks=thorough),
    ],
)
def test_errors_of_the_driver(part, symbol):
    all_say(2, on_gpus(2, 1, "gpu_failing.py", part, symbol), "has heard of it")


def test_training_is_equal_to_that_on_the_cpu(tmp_path):
    on_gpus(2, 1, "train_equality.py", "--gpu", "--json", str(tmp_path / "gpu.json"))
    run(2, 1, "ring", "train_equality.py", "--json", str(tmp_path / "cpu.json"), first_port=7680)
    digests = {place: {case: of["digest"] for case, of in json.loads((tmp_path / f"{place}.json").read_text())["cases"].items()} for place in ("cpu", "gpu")}
    assert digests["gpu"] and digests["gpu"].items() <= digests["cpu"].items()
