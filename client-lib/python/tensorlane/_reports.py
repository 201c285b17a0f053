"""Who has something to say in status(): weakly held objects with report() and flush()."""

import weakref

_members = weakref.WeakSet()


def add(member):
    _members.add(member)


def remove(member):
    _members.discard(member)


def members():
    return list(_members)
