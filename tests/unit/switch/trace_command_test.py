#!/usr/bin/env python3
"""`tensorlane-switch trace` and `lint --fabric`: rendered configuration does what the fabric file asks, in every language that is both
rendered and read; changed, it is told where it does not.
usage: trace_command_test.py TENSORLANE_SWITCH"""

import json
import pathlib
import subprocess
import sys
import tempfile

SWITCH = sys.argv[1]
FILES = {"sonic": "config_db.json", "eos": "config.txt", "nxos": "config.txt", "junos": "junos.set", "cumulus": "nvue.sh"}
# Of the greenfield preset and the policy's own shares: DSCP -> PFC priority, strict, percent of the port at most, ECN.
CLASSES = {27: (3, False, None, True), 43: (5, True, 40, True), 51: (None, True, 5, False), 0: (None, False, None, False), 13: (None, False, None, False)}
PAIRS = (("h0", "h1"), ("h0", "h7"), ("h7", "h2"))


def run(*arguments):
    return subprocess.run([SWITCH, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def make(folder, nos):
    example = run("example", "clos", "--spines", 2, "--leaves", 2, "--hosts", 8, "--nos", nos)
    (folder / "fabric.yaml").write_text(example.stdout)
    done = run("render", "--fabric", folder / "fabric.yaml", "--target", nos, "--out", folder / "configs")
    assert done.returncode == 0, done


def trace(folder, source, target, dscp, *more):
    done = run("trace", "--configs", folder / "configs", "--fabric", folder / "fabric.yaml", "--from", source, "--to", target, "--dscp", dscp, "--json", *more)
    assert done.returncode in (0, 1), done
    result = json.loads(done.stdout)
    assert done.returncode == any(hop["differences"] for way in ("forward", "backward") for hop in result[way])
    return result


def check_hop(hop, dscp):
    priority, strict, most, marks = CLASSES[dscp]
    assert hop["pfc"] is (priority is not None) and hop["pfc_priority"] == priority and hop["classified_by"] == "dscp", (dscp, hop)
    assert hop["scheduling"]["strict"] is strict and bool(hop["ecn"]) is marks and not hop["differences"], (dscp, hop)
    shaper = hop["shaper"]
    assert (shaper is None) == (most is None), (dscp, hop)
    if shaper:
        assert most == shaper["percent"] or shaper["bits_per_second"] == most * 4_000_000_000, (dscp, hop)


def check_rendered(folder, nos):
    make(folder, nos)
    for source, target in PAIRS:
        queues = {}
        for dscp in CLASSES:
            result = trace(folder, source, target, dscp)
            forward, backward = result["forward"], result["backward"]
            same_leaf = target == "h1"
            assert [hop["device"] for hop in forward] == ([forward[0]["device"]] if same_leaf else [forward[0]["device"], "spine0", forward[2]["device"]]), forward
            assert [(hop["device"], hop["in"], hop["out"]) for hop in forward] == [(hop["device"], hop["out"], hop["in"]) for hop in reversed(backward)]
            for hop in forward + backward:
                check_hop(hop, dscp)
            queues[dscp] = forward[0]["queue"]
        assert queues[0] == queues[13] and len(set(queues.values())) == 4 and queues[51] > queues[43] > queues[27], queues
    done = run("lint", folder / "configs", "--fabric", folder / "fabric.yaml", "--json")
    assert json.loads(done.stdout) == {"findings": [], "unparsed": [], "unchecked": []}, done


def changed(folder, nos, old, new):
    """leaf0 with a change: what lint says of it against the file, and how many hops of the traces say that they differ."""
    path = folder / "configs" / "leaf0" / FILES[nos]
    text = path.read_text()
    assert old in text, old
    path.write_text(text.replace(old, new))
    done = run("lint", path, "--fabric", folder / "fabric.yaml", "--json")
    hops = [hop for dscp in CLASSES for way in ("forward", "backward") for hop in trace(folder, "h0", "h7", dscp)[way] if hop["differences"]]
    path.write_text(text)
    assert {hop["device"] for hop in hops} <= {"leaf0"}, hops
    return {finding["rule"] for finding in json.loads(done.stdout)["findings"]}, len(hops)


def check_changes(folder):
    make(folder, "eos")
    for old, new, rule in (
        ("qos map dscp 27 to traffic-class 3", "qos map dscp 27 to traffic-class 5", "L1"),
        ("priority-flow-control priority 5 no-drop", "priority-flow-control priority 6 no-drop", "L3"),
        ("shape rate 40 percent", "shape rate 90 percent", "L4"),
        ("maximum-threshold 1600000 bytes", "maximum-threshold 900000 bytes", "L5"),
        ("mtu 92", "mtu 42", "L7"),
    ):
        rules, hops = changed(folder, "eos", old, new)
        assert rule in rules and (hops > 0 or rule == "L7"), (rule, rules, hops)
    make(folder, "sonic")
    for old, new, rule in (
        ('"27": "3"', '"27": "5"', "L1"),
        ('"43": "5"', '"43": "0"', "L3"),
        ('"type": "STRICT"', '"type": "DWRR"', "L4"),
        ('"ecn": "ecn_all"', '"ecn": "ecn_none"', "L5"),
    ):
        rules, hops = changed(folder, "sonic", old, new)
        assert rule in rules and hops > 0, (rule, rules, hops)


def check_running(folder):
    """A file beside others that is called like its switch, and where it is not."""
    make(folder, "eos")
    (folder / "configs" / "leaf0" / "config.txt").rename(folder / "configs" / "leaf0.txt")
    check_hop(trace(folder, "h0", "h7", 43)["forward"][0], 43)
    (folder / "configs" / "leaf0.txt").unlink()
    refusals = [
        (("--from", "h0", "--to", "h7", "--dscp", 43), "no configuration of 'leaf0'"),
        (("--from", "h0", "--to", "h99", "--dscp", 43), "no host 'h99'"),
        (("--from", "h0", "--to", "h0", "--dscp", 43), "one host"),
        (("--from", "h0", "--to", "h7", "--dscp", 64), "dscp"),
    ]
    for arguments, words in refusals:
        done = run("trace", "--configs", folder / "configs", "--fabric", folder / "fabric.yaml", *arguments)
        assert done.returncode == 2 and words in done.stderr and not done.stdout, (words, done)
    done = run("lint", folder / "configs" / "spine0" / "config.txt", "--fabric", folder / "fabric.yaml", "--device", "spine9")
    assert done.returncode == 2 and "--device" in done.stderr, done


def main():
    for nos in FILES:
        with tempfile.TemporaryDirectory() as folder:
            check_rendered(pathlib.Path(folder), nos)
    for check in (check_changes, check_running):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


main()
