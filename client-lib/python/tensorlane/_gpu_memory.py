"""Memory on GPUs that the library allocates, so that the ranks of a host can share it."""

import collections
import ctypes


class GpuMemory:
    """A context's. `call` makes a call of the library with the context's handle, and raises its errors; what frees goes
    through the `gate`."""

    def __init__(self, gate, call):
        self._gate = gate
        self._call = call
        self._unused = collections.deque()

    def allocate(self, device, size):
        """A Block on the GPU of this number."""
        address = ctypes.c_void_p()
        self._call("tl_gpu_alloc", device, size, ctypes.byref(address))
        return Block(address.value, size, self._unused)

    def free_unused(self):
        with self._gate:
            while self._unused:
                self._call("tl_gpu_free", self._unused.popleft())


class Block:
    """When nothing refers to it any more, its address is put into `unused`, and freed later: whatever runs then may be
    in the middle of a call."""

    def __init__(self, address, size, unused):
        self.address = address
        self.size = size
        self._unused = unused

    @property
    def __cuda_array_interface__(self):
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address, False), "version": 2}

    def __del__(self):
        self._unused.append(self.address)
