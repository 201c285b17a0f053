"""All-to-all with parts of different sizes. Ranks first tell each other the sizes, then send each other the parts as
messages (tl_alltoallv)."""

from __future__ import annotations

import ctypes
import time

import numpy

from . import _native
from .errors import misuse

TAG = 2**63  # of the messages; send() takes smaller ones


def checked(splits, rows, size, shown):
    """Split sizes along the first axis, as integers. Raises for what does not say how `rows` rows are shared out."""
    sends = [int(rows_of_rank) for rows_of_rank in splits]
    where = f"array '{shown}'"
    if len(sends) != size:
        raise misuse(f"splits has {len(sends)} entries for {size} ranks", where, "give one for each rank")
    if min(sends) < 0 or sum(sends) != rows:
        raise misuse(f"splits {sends} do not share out its {rows} rows", where, "let them add up to its first axis")
    return sends


def exchanged(context, sends, name):
    """How many rows each rank sends to this one. Returns when all ranks have called it."""
    mine, theirs = numpy.array(sends, numpy.int64), numpy.empty(len(sends), numpy.int64)
    context.alltoall(
        None if name is None else f"{name}.tensorlane.splits", mine.ctypes.data, theirs.ctypes.data, 1, _native.INT64,
        1.0, (mine, theirs),
    ).wait()
    return theirs.tolist()


def start(context, source, target, dtype, row, sends, receives, urgency, keep):
    """Starts the messages. `source` and `target` are addresses; `sends` and `receives` are rows, by rank, of `row`
    elements. Returns what Handle takes for a request."""
    size = context.size
    counts = [(ctypes.c_uint64 * size)(*(rows * row for rows in splits)) for splits in (sends, receives)]
    requests = (ctypes.c_void_p * (2 * size))()
    _native.forget_dropped()
    with context.gate:
        status = _native.library().tl_alltoallv(
            context._handle, TAG, source, counts[0], target, counts[1], dtype, _native.options(urgency), requests
        )
        # After an error those that had begun go on, and need the memory.
        messages = _Messages([_native.Request(context, ctypes.c_void_p(one), keep) for one in requests if one])
        if status != 0:
            messages.drop()
        _native.check(status)
    return messages


class _Messages:
    """What _native.Request is, for several of them."""

    def __init__(self, requests):
        self._requests = requests

    def test(self):
        return all([request.test() for request in self._requests])

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        for request in self._requests:
            request.wait(None if end is None else max(0.0, end - time.monotonic()))

    def drop(self):
        for request in self._requests:
            request.drop()
