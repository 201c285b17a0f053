"""Memory on GPUs that the library allocates, so that the ranks of a host can share it."""

import collections
import contextlib
import ctypes
import os
import pathlib

from .errors import Error

# Kernels that came with the package, for the library that did, too.
_KERNELS = pathlib.Path(__file__).resolve().parent / "_kernels.fatbin"
if _KERNELS.exists() and "TENSORLANE_LIBRARY" not in os.environ:
    os.environ.setdefault("TENSORLANE_GPU_KERNELS", str(_KERNELS))


def calls_of(context, library, check):
    """Makes calls of the library with the context's handle, and raises its errors."""
    return lambda name, *values: check(getattr(library(), name)(context._handle, *values))


class GpuMemory:
    """A job's, which its process sets share: what they have allocated outlives them. `call` makes a call of the library
    with the job's handle, which is null once that has ended. While it lives, calls go through the `gate`."""

    def __init__(self, gate, call):
        self._gate = gate
        self._call = call
        self._unused = collections.deque()
        self._ended = False

    def allocate(self, device, size):
        """A Block on the GPU of this number."""
        address = ctypes.c_void_p()
        with self._gate:
            self._call("tl_gpu_alloc", device, size, ctypes.byref(address))
        return Block(address.value, size, self)

    def free(self, address):
        """Later, while the context lives: whatever runs now may be in the middle of a call."""
        self._unused.append(address)
        if self._ended:
            self._free_all()

    def free_unused(self):
        with self._gate:
            self._free_all()

    def end(self, gate):
        """The context of this gate has ended. If it is the job's, what is still in use stays."""
        if gate is self._gate:
            self._ended = True
            self._free_all()

    def _free_all(self):
        while self._unused:
            with contextlib.suppress(Error):  # the GPU has failed, and the memory is gone with it
                self._call("tl_gpu_free", self._unused.popleft())


class Block:
    """It is freed when nothing refers to it any more."""

    def __init__(self, address, size, memory):
        self.address = address
        self.size = size
        self._memory = memory

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 2}

    def __del__(self):
        self._memory.free(self.address)
