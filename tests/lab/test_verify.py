"""`tensorlane verify --agent` in a routed lab: clean networks pass, and faults drawn from a seed are found where they are.

test_verify.py TENSORLANE [--runs N] [--seed S]: so many runs, of which every other one is clean."""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time

from lab_faults import Fault, add_table, drop, rewrite, swap
from lab_harness import BULK, CONTROL, TENSORLANE, URGENT, Lab, require_namespaces

HOSTS = ["h0", "h1", "h2", "h3"]
LEAF = {"h0": "leaf0", "h1": "leaf0", "h2": "leaf1", "h3": "leaf1"}
CLASSES = {CONTROL: "control", URGENT: "urgent", BULK: "bulk"}


def config(switches, links, speed):
    lines = ["hosts:"] + [f"  - {{name: {host}, addresses: {{tcp: 10.77.0.{i + 1}}}}}" for i, host in enumerate(HOSTS)]
    lines += ["switches:"] + [f"  - {{name: {name}, nos: linux}}" for name in switches]
    lines += ["links:"] + [f"  - {{from: {host}, to: {leaf}, speed: {speed}}}" for host, leaf in LEAF.items()]
    return "\n".join(lines + [f"  - {{from: {a}, to: {b}, speed: {speed}}}" for a, b in links]) + "\n"


def leaf_spine():
    return config(["leaf0", "leaf1", "spine0", "spine1"], [(leaf, spine) for leaf in ("leaf0", "leaf1") for spine in ("spine0", "spine1")], "500 Mbit/s")


def two_switches():
    return config(["leaf0", "leaf1"], [("leaf0", "leaf1")], "200 Mbit/s")


def verify(lab, *options, hosts=HOSTS, status=None, shell=None):
    """The report. The exit status is 0 where it passed."""
    shell = shell or f"ip netns exec tl-{lab.name}-{{host}}"
    done = subprocess.run([TENSORLANE, "verify", "--agent", ",".join(hosts), "--shell", shell,
                           "--fabric", lab.about["fabric_file"], "--json", *options], capture_output=True, text=True, timeout=100)
    assert done.returncode in (0, 1) and done.stdout, f"exit status {done.returncode}: {done.stderr}"
    report = json.loads(done.stdout)
    assert report["passed"] == (done.returncode == 0)
    assert status is None or done.returncode == status, json.dumps(report["findings"] + report["hosts"] + report["overtaking"], indent=1)
    return report


def override(lab, host, dscp):
    """The host's NIC gives all its traffic one DSCP."""
    return add_table(lab, host, "netdev", 'egress device "eth0" priority 0', [f"ip dscp set {dscp}", f"ip6 dscp set {dscp}"])


# Each draws a fault: the fault itself, where it must be found (nodes that the finding's place names, any of several), families, and the marks that become others (None: lost).

def one_way(lab, draw):
    leaf, old, new, family = draw.choice(["leaf0", "leaf1"]), draw.choice([URGENT, BULK]), draw.choice([0, 10]), draw.choice([4, 6])
    spine = draw.choice(["spine0", "spine1"])
    fault = rewrite(lab, leaf, old, new, family=family, arriving=spine if draw.random() < 0.5 else None, leaving=None)
    return fault, {leaf}, [family], {old: new}


def ipv6_one_direction(lab, draw):
    host = draw.choice(HOSTS)
    fault = rewrite(lab, LEAF[host], URGENT, 0, family=6, arriving=host)
    return fault, {LEAF[host]}, [6], {URGENT: 0}


def swapped(lab, draw):
    spine, leaf = draw.choice(["spine0", "spine1"]), draw.choice(["leaf0", "leaf1"])
    return swap(lab, spine, URGENT, BULK, leaving=leaf), {spine}, [4, 6], {URGENT: BULK, BULK: URGENT}


def bad_path(lab, draw):
    spine = draw.choice(["spine0", "spine1"])
    family = draw.choice([None, 4])
    return rewrite(lab, spine, BULK, 10, family=family, early=draw.random() < 0.5), {spine}, [4, 6] if family is None else [4], {BULK: 10}


def untrusted(lab, draw):
    host = draw.choice(HOSTS)
    return rewrite(lab, LEAF[host], None, 0, leaving=host), {LEAF[host]}, [4, 6], {URGENT: 0, BULK: 0, CONTROL: 0}


def nic(lab, draw):
    host = draw.choice(HOSTS)
    return override(lab, host, 26), {host}, [4, 6], {URGENT: 26, BULK: 26, CONTROL: 26}


def dropped(lab, draw):
    spine, leaf = draw.choice(["spine0", "spine1"]), draw.choice(["leaf0", "leaf1"])
    return drop(lab, spine, leaf, 100, family=4, dscp=URGENT), {spine, leaf}, [4], {URGENT: None}


FAULTS = [one_way, ipv6_one_direction, swapped, bad_path, untrusted, nic, dropped]


def check_found(report, nodes, families, marks):
    """Every finding is at the place of the fault, and together they tell its marks in all its families."""
    told = set()
    for finding in report["findings"]:
        place = finding["place"]
        assert nodes & {place["node"], place.get("peer")} and place["kind"] != "gap", finding
        for change in finding["changes"]:
            told.add((change["family"], change["from"], change["to"]))
    wanted = {(family, old, new) for family in families for old, new in marks.items()}
    assert wanted == told, (wanted, told)
    assert all(finding["command"] for finding in report["findings"])


def check_random(lab, runs, seed):
    draw = random.Random(seed)
    missed = false_alarms = 0
    for run in range(runs):
        began = time.monotonic()
        if run % 2 == 0:
            report = verify(lab)
            false_alarms += not report["passed"]
            what = "clean"
        else:
            make = FAULTS[run // 2 % len(FAULTS)] if run // 2 < len(FAULTS) else draw.choice(FAULTS)
            fault, nodes, families, marks = make(lab, draw)
            with fault:
                report = verify(lab)
            what = f"{make.__name__} at {sorted(nodes)}"
            try:
                check_found(report, nodes, families, marks)
            except AssertionError as wrong:
                missed += 1
                print(f"  {what}: {wrong}", flush=True)
        if not report["passed"] and what == "clean":
            print(json.dumps(report["findings"] + report["hosts"], indent=1), [v for v in report["marks"] if v["dscp"] != "passed"][:5])
        print(f"run {run}: {what}: {len(report['findings'])} findings, {time.monotonic() - began:.1f} s", flush=True)
    bound = 1 - 0.05 ** (1 / max(1, runs // 2))
    print(f"{runs} runs, seed {seed}: {missed} missed, {false_alarms} false alarms; 0 of {runs // 2} would bound either below {bound:.1%} (95%)")
    assert missed == 0 and false_alarms == 0


def check_bounds(lab):
    """12 pairs, 3 classes, both families, in time and with few bytes."""
    report = verify(lab, status=0)
    assert len(report["marks"]) == 4 * 3 * 3 * 2 and all(v["dscp"] == "passed" for v in report["marks"])
    assert report["seconds"] < 60
    assert report["probe_bytes"] / len(HOSTS) * 8 / max(report["seconds"], 0.5) < 0.05 * 500e6  # of a host's link
    across = [path for path in report["paths"] if LEAF[path["from"]] != LEAF[path["to"]]]
    assert all(path["known"] == 2 for path in across) and sum(path["seen"] for path in across) >= 1.5 * len(across), across
    assert all(v["outcome"] == "untested" for v in report["lossless"]) and not report["overtaking"]
    ring = verify(lab, "--pairs", "ring", "--classes", "urgent", "--family", "6", status=0)
    assert len(ring["marks"]) == 8


def check_without_privilege(lab):
    """Without CAP_NET_RAW who rewrites is deduced from pairs."""
    shell = f"ip netns exec tl-{lab.name}-{{host}} setpriv --reuid 65534 --regid 65534 --clear-groups"
    assert verify(lab, shell=shell, status=0)["notes"][0].startswith("h0 may not read what hops quote")
    with rewrite(lab, "leaf1", URGENT, 0, leaving="h3"):
        report = verify(lab, shell=shell, status=1)
    assert [(f["place"]["node"], f["place"].get("peer")) for f in report["findings"]] == [("leaf1", "h3")], report["findings"]


def check_refusals(lab):
    """A host that cannot be reached, and one that talks rubbish or nothing, are named; the others are tested."""
    for case, says in (("echo ssh: connect to host h3 port 22: Connection refused >&2; exit 255", "Connection refused"),
                       ("echo tensorlane-runs; while read l; do echo nonsense; done", "no answer of tensorlane-probe"),
                       ("echo tensorlane-runs; while read l; do echo '{\"kind\": \"done\"}'; done", "does not say what it is"),
                       ("echo tensorlane-runs; exec sleep 100", "no answer in time")):
        with tempfile.NamedTemporaryFile("w", suffix=".sh") as file:
            file.write(f'h=$1; shift\nif [ "$h" = h3 ]; then {case}; exit; fi\nexec ip netns exec tl-{lab.name}-$h "$@"\n')
            file.flush()
            report = verify(lab, "--family", "4", "--classes", "urgent", "--patience", "2", shell=f"sh {file.name} {{host}}", status=1)
        assert [host["name"] for host in report["hosts"] if host["outcome"] == "untested"] == ["h3"], report["hosts"]
        assert says in next(host["text"] for host in report["hosts"] if host["name"] == "h3"), report["hosts"]
        assert len(report["marks"]) == 6 and all(v["dscp"] == "passed" for v in report["marks"])
        assert not report["findings"]


def overtaking(report):
    return {(v["node"], v["peer"]): v["outcome"] for v in report["overtaking"]}


def check_load():
    """Strict ports pass under load; one port that is FIFO is named."""
    options = ("--load", "--classes", "urgent,bulk", "--family", "4")
    with Lab(routed=True, config=two_switches(), tag="l") as lab:
        report = verify(lab, *options, hosts=["h0", "h1", "h2"], status=0)
        tested = overtaking(report)
        assert tested[("leaf0", "leaf1")] == "passed" and set(tested.values()) == {"passed"}, report["overtaking"]
        lab.policy("fifo", "leaf0:leaf1")
        report = verify(lab, *options, hosts=["h0", "h1", "h2"], status=1)
        assert overtaking(report)[("leaf0", "leaf1")] == "failed", report["overtaking"]
        assert [(f["place"]["node"], f["place"]["peer"]) for f in report["findings"]] == [("leaf0", "leaf1")], report["findings"]
        assert "tc -s class show dev leaf1" == report["findings"][0]["command"], report["findings"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("tensorlane")
    parser.add_argument("--runs", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    require_namespaces()
    with Lab(routed=True, config=leaf_spine()) as lab:
        check_bounds(lab)
        check_random(lab, arguments.runs, arguments.seed)
        check_without_privilege(lab)
        check_refusals(lab)
    check_load()


if __name__ == "__main__":
    main()
