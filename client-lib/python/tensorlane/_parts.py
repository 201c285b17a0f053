"""All-to-all with parts of different sizes. Ranks first tell each other the sizes, then send each other the parts as
messages (tl_alltoallv).

Each such call of a context has messages of a tag of its own, so that what is left of one that has failed, or that
Ctrl-C has interrupted, meets nothing of the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
import operator
import time

import numpy

from . import _native
from .errors import InvalidArgumentError, MismatchError, TimedOutError, misuse, within

TAG = 2**63  # of the first call's messages; send() takes smaller ones
_BACK = 2**62  # in the tag of what goes back
_REFUSED = -1  # in place of a number of rows


class Exchange:
    """What the ranks have agreed on: rows that go to each rank, rows that come from each, and the messages' tag."""

    def __init__(self, context, splits, rows, name, shown):
        """Collective: all ranks raise where `splits` of one of them do not say how its `rows` rows are shared out, or
        where they have made different numbers of such calls."""
        self._context = context
        number = next(context.unnamed.exchanges)
        self._tag = TAG + number
        try:
            self.sends = _checked(splits, rows, context.size, shown)
        except InvalidArgumentError:
            _tell(context, [_REFUSED] * context.size, number, name)
            raise
        told = _tell(context, self.sends, number, name)
        self.receives = told[:, 0].tolist()
        for rank, (count, other) in enumerate(told.tolist()):
            if other != number:
                raise MismatchError(
                    f"rank {rank} makes its all-to-all with splits number {other + 1}, this rank number {number + 1}: "
                    f"array '{shown}', ranks of the process set: let all ranks make the same calls"
                )
            if count == _REFUSED:
                raise MismatchError(
                    f"rank {rank} has given splits that are none: array '{shown}', ranks of the process set: see the "
                    "error there"
                )

    def back(self):
        """That of what belongs to the same rows, such as their gradient, to where they came from. Ranks may start such
        exchanges in another order than those that they belong to."""
        other = object.__new__(Exchange)
        other._context, other._tag = self._context, self._tag ^ _BACK
        other.sends, other.receives = self.receives, self.sends
        return other

    @contextlib.contextmanager
    def begun(self):
        """Around what this rank does until start() has returned: whatever goes wrong ends the job, since the others
        wait for this rank's parts."""
        try:
            yield
        except BaseException as error:
            job = _native.context()
            why = f"an all-to-all of rank {job.rank} failed: {type(error).__name__}: {error}"
            _native.library().tl_abort(job._handle, why.encode())
            raise

    def start(self, source, target, dtype, row, urgency, keep):
        """Starts the messages, in begun(). `source` and `target` are addresses of rows of `row` elements. Returns what
        Handle takes for a request."""
        context, size = self._context, self._context.size
        counts = [(ctypes.c_uint64 * size)(*(rows * row for rows in splits)) for splits in (self.sends, self.receives)]
        requests = (ctypes.c_void_p * (2 * size))()
        _native.forget_dropped()
        with context.gate:
            status = _native.library().tl_alltoallv(
                context._handle, self._tag, source, counts[0], target, counts[1], dtype, _native.options(urgency),
                requests,
            )
            # After an error those that had begun go on, and need the memory.
            messages = _Messages([_native.Request(context, ctypes.c_void_p(one), keep) for one in requests if one])
            if status != 0:
                messages.drop()
            _native.check(status)
        return messages


def _checked(splits, rows, size, shown):
    where = f"array '{shown}'"
    try:
        sends = [operator.index(rows_of_rank) for rows_of_rank in splits]
    except TypeError as error:
        raise misuse(f"splits is not a list of integers ({error})", where, "give one for each rank") from None
    if len(sends) != size:
        raise misuse(f"splits has {len(sends)} entries for {size} ranks", where, "give one for each rank")
    if min(sends) < 0 or sum(sends) != rows:
        raise misuse(f"splits {sends} do not share out its {rows} rows", where, "let them add up to its first axis")
    return sends


def _tell(context, sends, number, name):
    """How many rows each rank sends to this one, and the number of its call."""
    mine = numpy.array([[rows, number] for rows in sends], numpy.int64)
    theirs = numpy.empty_like(mine)
    request = context.alltoall(
        None if name is None else f"{name}.splits", mine.ctypes.data, theirs.ctypes.data, 2, _native.INT64, 1.0,
        (mine, theirs), queued=True,
    )
    try:
        request.wait()
    except BaseException:  # Ctrl-C: it goes on
        request.drop()
        raise
    return theirs


class _Messages:
    """What _native.Request is, for several of them."""

    def __init__(self, requests):
        self._requests = requests

    def test(self):
        return all([request.test() for request in self._requests])

    def wait(self, timeout=None):
        end = None if timeout is None else time.monotonic() + timeout
        for request in self._requests:
            try:
                request.wait(None if end is None else max(0.0, end - time.monotonic()))
            except TimedOutError as error:
                raise TimedOutError(within(str(error), timeout)) from None

    def drop(self):
        for request in self._requests:
            request.drop()
