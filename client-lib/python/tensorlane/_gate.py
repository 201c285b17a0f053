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
    """Write `with gate:` around a call, on any thread, but not around one that enters the gate itself. It takes no
    lock, because posting is on the path of data: each step below is one operation of the interpreter, which no other
    thread interrupts. Where Ctrl-C interrupts the main thread between two steps, its mark stays until its next call."""

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
        """From now on calls raise AbortedError. Returns whether all calls of other threads have returned, for which it
        waits at most so many seconds."""
        self._closed = True
        end = time.monotonic() + seconds
        while self._inside.keys() - {threading.get_ident()}:
            if time.monotonic() >= end:
                return False
            time.sleep(_LOOK_SECONDS)
        return True
