"""What daemons and the transport do over RDMA, in one bed: booting it takes longer than many a case.

    test_rdma.py TENSORLANE [--thorough | CASE...]        all but THOROUGH; these; or the named ones, of which training_through_an_outage needs training

Hosts h0, h1 and h2 run the jobs. h3 runs the conformance suite meanwhile, then a job by rdma_cm with h2, and then gets the bad input."""

import contextlib
import os
import sys
import threading
import time
import traceback

import case_bad_input
import case_choice
import case_cm
import case_conformance
import case_faults
import case_priority
import case_rails
import case_standstill
import case_training
from bed import Bed, require_bed, skip
from daemons_in_bed import PYTHON, Daemons, Ranks

VLAN = 100
SPEED = 40e6
HOSTS, ALONE = ["h0", "h1", "h2"], "h3"
# Left out by default: other ways to lose a peer than the cases that run, and what a daemon refuses before RDMA carries anything.
THOROUGH = {"suite", "failed_queue_pairs", "stopped_daemon", "long_outage", "standstill", "standstill_of_lost_flows", "training", "training_through_an_outage",
            "no_gid", "a_device_wide_traffic_class", "locked_memory", "addresses"}
BOTH = {"suite"}  # of which half is thorough


class Cases:
    """Runs cases and goes on after a failure; tells what failed at the end."""

    def __init__(self, wanted):
        self.thorough = wanted == ["--thorough"]
        self.wanted, self.failed, self.known = set(wanted) - {"--thorough"}, [], []

    def wants(self, name):
        if self.wanted:
            return name in self.wanted
        return name in THOROUGH if self.thorough else name not in THOROUGH - BOTH

    def daemons(self, name, *arguments, **of_rail):
        """Of a case alone, where it is wanted."""
        return Daemons(*arguments, **of_rail) if self.wants(name) else contextlib.nullcontext()

    def run(self, test, *arguments):
        name = test.__name__.removeprefix("test_")
        self.known.append(name)
        if not self.wants(name):
            return None
        begin = time.monotonic()
        try:
            result = test(*arguments)
        except Exception:
            print(f"FAILED {name}\n{traceback.format_exc()}", flush=True)
            self.failed.append(name)
            for daemons in arguments:
                if isinstance(daemons, Daemons):
                    daemons.print_logs()
            return None
        print(f"ok {name} {time.monotonic() - begin:.1f} s", flush=True)
        return result

    def beside(self, run, *arguments):
        """A thread that runs cases, started. What keeps it from running them is a failure, too."""
        def guarded():
            try:
                run(*arguments)
            except Exception:
                print(f"FAILED {run.__name__}\n{traceback.format_exc()}", flush=True)
                self.failed.append(run.__name__)
        thread = threading.Thread(target=guarded)
        thread.start()
        return thread


def run_alone(bed, cases):
    suite = case_conformance.start_suite(bed, ALONE, cases.thorough) if cases.wants("suite") else None
    cases.run(case_conformance.test_suite, bed, suite)
    by_cm = [HOSTS[2], ALONE]
    with Daemons(bed, "rdma", 7700, {"rdma": "{connect: cm}"}, by_cm) as daemons:
        cases.run(case_cm.test_rdma_cm, bed, daemons, by_cm, VLAN)
    with Daemons(bed, "rdma", 7400, hosts=[]) as daemons:
        cases.run(case_bad_input.test_devices, bed, daemons, ALONE)
        cases.run(case_bad_input.test_no_gid, bed, daemons, ALONE)
        cases.run(case_bad_input.test_a_device_wide_traffic_class, bed, daemons, ALONE)
        cases.run(case_bad_input.test_locked_memory, bed, daemons, ALONE, HOSTS[2])
        cases.run(case_bad_input.test_addresses, bed, daemons, ALONE, VLAN)


def run_faults_of_second_rail(bed, cases, rails, first_rail_may_go):
    """They wait for most of their time. Their daemons use this rail alone, but for one case, which needs both."""
    try:
        cases.run(case_rails.test_dead_rail, bed, rails, HOSTS)
    finally:
        first_rail_may_go.set()
    # One after the other: packets are lost between hosts, whoever sends them.
    of_rail = {"first_rail": case_standstill.RAIL}
    with cases.daemons("standstill", bed, "rdma", 8000, case_standstill.LATE, HOSTS, **of_rail) as daemons:
        cases.run(case_standstill.test_standstill, bed, daemons, HOSTS, VLAN)
    pair = [HOSTS[0], HOSTS[2]]
    with cases.daemons("standstill_of_lost_flows", bed, "rdma", 8100, case_standstill.RESUMING_LATE, pair, **of_rail) as resuming:
        cases.run(case_standstill.test_standstill_of_lost_flows, bed, resuming, pair, VLAN)


def run_faults_of_first_rail(bed, cases, rdma, resuming, first_rail_may_go):
    cases.run(case_faults.test_failed_queue_pairs, resuming, HOSTS)
    cases.run(case_faults.test_stopped_daemon, rdma, HOSTS)
    cases.run(case_faults.test_killed_daemon, rdma, HOSTS)
    first_rail_may_go.wait()
    cases.run(case_faults.test_lost_flows, bed, resuming, HOSTS)
    cases.run(case_faults.test_long_outage, bed, rdma, HOSTS, resuming)


def run_jobs(bed, cases):
    detection = {"detection": f"{case_faults.DETECTION} s"}
    with (Daemons(bed, "tcp", 7200, detection, HOSTS) as tcp, Daemons(bed, "rdma", 7300, detection, HOSTS) as rdma,
          Daemons(bed, "rdma", 7500, detection, HOSTS, rails=2) as rails,
          Daemons(bed, "rdma", 7800, case_faults.RESUMING, HOSTS, preload=case_faults.FAIL_QUEUE_PAIRS) as resuming):
        # First: it measures a port, which whatever takes the hosts' processor time would spoil.
        cases.run(case_priority.test_strict_and_fifo, bed, rdma, SPEED)
        with Daemons(bed, "auto", 7600, detection, HOSTS[:2]) as auto:
            cases.run(case_choice.test_choice, bed, auto, HOSTS[:2], VLAN)
        cases.run(case_rails.test_both_rails, bed, rdma, rails, HOSTS, VLAN)
        first_rail_may_go = threading.Event()
        beside = [cases.beside(run_alone, bed, cases), cases.beside(run_faults_of_second_rail, bed, cases, rails, first_rail_may_go)]
        try:
            ranks = Ranks(bed, HOSTS) if cases.wants("training") else None
            begin = time.monotonic()
            run_faults_of_first_rail(bed, cases, rdma, resuming, first_rail_may_go)
            if ranks:
                ranks.wait_ready()
                print(f"imported {time.monotonic() - begin:.1f} s", flush=True)
            digest = cases.run(case_training.test_training, bed, ranks, tcp, rdma, VLAN)
            cases.run(case_training.test_training_through_an_outage, bed, ranks, rdma, digest)
        finally:
            for thread in beside:
                thread.join()


def main():
    require_bed()
    for path, step in ((PYTHON, "deploy/install-deps python client"), (case_conformance.SUITE, "a build with libibverbs")):
        if not os.path.exists(path):
            skip(f"no {path}: needs {step}")
    cases = Cases(sys.argv[2:])
    begin = time.monotonic()
    with Bed(hosts=4, speed=f"{SPEED / 1e6:.0f} Mbit/s", vlan=VLAN, memory=1500, rails=2) as bed:
        print(f"up after {time.monotonic() - begin:.1f} s", flush=True)
        run_jobs(bed, cases)
    for names in (cases.wanted, THOROUGH):
        assert names <= set(cases.known), f"no such case: {names - set(cases.known)}"
    print(f"{sum(map(cases.wants, cases.known))} of {len(cases.known)} cases, {len(cases.failed)} failed, {time.monotonic() - begin:.1f} s", flush=True)
    return 1 if cases.failed else 0


if __name__ == "__main__":
    sys.exit(main())
