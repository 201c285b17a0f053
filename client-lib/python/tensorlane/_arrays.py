"""Makes a pointer, a count and a dtype of whatever the caller calls an array: NumPy, the buffer protocol, or DLPack on
the CPU."""

import ctypes
import math

import numpy

from . import _native
from .errors import misuse

_BY_NAME = {
    "float32": _native.FLOAT32, "float64": _native.FLOAT64, "float16": _native.FLOAT16, "bfloat16": _native.BFLOAT16,
    "int8": _native.INT8, "int32": _native.INT32, "int64": _native.INT64, "uint8": _native.UINT8,
}
_BY_DTYPE = {}  # of NumPy's, as they are met
_MAX_ELEMENTS = 2**32


class Array:
    """`owner` keeps the memory. `shape` is a tuple, `numpy` an array over the same memory, or None where NumPy has no
    such dtype."""

    def __init__(self, pointer, shape, dtype, writable, owner, array=None):
        self.pointer = pointer
        self.shape = shape
        self.count = math.prod(shape)
        self.dtype = dtype
        self.writable = writable
        self.owner = owner
        self.numpy = array


def view(value, name, empty=False):
    """The Array of `value`. Errors: not an array, on another device, of another dtype, not contiguous, empty unless
    `empty` allows it, of more than 2^32 elements."""
    where = f"array '{name}'"
    if isinstance(value, numpy.ndarray):
        array = _from_numpy(value, where)
    elif hasattr(value, "__dlpack__"):
        array = _from_dlpack(value, where)
    else:
        try:
            array = _from_numpy(numpy.asarray(memoryview(value)), where)
        except TypeError as error:
            raise misuse(
                f"{type(value).__name__} is not an array ({error})", where,
                "pass a NumPy array, or an object with DLPack or the buffer protocol",
            ) from None
    return array if empty and array.count == 0 else checked(array, where)


def checked(array, where):
    if array.count == 0:
        raise misuse("it has no elements", where, "leave the call out on all ranks")
    if array.count > _MAX_ELEMENTS:
        raise misuse(f"it has {array.count} elements, more than 2^32", where, "split it")
    return array


def like(array, shape=None):
    """A new NumPy array of the same dtype, and shape unless given, to receive a result."""
    return numpy.empty(array.shape if shape is None else shape, _numpy_dtype(array))


def pointer(array):
    """Where a NumPy array that view() has seen, or like() has made, begins; None where it is empty."""
    return _address(array) if array.size else None


def _address(array):
    return array.__array_interface__["data"][0]  # array.ctypes.data takes three times as long


def require_writable(array, name):
    if not array.writable:
        raise misuse(
            "it is read-only", f"array '{name}'", "pass a writable array, or call the function that returns a new one"
        )


def _numpy_dtype(array):
    if array.numpy is not None:
        return array.numpy.dtype
    try:
        import ml_dtypes
    except ImportError:
        raise misuse(
            "NumPy has no bfloat16", "the result", "install ml_dtypes, or use the call that works in place"
        ) from None
    return numpy.dtype(ml_dtypes.bfloat16)


def _from_numpy(value, where):
    kind = _BY_DTYPE.get(value.dtype)
    if kind is None:
        kind = _learn(value.dtype, where)
    if not value.flags.c_contiguous:
        raise misuse(
            "it is not contiguous", where,
            "pass numpy.ascontiguousarray(x), and copy the result back where the call writes to x",
        )
    return Array(_address(value), value.shape, kind, value.flags.writeable, value, value)


def _learn(dtype, where):
    """Of a dtype that is met for the first time: its name is slow to get."""
    if dtype.name not in _BY_NAME or not dtype.isnative:
        raise misuse(
            f"dtype {dtype} is not supported", where, f"use {_native.DTYPE_NAMES} of this machine's byte order"
        )
    return _BY_DTYPE.setdefault(dtype, _BY_NAME[dtype.name])


class _DLTensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_CPU = 1
_DL_DTYPES = {  # DLDataTypeCode and bits
    (2, 32): "float32",
    (2, 64): "float64",
    (2, 16): "float16",
    (4, 16): "bfloat16",
    (0, 8): "int8",
    (0, 32): "int32",
    (0, 64): "int64",
    (1, 8): "uint8",
}
# DLManagedTensorVersioned (dlpack.h, version 1): version, context and deleter, then the flags, then the DLTensor.
_VERSIONED_FLAGS, _VERSIONED_TENSOR, _READ_ONLY = 24, 32, 1

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.argtypes, _capsule_pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
_capsule_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_capsule_is_valid.argtypes, _capsule_is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int


def _from_dlpack(value, where):
    device = int(value.__dlpack_device__()[0])
    if device != _DL_CPU:
        raise misuse(
            f"arrays on other devices are not supported (DLPack device {device})", where,
            "copy it to the CPU, or pass a torch tensor to tensorlane.torch",
        )
    tensor, writable, capsule = _export(value)
    kind = _DL_DTYPES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    if kind is None:
        raise misuse(
            f"DLPack dtype (code {tensor.code}, {tensor.bits} bits, {tensor.lanes} lanes) is not supported", where,
            f"use {_native.DTYPE_NAMES}",
        )
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    if tensor.strides and not _contiguous(shape, [tensor.strides[i] for i in range(tensor.ndim)]):
        raise misuse("it is not contiguous", where, "pass a contiguous copy")
    pointer = (tensor.data or 0) + tensor.byte_offset
    array = None
    if kind != "bfloat16" and math.prod(shape) == 0:
        array = numpy.empty(shape, kind)
    elif kind != "bfloat16":
        memory = (ctypes.c_char * (math.prod(shape) * tensor.bits // 8)).from_address(pointer)
        array = numpy.frombuffer(memory, kind).reshape(shape)
    return Array(pointer, shape, _BY_NAME[kind], writable, (value, capsule), array)


def _export(value):
    """(DLTensor, writable, capsule). The capsule is never renamed, so its own destructor gives the array back when it
    goes."""
    try:
        capsule = value.__dlpack__(max_version=(1, 0))
    except TypeError:  # a producer of before version 1, which exports only what may be written
        capsule = value.__dlpack__()
    if not _capsule_is_valid(capsule, b"dltensor_versioned"):
        return _DLTensor.from_address(_capsule_pointer(capsule, b"dltensor")), True, capsule
    base = _capsule_pointer(capsule, b"dltensor_versioned")
    flags = ctypes.c_uint64.from_address(base + _VERSIONED_FLAGS).value
    return _DLTensor.from_address(base + _VERSIONED_TENSOR), not flags & _READ_ONLY, capsule


def _contiguous(shape, strides):
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent > 1 and stride != expected:
            return False
        expected *= extent
    return True
