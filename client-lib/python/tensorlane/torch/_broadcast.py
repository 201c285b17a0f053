"""Makes all ranks start from one rank's model and optimizer."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from .._process_sets import AnyProcessSet
from ..errors import misuse
from . import _calls

# Pickled objects travel as float64 arrays of a multiple of this many elements, to register few different lengths.
_CHUNK_ELEMENTS = 1024


def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Any]],
    root_rank: int = 0,
    *,
    process_set: AnyProcessSet | None = None,
) -> None:
    """Copies the root's tensors into everybody's. `params`: model.state_dict(), model.named_parameters(), or a list of
    (name, tensor).

    Tensors of dtypes that cannot be broadcast (bool, complex) travel as one object. Collective."""
    named = _named(params)
    handles, others = [], {}
    for name, tensor in named:
        if not isinstance(tensor, torch.Tensor) or tensor.numel() == 0:
            continue
        if tensor.dtype not in _calls._DTYPES or tensor.device.type != "cpu":
            others[name] = tensor
            continue
        source = tensor.detach()
        copy = source.contiguous()  # itself, where it is
        # A name keeps its size and type for the life of the job; another model may have the same names.
        call = f"parameter.{name}.{copy.numel()}.{str(copy.dtype)[6:]}"
        handles.append((source, copy, _calls.broadcast_async_(copy, root_rank, call, process_set=process_set)))
    for tensor, copy, handle in handles:
        handle.synchronize()
        if copy.data_ptr() != tensor.data_ptr():
            tensor.copy_(copy)
    if others:
        received = broadcast_object(
            {name: tensor.detach().cpu() for name, tensor in others.items()}, root_rank, "parameters.others",
            process_set=process_set,
        )
        for name, tensor in others.items():
            tensor.detach().copy_(received[name])


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
    """Gives every rank the root's state and hyperparameters. Collective. The ranks' optimizers have the same groups;
    the state may be empty."""
    optimizer.load_state_dict(
        broadcast_object(optimizer.state_dict(), root_rank, "optimizer.state", process_set=process_set)
    )


def broadcast_object(
    obj: Any, root_rank: int = 0, name: str = "object", *, process_set: AnyProcessSet | None = None
) -> Any:
    """Returns the root's `obj`, of whatever torch.save takes. Collective."""
    from .. import _native

    is_root = _native.context().rank == root_rank
    payload = b""
    if is_root:
        stream = io.BytesIO()
        torch.save(obj, stream)
        payload = stream.getvalue()
    length = torch.tensor([float(len(payload))], dtype=torch.float64)
    _calls.broadcast_(length, root_rank, f"{name}.length", process_set=process_set)
    size = int(length.item())
    elements = -(-size // (8 * _CHUNK_ELEMENTS)) * _CHUNK_ELEMENTS
    buffer = bytearray(elements * 8)
    buffer[: len(payload)] = payload
    # float64 is only the carrier: a broadcast moves bytes and never computes with them.
    carrier = torch.frombuffer(buffer, dtype=torch.float64)
    _calls.broadcast_(carrier, root_rank, f"{name}.{elements}", process_set=process_set)
    if is_root:
        return obj
    return _load(bytes(buffer[:size]))


def _load(payload):
    try:
        return torch.load(io.BytesIO(payload), map_location="cpu", weights_only=False)
    except TypeError:  # PyTorch 1.13.0 knows no weights_only
        return torch.load(io.BytesIO(payload), map_location="cpu")
