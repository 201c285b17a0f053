"""The policy changes in place: quickly, without losing connections, with the same bytes of buffer."""

import re
import subprocess
import sys
import tempfile
import time

from lab_harness import BULK, MIB, TENSORLANE, Lab, require_namespaces, tensorlane

STATED = 512 << 10
FIFO_LEAF = 0xF0


def buffers(lab, node, device):
    """Bytes that the queues of a port take: under strict all but one leaf, under fifo that one."""
    text = lab.run(node, "tc", "qdisc", "show", "dev", device)
    limits = {}
    for leaf, limit in re.findall(r"qdisc bfifo (\w+): parent \S+ limit (\w+)", text):
        number, unit = re.fullmatch(r"(\d+)(b|Kb|Mb)", limit).groups()
        limits[int(leaf, 16)] = int(number) << {"b": 0, "Kb": 10, "Mb": 20}[unit]
    fifo = limits.pop(FIFO_LEAF)
    assert len(limits) == 4, limits  # control, urgent, bulk, everything else
    return fifo, sum(limits.values())


def known_to_the_switch_tool(lab):
    """As `tensorlane-switch apply --help` has it: the lab's fabric file names the ports that are there. (The lab's own queues it does not replace.)"""
    at = [word for node in ("s0", "h0") for word in ("--at", f"{node}=tl-{lab.name}-{node}")]
    with tempfile.TemporaryDirectory() as state:
        done = subprocess.run([TENSORLANE + "-switch", "apply", "--state", state, "--fabric", lab.about["fabric_file"], "--no-ecn", *at], capture_output=True, text=True, timeout=60)
    assert "port 'h0' of 's0' has queues" in done.stderr, done


def main():
    require_namespaces()
    with Lab(hosts=2, policy="strict") as lab:
        known_to_the_switch_tool(lab)
        for node, device in (("s0", "h1"), ("h0", "eth0")):
            assert buffers(lab, node, device) == (STATED, STATED), (node, device)
        lab.start_sink("h1", [BULK])
        flood = lab.start_flood("h0", "h1", BULK)
        time.sleep(0.3)
        for policy, used, unused in (("fifo", FIFO_LEAF, 0x12), ("strict", 0x12, FIFO_LEAF), ("strict", 0x12, FIFO_LEAF)):
            begin = time.monotonic()
            lab.policy(policy)
            took = time.monotonic() - begin
            print(f"{policy} in {took * 1e3:.0f} ms", flush=True)
            assert took < 0.5, took
            time.sleep(0.1)  # what the other queues held
            before = lab.queue_bytes("s0", "h1")
            time.sleep(0.4)
            after = lab.queue_bytes("s0", "h1")
            assert after[used] - before[used] > 10 * MIB, (policy, before, after)  # 500 Mbit/s is 24 MiB in 0.4 s
            assert after[unused] == before[unused], (policy, before, after)
            assert flood.poll() is None, "the connection was lost"
            shown = tensorlane("lab", "show").stdout
            assert f"lab '{lab.name}': {policy} ports" in shown, shown


if __name__ == "__main__":
    sys.exit(main())
