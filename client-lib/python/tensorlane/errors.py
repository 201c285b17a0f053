"""What can go wrong, one class per status of tensorlane.h.

Every text reads "WHAT: WHERE: WHAT TO DO". Catch `tensorlane.Error` for all of them; after an `AbortedError` the job is
over on every rank and the way back is a checkpoint.
"""

from __future__ import annotations

import re

OK = 0
TIMED_OUT = 7
IN_PROGRESS = 12


class Error(RuntimeError):
    """Base of all errors of this package. `status` is the tl_status_t."""

    status = 13


class InvalidArgumentError(Error, ValueError):
    """The caller's input or order of calls is wrong; nothing happened."""

    status = 1


class NotFoundError(Error):
    """What was named does not exist."""

    status = 2


class AlreadyExistsError(Error):
    """What was to be made exists already."""

    status = 3


class PermissionDeniedError(Error):
    """Wrong user, wrong secret, wrong key."""

    status = 4


class ResourceExhaustedError(Error):
    """A stated bound is reached: memory, descriptors, a queue."""

    status = 5


class UnavailableError(Error):
    """A peer or the daemon cannot be reached."""

    status = 6


class TimedOutError(Error, TimeoutError):
    """Other ranks, or the daemon, did not answer in time; the text says what was waited for."""

    status = TIMED_OUT


class AbortedError(Error):
    """The job was aborted; the text names the cause. Ranks may differ in which tensors completed."""

    status = 8


class MismatchError(Error):
    """Ranks disagree about a tensor; the text names both ranks, the tensor and the two values."""

    status = 9


class VersionMismatchError(Error):
    """Two versions of tensorlane, or of a format, do not go together."""

    status = 10


class CorruptError(Error):
    """Data is not in its format."""

    status = 11


class InternalError(Error):
    """A mistake in tensorlane itself."""

    status = 13


_BY_STATUS = {kind.status: kind for kind in Error.__subclasses__()}


def from_status(status: int, text: str) -> Error:
    """The exception for a tl_status_t and the text of tl_last_error()."""
    return _BY_STATUS.get(status, InternalError)(text)


def within(text: str, waited: float | None) -> str:
    """The text of a time-out after so many seconds of waiting, of which the library knows the last piece alone."""
    return text if waited is None else re.sub(r"within [0-9.]+ s", f"within {waited:g} s", text)


def misuse(what: str, where: str, fix: str) -> InvalidArgumentError:
    """An InvalidArgumentError in the project's convention of texts."""
    return InvalidArgumentError(f"{what}: {where}: {fix}")
