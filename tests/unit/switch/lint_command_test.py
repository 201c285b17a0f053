#!/usr/bin/env python3
"""`tensorlane-switch lint` on configurations of SONiC and of hosts: clean ones stay clean, and each mutation is found by its rule at its place.
usage: lint_command_test.py TENSORLANE_SWITCH"""

import copy
import json
import pathlib
import random
import subprocess
import sys
import tempfile

SWITCH = sys.argv[1]
PORTS = 6
CLEAN = {"findings": [], "unparsed": [], "unchecked": []}


def run(*arguments):
    return subprocess.run([SWITCH, "lint", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def identity(size):
    return {str(i): str(i) for i in range(size)}


def common(name, sku, model, lossless, dscps, lossless_pg, speed="100000"):
    """What both kinds of switch below share: `lossless` priorities, and where DSCPs other than those of class 0 go."""
    ports = [f"Ethernet{4 * i}" for i in range(PORTS)]
    wred = {"ecn": "ecn_all"}
    for colour in ("green", "yellow", "red"):
        wred |= {f"wred_{colour}_enable": "true", f"{colour}_min_threshold": "150000", f"{colour}_max_threshold": "1500000", f"{colour}_drop_probability": "5"}
    db = {
        "DEVICE_METADATA": {"localhost": {"hostname": name, "hwsku": sku, "buffer_model": model}},
        "PORT": {p: {"lanes": "0,1,2,3", "speed": speed, "mtu": "9216", "admin_status": "up"} for p in ports},
        "DSCP_TO_TC_MAP": {"AZURE": {str(d): str(dscps.get(d, 0)) for d in range(64)}},
        "TC_TO_QUEUE_MAP": {"AZURE": identity(8)},
        "TC_TO_PRIORITY_GROUP_MAP": {"AZURE": {str(tc): str(tc if tc in lossless else 0) for tc in range(8)}},
        "MAP_PFC_PRIORITY_TO_QUEUE": {"AZURE": identity(8)},
        "WRED_PROFILE": {"AZURE_LOSSLESS": wred},
        "PORT_QOS_MAP": {}, "QUEUE": {}, "BUFFER_PG": {}, "BUFFER_QUEUE": {},
        "CABLE_LENGTH": {"AZURE": {p: "40m" for p in ports}},
        "PFC_WD": {"GLOBAL": {"POLL_INTERVAL": "200"}},
        "LOOPBACK_INTERFACE": {"Loopback0": {}},
    }
    for port in ports:
        enabled = ",".join(map(str, lossless))
        db["PORT_QOS_MAP"][port] = {"dscp_to_tc_map": "AZURE", "tc_to_queue_map": "AZURE", "tc_to_pg_map": "AZURE", "pfc_to_queue_map": "AZURE",
                                    "pfc_enable": enabled, "pfcwd_sw_enable": enabled}
        for queue in lossless:
            db["QUEUE"][f"{port}|{queue}"] = {"scheduler": "scheduler.1", "wred_profile": "AZURE_LOSSLESS"}
            db["BUFFER_PG"][f"{port}|{queue}"] = {"profile": lossless_pg}
        db["BUFFER_PG"][f"{port}|0"] = {"profile": "ingress_lossy_profile"}
        for queue in range(8):
            db["BUFFER_QUEUE"][f"{port}|{queue}"] = {"profile": f"egress_{'lossless' if queue in lossless else 'lossy'}_profile"}
        db["PFC_WD"][port] = {"action": "drop", "detection_time": "200", "restoration_time": "400"}
    return db


EGRESS_POOLS = {"egress_lossless_pool": {"type": "egress", "mode": "dynamic", "size": "16000000"}, "egress_lossy_pool": {"type": "egress", "mode": "dynamic"}}
EGRESS_PROFILES = {"egress_lossless_profile": {"pool": "egress_lossless_pool", "size": "0", "dynamic_th": "7"},
                   "egress_lossy_profile": {"pool": "egress_lossy_pool", "size": "9216", "dynamic_th": "7"}}


def nvidia():
    """Two strict lossless classes, computed headroom."""
    db = common("leaf1", "ACS-MSN4700", "dynamic", (3, 5), {26: 3, 46: 5, 48: 6}, "NULL", speed="400000")
    db["SCHEDULER"] = {"scheduler.0": {"type": "DWRR", "weight": "1"}, "scheduler.1": {"type": "STRICT"}}
    for port in db["PORT"]:
        for queue in (0, 1, 2, 4, 7):
            db["QUEUE"][f"{port}|{queue}"] = {"scheduler": "scheduler.0"}
        db["QUEUE"][f"{port}|6"] = {"scheduler": "scheduler.1"}
    db["BUFFER_POOL"] = EGRESS_POOLS | {"ingress_lossless_pool": {"type": "ingress", "mode": "dynamic"}}
    db["BUFFER_PROFILE"] = EGRESS_PROFILES | {"ingress_lossy_profile": {"pool": "ingress_lossless_pool", "size": "0", "dynamic_th": "3"}}
    db = copy.deepcopy(db)
    return db


def broadcom():
    """As templates of SONiC write it: all queues weighted, traditional buffers with profiles made by the device, one global map."""
    profile = "pg_lossless_100000_40m_profile"
    db = common("spine1", "Force10-S6100", "traditional", (3, 4), {3: 3, 4: 4, 8: 0, 5: 2, 46: 5, 48: 6}, profile)
    db["SCHEDULER"] = {"scheduler.0": {"type": "DWRR", "weight": "14"}, "scheduler.1": {"type": "DWRR", "weight": "15"}}
    for port in db["PORT"]:
        for queue in (0, 1, 2, 5, 6):
            db["QUEUE"][f"{port}|{queue}"] = {"scheduler": "scheduler.0"}
    db["BUFFER_POOL"] = EGRESS_POOLS | {"ingress_lossless_pool": {"type": "ingress", "mode": "dynamic", "size": "33004032", "xoff": "196608"}}
    db["BUFFER_PROFILE"] = EGRESS_PROFILES | {"ingress_lossy_profile": {"pool": "ingress_lossless_pool", "size": "0", "static_th": "32599040"},
                            profile: {"pool": "ingress_lossless_pool", "size": "1248", "xon": "1248", "xon_offset": "2496", "xoff": "59696", "dynamic_th": "-1"}}
    db["PORT_QOS_MAP"]["global"] = {"dscp_to_tc_map": "AZURE"}
    return copy.deepcopy(db)


def put(*path_and_value):
    *path, value = path_and_value

    def change(db):
        for part in path[:-1]:
            db = db[part]
        db[path[-1]] = value
    return change


def drop(*path):
    def change(db):
        for part in path[:-1]:
            db = db[part]
        del db[path[-1]]
    return change


def on_all_ports(field, value):
    def change(db):
        for row in db["PORT_QOS_MAP"].values():
            row[field] = value
    return change


def mutations(port, dscp, lossless):
    """(rule, what its place must hold, change) for a port, a DSCP of the default class and a lossless priority of either switch above."""
    tc, wred, qos = str(lossless), "AZURE_LOSSLESS", ("PORT_QOS_MAP", port)
    both = [
        ("L1", f"DSCP_TO_TC_MAP|AZURE|{dscp}", drop("DSCP_TO_TC_MAP", "AZURE", str(dscp))),
        ("L2", f"TC_TO_PRIORITY_GROUP_MAP|AZURE|{tc}", put("TC_TO_PRIORITY_GROUP_MAP", "AZURE", tc, "0")),
        ("L2", f"TC_TO_QUEUE_MAP|AZURE|{tc}", put("TC_TO_QUEUE_MAP", "AZURE", tc, "1")),
        ("L2", f"MAP_PFC_PRIORITY_TO_QUEUE|AZURE|{tc}", put("MAP_PFC_PRIORITY_TO_QUEUE", "AZURE", tc, "1")),
        ("L2", "TC_TO_PRIORITY_GROUP_MAP|AZURE|1", put("TC_TO_PRIORITY_GROUP_MAP", "AZURE", "1", tc)),
        ("L2", "TC_TO_QUEUE_MAP|AZURE|0", put("TC_TO_QUEUE_MAP", "AZURE", "0", tc)),
        ("L3", f"PORT_QOS_MAP|{port}|pfc_enable", put(*qos, "pfc_enable", "")),
        ("L3", f"PORT_QOS_MAP|{port}|pfc_enable", drop(*qos, "pfc_enable")),
        ("L3", f"PORT_QOS_MAP|{port}|pfc_enable", put(*qos, "pfc_enable", "1")),
        ("L3", f"PORT_QOS_MAP|{port}|pfcwd_sw_enable", put(*qos, "pfcwd_sw_enable", tc)),
        ("L3", f"PORT_QOS_MAP|{port}|pfcwd_sw_enable", put(*qos, "pfcwd_sw_enable", "1,3,4,5")),
        ("L3", f"BUFFER_PG|{port}|{tc}", put("BUFFER_PG", f"{port}|{tc}", "profile", "ingress_lossy_profile")),
        ("L3", f"BUFFER_QUEUE|{port}|{tc}", put("BUFFER_QUEUE", f"{port}|{tc}", "profile", "egress_lossy_profile")),
        ("L3", f"BUFFER_QUEUE|{port}|0", put("BUFFER_QUEUE", f"{port}|0", "profile", "egress_lossless_profile")),
        ("L3", f"PORT_QOS_MAP|{port}|pfc_enable", drop("BUFFER_QUEUE", f"{port}|{tc}")),
        ("L3", f"PORT_QOS_MAP|{port}|pfc_enable", drop("BUFFER_PG", f"{port}|{tc}")),
        ("L5", f"WRED_PROFILE|{wred}", put("WRED_PROFILE", wred, "green_min_threshold", "1500001")),
        ("L5", f"WRED_PROFILE|{wred}", put("WRED_PROFILE", wred, "red_min_threshold", "9500001")),
        ("L5", f"WRED_PROFILE|{wred}", put("WRED_PROFILE", wred, "green_max_threshold", "2147483648")),
        ("L5", f"WRED_PROFILE|{wred}", put("WRED_PROFILE", wred, "green_drop_probability", "0")),
        ("L5", f"WRED_PROFILE|{wred}|green_drop_probability", put("WRED_PROFILE", wred, "green_drop_probability", "101")),
        ("L5", f"WRED_PROFILE|{wred}|ecn", put("WRED_PROFILE", wred, "ecn", "true")),
        ("L5", f"WRED_PROFILE|{wred}", put("WRED_PROFILE", wred, "ecn", "ecn_none")),
        ("L5", f"QUEUE|{port}|{tc}", drop("QUEUE", f"{port}|{tc}", "wred_profile")),
        ("L6", f"CABLE_LENGTH|AZURE|{port}", put("CABLE_LENGTH", "AZURE", port, "40")),
        ("L6", f"CABLE_LENGTH|AZURE|{port}", put("CABLE_LENGTH", "AZURE", port, "0m")),
        ("L7", f"PORT|{port}|mtu", put("PORT", port, "mtu", "1500")),
        ("L7", f"PORT|{port}|mtu", put("PORT", port, "mtu", "9000")),
        ("L8", f"PFC_WD|{port}", put("PFC_WD", port, "detection_time", "100")),
        ("L8", f"PFC_WD|{port}", put("PFC_WD", port, "restoration_time", "100")),
        ("L8", f"PFC_WD|{port}|action", put("PFC_WD", port, "action", "log")),
        ("L8", f"PORT_QOS_MAP|{port}", drop("PFC_WD", port)),
        ("L8", f"PORT_QOS_MAP|{port}|pfcwd_sw_enable", drop(*qos, "pfcwd_sw_enable")),
        ("L9", f"SCHEDULER|scheduler.1|priority", put("SCHEDULER", "scheduler.1", "priority", "3")),
        ("L9", f"SCHEDULER|scheduler.1|type", put("SCHEDULER", "scheduler.1", "type", "SP")),
        ("L9", f"SCHEDULER|scheduler.0|weight", put("SCHEDULER", "scheduler.0", "weight", 14)),
        ("L9", f"QUEUE|{port}|{tc}|scheduler", put("QUEUE", f"{port}|{tc}", "scheduler", "[SCHEDULER|scheduler.1]")),
        ("L9", f"QUEUE|{port}|{tc}|scheduler", put("QUEUE", f"{port}|{tc}", "scheduler", "scheduler.9")),
        ("L9", f"QUEUE|{port}|{tc}|wred_profile", put("QUEUE", f"{port}|{tc}", "wred_profile", "NONE")),
        ("L9", f"BUFFER_PG|{port}|{tc}|profile", put("BUFFER_PG", f"{port}|{tc}", "profile", "none")),
        ("L9", "BUFFER_PG|Ethernet99|3", put("BUFFER_PG", "Ethernet99|3", {"profile": "ingress_lossy_profile"})),
        ("L9", f"PORT_QOS_MAP|{port}|pfc_enable", put(*qos, "pfc_enable", "3, 5")),
        ("L9", f"PORT_QOS_MAP|{port}|pfc_enable", put(*qos, "pfc_enable", "3,8")),
        ("L9", f"PORT_QOS_MAP|{port}|tc_to_pg_map", put(*qos, "tc_to_pg_map", "AZURE2")),
        ("L9", "TC_TO_QUEUE_MAP|AZURE|2", put("TC_TO_QUEUE_MAP", "AZURE", "2", "9")),
        ("L9", "DSCP_TO_TC_MAP|AZURE|64", put("DSCP_TO_TC_MAP", "AZURE", "64", "0")),
        ("L9", f"DSCP_TO_TC_MAP|AZURE|{dscp}", put("DSCP_TO_TC_MAP", "AZURE", str(dscp), "16")),
        ("L9", "BUFFER_PROFILE|ingress_lossy_profile|dynamic_th", put("BUFFER_PROFILE", "ingress_lossy_profile", "dynamic_th", "9")),
        ("L9", f"QUEUE|{port}|{tc}|colour", put("QUEUE", f"{port}|{tc}", "colour", "green")),
        ("L12", f"PORT_QOS_MAP|{port}|pfc_enable", put(*qos, "pfc_enable", "3,4,5")),
        ("L13", "DSCP_TO_TC_MAP|AZURE|48", put("DSCP_TO_TC_MAP", "AZURE", "48", tc)),
    ]
    return both


def schema():
    """What the YANG models ask of rows beside single fields."""
    return [
        ("L9", "BUFFER_PG|Ethernet0|9", put("BUFFER_PG", "Ethernet0|9", {"profile": "ingress_lossy_profile"})),
        ("L9", "QUEUE|Ethernet0|16", put("QUEUE", "Ethernet0|16", {"scheduler": "scheduler.0"})),
        ("L9", "QUEUE|Ethernet0", put("QUEUE", "Ethernet0", {"scheduler": "scheduler.0"})),
        ("L9", "QUEUE|swp1|3", put("QUEUE", "swp1|3", {"scheduler": "scheduler.0"})),
        ("L9", "PORT_QOS_MAP|eth1", put("PORT_QOS_MAP", "eth1", {"dscp_to_tc_map": "AZURE"})),
        ("L9", "CABLE_LENGTH|AZURE|Ethernet99", put("CABLE_LENGTH", "AZURE", "Ethernet99", "5m")),
        ("L9", "BUFFER_PROFILE|ingress_lossy_profile", drop("BUFFER_PROFILE", "ingress_lossy_profile", "size")),
        ("L9", "BUFFER_PROFILE|ingress_lossy_profile", drop("BUFFER_PROFILE", "ingress_lossy_profile", "pool")),
        ("L9", "BUFFER_POOL|ingress_lossless_pool", drop("BUFFER_POOL", "ingress_lossless_pool", "type")),
        ("L9", "BUFFER_POOL|ingress_lossless_pool", drop("BUFFER_POOL", "ingress_lossless_pool", "mode")),
        ("L9", "BUFFER_POOL|egress_lossless_pool|percentage", put("BUFFER_POOL", "egress_lossless_pool", "percentage", "50")),
        ("L9", "SCHEDULER|scheduler.1|pir", put("SCHEDULER", "scheduler.1", {"type": "STRICT", "cir": "2000", "pir": "1000"})),
        ("L9", "SCHEDULER|scheduler.1|pbs", put("SCHEDULER", "scheduler.1", {"type": "STRICT", "cir": "1", "pir": "1", "cbs": "2000", "pbs": "1000"})),
        ("L9", "SCHEDULER|scheduler.1|pir", put("SCHEDULER", "scheduler.1", {"type": "STRICT", "pir": "1000"})),
    ]


def only_nvidia(port):
    return [
        ("L1", "DSCP_TO_TC_MAP|AZURE", put("DSCP_TO_TC_MAP", "AZURE", "26", "0")),
        ("L1", f"PORT_QOS_MAP|{port}|dscp_to_tc_map", drop("PORT_QOS_MAP", port, "dscp_to_tc_map")),
        ("L4", f"QUEUE|{port}|6", put("QUEUE", f"{port}|6", "scheduler", "scheduler.0")),
        ("L4", f"QUEUE|{port}|5", put("QUEUE", f"{port}|5", "scheduler", "scheduler.0")),
        ("L6", f"BUFFER_PG|{port}|3", drop("CABLE_LENGTH", "AZURE", port)),
        ("L6", f"BUFFER_PG|{port}|3", put("DEVICE_METADATA", "localhost", "buffer_model", "traditional")),
    ]


def only_broadcom(port):
    profile = "pg_lossless_100000_40m_profile"
    return [
        ("L6", f"BUFFER_PROFILE|{profile}|xoff", put("BUFFER_PROFILE", profile, "xoff", "29848")),
        ("L6", f"BUFFER_PG|{port}|3", put("PORT", port, "speed", "400000")),
        ("L6", f"BUFFER_PG|{port}|4", put("CABLE_LENGTH", "AZURE", port, "300m")),
        ("L5", "WRED_PROFILE|AZURE_LOSSLESS", put("WRED_PROFILE", "AZURE_LOSSLESS", "green_max_threshold", "33004032")),
        ("L6", "BUFFER_POOL|ingress_lossless_pool|size", put("BUFFER_PROFILE", profile, "size", "3300403")),
    ]


def lint(folder, db):
    path = folder / "config_db.json"
    path.write_text(json.dumps(db))
    done = run(path, "--json")
    assert done.returncode in (0, 1), done.stderr
    result = json.loads(done.stdout)
    assert set(result) == set(CLEAN)
    for finding in result["findings"]:
        assert set(finding) == {"rule", "severity", "device", "place", "message", "fix"} and all(finding.values()), finding
    assert done.returncode == any(f["severity"] != "note" for f in result["findings"])
    return result


def check_mutations(folder, make, more, lossless, seed):
    clean = lint(folder, make())
    assert clean == CLEAN, clean
    random.seed(seed)
    port = random.choice(sorted(make()["PORT"]))
    for rule, place, change in mutations(port, random.randrange(9, 26), random.choice(lossless)) + schema() + more(port):
        db = make()
        change(db)
        findings = lint(folder, db)["findings"]
        assert any(f["rule"] == rule and f["place"].startswith(place) for f in findings), (seed, rule, place, findings)


def check_global_map(folder):
    """Ports may leave their DSCPs to the map of the whole switch, which must be there then."""
    db = broadcom()
    for port in db["PORT"]:
        del db["PORT_QOS_MAP"][port]["dscp_to_tc_map"]
    assert lint(folder, db) == CLEAN
    del db["PORT_QOS_MAP"]["global"]
    findings = [f for f in lint(folder, db)["findings"] if f["rule"] == "L1"]
    assert {f["place"] for f in findings} == {f"PORT_QOS_MAP|{port}|dscp_to_tc_map" for port in db["PORT"]}, findings
    db = broadcom()
    for port in db["PORT"]:
        del db["PORT_QOS_MAP"][port]["pfcwd_sw_enable"]  # as before the field was there
    assert {f["severity"] for f in lint(folder, db)["findings"]} == {"note"}


def unchecked(result):
    return {u["rules"] for u in result["unchecked"]}


def check_without_ports(folder):
    """As the samples of sonic-buildimage, which have no PORT: rules look at the ports that other rows name, and what they cannot look at is said."""
    whole = broadcom()
    del whole["PORT"]
    result = lint(folder, whole)
    assert result["findings"] == result["unparsed"] == [] and unchecked(result) == {"L9", "L6", "L7"}, result
    whole["PORT_QOS_MAP"]["Ethernet8"]["pfc_enable"] = "3,5"
    found = {(f["rule"], f["place"]) for f in lint(folder, whole)["findings"]}
    assert {("L2", "TC_TO_PRIORITY_GROUP_MAP|AZURE|5"), ("L3", "PORT_QOS_MAP|Ethernet8|pfc_enable"), ("L3", "PORT_QOS_MAP|Ethernet8|pfcwd_sw_enable")} <= found, found
    for tables, rules in (
        (("PORT_QOS_MAP", "QUEUE", "SCHEDULER", "WRED_PROFILE"), {"L9", "L3 and L6", "L7"}),  # qos-*.json
        (("BUFFER_POOL", "BUFFER_PROFILE", "BUFFER_PG", "BUFFER_QUEUE", "CABLE_LENGTH"), {"L9", "L3 and L8", "L1 and L13", "L4", "L5", "L6", "L7"}),  # buffers-*.json
        (("QUEUE", "SCHEDULER", "WRED_PROFILE"), {"L9", "L2, L3 and L5 to L8", "L1 and L13"}),
        (("BUFFER_QUEUE", "BUFFER_PROFILE", "BUFFER_POOL"), {"L9", "L2, L3 and L5 to L8", "L1 and L13", "L4"}),
        (("DSCP_TO_TC_MAP",), {"L1 to L8"}),
    ):
        db = broadcom()
        part = {table: db[table] for table in tables} | {table: db[table] for table in db if table.endswith("_MAP") and table != "PORT_QOS_MAP"}
        result = lint(folder, part)
        assert not result["unparsed"] and unchecked(result) == rules, (tables, result)
        if "PORT_QOS_MAP" in part:
            part["PORT_QOS_MAP"]["Ethernet0"]["pfc_enable"] = "3,5"
            assert any(f["rule"] == "L2" for f in lint(folder, part)["findings"])
        text = run(folder / "config_db.json").stdout
        assert text.count("not checked: ") == len(rules) and text.endswith("some rules not checked\n"), text
    old = {"PORT_QOS_MAP": {"Ethernet0,Ethernet4": dict(broadcom()["PORT_QOS_MAP"]["Ethernet0"], pfc_enable="5")}} | {
        table: rows for table, rows in broadcom().items() if table.endswith("_MAP") and table != "PORT_QOS_MAP"}
    assert any(f["rule"] == "L2" for f in lint(folder, old)["findings"]), "a row of two ports"
    for db in ({}, {"localhost": broadcom(), "asic0": broadcom()}):  # of a switch with many ASICs
        assert unchecked(lint(folder, db)) == {"L1 to L8"}
    run(folder / "config_db.json", "--sarif", folder / "out.sarif")
    notes = json.loads((folder / "out.sarif").read_text())["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert [n["message"]["text"].split(":")[0] for n in notes] == ["not checked"], notes


def check_groups(folder):
    """What is said of many ports is one line of text, and one finding for each in JSON."""
    db = nvidia()
    for port in db["PORT"]:
        del db["PORT_QOS_MAP"][port]["dscp_to_tc_map"]
        del db["QUEUE"][f"{port}|3"]["wred_profile"]
    for dscp in range(30, 40):
        del db["DSCP_TO_TC_MAP"]["AZURE"][str(dscp)]
    db["PORT_QOS_MAP"]["Ethernet8"]["dscp_to_tc_map"] = "AZURE"
    findings = lint(folder, db)["findings"]
    assert len(findings) == PORTS - 1 + PORTS + 10, findings
    lines = run(folder / "config_db.json").stdout.splitlines()
    assert len(lines) == 4 and lines[-1].startswith("0 errors, 21 warnings"), lines
    for line, more in zip(sorted(lines[:3]), (9, PORTS - 2, PORTS - 1)):
        assert f" and {more} more places: " in line, (more, lines)


def check_pairs(folder):
    """Two switches that name each other, each in a folder of its own."""
    a, b = nvidia(), nvidia()
    b["DEVICE_METADATA"]["localhost"]["hostname"] = "spine1"
    a["DEVICE_NEIGHBOR"] = {"Ethernet4": {"name": "spine1", "port": "Ethernet8"}}
    b["DEVICE_NEIGHBOR"] = {"Ethernet8": {"name": "leaf1", "port": "Ethernet4"}}

    def lint_both(change):
        other = copy.deepcopy(b)
        change(other)
        for name, db in (("leaf1", a), ("spine1", other)):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / "config_db.json").write_text(json.dumps(db))
        return {(f["rule"], f["device"], f["place"]) for f in json.loads(run(folder, "--json").stdout)["findings"]}

    assert not lint_both(lambda db: None)
    assert ("L3", "leaf1", "PORT_QOS_MAP|Ethernet4|pfc_enable") in lint_both(on_all_ports("pfc_enable", "3"))
    assert ("L7", "spine1", "PORT|Ethernet8|mtu") in lint_both(put("PORT", "Ethernet8", "mtu", "9100"))
    assert ("L1", "spine1", "DSCP_TO_TC_MAP|AZURE|20") in lint_both(put("DSCP_TO_TC_MAP", "AZURE", "20", "5"))


MLNX_QOS = """DCBX mode: OS controlled
Priority trust state: dscp
dscp2prio mapping:
""" + "".join(f"\tprio:{p} dscp:{''.join(f'{d:02},' for d in range(8 * p + 7, 8 * p - 1, -1))}\n" for p in range(8)) + """default priority:
Receive buffer size (bytes): 20016,156096,0,0,0,0,0,0,
Cable len: 7
PFC configuration:
\tpriority    0   1   2   3   4   5   6   7
\tenabled     0   0   0   1   0   1   0   0
\tbuffer      0   0   0   1   0   1   0   0
""" + "".join(f"tc: {tc} ratelimit: unlimited, tsa: {'strict' if tc > 4 else 'ets, bw: 20%'}\n\t priority:  {tc}\n" for tc in range(8))


def check_hosts(folder):
    """The output of mlnx_qos, alone and beside a switch."""
    def rules(text, *others):
        (folder / "h0.txt").write_text(text)
        return {(f["rule"], f["device"], f["place"]) for f in json.loads(run(folder / "h0.txt", *others, "--json").stdout)["findings"]}

    switch = folder / "config_db.json"
    switch.write_text(json.dumps(nvidia()))
    assert not rules(MLNX_QOS) and not rules(MLNX_QOS, switch)
    for rule, place, old, new in (
        ("L9", "tsa: ets", "bw: 20%", "bw: 21%"),
        ("L9", "tc: 3", "tsa: ets, bw: 20%", "tsa: vendor"),
        ("L10", "Priority trust state", "state: dscp", "state: pcp"),
        ("L10", "DCBX mode", "OS controlled", "Firmware controlled"),
        ("L2", "PFC configuration", "buffer      0   0   0", "buffer      0   0   1"),
        ("L6", "Receive buffer size", "156096", "15609"),
        ("L2", "tc: 3", "priority:  2", "priority:  3\ntc: 3 ratelimit: unlimited, tsa: ets, bw: 20%\n\t priority: 2"),
    ):
        assert (rule, "h0", place) in rules(MLNX_QOS.replace(old, new)), (rule, place)
    one = MLNX_QOS.replace("enabled     0   0   0   1   0   1", "enabled     0   0   0   1   0   0").replace("buffer      0   0   0   1   0   1", "buffer      0   0   0   1   0   0")
    assert not rules(one) and ("L3", "h0", "PFC configuration") in rules(one, switch)
    moved = MLNX_QOS.replace("dscp:31,30,29,28,27,26,", "dscp:31,30,29,28,27,").replace("prio:0 dscp:", "prio:0 dscp:26,")
    assert ("L1", "h0", "dscp2prio|26") in rules(moved, switch) and not rules(moved)
    (folder / "h0.txt").write_text(MLNX_QOS + "of tomorrow: 1\n")
    assert json.loads(run(folder / "h0.txt", "--json").stdout)["unparsed"][0]["text"] == "of tomorrow: 1"


def check_defaults(folder):
    """What is allowed, and what vendors write."""
    db = nvidia()
    db["BUFFER_POOL"]["ingress_lossless_pool"]["percentage"] = "200"  # of a pool that is computed
    assert lint(folder, db) == CLEAN
    db["PORT_QOS_MAP"]["CPU"] = {"dscp_to_tc_map": "AZURE"}
    db["QUEUE"]["CPU|3"] = {"scheduler": "scheduler.1"}
    assert lint(folder, db) == CLEAN


def check_rendered(folder):
    """What `render` writes has no finding, and neither has the fabric file."""
    fabric, out = folder / "fabric.yaml", folder / "configs"
    for nos in ("sonic", "eos", "nxos", "junos", "cumulus"):
        example = [SWITCH, "example", "clos", "--spines", "2", "--leaves", "4", "--hosts", "16", "--nos", nos]
        fabric.write_text(subprocess.run(example, check=True, capture_output=True, text=True, timeout=60).stdout)
        subprocess.run([SWITCH, "render", "--fabric", fabric, "--target", nos, "--out", out], check=True, capture_output=True, timeout=60)
        assert len(list(out.iterdir())) == 6
        done = run(out, fabric, "--json")
        assert json.loads(done.stdout) == CLEAN and done.returncode == 0, done


def check_rendered_edge(folder):
    """Neither has a switch with a port that leads to nobody of the fabric, where PFC is off."""
    for nos, first, step in (("sonic", "Ethernet", 4), ("nxos", "Ethernet1/", 1)):
        port = lambda i: f"{first}{i * step + (nos == 'nxos')}"
        text = "hosts:\n" + "".join(f"  - {{name: h{i}, addresses: {{tcp: 10.0.0.{i + 1}}}}}\n" for i in range(4))
        ports = ", ".join(f"{{name: {port(i)}, speed: 100G, lanes: 4}}" for i in range(5))
        text += f"switches: [{{name: s0, nos: {nos}, platform: SN4700, ports: [{ports}]}}]\nlinks:\n"
        text += "".join(f"  - {{from: h{i}, from_port: eth0, to: s0, to_port: {port(i)}, speed: 100G, cable: 3 m, mtu: 9216}}\n" for i in range(4))
        (folder / "fabric.yaml").write_text(text)
        subprocess.run([SWITCH, "render", "--fabric", folder / "fabric.yaml", "--target", nos, "--out", folder / nos], check=True, capture_output=True, timeout=60)
        assert json.loads(run(folder / nos, "--json").stdout) == CLEAN, nos


def check_what_is_not_understood(folder):
    db = nvidia()
    db["QOS_OF_TOMORROW"] = {"row": {"field": "value"}}
    result = lint(folder, db)
    assert [u["place"] for u in result["unparsed"]] == ["QOS_OF_TOMORROW"], result
    db["QUEUE"]["Ethernet0|3\x1b[2J"] = {"scheduler": "scheduler.1"}
    (folder / "config_db.json").write_text(json.dumps(db))
    assert "\x1b" not in run(folder / "config_db.json").stdout


def check_input(folder):
    def refused(path, *words):
        done = run(path)
        assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, done
        assert str(path) in done.stderr and all(word in done.stderr for word in words), (words, done.stderr)

    path = folder / "bad.json"
    for text in ("", "hello", '{"PORT": {', "[" * 100000, '{"a":' * 100000, "\xff\xfe"):
        path.write_text(text)
        refused(path, "JSON")
    path.write_text('{\n"PORT": nothing\n}')
    refused(path, "bad.json:2")
    path.write_text("[]")
    refused(path, "object of tables")
    refused(folder / "absent.json", "cannot be read")
    with path.open("wb") as file:
        file.truncate(200 << 20)
    refused(path, "200 MiB")
    path.unlink()
    (folder / "empty").mkdir()
    refused(folder / "empty", "no file")
    for db in ({"PORT": []}, {"PORT_QOS_MAP": {"Ethernet0": "3"}}, {"QUEUE": {"Ethernet0|3": {"scheduler": {}}}}):
        lint(folder, db)
    (folder / "config_db.json").write_text('{"PFC_WD": {"GLOBAL": {"POLL_INTERVAL": "200"}, "GLOBAL": {"POLL_INTERVAL": "400"}}}')
    assert "twice" in run(folder / "config_db.json").stdout


def check_ten_thousand_ports(folder):
    """In about a second, and far below what `run` waits for; what grows with the square of the ports takes many minutes."""
    global PORTS
    few, PORTS = PORTS, 10000
    assert lint(folder, nvidia()) == CLEAN
    PORTS = few


def check_sarif(folder):
    db = nvidia()
    db["PORT"]["Ethernet0"]["mtu"] = "1500"
    lint(folder, db)
    run(folder / "config_db.json", "--sarif", folder / "out.sarif")
    sarif = json.loads((folder / "out.sarif").read_text())
    results = sarif["runs"][0]["results"]
    assert sarif["version"] == "2.1.0" and {r["ruleId"] for r in results} == {"L7"}
    assert results[0]["locations"][0]["logicalLocations"][0]["fullyQualifiedName"] == "leaf1/PORT|Ethernet0|mtu", results
    assert {"L7"} <= {rule["id"] for rule in sarif["runs"][0]["tool"]["driver"]["rules"]}


def main():
    for check in (check_pairs, check_global_map, check_without_ports, check_groups, check_defaults, check_hosts, check_rendered, check_rendered_edge, check_what_is_not_understood, check_input, check_ten_thousand_ports, check_sarif):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(3):
            check_mutations(pathlib.Path(folder), nvidia, only_nvidia, (3, 5), seed)
            check_mutations(pathlib.Path(folder), broadcom, only_broadcom, (3, 4), seed)


main()
