"""What is left of messages that are over (message_ends.py), in real jobs."""

import pytest
from jobs import needs_daemons, run

pytestmark = needs_daemons


def test_a_receive_from_any_rank_after_all_others_have_left():
    with pytest.raises(AssertionError, match="rank 0: all other ranks have left the job: rank 0 of job"):
        run(3, 3, "ring", "message_ends.py", "anybody", first_port=7910, settings=["late_after=1 s"], seconds=60)


def test_the_last_rank_of_a_host_is_told_too():
    with pytest.raises(AssertionError, match="rank 2: rank 0 on host .* has left the job: rank 2 of job"):
        run(3, 3, "ring", "message_ends.py", "last", first_port=7910, settings=["late_after=1 s"], seconds=60)


def test_messages_without_memory_leave_their_places():
    output = run(1, 1, "ring", "message_ends.py", "refused", first_port=7910, settings=["memory_limit=512 MiB"])
    assert "rank 0: sends what there is memory for" in output
