"""Horovod's calls on torch tensors. PyTorch 1.13 or newer.

Of a tensor on a GPU the current stream takes the place of the calling thread: an operation begins when that stream has
done what it was given so far, and synchronize(handle) makes the stream that is current then wait, and returns at once.
"""

from __future__ import annotations

import sys

import torch

from .. import _arrays, _calls, _native, _process_sets, _store
from .._calls import Handle
from .._process_sets import AnyProcessSet
from ..errors import TimedOutError, misuse
from . import _device

_DTYPES = {
    torch.float32: _native.FLOAT32,
    torch.float64: _native.FLOAT64,
    torch.float16: _native.FLOAT16,
    torch.bfloat16: _native.BFLOAT16,
    torch.int8: _native.INT8,
    torch.int32: _native.INT32,
    torch.int64: _native.INT64,
    torch.uint8: _native.UINT8,
}


def _view(tensor, name, empty=False):
    where = f"tensor '{name}'"
    if not isinstance(tensor, torch.Tensor):
        raise misuse(
            f"{type(tensor).__name__} is not a torch.Tensor", where, "use tensorlane's own calls for other arrays"
        )
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise misuse("it is sparse", where, "pass a dense tensor")
    _device.gpu(tensor, where)
    if tensor.dtype not in _DTYPES:
        raise misuse(f"dtype {tensor.dtype} is not supported", where, f"use {_native.DTYPE_NAMES}")
    if not tensor.is_contiguous():
        raise misuse("it is not contiguous", where, "pass tensor.contiguous()")
    array = _arrays.Array(tensor.data_ptr(), tuple(tensor.shape), _DTYPES[tensor.dtype], True, tensor)
    return array if empty and array.count == 0 else _arrays.checked(array, where)


def _scale(tensor, factor):
    with torch.no_grad():
        tensor.mul_(factor)


class _GpuHandle(Handle):
    """Of an operation on a GPU's memory. `buffers`: what it uses beside the result."""

    def __init__(self, request, result, where, postscale=1.0, buffers=()):
        super().__init__(request, result, postscale, _scale)
        self._where = where
        self._buffers = (result, *buffers)
        self._ready = None  # the event after which the result may be used

    def poll(self):
        return self._request.test() if self._ready is None else self._ready.query()

    def synchronize(self, timeout=None):
        """Lets the current stream wait for the operation and returns its result, on which it may work from now on.
        With a time-out this thread waits."""
        device = self._result.device
        if self._ready is not None:
            self._ready.wait(_device.current_stream(device))
            return self._result
        if timeout is None:
            self._request.let_wait(_device.stream(device, self._where))
        else:
            self._request.wait(timeout)
        for buffer in self._buffers:
            _device.record(buffer)
        self._buffers = ()
        result = super().synchronize()
        self._ready = _device.event(device)
        return result


def _handle(request, result, source, shown, postscale=1.0):
    """Of an operation that brings `source` into `result`."""
    if result.device.type == "cpu":
        return Handle(request, result, postscale, _scale)
    return _GpuHandle(request, result, f"tensor '{shown}'", postscale, () if source is result else (source,))


class _Result(torch.autograd.Function):
    """Ties a result to the tensor that it came from."""

    @staticmethod
    def forward(ctx, source, result, gradient):
        ctx.gradient = gradient
        return result[0]  # in a list, since autograd would take a tensor for what the result is a view of

    @staticmethod
    def backward(ctx, gradient):
        return ctx.gradient(gradient.contiguous()), None, None


class _TiedHandle(Handle):
    """Of an operation whose result autograd follows. `gradient`: from the gradient of the result to that of `source`,
    by a collective of its own."""

    def __init__(self, handle, source, gradient):
        self._handle = handle
        self._source = source
        self._gradient = gradient
        self._tied = None

    def poll(self):
        return self._handle.poll()

    def synchronize(self, timeout=None):
        result = self._handle.synchronize(timeout)
        if self._tied is None:
            self._tied = _Result.apply(self._source, [result], self._gradient)
            self._source = self._gradient = None
        return self._tied


def _followed(tensor, handle, gradient):
    """The handle; where autograd follows `tensor`, one whose result it follows, too."""
    if torch.is_grad_enabled() and tensor.requires_grad:
        return _TiedHandle(handle, tensor, gradient)
    return handle


def _gradient_name(name):
    return None if name is None else f"{name}.gradient"


def _prepare_in_place(tensor, shown):
    """Autograd does not see what is written through a pointer."""
    if torch.is_grad_enabled() and tensor.requires_grad and tensor.grad_fn is not None:
        raise misuse(
            "autograd follows it, and would not see that it changes in place", f"tensor '{shown}'",
            "use the call that returns a new tensor, or torch.no_grad()",
        )
    increment = getattr(torch.autograd.graph, "increment_version", None)  # of PyTorch 2.1
    if increment is not None and not tensor.is_inference():
        increment(tensor)


def _source(tensor, prescale_factor=1.0):
    """The values of `tensor`, which may be changed as soon as the operation has been started: from host memory they are
    copied by then, on a GPU they are a copy."""
    source = tensor.detach()
    if prescale_factor != 1.0:
        return source * prescale_factor
    return source if source.device.type == "cpu" else source.clone()


def _start_allreduce(source, target, name, shown, op, postscale_factor, priority, process_set, queued=False):
    from_array, to_array = _view(source, shown), _view(target, shown)
    request = _process_sets.context(process_set).allreduce(
        name, from_array.pointer, to_array.pointer, from_array.count, from_array.dtype, op, _calls.urgency(priority),
        (from_array, to_array), _device.place(source, f"tensor '{shown}'"), queued,
    )
    return _handle(request, target, source, shown, postscale_factor)


def kind(tensor, shown):
    """(number of elements, tl_dtype_t, tl_memory_t) of a tensor that can be summed. Errors: as of every call."""
    array = _view(tensor, shown)
    return array.count, array.dtype, _device.memory(_device.gpu(tensor, f"tensor '{shown}'"))


def start_sum(tensor, name, shown, process_set):
    """Starts the sum of `tensor` over all ranks, in place, behind those of this name that are under way. Its memory
    belongs to tensorlane until synchronize(handle)."""
    return _start_allreduce(tensor, tensor, name, shown, _calls.Sum, 1.0, None, process_set, queued=True)


def give_back(context, call):
    """Gives back what a call, "operation.name", has registered, of which nothing is under way. Collective: waits for
    the other ranks, as the call did."""
    while True:
        try:
            return context.forget(call)
        except TimedOutError:  # another rank is not here yet
            pass


def allreduce_async(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into a new tensor, which synchronize(handle) returns. `tensor`
    may be changed at once. Differentiable for Sum and Average."""
    shown = _calls.label("allreduce", name)
    op = _calls.reduction(_view(tensor, shown), shown, average, op, prescale_factor, postscale_factor)
    source = _source(tensor, prescale_factor)
    target = torch.empty_like(source) if source.device.type == "cpu" else source
    handle = _start_allreduce(source, target, name, shown, op, postscale_factor, priority, process_set)

    def gradient(of_result):
        if op not in (_calls.Sum, _calls.Average):
            raise misuse(
                "only sums and averages over the ranks have a gradient", f"tensor '{shown}'",
                "call detach() on what goes in",
            )
        return allreduce(
            of_result, None, _gradient_name(name), op, prescale_factor, postscale_factor, priority=priority,
            process_set=process_set,
        )

    return _followed(tensor, handle, gradient)


def allreduce_async_(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` in place. It belongs to tensorlane until synchronize(handle), which returns it.
    """
    shown = _calls.label("allreduce", name)
    op = _calls.reduction(_view(tensor, shown), shown, average, op, prescale_factor, postscale_factor)
    _process_sets.context(process_set)  # or refuse before anything is changed
    _prepare_in_place(tensor, shown)
    if prescale_factor != 1.0:
        _scale(tensor, prescale_factor)
    return _start_allreduce(tensor, tensor, name, shown, op, postscale_factor, priority, process_set)


def broadcast_async_(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the copy of the root's `tensor` into that of every other rank."""
    shown = _calls.label("broadcast", name)
    array = _view(tensor, shown)
    root = _process_sets.of(process_set).root(root_rank)
    context, place = _process_sets.context(process_set), _device.place(tensor, f"tensor '{shown}'")
    _prepare_in_place(tensor, shown)
    request = context.broadcast(
        name, array.pointer, array.count, array.dtype, root, _calls.urgency(priority), array, place
    )
    return _handle(request, tensor, tensor, shown)


def broadcast_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """As broadcast_async_, into a new tensor. Differentiable."""
    _view(tensor, _calls.label("broadcast", name))
    handle = broadcast_async_(tensor.detach().clone(), root_rank, name, priority=priority, process_set=process_set)
    is_root = _process_sets.of(process_set).root(root_rank) == _process_sets.context(process_set).rank

    def gradient(of_result):
        total = allreduce(of_result, None, _gradient_name(name), _calls.Sum, priority=priority, process_set=process_set)
        return total if is_root else torch.zeros_like(total)

    return _followed(tensor, handle, gradient)


def allgather_async(
    tensor: torch.Tensor,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts gathering: the result has the ranks' tensors one after the other along the first axis. All have the same
    shape. Differentiable."""
    shown = _calls.label("allgather", name)
    source = _view(tensor, shown)
    if not source.shape:
        raise misuse("it has no first axis", f"tensor '{shown}'", "pass a tensor of one dimension or more")
    context, place = _process_sets.context(process_set), _device.place(tensor, f"tensor '{shown}'")
    rows = tensor.shape[0]
    target = tensor.detach().new_empty((rows * context.size, *tensor.shape[1:]))
    out = _view(target, shown)
    if place is not _native.HOST:
        mine = target[rows * context.rank : rows * (context.rank + 1)]
        source = _view(mine.copy_(tensor.detach()), shown)
    request = context.allgather(
        name, source.pointer, out.pointer, source.count, source.dtype, _calls.urgency(priority), (source, out), place
    )

    def gradient(of_result):
        return reducescatter(of_result, _gradient_name(name), _calls.Sum, priority=priority, process_set=process_set)

    return _followed(tensor, _handle(request, target, target, shown), gradient)


def reducescatter_async(
    tensor: torch.Tensor,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into a new tensor with this rank's rows of it: those along the
    first axis are shared out evenly, in the order of ranks; where they do not divide, the first ranks get one more.
    `tensor` may be changed at once. Differentiable for Sum and Average."""
    shown = _calls.label("reducescatter", name)
    op = _calls.reduction(_view(tensor, shown), shown, None, op, prescale_factor, postscale_factor)
    source = _source(tensor, prescale_factor)
    array = _view(source, shown)
    target = source.new_empty((_calls.scattered_rows(array, shown, process_set), *array.shape[1:]))
    rows = array.shape[0]
    out = target.data_ptr() if target.numel() else None
    context = _process_sets.context(process_set)
    request = context.reducescatter(
        name, array.pointer, out, rows, array.count // rows, array.dtype, op, _calls.urgency(priority), (array, target),
        _device.place(source, f"tensor '{shown}'"),
    )

    def gradient(of_result):
        if op not in (_calls.Sum, _calls.Average):
            raise misuse(
                "only sums and averages over the ranks have a gradient", f"tensor '{shown}'",
                "call detach() on what goes in",
            )
        share, left = divmod(rows, context.size)
        if left == 0:
            whole = allgather(of_result, _gradient_name(name), priority=priority, process_set=process_set)
        else:  # ranks have different numbers of rows, which cannot be gathered: each adds its own to zeros
            first = context.rank * share + min(context.rank, left)
            mine = [
                of_result.new_zeros((first, *of_result.shape[1:])), of_result,
                of_result.new_zeros((rows - first - len(of_result), *of_result.shape[1:])),
            ]
            whole = allreduce(
                torch.cat(mine), None, _gradient_name(name), _calls.Sum, priority=priority, process_set=process_set
            )
        return whole * (prescale_factor * postscale_factor / (context.size if op == _calls.Average else 1))

    return _followed(tensor, _handle(request, target, source, shown, postscale_factor), gradient)


def push_async(
    tensor: torch.Tensor,
    key: str,
    op: int = _calls.Sum,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into the job's store, as the value of `key`. `tensor` may be
    changed at once. synchronize(handle) waits on this thread, also for a GPU's memory."""
    op = _calls.reduction(_view(tensor, key), key, None, op)
    source = _view(_source(tensor), key)
    request = _process_sets.context(process_set).push(
        key, source.pointer, source.count, source.dtype, op, _calls.urgency(priority), source,
        _device.place(tensor, f"key '{key}'"),
    )
    return Handle(request, None)


def pull_async_(
    tensor: torch.Tensor, key: str, *, priority: float | None = None, process_set: AnyProcessSet | None = None
) -> Handle:
    """Starts bringing the value of `key` into `tensor`. This rank's push of it is done. synchronize(handle) waits on
    this thread, also for a GPU's memory."""
    target = _view(tensor, key)
    context, place = _process_sets.context(process_set), _device.place(tensor, f"key '{key}'")
    _prepare_in_place(tensor, key)
    request = context.pull(key, target.pointer, target.count, target.dtype, _calls.urgency(priority), target, place)
    return Handle(request, tensor)


def _give(value, out, key):
    _prepare_in_place(out, key)
    with torch.no_grad():
        out.view(-1).copy_(value.view(-1))


class KVStore(_store.KVStore):
    __doc__ = _store.KVStore.__doc__
    _calls = sys.modules[__name__]
    _view = staticmethod(_view)
    _copy = staticmethod(_give)


allreduce = _calls.waited(allreduce_async)
allreduce_ = _calls.waited(allreduce_async_)
broadcast = _calls.waited(broadcast_async)
broadcast_ = _calls.waited(broadcast_async_)
allgather = _calls.waited(allgather_async)
reducescatter = _calls.waited(reducescatter_async)
