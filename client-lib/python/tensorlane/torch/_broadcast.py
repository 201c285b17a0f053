"""Makes all ranks start from one rank's model and optimizer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from .. import _native, _process_sets
from .._process_sets import AnyProcessSet
from ..errors import misuse
from . import _calls, _device

# Pickled objects travel through a carrier of one of few sizes, and large ones in pieces: what a name registers stays
# until the job ends, and counts against the job's memory.
_LEAST_BYTES, _MOST_BYTES = 8 << 10, 4 << 20
_LENGTH_BYTES = 8


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int = 0,
    *,
    process_set: AnyProcessSet | None = None,
) -> None:
    """Copies the root's tensors into everybody's. `params`: model.state_dict(), model.named_parameters(), or a list of
    (name, tensor).

    Tensors of dtypes that cannot be broadcast (bool, complex) travel as one object. Collective."""
    direct, others = [], {}
    for name, tensor in _named(params):
        if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
            continue
        _device.gpu(tensor, f"tensor '{name}'")
        if tensor.dtype in _calls._DTYPES:
            direct.append((f"parameter.{name}", tensor))
        else:
            others[name] = tensor
    _broadcast_directly(direct, root_rank, process_set)
    if others:
        received = broadcast_object(
            {name: tensor.detach().cpu() for name, tensor in others.items()}, root_rank, "parameters.others",
            process_set=process_set,
        )
        for name, tensor in others.items():
            tensor.detach().copy_(received[name])


def _broadcast_directly(named, root_rank, process_set):
    """Of dtypes that can be broadcast, all at once and in place."""
    handles = []
    for name, tensor in named:
        source = tensor.detach()
        copy = source.contiguous()  # itself, where it is
        # A name keeps its size, type and kind of memory for the life of the job; another model may have the same names.
        call = f"{name}.{copy.numel()}.{str(copy.dtype)[6:]}{'' if copy.device.type == 'cpu' else '.gpu'}"
        handles.append((source, copy, _calls.broadcast_async_(copy, root_rank, call, process_set=process_set)))
    for tensor, copy, handle in handles:
        handle.synchronize()
        if copy.data_ptr() != tensor.data_ptr():
            tensor.copy_(copy)


def _named(params):
    if isinstance(params, torch.nn.Module):
        raise misuse(
            f"{type(params).__name__} is a module", "broadcast_parameters",
            "pass model.state_dict(), which has the buffers, too",
        )
    named = sorted(params.items()) if isinstance(params, dict) else list(params)
    for element in named:
        if not (isinstance(element, tuple) and len(element) == 2 and isinstance(element[0], str)):
            raise misuse(
                f"{type(element).__name__} is no pair of a name and a tensor", "broadcast_parameters",
                "pass model.state_dict() or model.named_parameters()",
            )
    return named


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int = 0, *, process_set: AnyProcessSet | None = None
) -> None:
    """Gives every rank the root's state and hyperparameters. Collective. The ranks' optimizers have the same groups, on
    devices of the same kind; the state may be empty."""
    mine = optimizer.state_dict()
    is_root = _native.context().rank == root_rank
    received = broadcast_object(
        _without_gpus(mine) if is_root else None, root_rank, "optimizer.state", process_set=process_set
    )
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    numbers = [number for group in received["param_groups"] for number in group["params"]]
    device_of = {number: parameter.device for number, parameter in zip(numbers, parameters)}
    direct = []
    for number, values in received["state"].items():
        for key, value in values.items() if isinstance(values, dict) else ():
            if isinstance(value, _OnGpu):
                values[key] = (
                    mine["state"][number][key].detach().contiguous()
                    if is_root
                    else torch.empty(value.shape, dtype=value.dtype, device=device_of[number])
                )
                direct.append((f"optimizer.state.{number}.{key}", values[key]))
    _broadcast_directly(direct, root_rank, process_set)
    optimizer.load_state_dict(received)


class _OnGpu(NamedTuple):
    """In the place of a tensor that is broadcast by itself."""

    shape: torch.Size
    dtype: torch.dtype


def _without_gpus(state_dict):
    """The state dictionary of an optimizer without the tensors that parameters have on GPUs."""

    def light(value):
        direct = isinstance(value, torch.Tensor) and value.device.type != "cpu" and value.numel() > 0
        return _OnGpu(value.shape, value.dtype) if direct and value.dtype in _calls._DTYPES else value

    state = {
        number: {key: light(value) for key, value in values.items()} if isinstance(values, dict) else values
        for number, values in state_dict["state"].items()
    }
    return {**state_dict, "state": state}


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str = "object", *, process_set: AnyProcessSet | None = None
) -> Any:
    """Returns the root's `obj`, of whatever torch.save takes. Collective."""
    is_root = _native.context().rank == root_rank
    payload = _packed(obj) if is_root else b""
    length = torch.tensor([float(len(payload))], dtype=torch.float64, device="cpu")
    _calls.broadcast_(length, root_rank, f"{name}.length", process_set=process_set)
    size = int(length.item())
    room = _LEAST_BYTES
    while room < min(size, _MOST_BYTES):
        room *= 2
    carrier, received = torch.zeros(room, dtype=torch.uint8, device="cpu"), bytearray()
    for begin in range(0, size, room):
        _fill(carrier, payload[begin : begin + room])
        _calls.broadcast_(carrier, root_rank, f"{name}.{room}", process_set=process_set)
        if not is_root:
            received += carrier.numpy().data[: size - begin]
    return obj if is_root else _load(received)


def gather_objects(obj: Any, name: str, *, process_set: AnyProcessSet | None = None) -> list[Any]:
    """Everybody's `obj`, of whatever torch.save takes, in the order of ranks. Collective. All travel at the same time,
    in pieces, through one carrier that is given back."""
    context = _process_sets.context(process_set)
    payload = _packed(obj)
    mine = len(payload).to_bytes(_LENGTH_BYTES, "little") + payload
    room = max(_MOST_BYTES // context.size, _LEAST_BYTES)
    carrier, begin, longest = torch.zeros(room, dtype=torch.uint8, device="cpu"), 0, 1
    received = [bytearray() for _ in range(context.size)]
    while begin < longest:
        _fill(carrier, mine[begin : begin + room])
        everybodys = _calls.allgather(carrier, name, process_set=process_set).view(context.size, room)
        for bytes_of_rank, piece in zip(received, everybodys):
            bytes_of_rank += piece.numpy().data
        longest = max(_length(each) for each in received)
        begin += room
        for bytes_of_rank in received:
            del bytes_of_rank[_length(bytes_of_rank) :]
    _calls.give_back(context, f"allgather.{name}")
    received[context.rank].clear()
    return [
        obj if rank == context.rank else _load(memoryview(each)[_LENGTH_BYTES:]) for rank, each in enumerate(received)
    ]


def _length(received):
    """Of all that a rank sends, of which the first bytes are here."""
    return _LENGTH_BYTES + int.from_bytes(received[:_LENGTH_BYTES], "little")


def _fill(carrier, payload):
    if payload:
        carrier[: len(payload)] = torch.frombuffer(bytearray(payload), dtype=torch.uint8)


def _packed(obj):
    stream = io.BytesIO()
    torch.save(obj, stream)
    return stream.getvalue()


def _load(payload):
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=False)
    except TypeError:  # PyTorch 1.13.0 knows no weights_only
        return torch.load(io.BytesIO(payload), map_location="cpu")
