"""Who has something to say in status(): weakly held objects with report() and flush()."""

import contextlib
import logging
import weakref

from .errors import Error

_log = logging.getLogger("tensorlane")

_members = weakref.WeakSet()


def add(member):
    _members.add(member)


def remove(member):
    _members.discard(member)


def members():
    return list(_members)


def say_what_is_under_way(context):
    """Before this process leaves its job, which waits for it: such as a message that nobody sends."""
    count = 0
    for request in context.requests():
        with contextlib.suppress(Error):  # whoever waits for it hears of it
            count += not request.test()
    if count > 0:
        _log.warning(
            "rank %d leaves its job, and waits up to %g s for its %d operation(s) that are under way", context.rank,
            context.timeout, count,
        )
