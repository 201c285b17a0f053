"""GPUs for PyTorch that are none: devices "fake_gpu:0" to "fake_gpu:2" (fake_gpu.cc). load() makes them, before anything else uses autograd; with the
fake CUDA driver (tests/cuda), whose path FAKE_CUDA_LIBRARY names, if the library under test shall use them.
"""

import contextlib
import ctypes
import os
import pathlib
import types

import torch
from tensorlane import _native
from tensorlane.torch import _device

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("TENSORLANE_BUILD", HERE.parents[2] / "build"))
EXTENSION = BUILD / "tests" / "fake-gpu" / "fake_gpu.so"
NAME = "fake_gpu"


class Backend:
    """What _device.py needs."""

    memory = _native.MEMORY_CUDA
    capturing = False

    def refusal(self):
        return None

    def stream(self, device):
        return torch.accelerator.current_stream(device)

    def number(self, stream):
        return stream.stream_id

    def captures(self, device):
        return self.capturing

    def event(self, stream):
        return stream.record_event()

    def synchronize(self, device):
        torch.accelerator.synchronize(device)

    def without_autocast(self):
        return contextlib.nullcontext()

    def tensor_of(self, memory, device):
        return torch.ops.fake_gpu.tensor_of(memory.address, memory.size, id(memory), device)


backend = Backend()
driver = None  # the controls of the fake driver, by ctypes
_extension = None


def load():
    """Returns the first of the devices."""
    global _extension, driver
    if _extension is None:
        path = os.environ.get("FAKE_CUDA_LIBRARY")
        if path:
            driver = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
            driver.fake_cuda_violation.restype = ctypes.c_char_p
            for name in ("hold_stream", "resume_stream", "begin_capture", "end_capture"):
                getattr(driver, f"fake_cuda_{name}").argtypes = [ctypes.c_void_p] + [ctypes.c_int] * (name == "begin_capture")
        _extension = ctypes.CDLL(str(EXTENSION))
        _extension.fake_gpu_register()
        torch.utils.rename_privateuse1_backend(NAME)
        torch._register_device_module(NAME, _module())
        torch.utils.generate_methods_for_privateuse1_backend(for_storage=False)
        _device.register(NAME, backend)
    return torch.device(NAME, 0)


def empty_cache():
    """Frees the memory that nothing uses."""
    _extension.fake_gpu_empty_cache()


def poison(on=True):
    """Whether freed memory is overwritten. It makes everything slow."""
    _extension.fake_gpu_poison(int(on))


def violations():
    """What the driver holds against the library."""
    return [] if driver is None else [driver.fake_cuda_violation(ctypes.c_size_t(i)).decode() for i in range(driver.fake_cuda_violations())]


@contextlib.contextmanager
def held(stream=None):
    """The stream (the current one) does nothing meanwhile."""
    number = (stream or torch.accelerator.current_stream()).stream_id
    driver.fake_cuda_hold_stream(number)
    try:
        yield
    finally:
        driver.fake_cuda_resume_stream(number)


def _module():
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.device_count = lambda: 3
    module.current_device = lambda: torch.accelerator.current_device_index()
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.is_initialized = lambda: True
    module.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]
    module.device = lambda device: torch.accelerator.device_index(getattr(device, "index", device))
    return module
