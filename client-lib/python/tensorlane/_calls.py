"""Horovod's calls on arrays: by name, asynchronous with a handle, or waiting.

With `process_set` they are among its ranks: "all ranks" below are all of the set. A root_rank counts in the whole job,
as in Horovod.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import math
from typing import TYPE_CHECKING, Any, Callable

import numpy

from . import _arrays, _native, _parts, _process_sets
from ._constants import Average, Max, Min, Product, Sum
from ._process_sets import AnyProcessSet
from .errors import misuse

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    _P = ParamSpec("_P")

Array = Any  # a NumPy array, or whatever has the buffer protocol or DLPack (CPU)


class Handle:
    """An operation under way: what poll() and synchronize() take. One thread at a time."""

    def __init__(self, request, result, postscale=1.0, scale=None):
        self._request = request
        self._result = result
        self._postscale = postscale
        self._scale = scale

    def __del__(self):
        request = vars(self).get("_request")
        if request is not None:
            request.drop()

    def poll(self) -> bool:
        """Whether the operation is done. Raises if it failed."""
        return self._request.test()

    def synchronize(self, timeout: float | None = None) -> Any:
        """Waits for the operation and returns its result. Raises if it failed, or TimedOutError after `timeout`
        seconds; the operation goes on then."""
        self._request.wait(timeout)
        if self._postscale != 1.0:
            self._scale(self._result, self._postscale)
            self._postscale = 1.0
        return self._result


def label(operation, name):
    """How errors speak of a call."""
    return f"{operation} without a name" if name is None else name


def scattered_rows(array, name, process_set=None):
    """How many of the rows along the first axis this rank gets: an even share, and one more on the first ranks."""
    if not array.shape:
        raise misuse("it has no first axis", f"array '{name}'", "pass an array of one dimension or more")
    context = _process_sets.context(process_set)
    share, left = divmod(array.shape[0], context.size)
    return share + (1 if context.rank < left else 0)


def reduction(array, name, average=None, op=None, prescale_factor=1.0, postscale_factor=1.0):
    """tl_op_t of Horovod's two ways to say it, for this array. Integers are neither averaged nor scaled."""
    if average is not None and op is not None:
        raise misuse("both average and op are given", f"array '{name}'", "give op=Sum or op=Average only")
    if op is None:
        op = Sum if average is False else Average
    if op not in (Sum, Average, Min, Max, Product):
        raise misuse(f"op {op!r} is not supported", f"array '{name}'", "use Sum, Average, Min, Max or Product")
    if array.dtype in _native.INTEGERS:
        if op == Average:
            raise misuse("the average of integers is no integer", f"array '{name}'", "use op=Sum, and divide")
        if (prescale_factor, postscale_factor) != (1.0, 1.0):
            raise misuse(
                "integers cannot be scaled", f"array '{name}'", "leave out prescale_factor and postscale_factor"
            )
    return op


def urgency(priority):
    """tl_options_t.urgency of `priority`: [0, 1], 1 is needed first; None leaves it to the daemon."""
    if priority is None:
        return -1.0
    if not 0.0 <= priority <= 1.0:
        raise misuse(f"priority {priority} is outside [0, 1]", "priority", "1 is the most urgent, 0 the least")
    return float(priority)


def waited(start: Callable[_P, Handle]) -> Callable[_P, Any]:
    """The call that starts an operation and waits for it, with the arguments of `start`."""

    @functools.wraps(start)
    def call(*args: _P.args, **kwargs: _P.kwargs) -> Any:
        return start(*args, **kwargs).synchronize()

    call.__name__ = call.__qualname__ = start.__name__.replace("_async", "")
    call.__doc__ = f"Calls {start.__name__}() with these arguments, waits for the operation, and returns its result."
    call.__annotations__ = {**start.__annotations__, "return": Any}
    call.__signature__ = inspect.signature(start).replace(return_annotation=Any)
    return call


def _scale(result, factor):
    result *= factor


def allreduce_async(
    tensor: Array,
    average: bool | None = None,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into a new array, which synchronize(handle) returns. `tensor` may
    be changed at once."""
    shown = label("allreduce", name)
    source = _arrays.view(tensor, shown)
    op = reduction(source, shown, average, op, prescale_factor, postscale_factor)
    target = _arrays.like(source)
    out = _arrays.pointer(target)
    given = source.pointer
    if prescale_factor != 1.0:
        _copy(source, target)
        target *= prescale_factor
        given = out
    request = _process_sets.context(process_set).allreduce(
        name, given, out, source.count, source.dtype, op, urgency(priority), (source, target)
    )
    return Handle(request, target, postscale_factor, _scale)


def allreduce_async_(
    tensor: Array,
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
    shown = label("allreduce", name)
    array = _arrays.view(tensor, shown)
    _arrays.require_writable(array, shown)
    op = reduction(array, shown, average, op, prescale_factor, postscale_factor)
    scalable = array.numpy
    if scalable is None and (prescale_factor, postscale_factor) != (1.0, 1.0):
        raise misuse(
            "a bfloat16 array of this kind cannot be scaled in place", f"array '{shown}'",
            "scale it yourself, or pass a torch tensor or an ml_dtypes array",
        )
    context = _process_sets.context(process_set)
    if prescale_factor != 1.0:
        scalable *= prescale_factor
    request = context.allreduce(
        name, array.pointer, array.pointer, array.count, array.dtype, op, urgency(priority), array
    )
    return Handle(request, tensor, postscale_factor, lambda _, factor: _scale(scalable, factor))


def broadcast_async_(
    tensor: Array,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the copy of the root's `tensor` into that of every other rank."""
    shown = label("broadcast", name)
    array = _arrays.view(tensor, shown)
    _arrays.require_writable(array, shown)
    root = _process_sets.of(process_set).root(root_rank)
    return Handle(
        _process_sets.context(process_set).broadcast(
            name, array.pointer, array.count, array.dtype, root, urgency(priority), array
        ),
        tensor,
    )


def broadcast_async(
    tensor: Array,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """As broadcast_async_, into a new array."""
    shown = label("broadcast", name)
    source = _arrays.view(tensor, shown)
    target = _arrays.like(source)
    _copy(source, target)
    out = _arrays.view(target, shown)
    root = _process_sets.of(process_set).root(root_rank)
    return Handle(
        _process_sets.context(process_set).broadcast(
            name, out.pointer, out.count, out.dtype, root, urgency(priority), out
        ),
        target,
    )


def allgather_async(
    tensor: Array, name: str | None = None, *, priority: float | None = None, process_set: AnyProcessSet | None = None
) -> Handle:
    """Starts gathering: the result has the ranks' arrays one after the other along the first axis. All have the same
    shape."""
    shown = label("allgather", name)
    source = _arrays.view(tensor, shown)
    if not source.shape:
        raise misuse("it has no first axis", f"array '{shown}'", "pass an array of one dimension or more")
    target = _arrays.like(source, (source.shape[0] * _process_sets.context(process_set).size, *source.shape[1:]))
    out = _arrays.view(target, shown)
    return Handle(
        _process_sets.context(process_set).allgather(
            name, source.pointer, out.pointer, source.count, source.dtype, urgency(priority), (source, out)
        ),
        target,
    )


def reducescatter_async(
    tensor: Array,
    name: str | None = None,
    op: int | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into a new array with this rank's rows of it: those along the
    first axis are shared out evenly, in the order of ranks; where they do not divide, the first ranks get one more.
    `tensor` may be changed at once."""
    shown = label("reducescatter", name)
    source = _arrays.view(tensor, shown)
    op = reduction(source, shown, None, op, prescale_factor, postscale_factor)
    target = _arrays.like(source, (scattered_rows(source, shown, process_set), *source.shape[1:]))
    out = _arrays.pointer(target)
    rows, given = source.shape[0], source
    if prescale_factor != 1.0:
        scaled = _arrays.like(source)
        _copy(source, scaled)
        scaled *= prescale_factor
        given = _arrays.view(scaled, shown)
    request = _process_sets.context(process_set).reducescatter(
        name, given.pointer, out, rows, source.count // rows, source.dtype, op, urgency(priority), (given, target)
    )
    return Handle(request, target, postscale_factor, _scale)


def reduce_async(
    tensor: Array,
    root_rank: int = 0,
    name: str | None = None,
    op: int | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into a new array on the root, which synchronize(handle) returns
    there; elsewhere it returns None. `tensor` may be changed at once."""
    shown = label("reduce", name)
    source = _arrays.view(tensor, shown)
    op = reduction(source, shown, None, op)
    root = _process_sets.of(process_set).root(root_rank)
    context = _process_sets.context(process_set)
    target = _arrays.like(source) if context.rank == root else None
    out = None if target is None else _arrays.pointer(target)
    request = context.reduce(
        name, source.pointer, out, source.count, source.dtype, op, root, urgency(priority), (source, target)
    )
    return Handle(request, target)


def gather_async(
    tensor: Array,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts gathering on the root, where the result has the ranks' arrays one after the other along the first axis;
    elsewhere it is None. All have the same shape."""
    shown = label("gather", name)
    source = _arrays.view(tensor, shown)
    require_axis(source, shown)
    root = _process_sets.of(process_set).root(root_rank)
    context = _process_sets.context(process_set)
    target = None
    if context.rank == root:
        target = _arrays.like(source, (source.shape[0] * context.size, *source.shape[1:]))
    out = None if target is None else _arrays.pointer(target)
    request = context.gather(
        name, source.pointer, out, source.count, source.dtype, root, urgency(priority), (source, target)
    )
    return Handle(request, target)


def scatter_async_(
    tensor: Array,
    source: Array | None = None,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts bringing this rank's part of the root's `source` into `tensor`, which synchronize(handle) returns. The
    source has the ranks' parts one after the other along the first axis; it is used on the root alone, and may be
    changed at once."""
    shown = label("scatter", name)
    target = _arrays.view(tensor, shown)
    _arrays.require_writable(target, shown)
    root = _process_sets.of(process_set).root(root_rank)
    context = _process_sets.context(process_set)
    given = None
    if context.rank == root:
        given = scattered(_arrays.view(source, shown), target, context.size, shown)
    request = context.scatter(
        name, None if given is None else given.pointer, target.pointer, target.count, target.dtype, root,
        urgency(priority), (given, target),
    )
    return Handle(request, tensor)


def scattered(source, part, size, name):
    """The root's array, if it is `size` parts like this one."""
    if source.dtype != part.dtype or source.count != part.count * size:
        raise misuse(
            f"the root has {source.count} elements of dtype {source.dtype} for {size} parts of {part.count} of dtype "
            f"{part.dtype}", f"array '{name}'", "pass as many parts of this shape as there are ranks",
        )
    return source


def require_axis(array, name):
    if not array.shape:
        raise misuse("it has no first axis", f"array '{name}'", "pass an array of one dimension or more")


def require_equal_parts(array, size, name):
    """Refuses what all-to-all cannot share out evenly along the first axis."""
    require_axis(array, name)
    rows = array.shape[0]
    if rows % size != 0:
        raise misuse(
            f"its first axis has {rows} rows, which {size} ranks do not divide", f"array '{name}'",
            "pad it to a multiple of the number of ranks, or say by splits how many rows each rank gets",
        )


class PartsHandle(Handle):
    """Of an all-to-all with splits. `handle`: of the array."""

    def __init__(self, handle, received):
        self._handle = handle
        self._received = received

    def poll(self):
        return self._handle.poll()

    def synchronize(self, timeout=None):
        return self._handle.synchronize(timeout), self._received


def alltoall_async(
    tensor: Array,
    splits: Any | None = None,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the exchange of parts: the first axis of `tensor` is shared out evenly in the order of ranks, and the
    result, a new array of the same shape, has what this rank gets of the others', in the same order. `tensor` may be
    changed at once.

    With `splits`, which all ranks give or none does, rank r gets splits[r] rows. The result is then a pair: the new
    array, and an array of how many of its rows each rank has sent. Ranks make calls with splits in one order, and each
    call waits for the others to make it, since they have to say their splits. Rows have as many elements on all
    ranks; how they are shaped is not compared. `tensor` stays as it is until the operation is done. Urgency is 0.9
    unless `priority` says it."""
    shown = label("alltoall", name)
    source = _arrays.view(tensor, shown, empty=splits is not None)
    context = _process_sets.context(process_set)
    if splits is not None:
        return _alltoall_of_parts(context, source, splits, name, shown, priority)
    require_equal_parts(source, context.size, shown)
    target = _arrays.like(source)
    request = context.alltoall(
        name, source.pointer, _arrays.pointer(target), source.count // context.size, source.dtype, urgency(priority),
        (source, target),
    )
    return Handle(request, target)


def _alltoall_of_parts(context, source, splits, name, shown, priority):
    require_axis(source, shown)
    urgent, row = urgency(priority), math.prod(source.shape[1:])
    exchange = _parts.Exchange(context, splits, source.shape[0], name, shown)
    with exchange.begun():
        target = _arrays.like(source, (sum(exchange.receives), *source.shape[1:]))
        request = exchange.start(source.pointer, _arrays.pointer(target), source.dtype, row, urgent, (source, target))
    return PartsHandle(Handle(request, target), numpy.array(exchange.receives))


def push_async(
    tensor: Array, key: str, op: int = Sum, *, priority: float | None = None, process_set: AnyProcessSet | None = None
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into the job's store, as the value of `key`. `tensor` may be
    changed at once."""
    source = _arrays.view(tensor, key)
    op = reduction(source, key, None, op)
    return Handle(
        _process_sets.context(process_set).push(
            key, source.pointer, source.count, source.dtype, op, urgency(priority), source
        ),
        None,
    )


def pull_async_(
    tensor: Array, key: str, *, priority: float | None = None, process_set: AnyProcessSet | None = None
) -> Handle:
    """Starts bringing the value of `key` into `tensor`. This rank's push of it is done."""
    target = _arrays.view(tensor, key)
    _arrays.require_writable(target, key)
    return Handle(
        _process_sets.context(process_set).pull(
            key, target.pointer, target.count, target.dtype, urgency(priority), target
        ),
        tensor,
    )


allreduce = waited(allreduce_async)
allreduce_ = waited(allreduce_async_)
broadcast = waited(broadcast_async)
broadcast_ = waited(broadcast_async_)
allgather = waited(allgather_async)
reducescatter = waited(reducescatter_async)
reduce = waited(reduce_async)
gather = waited(gather_async)
scatter_ = waited(scatter_async_)
alltoall = waited(alltoall_async)


def barrier(timeout: float | None = None, *, process_set: AnyProcessSet | None = None) -> None:
    """Returns when every rank has called it. Raises TimedOutError after `timeout` seconds."""
    _process_sets.context(process_set).barrier(-1.0 if timeout is None else timeout)


def poll(handle: Handle) -> bool:
    """Whether the operation is done. Raises if it failed."""
    return handle.poll()


def synchronize(handle: Handle, timeout: float | None = None) -> Any:
    """Waits for the operation and returns its result. Raises if it failed, or TimedOutError after `timeout` seconds."""
    return handle.synchronize(timeout)


def _copy(source, target):
    if source.numpy is not None:
        target[...] = source.numpy
    else:
        target.view("uint16")[...] = _bfloat16_bits(source)


def _bfloat16_bits(array):
    memory = (ctypes.c_char * (array.count * 2)).from_address(array.pointer)
    return numpy.frombuffer(memory, "uint16").reshape(array.shape)
