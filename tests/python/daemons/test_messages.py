"""Messages between two ranks (messages.py) in real jobs: on one host and on several, over one rail and two, with and without priorities."""

import pytest
from jobs import needs_daemons, run

pytestmark = needs_daemons

WORLDS = [pytest.param(1, 1, [], marks=pytest.mark.thorough), pytest.param(2, 2, [], marks=pytest.mark.thorough), (4, 1, []), (4, 2, ["ordering=funnel"])]


@pytest.mark.parametrize("ranks, ranks_per_host, settings", WORLDS)
def test_messages(ranks, ranks_per_host, settings):
    output = run(ranks, ranks_per_host, "ring", "messages.py", "works", first_port=7700, settings=settings)
    for rank in range(ranks):
        assert f"rank {rank}: all messages are right" in output


def test_flows_are_opened_for_the_first_message():
    """A ring's neighbours have no flows yet, and the highest rank's host is one that others connect to."""
    output = run(4, 1, "ring", "messages.py", "waits", first_port=7700, warm=False)
    for rank in range(4):
        assert f"rank {rank}: the first call was a message" in output


@pytest.mark.parametrize("ranks_per_host", [pytest.param(1, marks=pytest.mark.thorough), 2])
def test_a_rank_that_leaves_while_others_wait_for_its_message(ranks_per_host):
    """Long before it is late (late_after): within half of the detection time, or little more."""
    with pytest.raises(AssertionError, match=r"rank 0: was told after [01]\.. s: rank 1 on host .* has left the job: rank 0 of job"):
        run(2, ranks_per_host, "ring", "messages.py", "left", first_port=7700, warm=False, settings=["detection=2 s"])


@pytest.mark.parametrize("ranks_per_host", [1, pytest.param(2, marks=pytest.mark.thorough)])
def test_a_rank_that_dies_while_others_wait_for_its_message(ranks_per_host):
    with pytest.raises(AssertionError, match="rank 0: was told after 0.*was killed by signal 9"):
        run(2, ranks_per_host, "ring", "messages.py", "dies", first_port=7700, warm=False)


def test_who_keeps_others_waiting_is_said():
    with pytest.raises(AssertionError, match="rank 1 on host .* is late with a message to or from rank 0: [12]"):
        run(2, 1, "ring", "messages.py", "silent", first_port=7700, warm=False, settings=["late_after=1 s"])
