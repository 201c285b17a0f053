"""RoCE traffic that stops while every host lives (law 21): a port of a smaller MTU, a dropped port, loss in one direction, a receiver that stops reading.
Every daemon says so within late_after, with rail, class, bytes and path MTU; what heals before goes on; what does not ends the job within late_error,
naming the flow. Where flows are resumed, their queue pairs give up earlier and they are connected anew, in vain: that does not hide their age.

A receiver that never grants is not among these cases: without grants nothing is given to a queue pair, so it is the same over every transport
(tests/control/standstill_test.cc). The daemons use the second rail alone, so that links of the first may go down meanwhile."""

import contextlib
import os
import re
import time

from case_faults import DETECTION, FOR_EVER, RESUMING, run_next_job
from daemons_in_bed import BUILD, HERE, wait_until
from lab_harness import BULK

RAIL, SWITCH = 1, "s1"
LATE_AFTER = 3.0
LATE_ERROR = 20.0  # time to see it named, to mend it, and for queue pairs to try again
LATE = {"detection": f"{DETECTION} s", "late_after": f"{LATE_AFTER} s", "late_error": f"{LATE_ERROR} s"}
# A lost connection may be made anew for `detection`, which has to outlast late_error: else either may end the job first.
RESUMING_LATE = {**RESUMING, **LATE, "detection": RESUMING["detection"]}
# Beside the time itself: a heartbeat of up to 3.8 s, the sender's look, the next time that a queue pair retries, and emulated hosts that are busy.
SLACK = 12.0
PATH_MTU, SMALLER_MTU = 4096, 2000
FLOW = r"the flow from host (h\d) to host (h\d) has delivered nothing \(rail 0, class (\w+); (\d+) bytes (?:have arrived and )?are not acknowledged, path MTU " + str(PATH_MTU) + r"\)"
TENSOR = 3 << 20
ROCE = "udp dport 4791"
# On a host: its thread stands still until this is terminated.
STOP_THREAD = ("import sys, time; sys.argv[1:] = [{build!r}]; sys.path.insert(0, {folder!r}); from daemons import StoppedThread\n"
               "with StoppedThread({{pid}}, 'lane'): print('stopped', flush=True); time.sleep({seconds})").format(
                   build=BUILD, folder=os.path.join(HERE, "..", "end_to_end"), seconds=FOR_EVER)


class Loss:
    """Packets are dropped by the rail's switch. Control connections and heartbeats pass: they are TCP."""

    def __init__(self, bed, vlan, name, *matches):
        """`matches`: of nft, for packets of the VLAN."""
        self.bed, self.table = bed, f"bridge {name}"
        rules = "".join(f"add rule {self.table} passing {match.replace('VLAN', f'vlan id {vlan}')} drop; " for match in matches)
        self.rules = f"add table {self.table}; add chain {self.table} passing {{ type filter hook forward priority 0; }}; {rules}"

    def begin(self):
        self.bed.run(SWITCH, "nft", self.rules)

    def end(self):
        self.bed.run(SWITCH, "nft", f"delete table {self.table}")


class SmallMtu:
    """The switch's port to a host takes no packet of a whole path MTU. Whatever is smaller passes, heartbeats and grants among it."""

    def __init__(self, bed, host):
        self.bed, self.host = bed, host
        self.mtu = re.search(r" mtu (\d+) ", bed.run(SWITCH, "ip", "link", "show", host))[1]

    def set(self, mtu):
        self.bed.run(SWITCH, "ip", "link", "set", self.host, "mtu", str(mtu))

    def begin(self):
        self.set(SMALLER_MTU)

    def end(self):
        self.set(self.mtu)


class StoppedLane:
    """Nothing is read on a host, and its queue pairs give no credit back; its device acknowledges, and its control thread sends heartbeats."""

    def __init__(self, bed, daemons, host):
        self.bed, self.host, self.child = bed, host, None
        self.pid = bed.run(host, "sh", "-c", daemons.pid(host)).strip()

    def begin(self):
        self.child = self.bed.start(self.host, "python3", "-c", STOP_THREAD.format(pid=self.pid))
        line = self.child.stdout.readline()
        assert line == "stopped\n", self.child.communicate()[1]

    def end(self):
        self.child.terminate()
        self.child.wait(timeout=30)


@contextlib.contextmanager
def during(fault):
    """Gives the time when it had begun: to begin takes an emulated host up to some seconds."""
    fault.begin()
    try:
        yield time.monotonic()
    finally:
        fault.end()


class Logs:
    """What daemons have said since this was made."""

    def __init__(self, daemons):
        self.daemons, self.seen = daemons, {host: len(daemons.log(host)) for host in daemons.hosts}

    def new(self, host):
        return self.daemons.log(host)[self.seen[host]:]

    def wait_for(self, pattern, seconds):
        """Until every host has said it."""
        missing = list(self.daemons.hosts)

        def said():
            missing[:] = [host for host in missing if not re.search(pattern, self.new(host))]
            return not missing
        wait_until(said, seconds, lambda: f"{missing} did not say {pattern!r} within {seconds} s: {self.new(missing[0])}")


def named(job, flow, at_least):
    """A warning about a flow of the job, with so many digits of bytes at least."""
    return rf"warning.*job '{job}': " + FLOW.replace(r"(h\d)", flow[0], 1).replace(r"(h\d)", flow[1], 1).replace(r"(\d+) bytes", rf"\d{{{at_least},}} bytes")


def expect_standing(daemons, name, flow):
    """What status says on the last host, while it stands. Its age may begin anew: what was lost before the fault may still get through after it began."""
    seen = []

    def shown():
        job = next(job for job in daemons.status(daemons.hosts[-1])["jobs"] if job["name"] == name)
        seen[:] = job["standing"]
        ends = "{} to {}".format(*flow)
        return any(re.fullmatch(ends, f"{s['from']} to {s['to']}") and (s["rail"], s["state"], s["path_mtu"]) == (0, "late", PATH_MTU) for s in seen)
    wait_until(shown, LATE_AFTER + SLACK, lambda: f"status does not show that {flow} stands: {seen}")


def expect_ends(hosts, running, since, error, stopped=None):
    """Every rank ends with this error within late_error; but on a host whose lane has `stopped`, where nobody may be told that its memory is its own again,
    the client gives up a detection time later."""
    took = 0.0
    for host, rank in sorted(zip(hosts, running, strict=True), key=lambda pair: pair[0] == stopped):
        out, err = rank.communicate(timeout=60)
        assert rank.returncode == 1 and re.search(f"tensorlane: error: .*({error})", err), f"{host} has ended with {rank.returncode}: {out}{err}"
        if host != stopped:
            took = time.monotonic() - since
    print(f"{hosts[-1]}: {err.strip()}", flush=True)
    assert took < LATE_ERROR + 2 * SLACK, f"the job ended after {took:.1f} s"
    return took


def stands_still(daemons, hosts, name, fault, flow, digits=5, cls="bulk", or_error="", stopped=None):
    """Named, healed and going on; and again, and it ends the job. `digits`: of the bytes that are outstanding."""
    running = daemons.start_loop(name, hosts, FOR_EVER, TENSOR)
    logs = Logs(daemons)
    with during(fault) as since:
        logs.wait_for(named(name, flow, digits), LATE_AFTER + SLACK)
        reported = time.monotonic() - since
        expect_standing(daemons, name, flow)
        logs = Logs(daemons)
    healed = time.monotonic()
    logs.wait_for(f"the flow from host {flow[0]} to host {flow[1]} moves again .*class {cls}", 3 * SLACK)
    healed = time.monotonic() - healed
    with during(fault) as since:
        ended = expect_ends(hosts, running, since, FLOW + or_error, stopped)
    print(f"{name}: named after {reported:.1f} s, went on {healed:.1f} s after the repair; ended after {ended:.1f} s", flush=True)


def test_standstill(bed, daemons, hosts, vlan):
    """Queue pairs retry without end."""
    faults = {"one-way": Loss(bed, vlan, "one_way", f"iifname h0 oifname h1 VLAN {ROCE} ip dscp {BULK}"),
              "dropped-port": Loss(bed, vlan, "dropped_port", f"iifname h1 VLAN {ROCE}", f"oifname h1 VLAN {ROCE}"),
              "small-mtu": SmallMtu(bed, "h1")}
    for name, fault in faults.items():
        if name == "dropped-port":  # whichever flow of h1 had something on its way then
            stands_still(daemons, hosts, name, fault, (r"h\d", r"h\d"), 1, cls=r"\w+")
        else:
            stands_still(daemons, hosts, name, fault, ("h0", "h1"))
    stands_still(daemons, hosts, "not-reading", StoppedLane(bed, daemons, "h1"), ("h0", "h1"), 1, or_error="|a lane of host h1 has not turned", stopped="h1")
    for host in hosts:
        assert "a lane of host h1 has not turned for" in daemons.log(host), daemons.log(host)
    run_next_job(daemons, hosts, "after-standstill")


def test_standstill_of_lost_flows(bed, resuming, hosts, vlan):
    """Queue pairs give up before late_error: their flows are connected again and again, and their age goes on."""
    loss = Loss(bed, vlan, "lost_flows", f"iifname {hosts[0]} oifname {hosts[1]} VLAN {ROCE}")
    stands_still(resuming, hosts, "resuming", loss, tuple(hosts), 1, cls=r"\w+")  # it may begin while bulk waits for a grant
    for host in hosts:
        assert "it is made anew" in resuming.log(host), resuming.log(host)
    run_next_job(resuming, hosts, "after-lost-flows")
