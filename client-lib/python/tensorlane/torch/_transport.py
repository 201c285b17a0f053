"""What the optimizer needs from below: buffers that are summed over the ranks, and nothing else.

`NativeTransport` is the real one, over tensorlane.h. Tests put an in-process one in its place.
"""

from typing import Any, List, NamedTuple, Optional, Protocol, Tuple

import torch

from .. import _native, _process_sets
from ..errors import MismatchError
from . import _device
from ._broadcast import gather_objects
from ._differences import explain

_DTYPES = {
    torch.float32: _native.FLOAT32,
    torch.float64: _native.FLOAT64,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.uint8: _native.UINT8,
}


class TensorDesc(NamedTuple):
    """One buffer."""

    name: str
    count: int
    dtype: torch.dtype
    position: int  # in the forward pass: 0 is needed first; of several parameters together, the first one's
    positions: (
        int  # how many there are: the parameters, however many buffers they share. Urgency is 1 - position / positions
    )
    op: Optional[int] = None  # None: the group's
    parameters: Tuple[Tuple[str, str], ...] = ()  # (name, type and shape) of each that it holds, for texts
    device: Optional[torch.device] = None  # the GPU that the buffer is on; None: host memory
    operation: int = _native.ALLREDUCE  # REDUCESCATTER and ALLGATHER cut the buffer into one share for each rank
    urgency: float = -1.0  # in [0, 1]; negative: of the position


class Transport(Protocol):
    """Used by one thread at a time. `rank` of `size` is this process among those that reduce. Every method may raise
    tensorlane.Error. For a buffer on a GPU that GPU's current stream takes the thread's place: "waits" means that the
    stream waits, and "starts" when it has come so far."""

    rank: int
    size: int

    def register(self, group: str, descs: List[TensorDesc], op: int) -> List[torch.Tensor]:
        """Collective, once. Returns one flat buffer for each tensor, owned by the transport."""

    def post(self, index: int) -> None:
        """Starts the operation of buffer `index` over the ranks, in place. Never blocks. The buffer is the transport's
        until wait(index) returns."""

    def wait(self, index: int) -> None:
        """Returns when the result is in the buffer. At once if nothing was posted since the last wait."""

    def post_many(self, indices: List[int]) -> None:
        """As post(), of each, for the cost of one call."""

    def wait_many(self, indices: List[int]) -> None:
        """As wait(), of each."""

    def done(self, index: int) -> bool:
        """Whether wait(index) would return at once."""

    def gather(self, name: str, value: Any) -> List[Any]:
        """Collective: everybody's `value`, of whatever torch.save takes, in the order of ranks."""

    def unregister(self) -> None:
        """Collective, the last call. Waits for what is under way, and gives the tensors back, and each buffer when
        nothing refers to it any more. After an error another call goes on; once it has returned, another one does
        nothing."""


class NativeTransport:
    """Registered tensors of a process set's context, or the job's, in memory shared with the daemon: posting copies
    nothing."""

    def __init__(self, process_set=None):
        self._process_set = _process_sets.of(process_set)
        self._context = _process_sets.context(process_set)
        self._tensors = []
        self._devices = []
        self._requests = {}
        self._registered = False

    @property
    def rank(self):
        return self._context.rank

    @property
    def size(self):
        return self._context.size

    def register(self, group, descs, op):
        native = [
            _native.tensor_desc(
                d.name, d.count, _DTYPES[d.dtype], op=op if d.op is None else d.op, position=d.position,
                positions=d.positions, memory=_device.memory(d.device), operation=d.operation, urgency=d.urgency,
            )
            for d in descs
        ]
        self._devices = [d.device for d in descs]
        on_gpus = [d.device and _device.Buffer(d.count, d.dtype, d.device) for d in descs]
        try:
            self._tensors = self._context.register(group, native, on_gpus)
        except MismatchError as error:
            raise explain(
                error, self._context, self._process_set.ranks, [parameter for d in descs for parameter in d.parameters]
            ) from None
        self._registered = True
        self._requests = self._tensors.requests
        return [
            tensor.on_gpu.lend()
            if tensor.on_gpu
            else torch.frombuffer(tensor.memory(d.count * d.dtype.itemsize), dtype=d.dtype)
            for tensor, d in zip(self._tensors, descs)
        ]

    def post(self, index):
        self.post_many([index])

    def wait(self, index):
        self.wait_many([index])

    def post_many(self, indices):
        for stream, some in self._by_stream(indices):
            requests = self._context.post_many([self._tensors[index] for index in some], stream)
            self._requests.update(zip(some, requests))

    def wait_many(self, indices):
        for stream, some in self._by_stream([index for index in indices if index in self._requests]):
            self._wait(some, stream)

    def _by_stream(self, indices):
        """[(stream, indices)]: those of each GPU, and last those of host memory, whose stream is None."""
        by_device = {}
        for index in indices:
            by_device.setdefault(self._devices[index], []).append(index)
        on_host = by_device.pop(None, None)
        found = [(_device.stream(device, "DistributedOptimizer"), some) for device, some in by_device.items()]
        return found + [(None, on_host)] if on_host else found

    def _wait(self, indices, stream=None):
        pending = {self._requests.pop(index): index for index in indices}
        left = list(pending)
        try:
            if stream is None:
                self._context.wait_many(left)
            else:
                self._context.stream_wait(left, stream)
        finally:  # after Ctrl-C some are under way
            self._requests.update((pending[request], request) for request in left)

    def done(self, index):
        request = self._requests.pop(index, None)
        if request is None or self._context.is_done(request):
            return True
        self._requests[index] = request
        return False

    def gather(self, name, value):
        return gather_objects(value, name, process_set=self._process_set)

    def unregister(self):
        if self._registered:
            self._wait(list(self._requests))
            _device.synchronize(self._devices)  # streams wait for what else is under way
            self._context.unregister(self._tensors)
            self._registered = False
