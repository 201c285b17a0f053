"""One message through real daemons: hosts h0 and h1 send to h2 at 500 Mbit/s, h0 bulk without end, h1 1 MiB urgent. Strict ports keep the urgent message at
most 1.3 times its unloaded time, FIFO ports make it at least 1.8 times; and a capture at the switch shows every class's DSCP in both directions."""

import collections
import re
import statistics
import subprocess
import sys
import time

from daemons import BUILD, Daemons, Lab, expect, outputs, require_namespaces

MESSAGE = f"{BUILD}/tests/message"
MIB = 1 << 20
COUNT = 40


def time_messages(daemons, job):
    ranks = daemons.job(job, [MESSAGE, "time", str(MIB), str(COUNT), "1.0"], hosts=["h1", "h2"])
    results = outputs(ranks, 60)
    expect(all(status == 0 for _, status in results), f"the urgent job failed: {results}")
    times = [float(word) for word in results[1][0].split()]
    expect(len(times) == COUNT, f"{len(times)} of {COUNT} messages")
    return statistics.median(times)


def under_flood(daemons, job, flood_seconds=12):
    flood = daemons.job(job + "-flood", [MESSAGE, "flood", str(8 * MIB), str(flood_seconds), "0.0"], hosts=["h0", "h2"])
    time.sleep(1.5)
    median = time_messages(daemons, job)
    results = outputs(flood, 60)
    expect(all(status == 0 for _, status in results), f"the flood failed: {results}")
    rate = float(results[1][0]) * 8
    return median, rate


def captured_tags(lab, capture_seconds, work):
    """DSCPs of TCP packets with payload or pure acknowledgements, by (source, destination), seen at the switch's port of h2."""
    capture = subprocess.Popen(lab.command("s0", "timeout", str(capture_seconds), "tcpdump", "-i", "h2", "-nn", "-v", "-c", "4000", "-s", "64", "tcp"),
                               stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    work()
    text, _ = capture.communicate(timeout=capture_seconds + 10)
    tags = collections.defaultdict(set)
    tos = None
    for line in text.splitlines():
        if found := re.search(r"\(tos 0x([0-9a-f]+)", line):
            tos = int(found.group(1), 16)
        elif found := re.match(r"\s+(\d+\.\d+\.\d+\.\d+)\.\d+ > (\d+\.\d+\.\d+\.\d+)\.\d+:", line):
            tags[found.group(1), found.group(2)].add(tos >> 2)
    return tags


def main():
    require_namespaces()
    with Lab(policy="strict", hosts=3) as lab, Daemons(3, lab=lab) as daemons:
        unloaded = time_messages(daemons, "alone")
        strict, strict_rate = under_flood(daemons, "strict")
        lab.policy("fifo")
        fifo, fifo_rate = under_flood(daemons, "fifo")
        print(f"unloaded {unloaded * 1e3:.2f} ms; strict {strict / unloaded:.2f} times (flood {strict_rate / 1e6:.0f} Mbit/s), "
              f"FIFO {fifo / unloaded:.2f} times (flood {fifo_rate / 1e6:.0f} Mbit/s)")
        lab.policy("strict")
        tags = captured_tags(lab, 6, lambda: under_flood(daemons, "capture", flood_seconds=4))
        print({f"{a} -> {b}": sorted(values) for (a, b), values in tags.items()})
        h0, h1, h2 = (lab.address(h) for h in ("h0", "h1", "h2"))
        for source, sink, cls, dscp in ((h0, h2, "bulk", 27), (h1, h2, "urgent", 43)):
            expect(dscp in tags[source, sink], f"no packet of class {cls} (DSCP {dscp}) from {source} to {sink}: {tags}")
            expect(dscp in tags[sink, source], f"no acknowledgement of class {cls} (DSCP {dscp}) from {sink} to {source}: {tags}")
            expect(51 in tags[source, sink] | tags[sink, source], f"no control traffic (DSCP 51) between {source} and {sink}")
        expect(43 not in tags[h0, h2] and 27 not in tags[h1, h2], f"a class was tagged as another: {tags}")
        expect(strict <= 1.3 * unloaded, "strict ports do not protect the urgent message")
        expect(fifo >= 1.8 * unloaded, "FIFO ports do not delay the urgent message: the flood or the ports are not what the test means")


if __name__ == "__main__":
    sys.exit(main())
