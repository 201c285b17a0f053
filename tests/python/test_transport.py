"""What the optimizer's buffers are registered as."""

import ctypes

import pytest
import torch
from tensorlane import _native, _process_sets
from tensorlane.torch._transport import NativeTransport, TensorDesc


class Memory:
    on_gpu = None

    def __init__(self):
        self.bytes = (ctypes.c_char * 64)()

    def memory(self, count):
        return memoryview(self.bytes)[:count]


class Context:
    def register(self, group, descs, on_gpus):
        assert on_gpus == [None] * len(descs)
        self.descs = descs
        return _native.Group(group, (), [Memory() for _ in descs], [])


@pytest.fixture
def context(monkeypatch):
    fake = Context()
    monkeypatch.setattr(_process_sets, "context", lambda process_set: fake)
    return fake


def test_buffers_have_the_type_place_and_reduction_that_was_asked_for(context):
    kinds = {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 3, torch.uint8: 7}  # tl_dtype_t
    asked = [TensorDesc(f"t{i}", 3 + i, kind, i, 7) for i, kind in enumerate(kinds)] + [TensorDesc("roll_call", 5, torch.uint8, 0, 7, _native.MAX)]
    buffers = NativeTransport().register("g", asked, _native.AVERAGE)
    for desc, got, buffer in zip(asked, context.descs, buffers):
        assert got.name == desc.name.encode() and got.count == desc.count
        assert got.dtype == kinds[desc.dtype], desc
        assert (got.position, got.positions) == (desc.position, desc.positions)
        assert got.op == (_native.MAX if desc.name == "roll_call" else _native.AVERAGE)
        assert buffer.dtype == desc.dtype and buffer.shape == (desc.count,)
