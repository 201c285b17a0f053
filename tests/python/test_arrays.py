"""What the array calls take, and what they refuse before any daemon is asked."""

import array

import numpy
import pytest
import tensorlane
import tensorlane.torch
import torch
from tensorlane import _arrays, _calls, _native
from tensorlane.errors import InvalidArgumentError


def refused(text, value):
    with pytest.raises(InvalidArgumentError) as raised:
        _arrays.view(value, "x")
    assert str(raised.value) == text


@pytest.mark.parametrize(
    "kind, dtype",
    [
        ("float32", _native.FLOAT32), ("float64", _native.FLOAT64), ("float16", _native.FLOAT16),
        ("int8", _native.INT8), ("int32", _native.INT32), ("int64", _native.INT64), ("uint8", _native.UINT8),
    ],
)
def test_numpy(kind, dtype):
    value = numpy.ones((2, 3), kind)
    seen = _arrays.view(value, "x")
    assert (seen.pointer, seen.shape, seen.count, seen.dtype, seen.writable) == (value.ctypes.data, (2, 3), 6, dtype, True)


def test_ml_dtypes_bfloat16():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    seen = _arrays.view(numpy.ones(3, ml_dtypes.bfloat16), "x")
    assert seen.dtype == _native.BFLOAT16 and _arrays.like(seen).dtype == ml_dtypes.bfloat16


def test_buffer_protocol():
    value = array.array("d", [1.0, 2.0])
    seen = _arrays.view(value, "x")
    assert (seen.pointer, seen.count, seen.dtype) == (value.buffer_info()[0], 2, _native.FLOAT64)
    seen.numpy[0] = 7.0
    assert value[0] == 7.0
    assert not _arrays.view(memoryview(bytes(8)).cast("f"), "x").writable


class Producer:
    """An array of which only DLPack is known."""

    def __init__(self, tensor):
        self.tensor = tensor

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)


class OldProducer(Producer):
    def __dlpack__(self):
        return self.tensor.__dlpack__()


@pytest.mark.parametrize("producer", [Producer, OldProducer])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64, torch.uint8])
def test_dlpack(kind, producer):
    tensor = torch.arange(6, dtype=kind).reshape(2, 3)[1]
    seen = _arrays.view(producer(tensor), "x")
    assert (seen.pointer, seen.shape, seen.writable) == (tensor.data_ptr(), (3,), True)
    assert seen.dtype == tensorlane.torch._calls._DTYPES[kind]
    if kind != torch.bfloat16:
        assert seen.numpy.tolist() == [3, 4, 5]
        seen.numpy[0] = 9
        assert tensor[0] == 9


def test_read_only_dlpack():
    value = numpy.ones(3, "float32")
    value.flags.writeable = False
    try:
        value.__dlpack__(max_version=(1, 0))
    except (TypeError, BufferError):
        pytest.skip("this NumPy does not export read-only arrays")
    assert not _arrays.view(Producer(value), "x").writable
    with pytest.raises(InvalidArgumentError, match="it is read-only: array 'x'"):
        tensorlane.allreduce_(Producer(value), name="x")


def test_dlpack_memory_outlives_its_array():
    seen = _arrays.view(Producer(torch.full((1000,), 3.0)), "x")
    junk = [torch.zeros(1000) for _ in range(10)]
    assert seen.numpy.sum() == 3000 and len(junk) == 10


def test_refusals():
    refused("it has no elements: array 'x': leave the call out on all ranks", numpy.zeros((0, 3), "float32"))
    refused("dtype int16 is not supported: array 'x': use float32, float64, float16, bfloat16, int8, int32, int64 or uint8 of this machine's byte order", numpy.ones(3, "int16"))
    refused("dtype >f4 is not supported: array 'x': use float32, float64, float16, bfloat16, int8, int32, int64 or uint8 of this machine's byte order", numpy.ones(3, ">f4"))
    refused("it is not contiguous: array 'x': pass numpy.ascontiguousarray(x), and copy the result back where the call writes to x", numpy.ones((4, 4), "float32")[:, 1])
    refused("it is not contiguous: array 'x': pass a contiguous copy", torch.ones(4, 4)[:, 1])
    refused("DLPack dtype (code 0, 16 bits, 1 lanes) is not supported: array 'x': use float32, float64, float16, bfloat16, int8, int32, int64 or uint8", torch.ones(3, dtype=torch.int16))
    with pytest.raises(InvalidArgumentError, match="list is not an array .*: array 'x': pass a NumPy array, or an object with DLPack"):
        _arrays.view([1.0], "x")


def test_two_to_the_33_elements_are_refused():
    huge = numpy.lib.stride_tricks.as_strided(numpy.zeros(1, "float16"), (1,), (2,))
    seen = _arrays.view(huge, "x")
    seen.count = 2**33
    with pytest.raises(InvalidArgumentError, match="it has 8589934592 elements, more than 2\\^32: array 'x': split it"):
        _arrays.checked(seen, "array 'x'")


def test_another_device():
    class Elsewhere:
        def __dlpack_device__(self):
            return (2, 0)

        def __dlpack__(self, **_):
            raise AssertionError("must not be asked")

    refused("arrays on other devices are not supported (DLPack device 2): array 'x': copy it to the CPU, or pass a torch tensor to tensorlane.torch", Elsewhere())


@pytest.mark.parametrize(
    "tensor, text",
    [
        (torch.ones(3, device="meta"), "tensors on meta are not supported: tensor 'x': move it to the CPU or to a CUDA GPU"),
        (torch.ones(3, dtype=torch.int16), "dtype torch.int16 is not supported: tensor 'x': use float32, float64, float16, bfloat16, int8, int32, int64 or uint8"),
        (torch.ones(4, 4)[:, 0], "it is not contiguous: tensor 'x': pass tensor.contiguous()"),
        (torch.ones(0), "it has no elements: tensor 'x': leave the call out on all ranks"),
        (torch.ones(3).to_sparse(), "it is sparse: tensor 'x': pass a dense tensor"),
        (numpy.ones(3), "ndarray is not a torch.Tensor: tensor 'x': use tensorlane's own calls for other arrays"),
    ],
)
@pytest.mark.parametrize("call", [tensorlane.torch.allreduce, tensorlane.torch.allreduce_])
def test_torch_refusals(call, tensor, text):
    with pytest.raises(InvalidArgumentError) as raised:
        call(tensor, name="x")
    assert str(raised.value) == text


def test_names_of_calls_without_one():
    """They depend on the calls before alone, and a loop of calls that are alike has eight at most, or less where they are large."""
    unnamed = _native.Unnamed()
    small, large = (4, _native.FLOAT32, _native.SUM, -1.0), (4 << 20, _native.FLOAT32, _native.SUM, -1.0)
    assert [unnamed.name("allreduce", small) for _ in range(10)] == [f"noname.{1 + i % 8}" for i in range(10)]
    assert [unnamed.name("allreduce", large) for _ in range(6)] == [f"noname.{11 + i % 4}" for i in range(6)]
    assert unnamed.name("broadcast", small) == "noname.1"
    assert unnamed.name("allreduce", small) == "noname.3"
    assert {unnamed.name("allreduce", (1 << 30, _native.FLOAT64)) for _ in range(5)} == {"noname.18"}
    assert _calls.label("allreduce", None) == "allreduce without a name" and _calls.label("allreduce", "w") == "w"


def test_reductions():
    floats, integers = (_arrays.view(numpy.ones(3, kind), "x") for kind in ("float32", "int32"))
    assert [_calls.reduction(floats, "x", *a) for a in ((None, None), (True, None), (False, None), (None, tensorlane.Sum))] == [1, 1, 0, 0]
    for op in (tensorlane.Sum, tensorlane.Min, tensorlane.Max, tensorlane.Product):
        assert _calls.reduction(integers, "x", op=op) == _calls.reduction(floats, "x", op=op, prescale_factor=2.0) == op
    for refused_call in ({}, {"average": True}, {"op": tensorlane.Average}):
        with pytest.raises(InvalidArgumentError, match="the average of integers is no integer: array 'x': use op=Sum, and divide"):
            _calls.reduction(integers, "x", **refused_call)
    with pytest.raises(InvalidArgumentError, match="integers cannot be scaled: array 'x'"):
        _calls.reduction(integers, "x", op=tensorlane.Sum, postscale_factor=0.5)
    with pytest.raises(InvalidArgumentError, match="both average and op"):
        _calls.reduction(floats, "x", True, tensorlane.Sum)
    with pytest.raises(InvalidArgumentError, match="op 7 is not supported: array 'x'"):
        _calls.reduction(floats, "x", None, 7)


def test_priorities():
    assert [_calls.urgency(p) for p in (None, 0, 1)] == [-1.0, 0.0, 1.0]
    with pytest.raises(InvalidArgumentError, match="priority 1.5 is outside"):
        _calls.urgency(1.5)


def test_calls_before_init():
    assert not tensorlane.is_initialized()
    for call in (tensorlane.rank, tensorlane.size, tensorlane.status, tensorlane.barrier, lambda: tensorlane.allreduce(numpy.ones(3))):
        with pytest.raises(InvalidArgumentError, match="this process has joined no job: tensorlane: call tensorlane.init\\(\\) first"):
            call()


def test_a_library_that_cannot_be_loaded(monkeypatch, tmp_path):
    monkeypatch.setenv("TENSORLANE_LIBRARY", str(tmp_path / "missing.so"))
    monkeypatch.setattr(_native, "_library", None)
    with pytest.raises(tensorlane.UnavailableError, match="the client library cannot be loaded: .*missing.so.*: reinstall tensorlane, or set TENSORLANE_LIBRARY"):
        tensorlane.init()


def test_statuses_become_exceptions():
    from tensorlane import errors

    for status in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 13):
        error = errors.from_status(status, "WHAT: WHERE: FIX")
        assert error.status == status and str(error) == "WHAT: WHERE: FIX" and isinstance(error, tensorlane.Error)
    assert isinstance(errors.from_status(7, ""), TimeoutError)


def test_an_exception_ends_a_program_but_no_interactive_session(monkeypatch):
    monkeypatch.setattr(tensorlane.sys, "last_value", ValueError(), raising=False)
    assert tensorlane._ended_by_exception()
    monkeypatch.setattr(tensorlane.sys, "ps1", ">>> ", raising=False)
    assert not tensorlane._ended_by_exception()
    monkeypatch.delattr(tensorlane.sys, "ps1")
    monkeypatch.delattr(tensorlane.sys, "last_value")
    assert not tensorlane._ended_by_exception()
