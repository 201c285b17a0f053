#!/usr/bin/env python3
"""`tensorlane-switch diff`: against its own rendering nothing; with N injected changes exactly those, with their class and ports. usage: test_diff.py TENSORLANE_SWITCH"""

import json
import random

import fabrics
import oracle
from checks import all_of, difference, run

SEEDS = 8


def schedulers(db, name):
    return [key for key, row in db["QUEUE"].items() if row.get("scheduler") == name]


def inject(pick, db, wanted):
    """Changes one thing in each of some tables; what diff is to say of it: (what, running, wanted, class, ports)."""
    ports = sorted(port for port in db["PORT_QOS_MAP"] if port != "global")
    names = {queue: cls["name"] for queue, cls in wanted.classes.items()}
    port = pick.choice([port for port in ports if "pfc_enable" in db["PORT_QOS_MAP"][port]] or ports)
    other = lambda queue: pick.choice([q for q in names if q != queue])
    name = db["PORT_QOS_MAP"][port]["dscp_to_tc_map"]
    expected = []
    bound = tuple(p for p in db["PORT"] if db["PORT_QOS_MAP"].get(p, {}).get("dscp_to_tc_map") == name)
    for dscp in pick.sample(range(64), pick.randint(1, 3)):
        right = wanted.queue_of_dscp.get(dscp, 0)
        wrong = other(right)
        db["DSCP_TO_TC_MAP"][name][str(dscp)] = str(wrong)
        expected.append((f"DSCP {dscp}", str(wrong), str(right), names[right], bound))
    row = db["PORT"][port]
    expected.append(("MTU", "1500 bytes", f"{row['mtu']} bytes", "", (port,)))
    row["mtu"] = "1500"
    if db["PORT_QOS_MAP"][port].get("pfc_enable"):
        lossless = [int(p) for p in db["PORT_QOS_MAP"][port]["pfc_enable"].split(",")]
        gone = pick.choice(lossless)
        db["PORT_QOS_MAP"][port]["pfc_enable"] = ",".join(str(p) for p in lossless if p != gone)
        expected.append((f"PFC of priority {gone}", "off", "on", names[gone], (port,)))
    queue = pick.choice([q for q, cls in wanted.classes.items() if cls.get("data")])
    if f"{port}|{queue}" in db["QUEUE"] and "wred_profile" in db["QUEUE"][f"{port}|{queue}"]:
        profile = db["WRED_PROFILE"][db["QUEUE"][f"{port}|{queue}"].pop("wred_profile")]
        text = f"marks between {profile['green_min_threshold']} and {profile['green_max_threshold']} bytes, {profile['green_drop_probability']} %"
        expected.append((f"ECN of queue {queue}", "none", text, names[queue], (port,)))
    poll = db.get("PFC_WD", {}).get("GLOBAL")
    if poll:
        expected.append(("watchdog poll", "123 ms", f"{poll['POLL_INTERVAL']} ms", "", ()))
        poll["POLL_INTERVAL"] = "123"
    return expected


def check_injected(folder):
    for seed in range(SEEDS):
        text, pick = fabrics.fabric_text(seed), random.Random(seed)
        fabric, out = folder / "fabric.yaml", folder / f"out{seed}"
        fabric.write_text(text)
        assert run("render", "--fabric", fabric, "--target", "sonic", "--out", out, "--buffer-model", pick.choice(["dynamic", "traditional"])).returncode == 0
        assert difference(fabric, out) == [], (seed, "against itself")
        device = pick.choice(sorted(path.name for path in out.iterdir()))
        path = out / device / "config_db.json"
        db = json.loads(path.read_text())
        expected = [(device, *change) for change in inject(pick, db, oracle.Wanted(text))]
        path.write_text(json.dumps(db))
        found = difference(fabric, out)
        assert sorted(found) == sorted(expected), (seed, sorted(found), sorted(expected))
        assert sorted(difference(fabric, path)) == sorted(expected), "the file alone"


def check_shared(folder):
    """A scheduler that control and CNP share, a port that is not there, and a switch of which nothing is known."""
    fabric, out = folder / "fabric.yaml", folder / "out"
    fabric.write_text(run("example", "clos", "--spines", 1, "--leaves", 1, "--hosts", 2, "--nos", "sonic").stdout)
    assert run("render", "--fabric", fabric, "--target", "sonic", "--out", out).returncode == 0
    path = out / "leaf0/config_db.json"
    db = json.loads(path.read_text())
    name = db["QUEUE"][next(key for key in db["QUEUE"] if key.endswith("|5"))]["scheduler"]
    db["SCHEDULER"][name]["pir"] = str(int(db["SCHEDULER"][name]["pir"]) // 2)
    assert all(key.endswith("|5") for key in schedulers(db, name))
    path.write_text(json.dumps(db))
    (what,) = difference(fabric, out)
    assert what[1] == "scheduling of queue 5" and what[4] == "urgent" and len(what[5]) == len(schedulers(db, name)), what
    text = run("diff", "--fabric", fabric, "--running", out)
    assert text.returncode == 1 and "scheduling of queue 5 ('urgent')" in text.stdout and "1 differences" in text.stdout, text
    (out / "spine0/config_db.json").unlink()
    assert [change[:3] for change in difference(fabric, out)][1] == ("spine0", "configuration", "none")


def check_refusals(folder):
    fabric = folder / "fabric.yaml"
    fabric.write_text(run("example", "clos", "--spines", 1, "--leaves", 1, "--hosts", 2, "--nos", "sonic").stdout)
    (folder / "bad.json").write_text("[")
    (folder / "empty").mkdir()
    (folder / "stranger.json").write_text(json.dumps({"DEVICE_METADATA": {"localhost": {"hostname": "s9"}}, "PORT": {}}))
    for running, text in (("bad.json", "bad.json"), ("empty", "no running configuration"), ("stranger.json", "no switch or host 's9'"), ("none.json", "none.json")):
        done = run("diff", "--fabric", fabric, "--running", folder / running)
        assert done.returncode == 2 and text in done.stderr and not done.stdout, (running, done)


all_of(check_injected, check_shared, check_refusals)
