"""Memory of GPUs that the library allocates, and when it is freed."""

import contextlib

import pytest
from tensorlane import errors
from tensorlane._gpu_memory import GpuMemory


class Calls(list):
    """What the library is asked for; every allocation is at another address."""

    def __init__(self):
        self.fails = None

    def __call__(self, name, *values):
        if self.fails:
            raise self.fails
        if name == "tl_gpu_alloc":
            values[2]._obj.value = 0x1000 * (len(self) + 1)
            values = values[:2]
        self.append((name, *values))


def test_a_block_is_freed_later_and_once():
    calls = Calls()
    memory = GpuMemory(contextlib.nullcontext(), calls)
    block, other = memory.allocate(1, 64), memory.allocate(0, 128)
    assert calls == [("tl_gpu_alloc", 1, 64), ("tl_gpu_alloc", 0, 128)]
    assert other.__cuda_array_interface__ == {"shape": (128,), "typestr": "|u1", "data": (other.address, False), "version": 2}
    address = block.address
    del block
    assert len(calls) == 2  # whoever drops it may be in the middle of a call
    memory.free_unused()
    memory.free_unused()
    assert calls[2:] == [("tl_gpu_free", address)]


def test_what_outlives_its_context_is_freed_when_it_goes():
    calls, gate = Calls(), contextlib.nullcontext()
    memory = GpuMemory(gate, calls)
    block, dropped = memory.allocate(0, 64), memory.allocate(0, 64)
    addresses = [dropped.address, block.address]
    del dropped
    memory.end(contextlib.nullcontext())  # of a process set, which is not the end of the job
    assert len(calls) == 2
    memory.end(gate)
    assert calls[2:] == [("tl_gpu_free", addresses[0])]
    del block
    assert calls[2:] == [("tl_gpu_free", address) for address in addresses]


def test_a_gpu_that_has_failed_does_not_keep_the_program_from_going_on():
    calls = Calls()
    memory = GpuMemory(contextlib.nullcontext(), calls)
    block = memory.allocate(0, 64)
    calls.fails = errors.UnavailableError("the GPU is gone")
    del block
    memory.free_unused()
    with pytest.raises(errors.UnavailableError):
        memory.allocate(0, 64)
