"""Messages of torch tensors from one rank to another: see tensorlane.send(). Autograd does not follow them."""

from __future__ import annotations

from typing import Any

import torch

from .. import _messages
from .._calls import Handle
from .._process_sets import AnyProcessSet
from ..errors import misuse
from ._calls import _prepare_in_place, _view


def _host(tensor, name):
    array = _view(tensor, name, empty=True)
    if tensor.device.type != "cpu":
        raise misuse(f"it is on {tensor.device}", f"tensor '{name}'", "copy it to the CPU: messages are of its memory")
    return array


def send_async(
    tensor: torch.Tensor,
    destination: int,
    tag: int = 0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts sending `tensor` to rank `destination`, which may be this one; `tensor` may be changed at once. It is done
    when the receive was called and the data has left. Count and dtype must be those of the receive: else both ends
    raise a MismatchError. Urgency is 0.9 unless `priority` says it."""
    return _messages.start_send(_host(tensor, "send"), destination, tag, priority, process_set)


def recv_async_(
    tensor: torch.Tensor,
    source: int | None = None,
    tag: int = 0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts receiving into `tensor` what rank `source` sends with this tag; None: whoever sends it. The handle's
    result is the rank that has sent."""
    array = _host(tensor, "recv")
    _prepare_in_place(tensor, "recv")
    return _messages.start_recv(array, source, tag, priority, process_set)


def send(
    tensor: torch.Tensor,
    destination: int,
    tag: int = 0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
    timeout: float | None = None,
) -> None:
    """Calls send_async() with these arguments and waits for it, and so for the receive: without limit, or raises
    TimedOutError after `timeout` seconds; the message may still be received then."""
    handle = send_async(tensor, destination, tag, priority=priority, process_set=process_set)
    _messages.waited(handle, timeout, "send_async()")


def recv_(
    tensor: torch.Tensor,
    source: int | None = None,
    tag: int = 0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
    timeout: float | None = None,
) -> Any:
    """Calls recv_async_() with these arguments, waits for it, and returns the rank that has sent: without limit, or
    raises TimedOutError after `timeout` seconds; the next message goes to `tensor` all the same then."""
    handle = recv_async_(tensor, source, tag, priority=priority, process_set=process_set)
    return _messages.waited(handle, timeout, "recv_async_()")
