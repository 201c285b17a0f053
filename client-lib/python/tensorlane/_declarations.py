"""What tensorlane.h declares, for ctypes. The numbers and structs are checked against the header by
tests/python/test_native_layout.py."""

import ctypes
import functools

FLOAT32, FLOAT64, FLOAT16, BFLOAT16, INT8, INT32, INT64, UINT8 = range(8)
ELEMENT_BYTES = (4, 8, 2, 2, 1, 4, 8, 1)
INTEGERS = (INT8, INT32, INT64, UINT8)
DTYPE_NAMES = "float32, float64, float16, bfloat16, int8, int32, int64 or uint8"
SUM, AVERAGE, MIN, MAX, PRODUCT = range(5)
ALLREDUCE, BROADCAST, ALLGATHER, BARRIER, PUSH, PULL, REDUCESCATTER, REDUCE, GATHER, SCATTER, ALLTOALL = range(11)
MEMORY_HOST, MEMORY_CUDA = range(2)

CONFIG_VERSION = 1


class Config(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("rank", ctypes.c_int),
        ("world_size", ctypes.c_int),
        ("local_rank", ctypes.c_int),
        ("local_world_size", ctypes.c_int),
        ("job", ctypes.c_char_p),
        ("secret", ctypes.c_char_p),
        ("leader", ctypes.c_char_p),
        ("socket", ctypes.c_char_p),
        ("timeout_seconds", ctypes.c_double),
        ("leader_port", ctypes.c_int),
    ]


class SetConfig(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("ranks", ctypes.POINTER(ctypes.c_int)),
        ("count", ctypes.c_size_t),
        ("number", ctypes.c_uint32),
        ("local_rank", ctypes.c_int),
        ("local_size", ctypes.c_int),
    ]


class TensorDesc(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("name", ctypes.c_char_p),
        ("buffer", ctypes.c_void_p),
        ("count", ctypes.c_uint64),
        ("dtype", ctypes.c_int),
        ("operation", ctypes.c_int),
        ("op", ctypes.c_int),
        ("root", ctypes.c_int),
        ("position", ctypes.c_uint32),
        ("positions", ctypes.c_uint32),
        ("urgency", ctypes.c_float),
        ("row", ctypes.c_uint64),
        ("pattern", ctypes.c_int),
        ("reserved", ctypes.c_uint32),
        ("memory", ctypes.c_int),
        ("reserved2", ctypes.c_uint32),
    ]


class Options(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("urgency", ctypes.c_float),
        ("reserved", ctypes.c_uint32),
        ("queued", ctypes.c_uint32),
        ("reserved2", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("memory", ctypes.c_int),
        ("reserved3", ctypes.c_uint32),
    ]


@functools.lru_cache(maxsize=256)
def options(urgency, queued=False, stream=None, memory=MEMORY_HOST):
    """A reference to such Options, which the library only reads: to make them anew costs as much as the call."""
    return ctypes.byref(Options(ctypes.sizeof(Options), urgency, 0, queued, 0, stream, memory, 0))


_POINTER = ctypes.c_void_p
_COUNTS = ctypes.POINTER(ctypes.c_uint64)
_OUT = ctypes.POINTER(ctypes.c_void_p)
SIGNATURES = {
    "tl_status_string": ([ctypes.c_int], ctypes.c_char_p),
    "tl_last_error": ([], ctypes.c_char_p),
    "tl_init": ([ctypes.POINTER(Config), _OUT], ctypes.c_int),
    "tl_process_set": ([_POINTER, ctypes.POINTER(SetConfig), _OUT], ctypes.c_int),
    "tl_finalize": ([_POINTER], ctypes.c_int),
    "tl_abort": ([_POINTER, ctypes.c_char_p], ctypes.c_int),
    "tl_rank": ([_POINTER], ctypes.c_int),
    "tl_size": ([_POINTER], ctypes.c_int),
    "tl_local_rank": ([_POINTER], ctypes.c_int),
    "tl_local_size": ([_POINTER], ctypes.c_int),
    "tl_host": ([_POINTER], ctypes.c_char_p),
    "tl_daemon_status": ([_POINTER, ctypes.POINTER(ctypes.c_char_p)], ctypes.c_int),
    "tl_alloc": ([_POINTER, ctypes.c_size_t, _OUT], ctypes.c_int),
    "tl_gpu_alloc": ([_POINTER, ctypes.c_int, ctypes.c_size_t, _OUT], ctypes.c_int),
    "tl_gpu_free": ([_POINTER, _POINTER], ctypes.c_int),
    "tl_free": ([_POINTER, _POINTER], ctypes.c_int),
    "tl_register": ([_POINTER, ctypes.c_char_p, ctypes.POINTER(TensorDesc), ctypes.c_size_t, _OUT], ctypes.c_int),
    "tl_unregister": ([_POINTER, ctypes.c_char_p], ctypes.c_int),
    "tl_tensor_buffer": ([_POINTER], ctypes.c_void_p),
    "tl_post": ([_POINTER, _OUT], ctypes.c_int),
    "tl_post_many": ([_POINTER, ctypes.c_size_t, _POINTER], ctypes.c_int),
    "tl_post_on": ([_POINTER, ctypes.c_size_t, _POINTER, _POINTER], ctypes.c_int),
    "tl_stream_wait": ([_POINTER, ctypes.c_size_t, _POINTER], ctypes.c_int),
    "tl_gpu_status": ([_POINTER, ctypes.POINTER(ctypes.c_char_p)], ctypes.c_int),
    "tl_test": ([_POINTER], ctypes.c_int),
    "tl_wait": ([_POINTER, ctypes.c_double], ctypes.c_int),
    "tl_wait_many": ([_POINTER, ctypes.c_size_t, ctypes.c_double], ctypes.c_int),
    "tl_allreduce": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int,
            ctypes.POINTER(Options), _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_broadcast": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.POINTER(Options),
            _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_allgather": (
        [_POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(Options), _OUT],
        ctypes.c_int,
    ),
    "tl_reducescatter": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int, ctypes.c_int,
            ctypes.POINTER(Options), _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_reduce": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.c_int,
            ctypes.POINTER(Options), _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_gather": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int,
            ctypes.POINTER(Options), _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_scatter": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int,
            ctypes.POINTER(Options), _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_alltoall": (
        [_POINTER, ctypes.c_char_p, _POINTER, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(Options), _OUT],
        ctypes.c_int,
    ),
    "tl_send": (
        [
            _POINTER, ctypes.c_int, ctypes.c_uint64, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(Options),
            _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_recv": (
        [
            _POINTER, ctypes.c_int, ctypes.c_uint64, _POINTER, ctypes.c_uint64, ctypes.c_int,
            ctypes.POINTER(ctypes.c_int), ctypes.POINTER(Options), _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_alltoallv": (
        [
            _POINTER, ctypes.c_uint64, _POINTER, _COUNTS, _POINTER, _COUNTS, ctypes.c_int, ctypes.POINTER(Options),
            _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_push": (
        [
            _POINTER, ctypes.c_char_p, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.c_int, ctypes.POINTER(Options),
            _OUT,
        ],
        ctypes.c_int,
    ),
    "tl_pull": (
        [_POINTER, ctypes.c_char_p, _POINTER, ctypes.c_uint64, ctypes.c_int, ctypes.POINTER(Options), _OUT],
        ctypes.c_int,
    ),
    "tl_barrier": ([_POINTER, ctypes.c_double], ctypes.c_int),
}
