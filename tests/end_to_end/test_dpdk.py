"""Daemons that drive a port themselves (DPDK's af_packet, beside the kernel on the same NIC of a lab): sums are those of TCP, every packet carries its class, urgent sums overtake
bulk of others at a port that is full, and a host without such a port goes on over TCP.

    test_dpdk.py BUILD"""

import collections
import json
import os
import re
import subprocess
import sys
import time

from daemons import BIN, Daemons, expect, outputs, require_namespaces
from dpdk_lab import MESSAGE, PORT, Capture, chosen
from lab_harness import BULK, CONTROL, Lab, URGENT

HOSTS = ("h0", "h1", "h2")


def sums(daemons, job, size, operations=20, urgency="0.9"):
    """Median seconds and digest of a sum."""
    ranks = outputs(daemons.job(job, [MESSAGE, "sum", str(size), str(operations), urgency]), 120)
    expect(all(status == 0 for _, status in ranks), ranks)
    digests = {text.split()[1] for text, _ in ranks}
    expect(len(digests) == 1, f"unlike sums: {ranks}")
    return max(float(text.split()[0]) for text, _ in ranks), digests.pop()


def check_status(daemons):
    """What a daemon says of its port, in JSON and in text."""
    time.sleep(0.3)  # it is told ten times a second
    port = daemons.status("h0")["lane"]["rails"][0]["port"]
    expect(port["device"].startswith("net_af_packet0,") and port["link_up"], port)
    expect([queue["class"] for queue in port["queues"]] == ["control", "urgent", "bulk"] and all(queue["sent_packets"] > 0 for queue in port["queues"]), port)
    expect(port["received_packets"] > 100 and port["neighbour_questions"] >= 2 and 0 < port["busy_seconds"] < port["polled_seconds"], port)
    ask = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=5).read().decode())"
    page = subprocess.run(daemons.on_host("h0", [sys.executable, "-c", ask, f"http://{daemons.status('h0')['lane']['metrics']}/metrics"]), capture_output=True, text=True, check=True).stdout
    sent = re.search(r'^tensorlane_port_packets_total{rail="0",class="urgent"} (\d+)$', page, re.M)
    expect(sent and int(sent[1]) > 0 and 'tensorlane_port_link_up{rail="0"} 1' in page, page)
    text = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--socket", daemons.socket("h0")], capture_output=True, text=True, check=True).stdout
    print(text, flush=True)
    expect(port["mac"] in text and "neighbours: asked" in text and "no dpdk" not in text, text)


def check_verify(daemons, outcome):
    """`verify` probes the ports of TCP, and does not call that a test of what goes over DPDK."""
    command = [os.path.join(BIN, "tensorlane"), "verify", "--socket", daemons.socket("h0"), "--beside-jobs", "--family", "4", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90)
    expect(done.stdout, done.stderr)
    marks = json.loads(done.stdout)["marks"]
    expect(marks and {mark["dscp"] for mark in marks} == {outcome}, done.stdout)
    expect(all("goes over DPDK" in mark["text"] for mark in marks) == (outcome == "untested") and done.returncode == (outcome == "untested"), done.stdout)


def check_sums_and_tags(lab):
    with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "tcp"}) as daemons:
        over_tcp = [sums(daemons, f"tcp{size}", size)[1] for size in (4, 4096, 1 << 20)]
        check_verify(daemons, "passed")
    with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk", "metrics": "127.0.0.1:0"}) as daemons:
        with Capture(lab, "h1", daemons.device("h1"), f"udp port {PORT} and src host {daemons.dpdk_address('h1')}", "out") as capture:
            over_dpdk = [sums(daemons, f"dpdk{size}", size, urgency=urgency)[1] for size, urgency in ((4, "0.9"), (4096, "0.1"), (1 << 20, "0.9"))]
        expect(over_dpdk == over_tcp, f"other sums over DPDK ({over_dpdk}) than over TCP ({over_tcp})")
        rail = daemons.status("h0")["lane"]["rails"][0]
        expect(rail["transport"] == "dpdk" and "af_packet" in rail["device"], rail)
        expect(chosen(daemons, "h0") == {"h1": "dpdk", "h2": "dpdk"}, chosen(daemons, "h0"))
        check_status(daemons)
        check_verify(daemons, "untested")
    seen = collections.Counter(packet.frame[15] for packet in capture.packets)
    print(f"packets of h1 by TOS: {dict(seen)}", flush=True)
    expect({tos >> 2 for tos in seen} == {URGENT, BULK, CONTROL} and all(tos & 3 == 2 for tos in seen), f"packets with other tags than those of the classes, or not ECT(0): {seen}")


def check_priority(lab):
    """Two others' bulk fills the port to h1; an urgent sum passes it, where the port is strict."""
    with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk"}) as daemons:
        alone = sums(daemons, "alone", 1 << 16, 40)[0]
        lab.start_sink("h1", [BULK])
        floods = [lab.start_flood("h3", "h1", BULK) for _ in range(2)]
        time.sleep(1)
        beside = sums(daemons, "beside", 1 << 16, 40)[0]
        lab.policy("fifo")
        time.sleep(0.5)
        fifo = sums(daemons, "fifo", 1 << 16, 10)[0]
        for flood in floods:
            flood.kill()
        lab.policy("strict")
    print(f"an urgent sum of 64 KiB: {alone * 1e3:.2f} ms alone, {beside * 1e3:.2f} ms beside bulk at strict ports, {fifo * 1e3:.2f} ms at FIFO ports", flush=True)
    expect(beside < 2.5 * alone and fifo > 2 * beside, "the classes make no difference")


def check_mixed(lab):
    """h2 has no port of its own: to it flows go over TCP, and a host that insists says what is missing."""
    with Daemons(3, lab=lab, dpdk=HOSTS[:2]) as daemons:
        sums(daemons, "mixed", 1 << 16)
        for host in HOSTS[:2]:
            expect(chosen(daemons, host).get("h2", "tcp") == "tcp", chosen(daemons, host))
        expect("dpdk" in daemons.status("h0")["lane"]["rails"][0]["transport"], daemons.status("h0")["lane"]["rails"])
        rail = daemons.status("h2")["lane"]["rails"][0]
        expect(rail["port"] is None and "names no `dpdk` devices" in rail["why_no_dpdk"] and not rail["names_dpdk"], rail)
    for own, words in (({"transport": "dpdk", "dpdk": "{devices: ['net_af_packet0,iface=nosuch0']}"}, "nosuch0"),
                       ({"transport": "dpdk", "dpdk": "{devices: ['net_af_packet0,iface=lo'], eal: ['--nosuch']}"}, "--nosuch")):
        try:
            with Daemons(1, lab=lab, dpdk=["h0"], of_host={"h0": own}):
                raise RuntimeError(f"a daemon runs with {own}")
        except AssertionError as error:
            expect(words in str(error) and "the daemon of h0 ended" in str(error), str(error))


def main():
    require_namespaces()
    with Lab(hosts=4, speed="200 Mbit/s") as lab:
        check_sums_and_tags(lab)
        check_priority(lab)
        check_mixed(lab)


if __name__ == "__main__":
    sys.exit(main())
