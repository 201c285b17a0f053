"""A rank that submits messages that cannot be (message_slots.py), to a real daemon."""

from jobs import needs_daemons, run

pytestmark = needs_daemons


def test_messages_that_cannot_be():
    assert "every lie was named" in run(1, 1, "ring", "message_slots.py", first_port=7930)
