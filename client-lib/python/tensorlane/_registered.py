"""Registered tensors and their groups."""

import ctypes
import weakref


class Group(list):
    """Tensors that were registered together, until they are unregistered or their context ends. `requests` is for
    whoever uses them: a dict of what is under way. `memory`: the address of each buffer in host memory that is to be
    freed, None for one on a GPU."""

    def __init__(self, name, kind, tensors, memory):
        super().__init__(tensors)
        self.name = name
        self.kind = kind
        self.memory = memory
        self.requests = {}
        self.leaves = False  # somebody has begun to unregister it
        self.leaving = None  # the _Call that does

    def __eq__(self, other):
        return self is other

    __hash__ = object.__hash__

    def idle(self):
        """Whether nothing is under way and nothing refers to the buffers."""
        return not self.requests and not any(tensor.in_use() for tensor in self)


class Tensor:
    """A registered tensor; lives as long as its context. `on_gpu` (torch/_device.py, Buffer) owns its buffer, if that
    lies on a GPU."""

    def __init__(self, handle, address, on_gpu=None):
        self.handle = ctypes.c_void_p(handle)
        self.on_gpu = on_gpu
        self._address = address
        self._memory = None

    def memory(self, size):
        """Its buffer of `size` bytes, shared with the daemon. Not to be touched after the context is finalized."""
        memory = self._memory() if self._memory is not None else None
        if memory is None:
            memory = (ctypes.c_char * size).from_address(self._address)
            self._memory = weakref.ref(memory)
        return memory

    def clear(self, size):
        """Fills host memory with zeros."""
        if self.on_gpu is None:
            ctypes.memset(self._address, 0, size)

    def in_use(self):
        """Whether something refers to what memory(), or on_gpu.lend(), gave."""
        if self.on_gpu is not None:
            return self.on_gpu.in_use()
        return self._memory is not None and self._memory() is not None
