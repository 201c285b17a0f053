#!/usr/bin/env python3
"""`tensorlane-switch lint` on configurations as others write them, one language after the other: as they are, they have no finding; with
each line changed as below, the rule finds it at its place.
usage: lint_languages_test.py TENSORLANE_SWITCH"""

import json
import pathlib
import subprocess
import sys
import tempfile

SWITCH = sys.argv[1]
FOLDER = pathlib.Path(__file__).parent / "configurations"

# Of each configuration: (rule, what its place holds, the first text that is replaced, by what). "\n" ends a line that is dropped.
MUTATIONS = {
    "eos_leaf.txt": [
        ("L1", "dscp", "16 17 18", "16 18"),
        ("L1", "qos map dscp 26 48", "qos map dscp 48 to", "qos map dscp 26 48 to"),
        ("L1", "qos trust cos", "qos trust dscp", "qos trust cos"),
        ("L1", "no qos trust", "qos trust dscp", "no qos trust"),
        ("L1", "qos map dscp", "qos map dscp 24 25 26 27 28 29 30 31 to traffic-class 3", "qos map dscp 24 25 26 27 28 29 30 31 to traffic-class 4"),
        ("L2", "traffic-class 3 to tx-queue 2", "qos map traffic-class 3 to tx-queue 3", "qos map traffic-class 3 to tx-queue 2"),
        ("L2", "traffic-class 1 to tx-queue 3", "qos map traffic-class 6 to", "qos map traffic-class 1 to tx-queue 3\nqos map traffic-class 6 to"),
        ("L3", "priority 3 no-drop", "   priority-flow-control on\n", ""),
        ("L3", "priority-flow-control on", "   priority-flow-control priority 3 no-drop\n", ""),
        ("L3", "interface Ethernet2/1", "description gpu02 eth0\n   mtu 9214\n   no switchport\n   service-profile QOS-ROCE", "description gpu02 eth0\n   mtu 9214"),
        ("L3", "priority-flow-control off", "description gpu01 eth0", "priority-flow-control off"),
        ("L3", "flowcontrol receive on", "description gpu01 eth0", "flowcontrol receive on"),
        ("L3", "all off", "priority-flow-control pause watchdog action drop", "priority-flow-control all off"),
        ("L4", "tx-queue 6", "priority strict\n   !\n   tx-queue 3\n      no priority", "no priority\n   !\n   tx-queue 3\n      priority strict"),
        ("L5", "random-detect ecn", "minimum-threshold 256", "minimum-threshold 600"),
        ("L5", "random-detect ecn", "max-mark-probability 100", "max-mark-probability 0"),
        ("L5", "random-detect ecn", "max-mark-probability 100", "max-mark-probability 120"),
        ("L5", "tx-queue 3", "      random-detect ecn minimum-threshold 256 kbytes maximum-threshold 512 kbytes max-mark-probability 100 weight 0\n", ""),
        ("L5", "random-detect ecn", "512 kbytes", "512 bytes"),
        ("L7", "interface Ethernet1/1", "   mtu 9214\n", ""),
        ("L7", "interface Ethernet1/1 | mtu 1500", "mtu 9214", "mtu 1500"),
        ("L7", "interface Ethernet1/1 | mtu 9000", "mtu 9214", "mtu 9000"),
        ("L8", "polling-interval 0.2", "polling-interval 0.1", "polling-interval 0.2"),
        ("L8", "recovery-time", "recovery-time 0.5", "recovery-time 0.1"),
        ("L8", "timeout", "timeout 0.2", "timeout 70"),
        ("L8", "eos_leaf.txt", "   priority-flow-control pause watchdog\n", ""),
        ("L9", "service-profile QOS-ROCEV2", "service-profile QOS-ROCE", "service-profile QOS-ROCEV2"),
        ("L9", "tx-queue 1", "bandwidth percent 60", "bandwidth percent 70"),
        ("L9", "qos map dscp 64", "qos map dscp 48", "qos map dscp 64"),
        ("L9", "qos map cos", "qos map cos 3 to traffic-class 3", "qos map cos 3 to traffic-class 8"),
        ("L12", "priority-flow-control on", "priority-flow-control priority 3 no-drop", "priority-flow-control priority 3 no-drop\n   priority-flow-control priority 4 no-drop\n   priority-flow-control priority 5 no-drop"),
        ("L13", "qos map dscp 48", "qos map dscp 48 to traffic-class 6", "qos map dscp 48 to traffic-class 3"),
    ],
    "eos_spine.txt": [
        ("L2", "traffic-class 4 to tx-queue 1", "qos map cos 4", "qos map traffic-class 4 to tx-queue 1\nqos map cos 4"),
        ("L3", "interface Ethernet1", "priority-flow-control priority 4", "priority-flow-control priority 5"),
        ("L8", "interface Ethernet1 |", "recovery-time 0.2", "recovery-time 0.1"),
        ("L8", "interface Ethernet1 |", "   priority-flow-control pause watchdog port timer timeout 0.2 polling-interval auto recovery-time 0.2\n", ""),
        ("L5", "interface Ethernet1 | uc-tx-queue 4", "minimum-threshold 150", "minimum-threshold 1500"),
        ("L13", "qos map dscp 26 48", "qos map dscp 26 ", "qos map dscp 26 48 "),
    ],
    "nxos_leaf.txt": [
        ("L1", "match dscp", "match dscp 48", "match dscp 26,48"),
        ("L1", "QOS_CLASSIFICATION", "  match dscp 24-31\n", ""),
        ("L2", "pause pfc-cos 4", "pause pfc-cos 3", "pause pfc-cos 4\n  class type network-qos c-8q-nq4\n    pause pfc-cos 4"),
        ("L2", "pause pfc-cos 3", "class type network-qos c-8q-nq3", "class type network-qos c-8q-nq4"),
        ("L3", "interface Ethernet1/1", "  priority-flow-control mode on\n", ""),
        ("L3", "interface Ethernet1/1 | priority-flow-control mode off", "priority-flow-control mode on", "priority-flow-control mode off"),
        ("L3", "priority-flow-control mode on", "  service-policy type network-qos custom-8q-nq-policy\n", ""),
        ("L3", "flowcontrol send on", "description gpu01", "flowcontrol send on"),
        ("L4", "c-out-8q-q6", "c-out-8q-q7\n    priority level 1\n  class type queuing c-out-8q-q6\n    bandwidth remaining percent 0", "c-out-8q-q7\n    bandwidth remaining percent 0\n  class type queuing c-out-8q-q6\n    priority level 1"),
        ("L4", "c-out-8q-q7", "priority level 1", "priority level 2"),
        ("L5", "random-detect", "minimum-threshold 150", "minimum-threshold 3500"),
        ("L5", "random-detect", "weight 0 ecn", "weight 0"),
        ("L5", "random-detect", "drop-probability 7", "drop-probability 0"),
        ("L5", "c-out-8q-q3", "    random-detect minimum-threshold 150 kbytes maximum-threshold 3000 kbytes drop-probability 7 weight 0 ecn\n", ""),
        ("L7", "c-8q-nq3 | mtu 1500", "mtu 9216", "mtu 1500"),
        ("L7", "interface Ethernet1/1 | mtu 2240", "watch-dog-interval on\n  mtu 9216", "watch-dog-interval on\n  mtu 2240"),
        ("L7", "interface Ethernet1/1", "watch-dog-interval on\n  mtu 9216\n", "watch-dog-interval on\n"),
        ("L8", "interface Ethernet1/1", "mode on\n  priority-flow-control watch-dog-interval on\n", "mode on\n"),
        ("L8", "watch-dog-interval off", "priority-flow-control watch-dog-interval on\ninterface", "priority-flow-control watch-dog-interval off\ninterface"),
        ("L9", "class ROCE", "class ROCEv2", "class ROCE"),
        ("L9", "service-policy type qos input CLASSIFY", "input QOS_CLASSIFICATION", "input CLASSIFY"),
        ("L9", "output custom-out", "output custom-8q-out-policy", "output custom-out"),
        ("L9", "custom-8q-out-policy", "bandwidth remaining percent 50\n    random", "bandwidth remaining percent 60\n    random"),
        ("L9", "match dscp 24-64", "match dscp 24-31", "match dscp 24-64"),
        ("L9", "set qos-group 8", "set qos-group 3", "set qos-group 8"),
        ("L9", "pause pfc-cos 8", "pause pfc-cos 3", "pause pfc-cos 8"),
        ("L12", "interface Ethernet1/1", "pause pfc-cos 3", "pause pfc-cos 3\n  class type network-qos c-8q-nq1\n    pause pfc-cos 1\n  class type network-qos c-8q-nq2\n    pause pfc-cos 2"),
        ("L13", "match dscp 48", "class CNP\n    set qos-group 7", "class CNP\n    set qos-group 3"),
    ],
    "nxos_two.txt": [
        ("L1", "match dscp", "match dscp ef", "match dscp ef af31"),
        ("L2", "pause pfc-cos 3", "pause pfc-cos 5", "pause pfc-cos 3"),
        ("L1", "match cos 3", "match cos 5", "match cos 3"),
        ("L4", "c-out-8q-q6", "priority level 2", "priority level 3"),
        ("L5", "random-detect", "maximum-threshold 1500", "maximum-threshold 100"),
        ("L6", "pause buffer-size", "pause-threshold 39936", "pause-threshold 139936"),
        ("L6", "pause buffer-size", "resume-threshold 12480", "resume-threshold 52480"),
        ("L9", "no-such", "service-policy type network-qos FABRIC-NQ", "service-policy type network-qos no-such"),
        ("L13", "match dscp", "match dscp af31", "match dscp af31 cs6"),
    ],
    "junos_leaf.set": [
        ("L1", "code-points", "code-points 110000", "code-points [ 110000 011010 ]"),
        ("L1", "mydscp", "forwarding-class NO-LOSS loss-priority low code-points 011010", "forwarding-class best-effort loss-priority low code-points 011010"),
        ("L2", "class", "class CNP queue-num 6", "class CNP queue-num 4"),
        ("L2", "flow-control-queue", "code-point 011 flow-control-queue 4", "code-point 100 flow-control-queue 4"),
        ("L2", "flow-control-queue 3", "flow-control-queue 4", "flow-control-queue 3"),
        ("L3", "congestion-notification-profile cnp", "input dscp code-point 011010 pfc", "input dscp code-point 110000 pfc"),
        ("L3", "class NO-LOSS", "set class-of-service forwarding-classes class NO-LOSS no-loss\n", ""),
        ("L3", "et-0/0/0", "set class-of-service interfaces et-0/0/0 congestion-notification-profile cnp\n", ""),
        ("L3", "ether-options flow-control", "set interfaces et-0/0/0 mtu 9216", "set interfaces et-0/0/0 mtu 9216\nset interfaces et-0/0/0 ether-options flow-control"),
        ("L5", "drop-profiles dp1", "fill-level 10", "fill-level 60"),
        ("L5", "fill-level 150", "fill-level 50", "fill-level 150"),
        ("L5", "schedulers s1", "set class-of-service schedulers s1 explicit-congestion-notification\n", ""),
        ("L5", "dp1", "drop-probability 20", "drop-probability 0"),
        ("L6", "cable-length", "cable-length 50", "cable-length 50m"),
        ("L6", "shared-buffer", "lossy percent 10", "lossy percent 20"),
        ("L6", "lossless-headroom", "lossless-headroom percent 24", "lossless-headroom percent 0"),
        ("L7", "et-0/0/0", "set interfaces et-0/0/0 mtu 9216", "set interfaces et-0/0/0 mtu 1514"),
        ("L7", "et-0/0/0", "set interfaces et-0/0/0 mtu 9216\n", ""),
        ("L8", "recovery", "recovery 400", "recovery 100"),
        ("L8", "watchdog-action", "watchdog-action drop", "watchdog-action log"),
        ("L9", "noloss", "class NO-LOSS no-loss", "class NO-LOSS noloss"),
        ("L9", "classifiers", "code-points 011010", "code-points 26"),
        ("L9", "scheduler s9", "NO-LOSS scheduler s1", "NO-LOSS scheduler s9"),
        ("L9", "drop-profile dp2", "drop-profile dp1", "drop-profile dp2"),
        ("L9", "scheduler-map sm2", "et-0/0/0 scheduler-map sm1", "et-0/0/0 scheduler-map sm2"),
        ("L9", "congestion-notification-profile cnp2", "et-0/0/0 congestion-notification-profile cnp", "et-0/0/0 congestion-notification-profile cnp2"),
        ("L9", "classifiers dscp mine", "unit 0 classifiers dscp mydscp", "unit 0 classifiers dscp mine"),
        ("L9", "forwarding-class LOSSLESS", "sm1 forwarding-class NO-LOSS", "sm1 forwarding-class LOSSLESS"),
        ("L9", "schedulers", "s-be transmit-rate percent 20", "s-be transmit-rate percent 40"),
        ("L9", "priority strict", "s2-cnp priority strict-high", "s2-cnp priority strict"),
        ("L13", "code-points 110000", "forwarding-class CNP loss-priority low", "forwarding-class NO-LOSS loss-priority low"),
    ],
    "junos_braces.conf": [
        ("L1", "[ 010 011 ]", "loss-priority low code-points 101;", "loss-priority low code-points [ 011 101 ];"),
        ("L2", "class", "class urgent queue-num 5 no-loss pfc-priority 5", "class urgent queue-num 5 no-loss pfc-priority 3"),
        ("L3", "congestion-notification-profile roce", "code-point 101 {", "code-point 001 {"),
        ("L3", "class urgent", "queue-num 5 no-loss pfc-priority 5", "queue-num 5"),
        ("L5", "drop-profiles ecn", "fill-level [ 1 10 ]", "fill-level [ 10 1 ]"),
        ("L9", "scheduler s-bulky", "bulk scheduler s-bulk;", "bulk scheduler s-bulky;"),
        ("L7", "et-0/0/0", "mtu 9216", "mtu 1600"),
    ],
    "cumulus_nvue.txt": [
        ("L1", "dscp", "dscp 0-25 switch", "dscp 0-19,21-25 switch"),
        ("L1", "dscp 47", "dscp 47 switch-priority 0", "dscp 47,26 switch-priority 0"),
        ("L1", "trust port", "trust both", "trust port"),
        ("L1", "trust l2", "trust both", "trust l2"),
        ("L2", "switch-priority 3 traffic-class 1", "switch-priority 3 traffic-class 3", "switch-priority 3 traffic-class 1"),
        ("L2", "switch-priority 6 traffic-class 5", "switch-priority 6 traffic-class 6", "switch-priority 6 traffic-class 5"),
        ("L3", "swp32", "nv set interface swp1-32 qos pfc profile FABRIC", "nv set interface swp1-31 qos pfc profile FABRIC"),
        ("L3", "tx disable", "FABRIC tx enable", "FABRIC tx disable"),
        ("L3", "rx disable", "FABRIC rx enable", "FABRIC rx disable"),
        ("L3", "swp5", "nv set qos traffic-pool", "nv set qos pfc OTHER switch-priority 3\nnv set interface swp5 qos pfc profile OTHER\nnv set qos traffic-pool"),
        ("L3", "link-pause", "nv config apply", "nv set interface swp3 qos link-pause profile P"),
        ("L4", "traffic-class 6", "traffic-class 5,6 mode strict", "traffic-class 5 mode strict\nnv set qos egress-scheduler default-global traffic-class 6 mode dwrr"),
        ("L5", "max-threshold", "min-threshold 150000", "min-threshold 2500000"),
        ("L5", "probability", "probability 5", "probability 0"),
        ("L5", "probability", "probability 5", "probability 101"),
        ("L5", "traffic-class 5", "nv set qos congestion-control default-global traffic-class 3,5 ecn enable", "nv set qos congestion-control default-global traffic-class 3 ecn enable"),
        ("L5", "congestion-control", "ecn enable\nnv set qos congestion-control default-global traffic-class 3,5 red disable", "ecn disable\nnv set qos congestion-control default-global traffic-class 3,5 red enable"),
        ("L6", "cable-length", "cable-length 40", "cable-length 40m"),
        ("L6", "cable-length", "cable-length 40", "cable-length 200000"),
        ("L6", "traffic-pool", "default-lossy memory-percent 50", "default-lossy memory-percent 60"),
        ("L7", "swp7", "nv config apply", "nv set interface swp7 link mtu 1500"),
        ("L8", "swp32", "swp1-32 qos pfc-watchdog", "swp1-31 qos pfc-watchdog"),
        ("L8", "polling-interval", "polling-interval 100", "polling-interval 0"),
        ("L9", "bw-percent", "3 bw-percent 60", "3 bw-percent 90"),
        ("L9", "profile FABRICS", "swp1-32 qos pfc profile FABRIC", "swp1-32 qos pfc profile FABRICS"),
        ("L9", "mode sp", "mode strict", "mode sp"),
        ("L9", "trust dscp", "trust both", "trust dscp"),
        ("L9", "dscp 64", "dscp 26 switch", "dscp 64 switch"),
        ("L12", "pfc profile FABRIC", "FABRIC switch-priority 3,5", "FABRIC switch-priority 2,3,5"),
        ("L13", "dscp 48", "dscp 48 switch-priority 6", "dscp 48 switch-priority 5"),
        ("L14", "nv set qos roce", "nv config apply", "nv set qos roce"),
    ],
    "cumulus_roce.txt": [
        ("L14", "nv set qos roce", "nv set qos roce mode lossless", "nv set qos roce mode lossless\nnv set qos pfc X switch-priority 5"),
        ("L7", "swp16", "swp1-16 link mtu 9216", "swp1-15 link mtu 9216"),
        ("L8", "swp1", "swp1-16 qos pfc-watchdog", "swp2-16 qos pfc-watchdog"),
    ],
    "qos_features.conf": [
        ("L1", "cos_6", "cos_6.priority_source.dscp = [48]", "cos_6.priority_source.dscp = [46,48]"),
        ("L1", "packet_priority_source_set", "[802.1p,dscp]", "[802.1p]"),
        ("L2", "cos_egr_queue", "pfc.port_group_list", "cos_egr_queue.cos_3.uc = 1\npfc.port_group_list"),
        ("L3", "tx_enable", "tx_enable = true", "tx_enable = false"),
        ("L3", "link_pause", "pfc.port_group_list", "link_pause.g.port_set = swp1\npfc.port_group_list"),
        ("L5", "max_threshold_bytes", "max_threshold_bytes = 1500000", "max_threshold_bytes = 15000"),
        ("L5", "egr_queue_5", "egress_queue_list = [3,5]", "egress_queue_list = [3]"),
        ("L6", "cable_length", "cable_length = 40", "cable_length = 0"),
        ("L8", "port_set", "pfc_watchdog.fabric.port_set = swp1-swp32", "pfc_watchdog.fabric.port_set = swp1-swp31"),
        ("L9", "bw_percent", "egr_queue_3.bw_percent = 60", "egr_queue_3.bw_percent = 80"),
        ("L9", "dscp", "priority_source.dscp = [26]", "priority_source.dscp = [64]"),
        ("L12", "pfc.fabric", "cos_list = [3,5]", "cos_list = [2,3,5]"),
        ("L13", "cos_3", "cos_6.priority_source.dscp = [48]", "cos_3.priority_source.dscp = [48]"),
    ],
    "dcb_host.txt": [
        ("L2", "prio-tc", "2:2 3:3", "2:3 3:3"),
        ("L2", "prio-buffer", "2:0 3:1", "2:1 3:1"),
        ("L6", "buffer-size", "1:256K", "1:8K"),
        ("L6", "buffer-size", "0:64K", "0:640K"),
        ("L7", "mtu", "mtu:9000", "mtu:1500"),
        ("L9", "tc-bw", "tc-bw 0:40", "tc-bw 0:50"),
        ("L9", "tc-bw", "5:0 6:0 7:0\ntc-tsa", "5:10 6:0 7:0\ntc-tsa"),
        ("L9", "tc-tsa", "3:ets", "3:vendor"),
        ("L10", "willing on", "willing off", "willing on"),
        ("L10", "ieee", "host ieee", "lld_managed ieee"),
        ("L10", "traffic_class", "tclass=0", "tclass=106"),
        ("L10", "default_roce_tos", "default_roce_tos:106", "default_roce_tos:104"),
        ("L10", "roce_rp/enable/3", "roce_rp/enable/3:1", "roce_rp/enable/3:0"),
        ("L10", "default-prio", "dscp-prio AF31:3 EF:5 CS6:6\n", ""),
        ("L10", "order", "default-prio 0", "order pcp"),
        ("L13", "dscp-prio", "CS6:6", "CS6:5"),
    ],
    "dcb_host.json": [
        ("L2", "prio_tc", "[0,1,2,3,4,5,6,7]", "[0,1,3,3,4,5,6,7]"),
        ("L9", "tc_bw", "[40,0,0,60", "[40,0,0,50"),
        ("L10", "willing", '"willing":false', '"willing":true'),
        ("L10", "host", '"host":true', '"host":false'),
    ],
}

# A line that no parser knows, and where it goes.
NOT_UNDERSTOOD = {
    "eos_leaf.txt": ("   qos trust dscp\n", "   qos of tomorrow\n"),
    "nxos_leaf.txt": ("    set qos-group 3\n", "    conform-to dscp 3\n"),
    "junos_leaf.set": ("set protocols lldp interface all", "set class-of-service tomorrow yes"),
    "junos_braces.conf": ("pfc-watchdog;", "pfc-of-tomorrow;"),
    "cumulus_nvue.txt": ("nv config apply", "nv set qos tomorrow yes"),
    "qos_features.conf": ("pfc.port_group_list = [fabric]", "pfc_of_tomorrow = true"),
    "dcb_host.txt": ("default-prio 0", "tomorrow 0:1"),
}


def run(*arguments):
    return subprocess.run([SWITCH, "lint", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def lint(folder, name, text):
    path = folder / name
    path.write_text(text)
    done = run(path, "--json")
    assert done.returncode in (0, 1), (name, done.stderr)
    return json.loads(done.stdout)


def check_clean_and_mutated(folder):
    missed, count = [], 0
    for name, mutations in MUTATIONS.items():
        text = (FOLDER / name).read_text()
        clean = lint(folder, name, text)
        assert clean == {"findings": [], "unparsed": []}, (name, clean)
        for rule, place, old, new in mutations:
            assert old in text, (name, old)
            count += 1
            findings = lint(folder, name, text.replace(old, new, 1))["findings"]
            if not any(f["rule"] == rule and place in f["place"] and name in f["place"] + name for f in findings):
                missed.append((name, rule, place, new, [(f["rule"], f["place"]) for f in findings]))
    assert not missed, f"{len(missed)} of {count} missed: " + "\n".join(map(str, missed))
    assert set(MUTATIONS) == {path.name for path in FOLDER.iterdir()}


def check_what_is_not_understood(folder):
    for name, (old, new) in NOT_UNDERSTOOD.items():
        text = (FOLDER / name).read_text()
        assert old in text, name
        text = text.replace(old, new, 1)
        line = next(i for i, row in enumerate(text.splitlines(), 1) if row.strip() == new.strip())
        unparsed = lint(folder, name, text)["unparsed"]
        assert [u["place"] for u in unparsed] == [f"{folder / name}:{line}"], (name, line, unparsed)


def check_input(folder):
    """Bytes that are no text, and files that end early, are refused with their place; a file of the wrong kind too."""
    for name in MUTATIONS:
        text = (FOLDER / name).read_bytes()
        for bad in (b"\xff\xfe", b"\x00", b"\x1b[2J", b"x" * 70000):
            path = folder / name
            path.write_bytes(text + b"\n" + bad + b"\n")
            done = run(path)
            assert done.returncode == 2 and str(path) in done.stderr and done.stderr.count("\n") == 1 and "\x1b" not in done.stderr, (name, bad[:4], done)
        for cut in (1, len(text) // 3, len(text) - 2):
            path.write_bytes(text[:cut])
            assert run(path).returncode in (0, 1, 2)
    path = folder / "junos_braces.conf"
    path.write_text((FOLDER / "junos_braces.conf").read_text()[:900])
    done = run(path)
    assert done.returncode == 2 and "ends within" in done.stderr, done
    path.write_text("hello\n")
    assert "--kind" in run(path).stderr
    assert "mlnx_qos" in run(path, "--kind", "ios").stderr
    assert run(FOLDER / "eos_spine.txt", "--kind", "eos").returncode == 0
    assert run(FOLDER / "eos_spine.txt", "--kind", "sonic").returncode == 2


def check_together(folder):
    """Priorities in pause frames are compared across languages, whatever each calls its queues."""
    done = run(FOLDER / "junos_leaf.set", FOLDER / "eos_leaf.txt", "--json")
    assert not any(f["rule"] == "L3" for f in json.loads(done.stdout)["findings"]), done.stdout
    done = run(FOLDER / "cumulus_nvue.txt", FOLDER / "dcb_host.txt", "--json")
    assert json.loads(done.stdout)["findings"] == [], done.stdout
    done = run(FOLDER / "eos_leaf.txt", FOLDER / "dcb_host.txt", "--json")
    assert any(f["rule"] == "L3" and f["device"] == "dcb_host" for f in json.loads(done.stdout)["findings"]), done.stdout


def check_ten_thousand_ports(folder):
    """Within seconds; what grows with the square of the ports takes many minutes."""
    text = (FOLDER / "eos_leaf.txt").read_text()
    port = "interface Ethernet{}\n   mtu 9214\n   no switchport\n   service-profile QOS-ROCE\n!\n"
    assert lint(folder, "eos.txt", text + "".join(port.format(i) for i in range(100, 10100))) == {"findings": [], "unparsed": []}
    text = (FOLDER / "nxos_leaf.txt").read_text()
    port = text[text.index("interface Ethernet1/4"):text.index("interface mgmt0")]
    assert lint(folder, "nxos.txt", text + "".join(port.replace("1/4", f"2/{i}") for i in range(10000))) == {"findings": [], "unparsed": []}
    text = (FOLDER / "junos_leaf.set").read_text()
    port = [line for line in text.splitlines() if "et-0/0/3" in line]
    more = "\n".join(line.replace("et-0/0/3", f"et-0/1/{i}") for i in range(10000) for line in port)
    assert lint(folder, "junos.set", text + more + "\n") == {"findings": [], "unparsed": []}


def main():
    for check in (check_clean_and_mutated, check_what_is_not_understood, check_input, check_together, check_ten_thousand_ports):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


main()
