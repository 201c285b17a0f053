"""One model, seven trainings, one for each ordering of daemon.yaml and one in which the daemons learn the order of urgency, on the same two hosts with two ranks each, every rank submitting its gradients in random orders of its
own: the parameters are bitwise the same, none stops, and no daemon needs more memory than when every operation starts as soon as it is ready."""

import contextlib
import os
import re
import sys
import time

import trainings
from daemons import PYTHON, Daemons, expect, skip

ORDERINGS = ("tagged", "funnel", "concurrent", "chained", "counters", "negotiated")
OBSERVED = "observed"
ARMS = (*ORDERINGS, OBSERVED)
HOSTS, RANKS = 2, 2
ITERATIONS = 15
EXTRA_KB = 8 << 10


def peak_kb(daemons, host):
    with open(f"/proc/{daemons.pid(host)}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:"))


def main():
    if not os.path.exists(PYTHON):
        return skip(f"no {PYTHON}: run deploy/install-deps python")
    with contextlib.ExitStack() as stack:
        sets = {}
        for number, ordering in enumerate(ARMS):
            settings = {"urgency": "observed"} if ordering == OBSERVED else {"ordering": ordering}
            if ordering == "concurrent":
                settings["ordering_concurrent"] = 3
            sets[ordering] = stack.enter_context(Daemons(HOSTS, settings=settings, network=number))
        ranks = trainings.start(sets, RANKS, ITERATIONS)
        deadline = time.monotonic() + 240
        for ordering, daemons in sets.items():
            plan = trainings.plan_of_job(daemons, ranks, deadline)
            expect(plan["ordering"] == ("tagged" if ordering == OBSERVED else ordering) and plan.get("concurrent") == (3 if ordering == "concurrent" else None), f"{ordering}: status says {plan}")
        trainings.expect_the_same_parameters(ranks, ARMS)
        for host in sets[OBSERVED].names:
            learned = re.search(r"urgency is the order in which its ranks here wait: (\S+) first, (\S+) last, (\d+) tensors", sets[OBSERVED].log(host))
            expect(learned and int(learned[3]) > 2, f"{host} has learned no order: {sets[OBSERVED].log(host)}")
            # The forward pass needs the roll call and the first layer first. Which of the later layers' results a rank still has to wait for is a matter of time.
            nothing_else = int(learned[3]) == 3
            expect(learned[1].startswith(("optimizer.0.roll_call", "optimizer.0.0.")), f"{host} has learned {learned[0]}")
            expect(nothing_else or not learned[2].startswith("optimizer.0.0."), f"{host} has learned {learned[0]}")
        peaks = {ordering: max(peak_kb(daemons, host) for host in daemons.names) for ordering, daemons in sets.items()}
        expect(max(peaks.values()) < peaks["tagged"] + EXTRA_KB, f"peak memory in kB: {peaks}")
    print(f"seven trainings, the same parameters; peak memory of a daemon in kB: {peaks}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
