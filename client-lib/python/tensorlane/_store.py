"""A key-value store over the ranks, with the calls of MXNet's: values are pushed, reduced over the ranks, and pulled.
"""

from __future__ import annotations

import collections
import ctypes
from collections.abc import Sequence
from typing import Any

from . import _arrays, _calls, _native
from ._constants import Sum
from ._process_sets import AnyProcessSet
from .errors import misuse


def _copy(value, out, key):
    target = _arrays.view(out, key)
    _arrays.require_writable(target, key)
    ctypes.memmove(
        target.pointer, _arrays.pointer(value), target.count * _native.ELEMENT_BYTES[target.dtype]
    )


class KVStore:
    """Every rank makes the same calls of a key in the same order. Between keys there is no order, but where a call
    waits: all keys may be pushed before any is pulled, and pushed in an order of each rank's own. Names of keys belong
    to the job, or to the process set: then its members are the ranks spoken of here, and no other has the store. One
    thread.

    staleness=0, synchronous: pull() gives what the ranks' last push of the key came to, and returns when all ranks have
    called it. So ranks pull keys in one order, or several in one call: within a call the order is each rank's own.
    staleness=S, asynchronous: pull() gives the newest value there is, that of this rank's last push of the key or of
    one of the S before it, and waits only where the value would be older (and for the first). It waits for no other
    rank's pull. Ranks may see values of different ages; each is the whole reduction of one push of all ranks."""

    _calls = _calls
    _view = staticmethod(_arrays.view)
    _copy = staticmethod(_copy)

    def __init__(self, staleness: int = 0, *, process_set: AnyProcessSet | None = None) -> None:
        if staleness < 0:
            raise misuse(f"staleness {staleness} is negative", "KVStore", "use 0 for a synchronous store")
        if process_set is not None:
            process_set.context()  # says now what is wrong with it
        self._staleness = staleness
        self._process_set = process_set
        self._keys = {}

    def push(
        self, key: str | Sequence[str], value: Any, op: int = Sum, *, priority: float | None = None
    ) -> None:
        """Starts the reduction of `value`, which may be changed at once. Lists of keys and values are pushed one by
        one. Waits only for the key's oldest push, when S + 1 are under way."""
        for one, its_value in _pairs(key, value, "value"):
            self._push(one, its_value, op, priority)

    def pull(self, key: str | Sequence[str], out: Any, *, priority: float | None = None) -> Any:
        """Brings the key's value into `out`, of as many elements as were pushed and of their dtype, and returns it. Of
        lists of keys and arrays all are under way at once."""
        pairs = _pairs(key, out, "array")
        for one, _ in pairs:
            if one not in self._keys:
                raise misuse("it was never pushed", f"key '{one}'", "push it first")
        if self._staleness > 0:
            for one, its_out in pairs:
                self._give(one, its_out)
            return out
        for handle in [self._start_pull(one, its_out, priority) for one, its_out in pairs]:
            handle.synchronize()
        return out

    def _push(self, key, value, op, priority):
        state = self._keys.get(key, _Key())
        if len(state.rounds) > self._staleness:
            state.take()
        if self._staleness == 0:
            state.rounds.append(
                self._calls.push_async(value, key, op, priority=priority, process_set=self._process_set)
            )
        else:  # Nothing comes between a push and its pull, so they are one. Rounds under way have buffers of their own.
            name = f"KVStore.{state.pushes % (self._staleness + 1)}.{key}"
            state.rounds.append(
                self._calls.allreduce_async(value, name=name, op=op, priority=priority, process_set=self._process_set)
            )
        seen = self._view(value, key)
        state.kind = (seen.count, seen.dtype)
        state.pushes += 1
        self._keys[key] = state  # a push that was refused is none

    def _start_pull(self, key, out, priority):
        state = self._keys[key]
        while state.rounds:
            state.take()
        return self._calls.pull_async_(out, key, priority=priority, process_set=self._process_set)

    def _give(self, key, out):
        state = self._keys[key]
        target = self._view(out, key)
        if (target.count, target.dtype) != state.kind:
            raise misuse(
                "it was pushed with another number of elements, or another dtype", f"key '{key}'",
                "pull into an array like the pushed one",
            )
        while state.rounds and (state.value is None or len(state.rounds) > self._staleness or state.rounds[0].poll()):
            state.take()
        self._copy(state.value, out, key)


class _Key:
    """What has become of one key: its pushes under way, oldest first, and the newest value before them."""

    def __init__(self):
        self.pushes = 0
        self.rounds = collections.deque()
        self.value = None
        self.kind = None  # count and dtype

    def take(self):
        self.value = self.rounds[0].synchronize()
        self.rounds.popleft()


def _pairs(key, other, what):
    """(key, other), or those of two lists."""
    if not isinstance(key, (list, tuple)):
        return [(key, other)]
    if not isinstance(other, (list, tuple)) or len(key) != len(other):
        raise misuse(f"a list of {len(key)} keys has not one {what} each", "KVStore", "pass lists of one length")
    if len(set(key)) != len(key):
        raise misuse("a list names a key twice", "KVStore", "name each once")
    return list(zip(key, other))
