"""A key-value store over the ranks, with the calls of MXNet's: values are pushed, reduced over the ranks, and pulled."""

import collections

from . import _calls
from ._constants import Sum
from .errors import misuse


class KVStore:
    """Every rank pushes, and pulls, a key the same number of times and alike; a rank pushes keys in an order of its own, and
    all may be pushed before any is pulled. A synchronous pull() returns when all ranks have called it, so ranks pull keys in one order.
    Names of keys belong to the job. One thread.

    staleness=0, synchronous: pull() gives what the ranks' last push of the key came to, and waits for it.
    staleness=S, asynchronous: pull() gives the newest value there is and waits only where that would be more than S pushes of the key old (and for
    the first). Ranks may see values of different ages; each is the whole reduction of one push of all ranks."""

    _calls = _calls

    def __init__(self, staleness=0):
        if staleness < 0:
            raise misuse(f"staleness {staleness} is negative", "KVStore", "use 0 for a synchronous store")
        self._staleness = staleness
        self._keys = {}

    def push(self, key, value, op=Sum, *, priority=None):
        """Starts the reduction of `value`, which may be changed at once. Waits only for the key's oldest push, when S + 1 are under way."""
        state = self._keys.setdefault(key, _Key())
        if len(state.rounds) > self._staleness:
            state.take()
        if self._staleness == 0:
            state.rounds.append(self._calls.push_async(value, key, op, priority=priority))
        else:  # Nothing comes between a push and its pull, so they are one. Rounds under way have buffers of their own.
            name = f"{key}.{state.pushes % (self._staleness + 1)}"
            state.rounds.append(self._calls.allreduce_async(value, name=name, op=op, priority=priority))
        state.pushes += 1

    def pull(self, key, out, *, priority=None):
        """Brings the key's value into `out`, of the pushed values' shape and dtype, and returns it."""
        state = self._keys.get(key)
        if state is None:
            raise misuse("it was never pushed", f"key '{key}'", "push it first")
        if self._staleness == 0:
            while state.rounds:
                state.take()
            return self._calls.pull_async_(out, key, priority=priority).synchronize()
        while state.rounds and (state.value is None or len(state.rounds) > self._staleness or state.rounds[0].poll()):
            state.take()
        out[...] = state.value
        return out


class _Key:
    """What has become of one key: its pushes under way, oldest first, and the newest value before them."""

    def __init__(self):
        self.pushes = 0
        self.rounds = collections.deque()
        self.value = None

    def take(self):
        self.value = self.rounds[0].synchronize()
        self.rounds.popleft()
