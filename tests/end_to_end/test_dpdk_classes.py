"""Seven data classes and control over ports that the daemons drive themselves, all of them at once into one port of 200 Mbit/s: what leaves it carries the DSCP of its class,
and where the frames have a tag, its PCP; and while a packet waits in the port, no less urgent one leaves.

    test_dpdk_classes.py BUILD"""

import collections
import sys
import time

from daemons import Daemons, expect, outputs, require_namespaces, star, wait_for
from dpdk_lab import MESSAGE, PORT, Capture
from lab_harness import Lab

HOSTS = ("h0", "h1", "h2")
# DSCP and PCP by class, the most urgent first.
DATA = ((46, 5), (43, 4), (34, 3), (27, 2), (18, 1), (10, 0), (8, 7))
CONTROL = (51, 6)
PCP = dict((*DATA, CONTROL))
STEP = 1.0  # seconds: once all classes send, the most urgent one ends after so long, the next one after twice as long, and so on
SLACK = 0.002  # seconds that captures of two devices may be apart: interfaces of the kernel hand packets on when they get a CPU
# Of the packets that leave, those that leave while a more urgent one has been waiting in the port.
MOST_OUT_OF_ORDER = 0.001

CLASSES = ("{data: [" + ", ".join(f"{{name: c{i}, dscp: {dscp}, pcp: {pcp}}}" for i, (dscp, pcp) in enumerate(DATA)) +
           f"], control: {{dscp: {CONTROL[0]}, pcp: {CONTROL[1]}}}}}")
FABRIC = star(CLASSES, hosts=3).replace("500 Mbit/s", "200 Mbit/s")


def packets_of(capture):
    found, dropped = capture.packets, capture.dropped
    expect(dropped < len(found) / 100, f"the capture lost {dropped} of {len(found)} packets")
    expect({p.dscp for p in found} == set(PCP), f"packets with the DSCPs {collections.Counter(p.dscp for p in found)}, expected {set(PCP)}")
    return found


def flood(daemons, host, index):
    """Broadcasts of a class from a host to h2, until its rank 0 is told to end."""
    urgency = 1 - (index + 0.5) / len(DATA)
    return daemons.job(f"class{index}", [MESSAGE, "flood", str(4 << 20), "60", f"{urgency:.3f}"], hosts=[host, "h2"])


def wait_for_jobs(daemons, count):
    """Until so many have registered what they send."""
    def registered():
        return sum(job["plan"] is not None and job["plan"]["tensors"] == 2 for job in daemons.status("h2")["jobs"])
    wait_for(lambda: registered() >= count, f"not all of {count} jobs run")


def name_of(packet):
    """What tells a packet from all others: its sender, and the head of its datagram, which has a number that is used once."""
    return packet.frame[26:30] + packet.frame[34:36] + packet.frame[42:64]


def out_of_order(arrived, left, classes):
    """The share of the packets that leave while one of an earlier class waits. `arrived` says when each came to the port, by its name."""
    rank = {dscp: i for i, (dscp, _) in enumerate(classes)}
    events = []  # (time, whether it is one that leaves, change of those that wait, rank)
    for packet in left:
        came = arrived.get(name_of(packet))
        if came is not None and came + SLACK < packet.at:
            events += [(came + SLACK, 0, 1, rank[packet.dscp]), (packet.at, 0, -1, rank[packet.dscp])]
        events.append((packet.at, 1, 0, rank[packet.dscp]))
    waiting, wrong = [0] * len(rank), 0
    for _, leaves, change, at in sorted(events):
        waiting[at] += change
        wrong += leaves and any(waiting[:at])
    return wrong / len(left)


def run_floods(daemons):
    """All classes send to h2, the even ones from h0, the odd ones from h1. In the order of urgency they end."""
    jobs = []
    for index in reversed(range(len(DATA))):  # while there is room for those that follow
        jobs.insert(0, flood(daemons, HOSTS[index % 2], index))
        wait_for_jobs(daemons, len(jobs))
    for job in jobs:
        time.sleep(STEP)
        job[0].terminate()
    for job in jobs:
        expect(all(status == 0 for _, status in outputs(job, 30)), "a flood failed")


def measure(lab, daemons):
    """When each packet came to the port to h2, and all that came out of it."""
    what = f"udp port {PORT} and dst host {daemons.dpdk_address('h2')}"
    with Capture(lab, "s0", "h0", what, "in") as first, Capture(lab, "s0", "h1", what, "in") as second, Capture(lab, "h2", daemons.device("h2"), what, "in") as out:
        run_floods(daemons)
    left = packets_of(out)
    return {name_of(p): p.at for p in first.packets + second.packets}, left


def print_shares(left):
    """Of each class, while it was the most urgent one that had something to send."""
    begin = max(min(p.at for p in left if p.dscp == dscp) for dscp, _ in DATA)
    for dscp, _ in DATA[:-1]:
        end = max(p.at for p in left if p.dscp == dscp)
        data = [p for p in left if begin <= p.at < end and p.dscp != CONTROL[0]]
        total, own = sum(p.bytes for p in data), sum(p.bytes for p in data if p.dscp == dscp)
        print(f"DSCP {dscp}: {own / max(total, 1):.1%} of {total * 8 / max(end - begin, 1e-6) / 1e6:.0f} Mbit/s in {end - begin:.1f} s", flush=True)
        begin = max(begin, end)


def check_order(lab):
    with Daemons(3, lab=lab, dpdk=HOSTS, classes=CLASSES, settings={"transport": "dpdk"}) as daemons:
        arrived, left = measure(lab, daemons)
    print_shares(left)
    order = (CONTROL, *DATA)
    wrong, upside_down = out_of_order(arrived, left, order), out_of_order(arrived, left, order[::-1])
    print(f"of {len(left)} packets {wrong:.3%} left while a more urgent one waited in the port, and {upside_down:.1%} while a less urgent one did", flush=True)
    expect(wrong < MOST_OUT_OF_ORDER and upside_down > 10 * MOST_OUT_OF_ORDER, "packets do not leave in the order of their classes, or the check sees no order")


def check_tags(lab):
    """Frames with a VLAN tag for the PCP's sake, without an order: the lab's ports do not tell them apart."""
    lab.policy("fifo")
    own = {name: {"dpdk": f"{{devices: ['net_af_packet0,iface=eth0,qdisc_bypass=0'], vlan: 0}}"} for name in HOSTS}
    with Daemons(3, lab=lab, dpdk=HOSTS, classes=CLASSES, settings={"transport": "dpdk"}, of_host=own) as daemons:
        with Capture(lab, "h2", daemons.device("h2"), f"vlan and udp port {PORT}", "in") as capture:
            jobs = [daemons.job(f"tag{i}", [MESSAGE, "time", str(1 << 16), "3", f"{1 - (i + 0.5) / len(DATA):.3f}"], hosts=[HOSTS[i % 2], "h2"]) for i in range(len(DATA))]
            for job in jobs:
                expect(all(status == 0 for _, status in outputs(job, 60)), "a job failed")
    packets = packets_of(capture)
    wrong = [p for p in packets if p.vlan != 0 or p.pcp != PCP[p.dscp]]
    print(f"{len(packets)} frames with a tag, PCP by DSCP: {dict(sorted({(p.dscp, p.pcp) for p in packets}))}", flush=True)
    expect(packets and not wrong, f"{len(wrong)} of {len(packets)} frames with another tag: {wrong[:5]}")


def main():
    require_namespaces()
    begin = time.monotonic()
    with Lab(config=FABRIC) as lab:
        check_order(lab)
        check_tags(lab)
    print(f"{time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
