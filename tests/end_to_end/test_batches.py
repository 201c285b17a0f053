"""One model, trained with and without batches of small tensors, on two hosts with two ranks each, every rank submitting its gradients in random orders of its own:
the parameters are bitwise the same on all ranks, and, since two hosts' sums have one order, in all trainings. A rank that waits for a member of a batch and leaves
another one out ends the job with an error that names what it left out."""

import contextlib
import json
import os
import sys
import time

from daemons import PYTHON, Daemons, expect, outputs, skip

HERE = os.path.dirname(os.path.abspath(__file__))
TRAIN = os.path.join(HERE, "train_digits.py")
LEAVE_OUT = os.path.join(HERE, "leave_out.py")
ARMS = {
    "off": {"batch": "off"},
    "auto": {"batch": "auto"},
    "small": {"batch": "1100 B", "pattern": "auto"},
    "ordered": {"batch": "64 KiB", "ordering": "chained"},
    "observed": {"batch": "64 KiB", "urgency": "observed"},
}
HOSTS, RANKS = 2, 2
ITERATIONS = 30


def plan_of_job(daemons, ranks, deadline):
    """What status says of the plan of the job that runs, or will, once it has the optimizer's gradients beside the model's 8 parameters."""
    while time.monotonic() < deadline and not any(rank.poll() for rank in ranks):
        for job in daemons.status("h0")["jobs"]:
            if job["plan"] and job["plan"]["tensors"] > 8:
                return job["plan"]
        time.sleep(0.3)
    for rank in ranks:
        rank.kill()
    raise AssertionError(f"no job has come to these daemons: {[text for text, _ in outputs(ranks, 10)]}")


def check_training():
    with contextlib.ExitStack() as stack:
        sets = {name: stack.enter_context(Daemons(HOSTS, settings=settings, network=number)) for number, (name, settings) in enumerate(ARMS.items())}
        first = sets["off"]
        ranks = []
        for h, host in enumerate(first.names):
            arms = [f"{name}={daemons.socket(host)}@{daemons.address('h0')}" for name, daemons in sets.items()]
            ranks += [first.rank("train", h * RANKS + r, HOSTS * RANKS, host, [PYTHON, TRAIN, "--shuffle", str(ITERATIONS), *arms], local_rank=r, local_world=RANKS)
                      for r in range(RANKS)]
        deadline = time.monotonic() + 200
        for name, daemons in sets.items():
            plan = plan_of_job(daemons, ranks, deadline)
            expect((plan["batches"] > 0) == (name != "off"), f"{name}: status says {plan}")
            expect(plan["batched_tensors"] >= 2 * plan["batches"] and plan["batched_tensors"] <= plan["tensors"], f"{name}: status says {plan}")
        digests = set()
        for index, (text, code) in enumerate(outputs(ranks, 100)):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
            reports = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
            expect([report["name"] for report in reports] == list(ARMS), f"rank {index} trained {reports}")
            expect(all(report["loss"] < 2.3 for report in reports), f"rank {index} has learnt nothing: {reports}")
            digests |= {report["digest"] for report in reports}
        expect(len(digests) == 1, f"the parameters differ: {digests}")
    print(f"{len(ARMS)} trainings, the same parameters", flush=True)


def check_left_out():
    with Daemons(HOSTS, settings={"batch": "64 KiB", "late_after": "300 ms", "late_error": "1 s"}) as daemons:
        ranks = [daemons.rank("leave-out", h, HOSTS, host, [PYTHON, LEAVE_OUT]) for h, host in enumerate(daemons.names)]
        for index, (text, code) in enumerate(outputs(ranks, 60)):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
            expect("has not submitted for" in text and "tensor 'left_out', which travels in a batch" in text, f"rank {index} was told: {text}")
    print("who leaves out a member of a batch is told so", flush=True)


def main():
    if not os.path.exists(PYTHON):
        return skip(f"no {PYTHON}: run deploy/install-deps python")
    check_left_out()
    check_training()


if __name__ == "__main__":
    sys.exit(main())
