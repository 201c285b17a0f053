"""Faults of daemons that drive a port themselves: one is restarted, killed or stopped under traffic, a link goes down and comes back, two share a device, and a daemon that
cannot have its port says why. Every sum is checked (message.c), and jobs that end do so in time with an error that names the host.

    test_dpdk_faults.py BUILD"""

import signal
import sys
import time

from daemons import Daemons, expect, outputs, require_namespaces
from dpdk_lab import lines_of, start_loop
from lab_harness import Lab

HOSTS = ("h0", "h1", "h2")
SIZE = 3 << 20
DETECTION = 3.0


def check_outage(lab):
    """What a link does for 3 s ends nothing. Heartbeats are TCP, which doubles its pauses, so the detection time is longer than twice that."""
    with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk", "detection": "20 s"}) as daemons:
        ranks = start_loop(daemons, "outage", SIZE, 60)
        for host in ("h1", "h0"):
            lab.run(host, "ip", "link", "set", daemons.device(host), "down")
            time.sleep(3)
            lab.run(host, "ip", "link", "set", daemons.device(host), "up")
            time.sleep(4)
        ranks[0].send_signal(signal.SIGTERM)
        lines_of(ranks, 30)
        print("two outages of 3 s: every sum was right", flush=True)


def expect_named_errors(ranks, host, begin, within, what):
    """Of the ranks on other hosts."""
    results = outputs([rank for rank in ranks if rank is not ranks[HOSTS.index(host)]], within + 10)
    seconds = time.monotonic() - begin
    print(f"{what}: after {seconds:.2f} s: {results[0][0].strip().splitlines()[-1]}", flush=True)
    for text, status in results:
        expect(status not in (0, 3) and f"host {host}" in text and "wrong sum" not in text, f"{what}: status {status}: {text}")
    expect(seconds < within, f"{what}: known after {seconds:.1f} s")
    outputs([ranks[HOSTS.index(host)]], 20)


def check_ends(lab):
    with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk", "detection": f"{DETECTION} s"}) as daemons:
        for index, (what, number) in enumerate((("h1's daemon is ended", signal.SIGTERM), ("h1's daemon is killed", signal.SIGKILL), ("h1's daemon is stopped", signal.SIGSTOP))):
            ranks = start_loop(daemons, f"ends{index}", SIZE, 60)
            time.sleep(0.5)
            begin = time.monotonic()
            daemons.children["h1"].send_signal(number)
            if number == signal.SIGSTOP:
                time.sleep(DETECTION + 1)
                daemons.children["h1"].send_signal(signal.SIGCONT)
            expect_named_errors(ranks, "h1", begin, DETECTION + 3, what)
            if number != signal.SIGSTOP:
                daemons.children["h1"].wait(timeout=10)
                daemons.start("h1")
                daemons.wait_ready("h1")
        lines_of(start_loop(daemons, "again", SIZE, 2), 30)
        print("after all of them: a job of all hosts runs", flush=True)


def check_shared_device(lab):
    """Two daemons of a host at one packet device, with one address: each sees the other's packets, too, and takes none of them."""
    first = Daemons(2, lab=lab, dpdk=HOSTS[:2], settings={"transport": "dpdk"})
    second = Daemons(2, lab=lab, dpdk=HOSTS[:2], settings={"transport": "dpdk"}, port=first.port + 25)
    with first, second:
        ranks = [start_loop(daemons, job, SIZE, 4) for daemons, job in ((first, "first"), (second, "second"))]
        for some in ranks:
            lines_of(some, 40)
    print("two daemons at one device: every sum was right", flush=True)


def check_errors(lab):
    device = "net_af_packet0,iface=lo"
    for own, words in ((f"{{devices: ['{device}'], eal: ['--nosuch']}}", ("--nosuch", "no such argument")),
                       (f"{{devices: ['{device}'], eal: ['--no-huge', '-m', '1']}}", ("memory",)),
                       (f"{{devices: ['{device}'], eal: ['--no-huge', '-m', '10000000']}}", ("MiB left",)),
                       ("{devices: ['net_nosuch0']}", ("net_nosuch0",)),
                       ("{devices: ['0000:ff:1f.7']}", ("0000:ff:1f.7",))):
        refuse(Daemons(1, lab=lab, dpdk=["h0"], of_host={"h0": {"transport": "dpdk", "dpdk": own}}), words)
    with Daemons(1, lab=lab, dpdk=["h0"], settings={"transport": "dpdk"}):
        refuse(Daemons(1, lab=lab, dpdk=["h0"], settings={"transport": "dpdk"}), ("in use", "data_port"))


def refuse(daemons, words):
    """The daemon ends at once with an error that has these words."""
    try:
        with daemons:
            raise RuntimeError(f"a daemon runs that should say {words}")
    except AssertionError as error:
        print(str(error).strip().splitlines()[-1], flush=True)
        expect("the daemon of h0 ended" in str(error) and all(word in str(error) for word in words), f"{words} are not in: {error}")


def main():
    require_namespaces()
    with Lab(hosts=3, speed="500 Mbit/s") as lab:
        check_errors(lab)
        check_ends(lab)
        check_shared_device(lab)
        check_outage(lab)


if __name__ == "__main__":
    sys.exit(main())
