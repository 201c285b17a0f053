#!/usr/bin/env python3
"""`tensorlane-switch lint` on configurations as others write them, one language after the other: as they are, they have no error; with
each line changed as below, the rule finds it at its place.
usage: lint_languages_test.py TENSORLANE_SWITCH"""

import concurrent.futures
import json
import pathlib
import subprocess
import sys
import tempfile

from lint_mutations import MUTATIONS

SWITCH = sys.argv[1]
CLEAN = {"findings": [], "unparsed": [], "unchecked": []}
FOLDER = pathlib.Path(__file__).parent / "configurations"

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


def check_one(folder, name, text, mutation):
    """Empty, or what is wrong with what lint says of a configuration with one change."""
    rule, place, old, new = mutation
    assert old in text, (name, old)
    folder.mkdir()
    findings = lint(folder, name, text.replace(old, new, 1))["findings"]
    if any(f["rule"] == rule and place in f["place"] and name in f["place"] + name for f in findings):
        return ""
    return str((name, rule, place, new, [(f["rule"], f["place"]) for f in findings]))


def check_clean_and_mutated(folder):
    """Unchanged, only notes."""
    cases = []
    for name, mutations in MUTATIONS.items():
        text = (FOLDER / name).read_text()
        clean = lint(folder, name, text)
        assert not clean["unparsed"] and all(f["severity"] == "note" for f in clean["findings"]), (name, clean)
        cases += [(folder / f"{len(cases) + i}", name, text, mutation) for i, mutation in enumerate(mutations)]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        missed = [wrong for wrong in pool.map(lambda case: check_one(*case), cases) if wrong]
    assert not missed, f"{len(missed)} of {len(cases)} missed: " + "\n".join(missed)
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


JUNOS = """set class-of-service classifiers dscp mine forwarding-class nc loss-priority low code-points 110000
set class-of-service classifiers dscp mine forwarding-class ef loss-priority low code-points 101110
set class-of-service classifiers dscp mine forwarding-class mcast-be loss-priority low code-points be1
set class-of-service classifiers ieee-802.1 tagged forwarding-class be loss-priority low code-points be
set class-of-service schedulers quick priority low-latency
set class-of-service schedulers others transmit-rate percent 20
set class-of-service scheduler-maps both forwarding-class network-control scheduler quick
set class-of-service scheduler-maps both forwarding-class best-effort scheduler others
set class-of-service shared-buffer ingress percent 100
set class-of-service shared-buffer ingress buffer-partition lossless percent 0
set class-of-service shared-buffer ingress buffer-partition lossless-headroom percent 0
set class-of-service shared-buffer ingress buffer-partition lossy percent 100
set class-of-service interfaces et-0/0/0 scheduler-map both
set class-of-service interfaces et-0/0/0 unit 0 classifiers dscp mine
set class-of-service interfaces et-0/0/1 scheduler-map both
set class-of-service interfaces et-0/0/1 unit 0 classifiers dscp default
"""


def check_what_is_allowed(folder):
    """What platforms have by themselves and what nobody asks for is no mistake."""
    result = lint(folder, "junos.set", JUNOS)
    assert not result["unparsed"] and all(f["severity"] == "note" for f in result["findings"]), result
    text = (FOLDER / "nxos_leaf.txt").read_text()
    uplink = "interface Ethernet1/48\n  description uplink\n  no switchport\n  mtu 9216\n  ip address 192.0.2.1/31\n  no shutdown\n"
    assert lint(folder, "nxos.txt", text.replace("interface mgmt0", uplink + "interface mgmt0")) == CLEAN


def check_what_is_not_checked(folder):
    """A file that holds nothing for a rule to look at is not a good one."""
    for name, text, rules in (
            ("eos.txt", "qos map dscp 46 to traffic-class 5\n", {"L1 to L8"}),
            ("dcb.txt", "dscp-prio AF31:3 EF:5\n", {"L2, L3 and L5 to L8", "L4"}),
            ("junos.set", "set class-of-service forwarding-classes class bulk queue-num 3 no-loss\n", {"L1 to L8"}),
            ("cumulus.txt", "nv set qos mapping default-global trust both\n", {"L1 to L8"})):
        assert {u["rules"] for u in lint(folder, name, text)["unchecked"]} == rules, lint(folder, name, text)


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
    assert lint(folder, "eos.txt", text + "".join(port.format(i) for i in range(100, 10100))) == CLEAN
    text = (FOLDER / "nxos_leaf.txt").read_text()
    port = text[text.index("interface Ethernet1/4"):text.index("interface mgmt0")]
    assert lint(folder, "nxos.txt", text + "".join(port.replace("1/4", f"2/{i}") for i in range(10000))) == CLEAN
    text = (FOLDER / "junos_leaf.set").read_text()
    port = [line for line in text.splitlines() if "et-0/0/3" in line]
    more = "\n".join(line.replace("et-0/0/3", f"et-0/1/{i}") for i in range(10000) for line in port)
    assert lint(folder, "junos.set", text + more + "\n") == CLEAN


def main():
    for check in (check_clean_and_mutated, check_what_is_not_understood, check_input, check_what_is_allowed, check_what_is_not_checked, check_together, check_ten_thousand_ports):
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))


main()
