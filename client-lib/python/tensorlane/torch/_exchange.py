"""Calls that bring parts of torch tensors from one rank to one other, or a sum to one rank alone. Of them, autograd
follows alltoall."""

from __future__ import annotations

import math
from typing import Any

import torch

from .. import _calls, _parts, _process_sets
from .._calls import Handle
from .._process_sets import AnyProcessSet
from . import _device
from ._calls import _followed, _gradient_name, _handle, _prepare_in_place, _source, _view
from ._messages import _host


def _of_root(request, target, source, shown):
    return Handle(request, None) if target is None else _handle(request, target, source, shown)


def _pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def reduce_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    op: int | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the reduction of `tensor` over all ranks into a new tensor on the root, which synchronize(handle) returns
    there; elsewhere it returns None. `tensor` may be changed at once."""
    shown = _calls.label("reduce", name)
    op = _calls.reduction(_view(tensor, shown), shown, None, op)
    root = _process_sets.of(process_set).root(root_rank)
    context, place = _process_sets.context(process_set), _device.place(tensor, f"tensor '{shown}'")
    source = _source(tensor)
    array = _view(source, shown)
    target = torch.empty_like(source) if context.rank == root else None
    request = context.reduce(
        name, array.pointer, _pointer(target), array.count, array.dtype, op, root, _calls.urgency(priority),
        (array, target), place,
    )
    return _of_root(request, target, source, shown)


def gather_async(
    tensor: torch.Tensor,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts gathering on the root, where the result has the ranks' tensors one after the other along the first axis;
    elsewhere it is None. All have the same shape. `tensor` may be changed at once."""
    shown = _calls.label("gather", name)
    _calls.require_axis(_view(tensor, shown), shown)
    root = _process_sets.of(process_set).root(root_rank)
    context, place = _process_sets.context(process_set), _device.place(tensor, f"tensor '{shown}'")
    source = _source(tensor)
    array = _view(source, shown)
    target = None
    if context.rank == root:
        target = source.new_empty((source.shape[0] * context.size, *source.shape[1:]))
    request = context.gather(
        name, array.pointer, _pointer(target), array.count, array.dtype, root, _calls.urgency(priority),
        (array, target), place,
    )
    return _of_root(request, target, source, shown)


def scatter_async_(
    tensor: torch.Tensor,
    source: torch.Tensor | None = None,
    root_rank: int = 0,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts bringing this rank's part of the root's `source` into `tensor`, which synchronize(handle) returns. The
    source has the ranks' parts one after the other along the first axis; it is used on the root alone, and may be
    changed at once."""
    shown = _calls.label("scatter", name)
    target = _view(tensor, shown)
    root = _process_sets.of(process_set).root(root_rank)
    context, place = _process_sets.context(process_set), _device.place(tensor, f"tensor '{shown}'")
    given, whole = None, tensor
    if context.rank == root:
        _calls.scattered(_view(source, shown), target, context.size, shown)
        whole = _source(source)
        given = _view(whole, shown)
    _prepare_in_place(tensor, shown)
    request = context.scatter(
        name, None if given is None else given.pointer, target.pointer, target.count, target.dtype, root,
        _calls.urgency(priority), (given, target), place,
    )
    return _handle(request, tensor, whole, shown)


def alltoall_async(
    tensor: torch.Tensor,
    splits: Any | None = None,
    name: str | None = None,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts the exchange of parts: the first axis of `tensor` is shared out evenly in the order of ranks, and the
    result, a new tensor of the same shape, has what this rank gets of the others', in the same order. `tensor` may be
    changed at once. Differentiable.

    With `splits`, which all ranks give or none does, rank r gets splits[r] rows; tensors are on the CPU then. The
    result is a pair: the new tensor, and a tensor of how many of its rows each rank has sent. Ranks make calls with
    splits in one order, and each call waits for the others to make it, since they have to say their splits. Rows have
    as many elements on all ranks; how they are shaped is not compared. `tensor` stays as it is until the operation is
    done. Urgency is 0.9 unless `priority` says it."""
    shown = _calls.label("alltoall", name)
    view = _view(tensor, shown, empty=splits is not None)
    context, place = _process_sets.context(process_set), _device.place(tensor, f"tensor '{shown}'")
    if splits is not None:
        _calls.require_axis(_host(tensor, shown), shown)
        _calls.urgency(priority)  # or refuse before the others count on this rank
        exchange = _parts.Exchange(context, splits, tensor.shape[0], name, shown)
        handle = _start_parts(exchange, tensor, shown, priority)
        return _calls.PartsHandle(handle, torch.tensor(exchange.receives, device="cpu"))
    _calls.require_equal_parts(view, context.size, shown)
    source = _source(tensor)
    array = _view(source, shown)
    target = torch.empty_like(source)
    request = context.alltoall(
        name, array.pointer, target.data_ptr(), array.count // context.size, array.dtype, _calls.urgency(priority),
        (array, target), place,
    )

    def gradient(of_result):
        return alltoall(of_result, None, _gradient_name(name), priority=priority, process_set=process_set)

    return _followed(tensor, _handle(request, target, source, shown), gradient)


def _start_parts(exchange, tensor, shown, priority):
    with exchange.begun():
        source = _source(tensor)
        array = _host(source, shown)
        target = source.new_empty((sum(exchange.receives), *source.shape[1:]))
        request = exchange.start(
            array.pointer, target.data_ptr(), array.dtype, math.prod(source.shape[1:]), _calls.urgency(priority),
            (array, target),
        )

    def gradient(of_result):  # goes back the same way
        return _start_parts(exchange.back(), of_result, shown, priority).synchronize()

    return _followed(tensor, Handle(request, target), gradient)


reduce = _calls.waited(reduce_async)
gather = _calls.waited(gather_async)
scatter_ = _calls.waited(scatter_async_)
alltoall = _calls.waited(alltoall_async)
