"""What the package knows of devices; no other module calls torch.cuda.

A tensor lies in host memory or on a GPU of a kind that has a back end here. What the library does with a GPU's memory
is ordered by streams: it begins when the *current stream* of that GPU has done what it was given so far, and a wait
makes the current stream wait.
"""

import contextlib
import os
import weakref

import torch

from .. import _native
from ..errors import misuse


class Cuda:
    """NVIDIA GPUs: torch.cuda. The methods are what another back end needs."""

    memory = _native.MEMORY_CUDA

    def refusal(self):
        """Why such tensors cannot be used after all, or None."""
        return "AMD GPUs (ROCm) are not supported" if torch.version.hip else None

    def stream(self, device):
        """The current one, with wait_stream()."""
        return torch.cuda.current_stream(device)

    def number(self, stream):
        """A cudaStream_t."""
        return stream.cuda_stream

    def captures(self, device):
        """Whether a CUDA graph is being captured on the device's current stream."""
        if torch.cuda.current_device() == device.index:
            return torch.cuda.is_current_stream_capturing()
        with torch.cuda.device(device):
            return torch.cuda.is_current_stream_capturing()

    def event(self, stream):
        """What `stream` has been given so far, with query() and wait(stream)."""
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def synchronize(self, device):
        torch.cuda.synchronize(device)

    def without_autocast(self):
        return torch.autocast("cuda", enabled=False)

    def tensor_of(self, memory, device):
        """The bytes of a Block of GPU memory (_gpu_memory.py), which lives as long as the tensor."""
        return torch.as_tensor(memory, device=device)


_backends = {"cuda": Cuda()}
_SHARED_FROM = 256 << 10  # bytes, as in tensorlane.h (tl_gpu_alloc)


def register(kind, backend):
    """Devices of this type are GPUs to the library. For tests."""
    _backends[kind] = backend


def gpu(tensor, where):
    """The GPU that the tensor is on, None for host memory. Errors: InvalidArgumentError for any other device."""
    device = tensor.device
    if device.type == "cpu":
        return None
    backend = _backends.get(device.type)
    refusal = f"tensors on {device} are not supported" if backend is None else backend.refusal()
    if refusal is not None:
        raise misuse(refusal, where, "move it to the CPU or to a CUDA GPU")
    return device


def memory(device):
    """tl_memory_t of gpu()'s answer."""
    return _native.MEMORY_HOST if device is None else _backends[device.type].memory


def current_stream(device):
    return _backends[device.type].stream(device)


def stream(device, where):
    """The current stream of a GPU, as tensorlane.h takes it. InvalidArgumentError while a CUDA graph is captured on it.
    """
    backend = _backends[device.type]
    if backend.captures(device):
        raise misuse(
            "a CUDA graph is being captured, and what travels between hosts cannot be part of one", where,
            "leave the call out of what is captured (with DistributedOptimizer, the backward pass and step())",
        )
    return backend.number(backend.stream(device))


def place(tensor, where):
    """Where the tensor's memory lies and the stream that calls on it are ordered by, as _native takes it. Errors:
    InvalidArgumentError as of gpu() and stream()."""
    device = gpu(tensor, where)
    return _native.HOST if device is None else (memory(device), stream(device, where))


def record(tensor):
    """The current stream may still use its memory when the tensor goes."""
    tensor.record_stream(current_stream(tensor.device))


def event(device):
    """What the current stream has been given so far."""
    return _backends[device.type].event(current_stream(device))


def synchronize(devices):
    """Returns when these GPUs (None: no GPU) have done what they were given."""
    for device in dict.fromkeys(devices):
        if device is not None:
            _backends[device.type].synchronize(device)


@contextlib.contextmanager
def without_autocast(devices):
    """Autocast is off on the CPU and on these devices."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu", enabled=False))
        for kind in {device.type for device in devices} & _backends.keys():
            stack.enter_context(_backends[kind].without_autocast())
        yield


class Streams:
    """The streams of one GPU that parts of something come from."""

    def __init__(self):
        self._seen = []

    def add(self, device):
        stream = current_stream(device)
        if stream not in self._seen:
            self._seen.append(stream)

    def join(self, device):
        """The current stream waits for the others."""
        current = current_stream(device)
        for stream in self._seen:
            if stream != current:
                current.wait_stream(stream)
        self._seen.clear()


class Trail:
    """Where the latest work of somebody is, on all GPUs: a stream and an event of it."""

    def __init__(self):
        self._left = {}

    def __bool__(self):
        return bool(self._left)

    def clear(self):
        self._left.clear()

    def leave(self, devices):
        """What the current streams of these GPUs (None: no GPU) have been given so far."""
        for device in devices:
            if device is not None:
                self._left[device] = (current_stream(device), event(device))

    def follow(self, where):
        """The current streams wait for it. InvalidArgumentError where a CUDA graph is captured on one that would."""
        for device, (left_on, marked) in self._left.items():
            current = current_stream(device)
            if current != left_on:
                stream(device, where)
                marked.wait(current)


class Buffer:
    """Memory of a GPU for a registered tensor. What was lent is in use as long as something refers to it."""

    def __init__(self, count, dtype, device):
        self.device = device
        self._kind = (count, dtype)
        self._whole = None
        self._lent = None

    def allocate(self, context):
        """Its address. It is the library's memory where the ranks of a host are to share it (the library has refused
        other values of the variable than 0 and 1)."""
        count, dtype = self._kind
        size = count * torch.empty(0, dtype=dtype).element_size()
        if os.environ.get("TENSORLANE_GPU_SUMS") == "1" and size >= _SHARED_FROM:
            memory = context.gpu_memory.allocate(self.device.index, size)
            self._whole = _backends[self.device.type].tensor_of(memory, self.device).view(dtype)
        else:
            self._whole = torch.empty(count, dtype=dtype, device=self.device)
        return self._whole.data_ptr()

    def lend(self):
        """A flat tensor of zeros."""
        synchronize([self.device])  # whoever had it before may have used it on another stream
        with torch.no_grad():
            self._whole.zero_()
        lent = torch.empty(0, dtype=self._whole.dtype, device=self.device).set_(self._whole)
        self._lent = weakref.ref(lent)
        return lent

    def in_use(self):
        return self._lent is not None and self._lent() is not None
