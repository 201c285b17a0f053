"""Horovod's calls on torch tensors. PyTorch 1.13 or newer."""

import sys

import torch

from .. import _arrays, _calls, _native, _process_sets, _store
from .._calls import Handle
from ..errors import misuse

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


def _view(tensor, name):
    where = f"tensor '{name}'"
    if not isinstance(tensor, torch.Tensor):
        raise misuse(f"{type(tensor).__name__} is not a torch.Tensor", where, "use tensorlane's own calls for other arrays")
    if tensor.is_sparse or tensor.layout != torch.strided:
        raise misuse("it is sparse", where, "pass a dense tensor")
    if tensor.device.type != "cpu":
        raise misuse(f"tensors on {tensor.device} are not supported yet", where, "pass tensor.cpu()")
    if tensor.dtype not in _DTYPES:
        raise misuse(f"dtype {tensor.dtype} is not supported", where, f"use {_native.DTYPE_NAMES}")
    if not tensor.is_contiguous():
        raise misuse("it is not contiguous", where, "pass tensor.contiguous()")
    array = _arrays.Array(tensor.data_ptr(), tuple(tensor.shape), _DTYPES[tensor.dtype], True, tensor)
    return _arrays.checked(array, where)


def _scale(tensor, factor):
    with torch.no_grad():
        tensor.mul_(factor)


def _start_allreduce(source, target, name, op, postscale_factor, priority, process_set):
    from_array, to_array = _view(source, name), _view(target, name)
    request = _process_sets.context(process_set).allreduce(
        name, from_array.pointer, to_array.pointer, from_array.count, from_array.dtype, op, _calls.urgency(priority), (from_array, to_array)
    )
    return Handle(request, target, postscale_factor, _scale)


def allreduce_async(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, *, priority=None, process_set=None):
    """Starts the reduction of `tensor` over all ranks into a new tensor, which synchronize(handle) returns. `tensor` may be changed at once."""
    name = _calls.automatic_name("allreduce", name, process_set)
    op = _calls.reduction(_view(tensor, name), name, average, op, prescale_factor, postscale_factor)
    source = tensor.detach()
    if prescale_factor != 1.0:
        source = source * prescale_factor
    return _start_allreduce(source, torch.empty_like(source), name, op, postscale_factor, priority, process_set)


def allreduce_async_(tensor, average=None, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, *, priority=None, process_set=None):
    """Starts the reduction of `tensor` in place. It belongs to tensorlane until synchronize(handle), which returns it."""
    name = _calls.automatic_name("allreduce", name, process_set)
    op = _calls.reduction(_view(tensor, name), name, average, op, prescale_factor, postscale_factor)
    _process_sets.context(process_set)  # or refuse before anything is changed
    if prescale_factor != 1.0:
        _scale(tensor, prescale_factor)
    return _start_allreduce(tensor, tensor, name, op, postscale_factor, priority, process_set)


def broadcast_async_(tensor, root_rank=0, name=None, *, priority=None, process_set=None):
    """Starts the copy of the root's `tensor` into that of every other rank."""
    name = _calls.automatic_name("broadcast", name, process_set)
    array = _view(tensor, name)
    root = _process_sets.of(process_set).root(root_rank)
    request = _process_sets.context(process_set).broadcast(name, array.pointer, array.count, array.dtype, root, _calls.urgency(priority), array)
    return Handle(request, tensor)


def broadcast_async(tensor, root_rank=0, name=None, *, priority=None, process_set=None):
    """As broadcast_async_, into a new tensor."""
    name = _calls.automatic_name("broadcast", name, process_set)
    _view(tensor, name)
    return broadcast_async_(tensor.detach().clone(), root_rank, name, priority=priority, process_set=process_set)


def allgather_async(tensor, name=None, *, priority=None, process_set=None):
    """Starts gathering: the result has the ranks' tensors one after the other along the first axis. All have the same shape."""
    name = _calls.automatic_name("allgather", name, process_set)
    source = _view(tensor, name)
    if not source.shape:
        raise misuse("it has no first axis", f"tensor '{name}'", "pass a tensor of one dimension or more")
    target = tensor.detach().new_empty((tensor.shape[0] * _process_sets.context(process_set).size, *tensor.shape[1:]))
    out = _view(target, name)
    request = _process_sets.context(process_set).allgather(name, source.pointer, out.pointer, source.count, source.dtype, _calls.urgency(priority), (source, out))
    return Handle(request, target)


def reducescatter_async(tensor, name=None, op=None, prescale_factor=1.0, postscale_factor=1.0, *, priority=None, process_set=None):
    """Starts the reduction of `tensor` over all ranks into a new tensor with this rank's rows of it: those along the first axis are shared out
    evenly, in the order of ranks; where they do not divide, the first ranks get one more. `tensor` may be changed at once."""
    name = _calls.automatic_name("reducescatter", name, process_set)
    op = _calls.reduction(_view(tensor, name), name, None, op, prescale_factor, postscale_factor)
    source = tensor.detach() if prescale_factor == 1.0 else tensor.detach() * prescale_factor
    array = _view(source, name)
    target = source.new_empty((_calls.scattered_rows(array, name, process_set), *array.shape[1:]))
    rows = array.shape[0]
    out = target.data_ptr() if target.numel() else None
    request = _process_sets.context(process_set).reducescatter(
        name, array.pointer, out, rows, array.count // rows, array.dtype, op, _calls.urgency(priority), (array, target)
    )
    return Handle(request, target, postscale_factor, _scale)


def push_async(tensor, key, op=_calls.Sum, *, priority=None, process_set=None):
    """Starts the reduction of `tensor` over all ranks into the job's store, as the value of `key`. `tensor` may be changed at once."""
    source = _view(tensor, key)
    op = _calls.reduction(source, key, None, op)
    return Handle(_process_sets.context(process_set).push(key, source.pointer, source.count, source.dtype, op, _calls.urgency(priority), source), None)


def pull_async_(tensor, key, *, priority=None, process_set=None):
    """Starts bringing the value of `key` into `tensor`. This rank's push of it is done."""
    target = _view(tensor, key)
    request = _process_sets.context(process_set).pull(key, target.pointer, target.count, target.dtype, _calls.urgency(priority), target)
    return Handle(request, tensor)


class KVStore(_store.KVStore):
    __doc__ = _store.KVStore.__doc__
    _calls = sys.modules[__name__]
    _view = staticmethod(_view)
    _address = staticmethod(torch.Tensor.data_ptr)


allreduce = _calls.waited(allreduce_async)
allreduce_ = _calls.waited(allreduce_async_)
broadcast = _calls.waited(broadcast_async)
broadcast_ = _calls.waited(broadcast_async_)
allgather = _calls.waited(allgather_async)
reducescatter = _calls.waited(reducescatter_async)
