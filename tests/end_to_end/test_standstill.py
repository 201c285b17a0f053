"""Traffic that stops while every host lives (law 21): a link of a smaller MTU, a dropped port, loss in one direction, a receiver that stops reading. Every daemon says so
within late_after, with peer, rail, class and what is outstanding; what heals goes on; what does not ends the job within late_error, naming the flow."""

import os
import re
import sys
import time

from daemons import BUILD, Daemons, Lab, StoppedThread, expect, outputs, require_namespaces, wait_for

MESSAGE = f"{BUILD}/tests/message"
DETECTION, LATE_AFTER, LATE_ERROR = 2.0, 3.0, 10.0
# Beside the time itself: a heartbeat, the sender's look, and a busy machine.
SLACK = 4.0
SETTINGS = {"detection": f"{DETECTION} s", "late_after": f"{LATE_AFTER} s", "late_error": f"{LATE_ERROR} s"}
HOSTS = 3
FLOW = r"the flow from host (h\d) to host (h\d) has delivered nothing \(rail 0, class (\w+); (\d+) bytes are not acknowledged(, \d+ retransmissions?)?(, path MTU \d+)?\)"


def start_job(daemons, running=True):
    ranks = daemons.job("job", [MESSAGE, "loop", str(3 << 20), "300", "0.5"])
    if running:
        for rank in ranks:
            expect(rank.stdout.readline() == "running\n", "the job did not start")
    return ranks


def standing(daemons, name):
    return [s for job in daemons.status(name)["jobs"] for s in job["standing"]]


def expect_reported(daemons, since, flow, state="late"):
    """Every host's log and status name the flow, within late_after."""
    for name in daemons.names:
        def shown():
            return any((s["from"], s["to"], s["state"]) == (*flow, state) for s in standing(daemons, name))
        wait_for(shown, lambda: f"{name} shows {flow}: {standing(daemons, name)}\n{daemons.log(name)}", since + LATE_AFTER + SLACK - time.monotonic())
    return time.monotonic() - since


def expect_logged(daemons, flow, at_least=1):
    """Every host's log names the flow, with so many bytes that are not acknowledged."""
    for name in daemons.names:
        found = [match.groups() for match in re.finditer(r"warning .*" + FLOW, daemons.log(name))]
        expect(any(match[:2] == flow and int(match[3]) >= at_least for match in found), f"the log of {name} does not name {flow}: {daemons.log(name)}")


def expect_heals(daemons, since):
    """Nothing stands any more, the job goes on with the right sums, and ends well."""
    for name in daemons.names:
        wait_for(lambda: not standing(daemons, name), lambda: f"{name} still shows {standing(daemons, name)}", 10)
        expect("moves again" in daemons.log(name), daemons.log(name))
    took = time.monotonic() - since
    daemons.ranks[0].terminate()
    for index, (text, code) in enumerate(outputs(daemons.ranks, 30)):
        expect(code == 0, f"rank {index} ended with status {code}: {text}")
    return took


def expect_ends(ranks, since, named):
    for index, (text, code) in enumerate(outputs(ranks, LATE_ERROR + 4 * SLACK)):
        lines = [line for line in text.splitlines() if line.startswith("tensorlane: error: ")]
        expect(code == 1 and len(lines) == 1 and re.search(named, lines[0]), f"rank {index}: status {code}: {text}")
    took = time.monotonic() - since
    expect(LATE_ERROR <= took < LATE_ERROR + 2 * SLACK, f"the job ended after {took:.1f} s")
    return took


def drop(lab, daemons, host, *rules):
    """From now on. Control flows and heartbeats pass."""
    ports = f"{daemons.port + 11}-{daemons.port + 18}"
    lab.run(host, "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; "
            + "; ".join(f"add rule inet cut in {rule.format(ports=ports)} drop" for rule in rules))


def heal(lab, host):
    lab.run(host, "nft", "delete table inet cut")


def dropped(name, rules):
    """Packets that come to h1 are dropped, by these rules: once it heals, once it does not."""
    with Lab(policy="strict", hosts=HOSTS) as lab:
        rules = [rule.replace("{h0}", lab.address("h0")) for rule in rules]
        with Daemons(HOSTS, lab=lab, settings=SETTINGS) as daemons:
            start_job(daemons)
            since = time.monotonic()
            drop(lab, daemons, "h1", *rules)
            reported = expect_reported(daemons, since, ("h0", "h1"))
            expect_logged(daemons, ("h0", "h1"))
            heal(lab, "h1")
            healed = expect_heals(daemons, time.monotonic())
        with Daemons(HOSTS, lab=lab, settings=SETTINGS) as daemons:
            ranks = start_job(daemons)
            since = time.monotonic()
            drop(lab, daemons, "h1", *rules)
            ended = expect_ends(ranks, since, FLOW)
            heal(lab, "h1")
    print(f"{name}: named after {reported:.1f} s, went on {healed:.1f} s after the repair; ended after {ended:.1f} s", flush=True)


# Without it the kernel hands many packets at once to the other end of a virtual link, whatever its MTU: what ethtool -K DEVICE tso off gso off does.
ONE_PACKET_AT_A_TIME = r"""
import array, fcntl, socket, struct, sys
STSO, SGSO, SIOCETHTOOL = 0x1f, 0x24, 0x8946
for command in (STSO, SGSO):
    value = array.array("B", struct.pack("II", command, 0))
    fcntl.ioctl(socket.socket(), SIOCETHTOOL, struct.pack("16sP", sys.argv[1].encode(), value.buffer_info()[0]))
"""


def mtu():
    """h0 and h1 send packets of 9000 bytes, which the switch between them does not take."""
    with Lab(policy="strict", hosts=HOSTS) as lab:
        for host in ("h0", "h1"):
            device = lab.run(host, "sh", "-c", "ip -o route get " + lab.address("h2")).split(" dev ")[1].split()[0]
            lab.run(host, "ip", "link", "set", device, "mtu", "9000")
            lab.run(host, sys.executable, "-c", ONE_PACKET_AT_A_TIME, device)
        with Daemons(HOSTS, lab=lab, settings=SETTINGS) as daemons:
            ranks = start_job(daemons, running=False)
            since = time.monotonic()
            reported = expect_reported(daemons, since + 1, ("h0", "h1"))
            expect_logged(daemons, ("h0", "h1"))
            shown = next(s for s in standing(daemons, "h2") if (s["from"], s["to"]) == ("h0", "h1"))
            expect(shown["path_mtu"] == 9000 and shown["retransmissions"] > 0 and shown["outstanding_bytes"] > 0, f"h2 shows {shown}")
            ended = expect_ends(ranks, since, FLOW + ".*whose MTU is below 9000")
    print(f"MTU of 9000 against 1500: named after {reported:.1f} s; ended after {ended:.1f} s", flush=True)


def not_reading():
    """The lane of h1 stands still: nothing is read there, and windows close."""
    with Daemons(HOSTS, settings=SETTINGS) as daemons:
        start_job(daemons)
        since = time.monotonic()
        with StoppedThread(daemons.pid("h1"), "lane"):
            reported = expect_reported(daemons, since, ("h0", "h1"))
            expect_logged(daemons, ("h0", "h1"), at_least=0)  # the kernel of h1 may have taken all of them
            for name in daemons.names:  # lanes are looked at on their own
                wait_for(lambda: "a lane of host h1 has not turned for" in daemons.log(name), lambda: f"{name} names no lane: {daemons.log(name)}", SLACK)
        healed = expect_heals(daemons, time.monotonic())
    with Daemons(HOSTS, settings=SETTINGS) as daemons:
        ranks = start_job(daemons)
        since = time.monotonic()
        with StoppedThread(daemons.pid("h1"), "lane"):
            ended = expect_ends(ranks, since, FLOW + "|a lane of host h1 has not turned")
    print(f"a receiver that stops reading: named after {reported:.1f} s, went on {healed:.1f} s later; ended after {ended:.1f} s", flush=True)


def bystander():
    """Of two jobs whose flows share a window on h0, one cannot reach h1: the other one goes on."""
    with Lab(policy="strict", hosts=HOSTS) as lab, Daemons(HOSTS, lab=lab, settings=SETTINGS) as daemons:
        culprit = daemons.job("culprit", [MESSAGE, "loop", str(16 << 20), "300", "0.5"], hosts=["h0", "h1"])
        other = daemons.job("bystander", [MESSAGE, "watch", str(4 << 20), str(LATE_ERROR), "0.5"], hosts=["h0", "h2"])
        expect(culprit[0].stdout.readline() == "running\n", "the culprit did not start")
        since = time.monotonic()
        drop(lab, daemons, "h1", "tcp dport {ports}", "tcp sport {ports}")
        iterations = []
        for index, (text, code) in enumerate(outputs(other, LATE_ERROR + 4 * SLACK)):
            expect(code == 0, f"rank {index} of the bystander ended with status {code}: {text}")
            iterations += [line.split() for line in text.splitlines() if line != "running"]
        during = [float(took) for began, took in iterations if float(began) > since]
        expect_ends(culprit, since, FLOW)
    # What has stood for half a second leaves the window: one pause, and a busy machine.
    expect(len(during) > 10 and max(during) < SLACK, f"of {len(during)} iterations the longest took {max(during, default=0):.1f} s")
    print(f"beside a job that stands, {len(during)} iterations, the longest of {max(during):.2f} s", flush=True)


CASES = {"mtu": mtu,
         "bystander": bystander,
         "dropped_port": lambda: dropped("a dropped port", ["tcp dport {ports}", "tcp sport {ports}"]),
         "one_way": lambda: dropped("loss in one direction", ["ip saddr {h0} tcp dport {ports}"]),
         "not_reading": not_reading}


def main():
    require_namespaces()
    for name in sys.argv[2:] or CASES:
        CASES[name]()


if __name__ == "__main__":
    sys.exit(main())
