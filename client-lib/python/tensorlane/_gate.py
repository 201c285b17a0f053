"""Calls of an object of the library, all of which must have returned before the object is freed."""

import threading
import time

from .errors import AbortedError

_LOOK_SECONDS = 0.001


def left():
    return AbortedError(
        "this process has left the job: tensorlane: let every call return, and wait for every request, before "
        "shutdown() or remove_process_set()"
    )


class Gate:
    """`with gate: call`, on any thread; never one within another. No lock: posting is on the path of data, and the
    interpreter's makes each step below whole. A mark that Ctrl-C leaves behind is the main thread's, and goes with its
    next call."""

    def __init__(self):
        self._inside = {}  # the threads
        self._closed = False

    def __enter__(self):
        self._inside[threading.get_ident()] = True
        if self._closed:
            self.__exit__()
            raise left()

    def __exit__(self, *raised):
        self._inside.pop(threading.get_ident(), None)

    def close(self, seconds):
        """From now on calls raise AbortedError. Whether those of other threads have returned, or return within so many
        seconds."""
        self._closed = True
        end = time.monotonic() + seconds
        while self._inside.keys() - {threading.get_ident()}:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True
