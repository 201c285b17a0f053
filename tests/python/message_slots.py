"""A client of one rank, without the library, that writes messages into its slots that cannot be (common/protocol/session.h). Each costs it its job, with the reason;
the daemon goes on, and carries a message that can be. A script, run by daemons/test_message_slots.py.
"""

import mmap
import os
import pathlib
import struct
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "faults"))
from session_client import Session  # noqa: E402

_RINGS, _SLOTS = 4096, 1024
_SLOT = struct.Struct("<IBBHQQQIfQIB11x")
_ENTRY = struct.Struct("<IIQ")
_SUBMIT_MESSAGE, _MESSAGE_BIT, _ANY_RANK = 8, 0x80000000, 0xFFFFFFFF
_ARENA = 4096
assert _SLOT.size == 64


class Client:
    def __init__(self, job):
        self.session = Session(os.environ["TENSORLANE_SOCKET"]).hello(job)
        assert self.session.arena(_ARENA) == 0
        entries = self.session._entries
        self._first = _RINGS + entries * 32
        self.session.ring.close()
        self.session.ring = mmap.mmap(self.session._descriptors[0], self._first + _SLOTS * _SLOT.size)

    def submit(self, slot, entry=None, *, peer=0, sends=0, dtype=0, tag=0, count=1, offset=0, segment=0, urgency=0.5, sequence=0):
        """Writes a slot, and submits it, or `entry` in its place."""
        place = self._first + slot * _SLOT.size
        self.session.ring[place:place + _SLOT.size] = _SLOT.pack(peer, sends, dtype, 0, tag, count, offset, segment, urgency, 0, 0, 0)
        index = self.session._posted
        packed = _ENTRY.pack(slot if entry is None else entry, _SUBMIT_MESSAGE, sequence)
        self.session.ring[_RINGS + index * _ENTRY.size:_RINGS + (index + 1) * _ENTRY.size] = packed
        self.session._posted += 1
        self.session._number(0, self.session._posted)
        if self.session._number(256):
            self.session._number(256, 0)
            os.write(self.session._wake, struct.pack("<Q", 1))

    def until(self, what):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            self.session.beat()
            if found := what():
                return found
            time.sleep(0.005)
        raise AssertionError("the daemon has said nothing for 20 s")


RANK = "a message with a rank that the job does not have"
CANNOT = "a message that cannot be"
OUTSIDE = "a message outside of its arenas"
LIES = [
    ("an unknown message", {"entry": _SLOTS}),
    ("an unknown message", {"sequence": 1}),
    (RANK, {"peer": 1}),
    (RANK, {"peer": 1, "sends": 1}),
    (RANK, {"peer": _ANY_RANK, "sends": 1}),
    (CANNOT, {"dtype": 100}),
    (CANNOT, {"count": 2**32 + 1}),
    (CANNOT, {"urgency": float("nan")}),
    (CANNOT, {"urgency": 1.5, "sends": 1}),
    (OUTSIDE, {"count": _ARENA // 4 + 1}),
    (OUTSIDE, {"offset": _ARENA - 3}),
    (OUTSIDE, {"offset": 2**64 - 4}),
    (OUTSIDE, {"segment": 1}),
]


def right(job):
    """A message to oneself, which fills the arena's first half to its end."""
    client = Client(job)
    count = _ARENA // 8
    client.submit(_SLOTS - 1, peer=_ANY_RANK, count=count, offset=_ARENA // 2, tag=7)
    client.submit(0, sends=1, count=count, tag=7)
    done = []
    client.until(lambda: done.extend(client.session.completions()) or len(done) == 2)
    assert sorted(done) == [(_MESSAGE_BIT, 0, 0), (_MESSAGE_BIT | (_SLOTS - 1), 0, 0)], done
    client.session.close()


for number, (reason, lie) in enumerate(LIES):
    liar = Client(f"liar.{number}")
    liar.submit(0, **lie)
    said = liar.until(liar.session.error)
    assert f"rank 0 submitted {reason}: " in said, (lie, said)
    liar.session.close()
    right(f"right.{number}")

liar = Client("twice")
liar.submit(5, tag=1)
liar.submit(5, tag=2)
said = liar.until(liar.session.error)
assert "rank 0 submitted a message that is under way: " in said, said
liar.session.close()
right("the last")
print("every lie was named")
