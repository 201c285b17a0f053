"""Somebody on the same segment floods the port of a daemon that drives its NIC itself, as fast as a core can: with random bytes, with packets read off the wire and changed,
with the same ones again, and with lies about neighbours. A job beside it has right sums, and its daemons log nothing and end nothing.

    test_dpdk_attack.py BUILD

How long an iteration takes is measured in blocks in turn: in peace, and with a flood, whole and slow, to the victim and to a host that has nothing to do with the job. A flood
takes cores of the machine, which the job needs, wherever it goes: the same flood elsewhere says what the machine loses, and the victim's daemons may lose a tenth beside that.
"""

import bisect
import os
import random
import statistics
import subprocess
import sys
import time

from daemons import BUILD, Daemons, expect, require_namespaces
from dpdk_lab import MESSAGE, PORT, Capture
from lab_harness import Lab

HOSTS = ("h0", "h1")  # of the job; h2 forges, h3 is the one who has nothing to do with it
FORGER = os.path.join(BUILD, "tests", "forger")
SIZE = 256 << 10
MODES = ("random", "tags", "replay", "neighbours")
BLOCK, REST, ROUNDS = 0.5, 0.1, 3  # seconds, seconds, of each mode
SLOW = 20000  # frames a second: a tenth of a core
MOST, MOST_MEDIAN = 1.10, 1.25  # the lower end of the interval, and the median, which a busy machine moves
MOST_OF_A_CORE = 0.1  # that a daemon without a job takes, whatever it is sent


def mac_of(lab, host):
    return lab.run(host, "cat", "/sys/class/net/eth0/address").strip()


def write_capture(capture, path):
    """As the forger reads it."""
    with open(path, "wb") as file:
        file.write(bytes(24))
        for packet in capture.packets[:4000]:
            file.write(bytes(8) + len(packet.frame).to_bytes(4, "little") * 2 + packet.frame)


class Blocks:
    """Floods by kind, and when each began and ended."""

    def __init__(self, lab, capture):
        self.lab, self.capture, self.times, self.sent = lab, capture, {}, {}
        self.macs = {host: mac_of(lab, host) for host in ("h0", "h3")}

    def run(self, kind, mode=None, to="h0", rate=0):
        begin = time.monotonic()
        if mode is None:
            time.sleep(BLOCK)
        else:
            command = self.lab.command("h2", FORGER, "eth0", mode, self.capture, self.macs[to], str(BLOCK), str(rate))
            sent = int(subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout)
            self.sent.setdefault((kind, mode), []).append(sent / BLOCK)
        self.times.setdefault(kind, []).append((begin + 0.05, time.monotonic()))
        time.sleep(REST)


def medians(iterations, blocks):
    """Of the iterations that began and ended in each block; of one that had none, how long the one took that covers it."""
    starts, found = [began for began, _ in iterations], []
    expect(starts[-1] > blocks[-1][0], "the job ended before the last block")
    for begin, end in blocks:
        inside = [took for began, took in iterations[bisect.bisect_left(starts, begin):bisect.bisect_left(starts, end)]]
        found.append(statistics.median(inside or [iterations[max(0, bisect.bisect_left(starts, begin) - 1)][1]]))
    return found


def ratio(of, to):
    """The median of the ratios of blocks that are neighbours, and the interval in which 90 % of its resamples lie."""
    ratios, draw = [a / b for a, b in zip(of, to, strict=True)], random.Random(1)
    again = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return statistics.median(ratios), again[100], again[-100]


def check_job(texts):
    """Iterations of rank 0; all sums were right."""
    for index, (text, status) in enumerate(texts):
        expect(status == 0, f"rank {index} ended with status {status}: {text[-2000:]}")
    lines = [line.split() for line in texts[0][0].splitlines()]
    return [(float(line[0]), float(line[1])) for line in lines if len(line) == 2]


def attack(lab, daemons):
    files = [os.path.join(daemons.folder, f"rank{rank}") for rank in range(2)]  # a pipe would be full
    ranks = [daemons.rank("innocent", rank, 2, host, [MESSAGE, "watch", str(SIZE), "100", "0.9"], stdout=open(files[rank], "w")) for rank, host in enumerate(HOSTS)]
    time.sleep(1)
    with Capture(lab, "h0", "eth0", f"udp port {PORT}", "in", snap=1514) as capture:
        time.sleep(0.1)
    path = os.path.join(daemons.folder, "seen.pcap")
    write_capture(capture, path)
    before = {host: daemons.log(host) for host in HOSTS}
    blocks = Blocks(lab, path)
    for _ in range(ROUNDS):
        for mode in MODES:
            blocks.run("peace")
            for kind, rate in (("slow", SLOW), ("whole", 0)):
                blocks.run(f"{kind} elsewhere", mode, to="h3", rate=rate)
                blocks.run(f"{kind}", mode, rate=rate)
    ranks[0].terminate()
    for rank in ranks:
        rank.wait(timeout=30)
    return [(open(file).read(), rank.returncode) for file, rank in zip(files, ranks, strict=True)], blocks, before


def cpu_seconds(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_rest(lab, daemons, capture):
    """A daemon without a job goes on resting, whoever sends to it."""
    shares = {}
    for kind in ("peace", *MODES):
        flood = [] if kind == "peace" else [subprocess.Popen(lab.command("h2", FORGER, "eth0", kind, capture, mac_of(lab, "h0"), "1.5", str(SLOW)), stdout=subprocess.DEVNULL)]
        time.sleep(0.3)
        before, begin = cpu_seconds(daemons.pid("h0")), time.monotonic()
        time.sleep(1)
        shares[kind] = (cpu_seconds(daemons.pid("h0")) - before) / (time.monotonic() - begin)
        for child in flood:
            child.wait(timeout=10)
    print("a daemon without a job takes of a core: " + ", ".join(f"{share:.2f} ({kind})" for kind, share in shares.items()), flush=True)
    expect(max(shares.values()) < MOST_OF_A_CORE, f"strangers keep the daemon from resting: {shares}")


def main():
    require_namespaces()
    with Lab(hosts=4, speed="10 Gbit/s") as lab, Daemons(2, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk"}) as daemons:
        texts, blocks, before = attack(lab, daemons)
        iterations = check_job(texts)
        check_rest(lab, daemons, os.path.join(daemons.folder, "seen.pcap"))
        for host in HOSTS:
            said = [line for line in daemons.log(host)[len(before[host]):].splitlines() if " info " not in line]
            expect(not said, f"the daemon of {host} says: {said}")
    for (kind, mode), rates in blocks.sent.items():
        print(f"{kind}, {mode}: {statistics.median(rates) / 1e3:.0f} thousand frames a second", flush=True)
    times = {kind: medians(iterations, spans) for kind, spans in blocks.times.items()}
    for kind, of in times.items():
        print(f"{kind}: {statistics.median(of) * 1e3:.2f} ms an iteration", flush=True)
    print(f"{len(iterations)} iterations, all sums right", flush=True)
    worst = []
    for kind in ("slow", "whole"):
        for base in ("peace", f"{kind} elsewhere"):
            middle, low, high = ratio(times[kind], times[base])
            print(f"{kind} flood to {base}: {middle:.3f} ({low:.3f} to {high:.3f})", flush=True)
            # A flood takes a part of the job's processors, too, wherever it goes: peace is shown, and not judged by.
            if (low > MOST or middle > MOST_MEDIAN) and base != "peace":
                worst.append(f"a {kind} flood makes an iteration {middle:.2f} times ({low:.2f} to {high:.2f}) as long as {base}")
    expect(not worst, "; ".join(worst))


if __name__ == "__main__":
    sys.exit(main())
