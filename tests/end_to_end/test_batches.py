"""One model, trained with and without batches of small tensors, on two hosts with two ranks each, every rank submitting its gradients in random orders of its own:
the parameters are bitwise the same on all ranks, and, since two hosts' sums have one order, in all trainings. A rank that waits for a member of a batch and leaves
another one out ends the job with an error that names what it left out."""

import contextlib
import os
import sys
import time

import trainings
from daemons import PYTHON, Daemons, expect, outputs, skip

LEAVE_OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "leave_out.py")
ARMS = {
    "off": {"batch": "off"},
    "auto": {"batch": "auto"},
    "small": {"batch": "1100 B", "pattern": "auto"},
    "ordered": {"batch": "64 KiB", "ordering": "chained"},
    "observed": {"batch": "64 KiB", "urgency": "observed"},
}
HOSTS, RANKS = 2, 2
ITERATIONS = 15


def check_training():
    with contextlib.ExitStack() as stack:
        sets = {name: stack.enter_context(Daemons(HOSTS, settings=settings, network=number)) for number, (name, settings) in enumerate(ARMS.items())}
        ranks = trainings.start(sets, RANKS, ITERATIONS)
        deadline = time.monotonic() + 200
        for name, daemons in sets.items():
            # The model's parameters, then the optimizer's gradients, and the batches when all of these are there.
            plan = trainings.plan_of_job(daemons, ranks, deadline, lambda plan, name=name: plan["tensors"] > 8 and (name == "off" or plan["batches"] > 0))
            expect((plan["batches"] > 0) == (name != "off"), f"{name}: status says {plan}")
            expect(plan["batched_tensors"] >= 2 * plan["batches"] and plan["batched_tensors"] <= plan["tensors"], f"{name}: status says {plan}")
        trainings.expect_the_same_parameters(ranks, ARMS)
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
