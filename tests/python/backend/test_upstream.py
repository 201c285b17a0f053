"""Some of PyTorch's own tests. `tests/python/upstream/run` runs all of them."""

import json
import subprocess
import sys

import pytest
from jobs import SCRIPTS, needs_backend, needs_daemons

pytestmark = [needs_daemons, needs_backend]
TESTS = (
    "^(test_all_gather_object_default_pg|test_all_reduce_sum|test_broadcast_group|test_ddp_hook_parity_powerSGD|test_get_future|test_monitored_barrier_gloo|"
    "test_reduce_scatter_tensor|test_scatter|test_send_recv|test_send_recv_any_source|test_sparse_all_reduce_sum)$"
)


@pytest.mark.thorough
def test_a_few():
    done = subprocess.run([sys.executable, str(SCRIPTS / "upstream" / "run"), "--json", "-k", TESTS], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    table = json.loads(done.stdout)
    ours, gloos = table["tests"]["tensorlane"], table["tests"]["gloo"]
    assert table["counts"]["gloo"]["pass"] > 6 and not table["differences"]
    left_out = "test_send_recv_any_source"
    assert ours[left_out] == {**ours[left_out], "outcome": "skip", "reason": "left out: the backend does not receive from any source"}
    assert all(ours[name]["outcome"] == "pass" for name, test in gloos.items() if test["outcome"] == "pass" and name != left_out)
    assert all(rule["places"] > 0 for rule in table["rewriting"]), table["rewriting"]
