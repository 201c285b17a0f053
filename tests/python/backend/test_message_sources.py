"""From whom a receive takes its message (torch_message_sources.py), in a real job."""

import pytest
from jobs import needs_backend, needs_daemons, run

pytestmark = [needs_backend, needs_daemons]


@pytest.mark.thorough
def test_a_receive_from_the_first_rank():
    assert "both came from where they were asked for" in run(3, 3, "auto", "torch_message_sources.py", first_port=7740, seconds=60)
