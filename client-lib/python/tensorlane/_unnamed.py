"""Names of array calls that have none."""

import itertools
import threading

from ._declarations import ELEMENT_BYTES

_MOST_NAMES, _MOST_BYTES = 8, 64 << 20  # of one kind of calls


def most_names(count, dtype):
    """How many names calls with so many elements share, in turns."""
    return max(1, min(_MOST_NAMES, _MOST_BYTES // (count * ELEMENT_BYTES[dtype])))


class Unnamed:
    """Names of calls that have none: "noname.N" of the N-th one of an operation. A name is a tensor that all ranks
    register, so calls that are alike share a few of them, in turns: which one depends on their order alone, and not on
    what is done already. A call whose turn has come waits for the call that had the name before (tl_options_t.queued).
    Any thread."""

    def __init__(self):
        self._lock = threading.Lock()
        self._calls = {}  # by operation
        self._kinds = {}  # by operation and kind: [calls, names]
        self.exchanges = itertools.count()  # all-to-alls with splits

    def name(self, operation, kind):
        count, dtype = kind[:2]
        with self._lock:
            number = self._calls[operation] = self._calls.get(operation, 0) + 1
            of_kind = self._kinds.setdefault((operation, kind), [0, []])
            turn, names = of_kind
            of_kind[0] += 1
            most = most_names(count, dtype)
            if len(names) < most:
                names.append(f"noname.{number}")
            return names[turn % most]
