"""One message through real daemons: hosts h0 and h1 send to h2 at 500 Mbit/s, h0 bulk without end, h1 1 MiB urgent. Strict ports keep the urgent message at
most 1.3 times its unloaded time, FIFO ports make it at least 1.8 times; and a capture at the switch shows every class's DSCP in both directions. So do ports
that tensorlane-switch has rendered from a fabric file with another DSCP, until their map is broken."""

import collections
import re
import statistics
import subprocess
import sys
import tempfile
import time

from daemons import BUILD, Daemons, Lab, expect, outputs, require_namespaces, star, two_classes

MESSAGE = f"{BUILD}/tests/message"
MIB = 1 << 20
COUNT = 40
OTHER = 34  # a DSCP of no class of the presets


def time_messages(daemons, job):
    ranks = daemons.job(job, [MESSAGE, "time", str(MIB), str(COUNT), "1.0"], hosts=["h1", "h2"])
    results = outputs(ranks, 60)
    expect(all(status == 0 for _, status in results), f"the urgent job failed: {results}")
    times = [float(word) for word in results[1][0].split()]
    expect(len(times) == COUNT, f"{len(times)} of {COUNT} messages")
    return statistics.median(times)


def under_flood(daemons, job, flood_seconds=5):
    flood = daemons.job(job + "-flood", [MESSAGE, "flood", str(8 * MIB), str(flood_seconds), "0.0"], hosts=["h0", "h2"])
    time.sleep(1.5)
    median = time_messages(daemons, job)
    results = outputs(flood, 60)
    expect(all(status == 0 for _, status in results), f"the flood failed: {results}")
    rate = float(results[1][0]) * 8
    return median, rate


def captured_tags(lab, host, work):
    """DSCPs seen at the switch's port of h2, of full data packets and of pure acknowledgements, by (source, destination), between `host` and h2."""
    command = lab.command("s0", "timeout", "6", "tcpdump", "-i", "h2", "-nn", "-v", "-s", "96", f"tcp and host {lab.address(host)} and (greater 1400 or less 80)")
    with tempfile.TemporaryFile("w+") as file:
        capture = subprocess.Popen(command, stdout=file, stderr=subprocess.DEVNULL)
        work()
        capture.wait(timeout=20)
        file.seek(0)
        data, acks, tos = collections.defaultdict(collections.Counter), collections.defaultdict(collections.Counter), 0
        for line in file:
            if found := re.search(r"\(tos 0x([0-9a-f]+)", line):
                tos = int(found.group(1), 16)
            elif found := re.match(r"\s+(\d+\.\d+\.\d+\.\d+)\.\d+ > (\d+\.\d+\.\d+\.\d+)\.\d+: Flags \[[P.]+\].* length (\d+)", line):
                (data if int(found.group(3)) > 1000 else acks)[found.group(1), found.group(2)][tos >> 2] += 1
    return data, acks


def rendered_ports():
    """The same with the ports that tensorlane-switch renders, and another DSCP in the fabric file."""
    classes = two_classes(OTHER)
    # A shaper of half the port: what an urgent message that shares the rest loses shows.
    config = star(classes, qos="{classes: {urgent: {shaper: 50 %}}}")
    with Lab(policy="service", config=config) as lab, Daemons(3, lab=lab, classes=classes) as daemons:
        unloaded = time_messages(daemons, "alone")
        loaded, _ = under_flood(daemons, "service")
        lab.forget_urgent("s0", "h2")
        unmapped, _ = under_flood(daemons, "unmapped")
    print(f"ports of tensorlane-switch, urgent at DSCP {OTHER}: {loaded / unloaded:.2f} times the unloaded {unloaded * 1e3:.2f} ms, "
          f"without its line of the map {unmapped / unloaded:.2f} times")
    expect(loaded <= 1.3 * unloaded, "rendered ports do not protect the urgent message")
    expect(unmapped >= 1.4 * unloaded, "without their map they do: something else protects it")


def main():
    require_namespaces()
    rendered_ports()
    with Lab(policy="strict", hosts=3) as lab, Daemons(3, lab=lab) as daemons:
        unloaded = time_messages(daemons, "alone")
        strict, strict_rate = under_flood(daemons, "strict")
        lab.policy("fifo")
        fifo, fifo_rate = under_flood(daemons, "fifo")
        print(f"unloaded {unloaded * 1e3:.2f} ms; strict {strict / unloaded:.2f} times (flood {strict_rate / 1e6:.0f} Mbit/s), "
              f"FIFO {fifo / unloaded:.2f} times (flood {fifo_rate / 1e6:.0f} Mbit/s)")
        lab.policy("strict")
        for host, cls, dscp, work in (("h0", "bulk", 27, lambda: under_flood(daemons, "capture-bulk")),
                                      ("h1", "urgent", 43, lambda: time_messages(daemons, "capture-urgent"))):
            data, acks = captured_tags(lab, host, work)
            there, back = (lab.address(host), lab.address("h2")), (lab.address("h2"), lab.address(host))
            print(f"{cls}: data {dict(data[there])}, acknowledgements {dict(acks[back])}")
            expect(data[there][dscp] > 100 and set(data[there]) == {dscp}, f"class {cls} is not sent with DSCP {dscp} alone: {data}")
            expect(acks[back][dscp] > 10, f"class {cls} is not acknowledged with DSCP {dscp}: {acks}")
        expect(strict <= 1.3 * unloaded, "strict ports do not protect the urgent message")
        expect(fifo >= 1.8 * unloaded, "FIFO ports do not delay the urgent message: the flood or the ports are not what the test means")


if __name__ == "__main__":
    sys.exit(main())
