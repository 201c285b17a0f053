"""A training as TorchTitan lays it out, whose only difference is the name of the backend."""

import re

import pytest
from jobs import needs_backend, needs_daemons, run

pytestmark = [needs_daemons, needs_backend]
PORT = 7790


def losses(folder, backend):
    output = run(4, 2, "auto", "train_mesh.py", backend, str(folder), first_port=PORT)
    found = [tuple(map(float, pair)) for pair in re.findall(r"step \d+: loss (\S+), norm (\S+)", output)]
    assert len(found) == 50 and found[-1][0] < 0.5 * found[0][0], output
    return found


@pytest.mark.thorough
def test_losses_are_those_of_gloo(tmp_path):
    gloos, ours, again = (losses(tmp_path / str(number), backend) for number, backend in enumerate(("gloo", "tensorlane", "tensorlane")))
    assert ours == again
    assert all(abs(one - other) <= 1e-6 for mine, theirs in zip(ours, gloos) for one, other in zip(mine, theirs)), (ours, gloos)
