"""The same model trained one way after the other by the same ranks, each way with daemons of its own: what tests of orderings and of batches compare."""

import json
import os
import time

from daemons import PYTHON, expect, outputs

TRAIN = os.path.join(os.path.dirname(os.path.abspath(__file__)), "train_digits.py")


def start(sets, ranks_per_host, iterations):
    """The ranks of all hosts, each submitting its gradients in random orders of its own. `sets`: the daemons of each training by its name, on equal hosts."""
    first = next(iter(sets.values()))
    ranks = []
    for h, host in enumerate(first.names):
        arms = [f"{name}={daemons.socket(host)}@{daemons.address('h0')}" for name, daemons in sets.items()]
        ranks += [first.rank("train", h * ranks_per_host + r, len(first.names) * ranks_per_host, host, [PYTHON, TRAIN, "--shuffle", str(iterations), *arms],
                             local_rank=r, local_world=ranks_per_host) for r in range(ranks_per_host)]
    return ranks


def plan_of_job(daemons, ranks, deadline, whole=lambda plan: plan["tensors"] > 0):
    """What status says of the plan of the job that runs, or will, once it is whole."""
    while time.monotonic() < deadline and not any(rank.poll() for rank in ranks):
        for job in daemons.status("h0")["jobs"]:
            if job["plan"] and whole(job["plan"]):
                return job["plan"]
        time.sleep(0.1)
    for rank in ranks:
        rank.kill()
    raise AssertionError(f"no job has come to these daemons: {[text for text, _ in outputs(ranks, 10)]}")


def expect_the_same_parameters(ranks, names):
    """Waits for the ranks to end: every training has learnt something, and all have the same parameters, bit by bit."""
    digests = set()
    for index, (text, code) in enumerate(outputs(ranks, 100)):
        expect(code == 0, f"rank {index} ended with status {code}: {text}")
        reports = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        expect([report["name"] for report in reports] == list(names), f"rank {index} trained {reports}")
        expect(all(report["loss"] < 2.3 for report in reports), f"rank {index} has learnt nothing: {reports}")
        digests |= {report["digest"] for report in reports}
    expect(len(digests) == 1, f"the parameters differ: {digests}")
