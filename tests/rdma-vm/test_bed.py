"""The bed itself, by perftest's tools: that it starts in time, commands and files, RDMA between hosts and its tags on the wire, and that nothing is left of it."""

import collections
import itertools
import json
import os
import signal
import subprocess
import sys
import time

from bed import ACKNOWLEDGE, CLEAN_UP_LIMIT, DATAGRAM, ECT0, WRITES, Bed, Failed, require_bed, traces, wait_for_no_traces
from lab_harness import BULK, CONTROL, URGENT, tensorlane

VLAN = 100
PCP = {CONTROL: 6, URGENT: 5, BULK: 3}  # greenfield, common/fabric/README.md
START_LIMIT = 30  # seconds for three hosts, where the machine has little else to do
TIMEOUT_2S = ["-u", "19"]  # of a queue pair: longer than any queue here, so that waiting is no loss
UNTAGGED_GID, VLAN_GID = "1", "2"
ports = itertools.count(18515)


class Writer:
    """ib_write_bw from a host to another, its control connection in the urgent class so that it gets through whatever is going on."""

    def __init__(self, bed, source, target, dscp, *options, gid=VLAN_GID):
        self.bed = bed
        port = next(ports)
        common = ["ib_write_bw", "-d", "rxe0", "-F", "-x", gid, "-p", str(port), "-s", "65536", f"--tclass={dscp << 2 | ECT0}",
                  *TIMEOUT_2S, *options]
        self.server = bed.start(target, *common)
        bed.wait_for_listener(target, port)
        self.client = bed.start(source, *common, bed.address(target))

    def wait(self, timeout=60):
        report = self.bed.finish(self.client, timeout)
        self.bed.finish(self.server)
        return report


def expect_failure(run, text):
    try:
        run()
    except Failed as failure:
        assert text in str(failure), failure
    else:
        raise AssertionError(f"no failure with {text!r}")


def test_commands(bed):
    done = subprocess.run(bed.command("h1", "sh", "-c", 'echo "out $1"; echo err >&2; exit 7', "-", "it's $HOME"), capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (7, "out it's $HOME\n", "err\n"), done
    assert bed.run("h2", "hostname").strip() == "h2"
    # Everything arrives, in order.
    numbers = "".join(f"{i}\n" for i in range(1, 200_001))
    assert bed.run("h0", "seq", "200000") == numbers
    # As it is written.
    child = bed.start("h0", "sh", "-c", "echo first; sleep 600")
    assert child.stdout.readline() == "first\n"
    child.terminate()
    assert child.wait(timeout=10) == 128 + 15
    # Beside each other.
    begin = time.monotonic()
    for child in [bed.start("h0", "sleep", "2") for _ in range(4)]:
        bed.finish(child)
    assert time.monotonic() - begin < 6
    done = subprocess.run(bed.command("h0", "no-such-program"), capture_output=True, text=True)
    assert done.stderr == "tensorlane: error: cannot run 'no-such-program': No such file or directory: install it or correct PATH\n", done


def test_time_limits(bed):
    expect_failure(lambda: bed.run("h0", "sleep", "600", timeout=1), "took longer than 1 s")
    deaf = bed.start("h0", "sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 0.2; done")
    assert deaf.stdout.readline() == "deaf\n"
    deaf.terminate()
    time.sleep(0.5)
    assert deaf.poll() is None, "it has 10 seconds"
    deaf.terminate()
    assert deaf.wait(timeout=10) == 128 + 9
    assert bed.run("h0", "sh", "-c", "pgrep sleep || echo none") == "none\n"


def test_files(bed):
    with open(f"{bed.shared}/from-here", "w") as file:
        file.write("hello")
    assert bed.run("h0", "cat", f"{bed.shared}/from-here") == "hello"
    bed.run("h0", "sh", "-c", f"echo answer >{bed.shared}/from-h0")
    with open(f"{bed.shared}/from-h0") as file:
        assert file.read() == "answer\n"
    assert bed.run("h1", "cat", f"{bed.shared}/from-h0") == "answer\n"
    assert bed.run("h2", "cat", os.path.abspath(__file__)) == open(__file__).read()
    expect_failure(lambda: bed.run("h0", "touch", "/var/new"), "Read-only file system")


def test_a_second_bed_of_that_name_is_refused(bed):
    done = tensorlane(*bed.arguments, check=False)
    assert done.returncode == 1, done
    assert done.stderr == (f"tensorlane: error: lab '{bed.name}' is up already: {bed.shared}: take it down with "
                           f"`tensorlane lab down --name {bed.name}`, or give this one another --name\n"), done.stderr
    assert bed.run("h0", "echo", "alive") == "alive\n"
    shown = next(lab for lab in json.loads(tensorlane("lab", "show", "--json").stdout) if lab["name"] == bed.name)
    assert shown["guests"] == {"memory_mib": 512, "vlan": VLAN, "iommu": False}, shown


def check_tags(packets, dscp, vlan, pcp, source, target):
    """Data goes from source to target, acknowledgements back, all with the class's tags."""
    data, acknowledgements = [p for p in packets if p.opcode in WRITES], [p for p in packets if p.opcode == ACKNOWLEDGE]
    assert len(data) > 100 and len(acknowledgements) > 5, (len(data), len(acknowledgements))
    assert {(p.source, p.destination) for p in data} == {(source, target)}
    assert (target, source) in {(p.source, p.destination) for p in acknowledgements}
    assert {(p.dscp, p.ecn, p.vlan, p.pcp) for p in packets} == {(dscp, ECT0, vlan, pcp)}
    assert max(p.bytes for p in data) > 4096, "the path MTU is 4096"


def test_a_write_carries_its_dscp_both_ways(bed):
    with bed.capture() as capture:
        Writer(bed, "h0", "h1", URGENT, "-n", "20", gid=UNTAGGED_GID).wait()
    check_tags(capture.packets, URGENT, None, None, bed.address("h0"), bed.address("h1"))
    # Nothing is tagged that is not told to be.
    with bed.capture() as capture:
        Writer(bed, "h0", "h1", 0, "-n", "5", gid=UNTAGGED_GID).wait()
    assert collections.Counter(p.dscp for p in capture.packets).keys() == {0}, capture.packets[:5]


def test_each_class_has_its_pcp_on_the_vlan(bed):
    with bed.capture() as capture:
        writers = [Writer(bed, source, "h2", dscp, "-n", "20") for source, dscp in (("h0", BULK), ("h1", URGENT), ("h1", CONTROL))]
        for writer in writers:
            writer.wait()
    for source, dscp in (("h0", BULK), ("h1", URGENT), ("h1", CONTROL)):
        packets = [p for p in capture.packets if p.dscp == dscp]
        check_tags(packets, dscp, VLAN, PCP[dscp], bed.rdma_address(source), bed.rdma_address("h2"))


def test_connection_management(bed):
    """rdma_cm takes the class as a TOS; the passive side, told nothing, takes the client's."""
    port = next(ports)
    common = ["ib_write_bw", "-R", "-d", "rxe0", "-F", "-p", str(port), "-s", "65536", "-n", "20", *TIMEOUT_2S]
    with bed.capture() as capture:
        server = bed.start("h2", *common)
        time.sleep(2)  # rdma_cm listens where nothing shows it
        bed.run("h1", *common, f"--tos={URGENT << 2 | ECT0}", bed.rdma_address("h2"))
        bed.finish(server)
    packets = [p for p in capture.packets if p.dscp != 0]  # perftest's talk with itself has a connection of its own, in no class
    check_tags(packets, URGENT, VLAN, PCP[URGENT], bed.rdma_address("h1"), bed.rdma_address("h2"))
    assert any(p.opcode == DATAGRAM for p in packets), "the messages that connect have the tags, too"


def test_down_leaves_nothing(bed):
    """The last one: there is no bed afterwards."""
    assert len(traces(bed.name)) > 4 + 3, "this test sees a bed when there is one"
    running = bed.start("h0", "sleep", "600")
    gone = bed.start("h1", "sleep", "600")
    with open(f"{bed.shared}/guests/h1/pid") as file:
        os.kill(int(file.read()), signal.SIGKILL)
    _, said = gone.communicate(timeout=10)
    assert gone.returncode == 1 and said.startswith("tensorlane: error: the guest of host 'h1' is gone: "), said
    tensorlane("lab", "down", "--name", bed.name)
    wait_for_no_traces(bed.name, CLEAN_UP_LIMIT)
    assert running.wait(timeout=10) == 1, "a command ends with its host"
    tensorlane("lab", "down", "--name", bed.name)  # idempotent


def main():
    require_bed("ib_write_bw")
    begin = time.monotonic()
    with Bed(hosts=3, vlan=VLAN, speed="40 Mbit/s") as bed:
        took = time.monotonic() - begin
        print(f"up after {took:.1f} s", flush=True)
        cores, load = len(os.sched_getaffinity(0)), os.getloadavg()[0]
        assert took < START_LIMIT or load > 2 * cores, f"{took:.1f} s at a load of {load}"
        for name, test in list(globals().items()):
            if name.startswith("test_"):
                begin = time.monotonic()
                test(bed)
                print(f"ok {name} {time.monotonic() - begin:.1f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
