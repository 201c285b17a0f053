"""Three hosts train a small model over ports that the daemons drive themselves to bitwise the parameters that they get over TCP, also where one packet in a hundred is
lost, and where a link is down for three seconds.

    test_dpdk_training.py BUILD"""

import contextlib
import json
import os
import sys
import time

from daemons import BUILD, PYTHON, Daemons, expect, require_namespaces
from dpdk_lab import chosen, lines_of
from lab_faults import drop
from lab_harness import Lab

HERE = os.path.dirname(os.path.abspath(__file__))
HOSTS = ("h0", "h1", "h2")
ITERATIONS = 20
TRAIN = f"import sys; sys.path.insert(0, {os.path.join(HERE, '..', 'rdma-vm')!r}); import ranks; ranks.train({ITERATIONS})"
OUTAGE = 3.0
# The daemons' heartbeats are TCP, which doubles its pauses: after the outage they are silent for 6.2 s, and a host may be silent for six tenths of this.
DETECTION = "20 s"


def start(daemons, job):
    environment = {"TENSORLANE_LIBRARY": os.path.join(BUILD, "lib", "libtensorlane.so"), "PYTHONPATH": os.path.join(HERE, "..", "..", "client-lib", "python")}
    return daemons.job(job, [PYTHON, "-c", TRAIN], env=environment)


def result(ranks):
    """Digest and seconds until the last rank has ended."""
    begin = time.monotonic()
    results = [json.loads(next(line for line in text.splitlines() if line.startswith("{"))) for text in lines_of(ranks, 60)]
    digests = {one["digest"] for one in results}
    expect(len(digests) == 1, results)
    return digests.pop(), time.monotonic() - begin


def lossy(lab):
    """Every link into the switch loses one packet in a hundred. On the links out of it packet sockets would see what is lost there."""
    stack = contextlib.ExitStack()
    for host in HOSTS:
        stack.enter_context(drop(lab, host, "s0", 1))
    return stack


@contextlib.contextmanager
def outage(lab, daemons, ranks):
    """The link of h1 is down for some seconds, from the first iteration on."""
    expect(ranks[0].stdout.readline().startswith("iteration 0"), "the training does not run")
    device = daemons.device("h1")
    lab.run("h1", "ip", "link", "set", device, "down")
    time.sleep(OUTAGE)
    expect(all(rank.poll() is None for rank in ranks), "nothing waited for the link")
    lab.run("h1", "ip", "link", "set", device, "up")
    yield


def main():
    require_namespaces()
    with Lab(hosts=3, speed="500 Mbit/s") as lab:
        with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "tcp"}) as daemons:
            digest, seconds = result(start(daemons, "tcp"))
        print(f"over TCP: {digest[:16]} in {seconds:.1f} s", flush=True)
        with Daemons(3, lab=lab, dpdk=HOSTS, settings={"transport": "dpdk", "detection": DETECTION}) as daemons:
            ways = {"over DPDK": lambda ranks: contextlib.nullcontext(), "with 1 % loss": lambda ranks: lossy(lab), "with h1's link down for 3 s": lambda ranks: outage(lab, daemons, ranks)}
            for index, (way, fault) in enumerate(ways.items()):
                ranks = start(daemons, f"way{index}")
                with fault(ranks):
                    got, seconds = result(ranks)
                print(f"{way}: {got[:16]} in {seconds:.1f} s", flush=True)
                expect(got == digest, f"other parameters {way} than over TCP")
                expect(chosen(daemons, "h0") == {"h1": "dpdk", "h2": "dpdk"}, chosen(daemons, "h0"))


if __name__ == "__main__":
    sys.exit(main())
