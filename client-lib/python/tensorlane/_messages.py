"""Messages from one rank to another: send and receive, with a tag.

A send and a receive meet if both ranks and the tag are the same, and those that could meet do so in the order of their
calls. With `process_set` messages are among its ranks, apart from those of the job; ranks count in the whole job all
the same, but in the text of a MismatchError, which counts them in the set.
"""

from __future__ import annotations

import ctypes
import numbers
from typing import Any

from . import _arrays, _calls, _native, _parts, _process_sets
from ._calls import Array, Handle
from ._process_sets import AnyProcessSet
from .errors import TimedOutError, misuse

_ANY_SOURCE = -1  # TL_ANY_SOURCE
_MOST_TAG = _parts.TAG - 1


class _Received(Handle):
    """Whose result is the rank that has sent."""

    def __init__(self, request, source, process_set):
        super().__init__(request, None)
        self._source = source
        self._set = process_set

    def synchronize(self, timeout: float | None = None) -> int:
        """Waits for the message and returns the rank that has sent it. Raises if it failed, or TimedOutError after
        `timeout` seconds; the receive goes on then."""
        super().synchronize(timeout)
        return self._set.ranks[self._source.value]


def send_async(
    tensor: Array,
    destination: int,
    tag: int = 0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts sending `tensor` to rank `destination`, which may be this one; `tensor` may be changed at once. It is done
    when the receive was called and the data has left. Count and dtype must be those of the receive: else both ends
    raise a MismatchError. Urgency is 0.9 unless `priority` says it."""
    return start_send(_arrays.view(tensor, "send", empty=True), destination, tag, priority, process_set)


def recv_async_(
    tensor: Array,
    source: int | None = None,
    tag: int = 0,
    *,
    priority: float | None = None,
    process_set: AnyProcessSet | None = None,
) -> Handle:
    """Starts receiving into `tensor` what rank `source` sends with this tag; None: whoever sends it. The handle's
    result is the rank that has sent."""
    got = _arrays.view(tensor, "recv", empty=True)
    _arrays.require_writable(got, "recv")
    return start_recv(got, source, tag, priority, process_set)


def start_send(given, destination, tag, priority, process_set):
    """The handle of a send of an _arrays.Array."""
    target = _process_sets.of(process_set)
    context = target.context()
    request = _start(
        context, _native.library().tl_send, target.root(destination, "destination"), tag, given, (), priority, given
    )
    return Handle(request, None)


def start_recv(got, source, tag, priority, process_set):
    """The handle of a receive into an _arrays.Array that may be written."""
    target = _process_sets.of(process_set)
    context = target.context()
    sender = ctypes.c_int(_ANY_SOURCE)
    request = _start(
        context, _native.library().tl_recv, _ANY_SOURCE if source is None else target.root(source, "source"), tag, got,
        (ctypes.byref(sender),), priority, (got, sender),
    )
    return _Received(request, sender, target)


def _start(context, call, peer, tag, array, extra, priority, keep):
    if not isinstance(tag, numbers.Integral) or not 0 <= tag <= _MOST_TAG:
        raise misuse(f"tag is {tag}", "send or recv", f"use 0 to {_MOST_TAG}")
    _native.forget_dropped()
    request = ctypes.c_void_p()
    options = _native.options(_calls.urgency(priority))
    arguments = (peer, tag, array.pointer, array.count, array.dtype, *extra)
    with context.gate:
        _native.check(call(context._handle, *arguments, options, ctypes.byref(request)))
        return _native.Request(context, request, keep)


def send(
    tensor: Array,
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
    waited(handle, timeout, "send_async()")


def recv_(
    tensor: Array,
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
    return waited(handle, timeout, "recv_async_()")


def waited(handle, timeout, instead):
    """The result of a message's handle, which the caller does not get."""
    try:
        return handle.synchronize(timeout)
    except TimedOutError as error:
        what = str(error).partition(": wait again")[0]
        raise TimedOutError(
            f"{what}: another call would be another message, and this one goes on: to wait again, call {instead}, and "
            "synchronize() of its handle with a time-out"
        ) from None
