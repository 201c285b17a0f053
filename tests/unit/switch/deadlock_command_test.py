#!/usr/bin/env python3
"""`tensorlane-switch deadlock` on fabric files. usage: deadlock_command_test.py TENSORLANE_SWITCH"""

import json
import pathlib
import subprocess
import sys
import tempfile

SWITCH = sys.argv[1]

RING = """
hosts:
  - {name: "h[0-2]", addresses: {tcp: "10.0.0.[1-3]"}}
switches:
  - {name: "s[0-2]"}
links:
  - {from: "h[0-2]", to: "s[0-2]", speed: 100G}
  - {from: s0, to: s1, speed: 100G}
  - {from: s1, to: s2, speed: 100G}
  - {from: s2, to: s0, speed: 100G}
"""


def clos(spines, leaves, hosts, routing="{mode: up-down}", roles=True):
    leaf_role, spine_role = (", role: leaf", ", role: spine") if roles else ("", "")
    lines = ["hosts:"]
    lines += [f"  - {{name: h{i}, addresses: {{tcp: 10.0.{i // 200}.{i % 200 + 1}}}}}" for i in range(leaves * hosts)]
    lines += ["switches:", f'  - {{name: "leaf[0-{leaves - 1}]"{leaf_role}}}', f'  - {{name: "spine[0-{spines - 1}]"{spine_role}}}', "links:"]
    lines += [f"  - {{from: h{i}, to: leaf{i // hosts}, speed: 100G}}" for i in range(leaves * hosts)]
    lines += [f"  - {{from: leaf{leaf}, from_port: Ethernet{spine}, to: spine{spine}, to_port: Ethernet{leaf}, speed: 400G}}"
              for leaf in range(leaves) for spine in range(spines)]
    return "\n".join(lines + [f"routing: {routing}"]) + "\n"


class Fabric:
    def __init__(self, folder):
        self.path = folder / "fabric.yaml"

    def run(self, text, *options):
        self.path.write_text(text)
        return subprocess.run([SWITCH, "deadlock", "--fabric", self.path, *options], capture_output=True, text=True, timeout=120)

    def findings(self, text, *options):
        done = self.run(text, *options, "--json")
        assert done.returncode in (0, 1), done.stderr
        findings = json.loads(done.stdout)["findings"]
        assert done.returncode == bool(findings)
        assert all(f["rule"] == "L11" and f["severity"] == "error" for f in findings)
        return findings

    def refused(self, text, *words):
        done = self.run(text)
        assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, done
        assert all(word in done.stderr for word in words), (words, done.stderr)


def check_clean(fabric):
    for roles in (True, False):
        assert not fabric.findings(clos(2, 4, 2, roles=roles))
    done = fabric.run(clos(8, 16, 8), "--failures", "1")
    assert done.returncode == 0 and f"24 switches and 256 links, {128 + 128 + 24} single failures tried, 0 pairs" in done.stdout, done


def check_cycles(fabric):
    # One finding for each direction and lossless class; the cycle comes back to where it began.
    ring = fabric.findings(RING)
    assert len(ring) == 4 and {f["place"].split()[-1] for f in ring} == {"3", "5"}, ring
    assert "s0 (from s1) waits for s2 (from s0) waits for s1 (from s2) waits for s0 (from s1)" in " ".join(f["message"] for f in ring), ring
    flood = fabric.findings(clos(2, 2, 1, "{mode: up-down, flooding: [[leaf0, leaf1, spine0, spine1]]}"))
    assert flood and "leaf0 Ethernet0 (from spine0) waits for spine1 Ethernet0 (from leaf0)" in " ".join(f["message"] for f in flood), flood
    bounce = fabric.findings(clos(2, 3, 1, "{mode: up-down, routes: [[h0, leaf0, spine0, leaf1, spine1, leaf2, h2]]}"))
    assert len(bounce) == 2 and all(f["device"] == "leaf1" and "waits for leaf1 Ethernet0 (from spine0)" in f["message"] for f in bounce), bounce


def check_lint(fabric):
    """`lint` on the file itself says the same."""
    for text in (RING, clos(2, 4, 2)):
        expected = fabric.findings(text)
        done = subprocess.run([SWITCH, "lint", fabric.path, "--json"], capture_output=True, text=True, timeout=120)
        assert json.loads(done.stdout) == {"findings": expected, "unparsed": [], "unchecked": []} and done.returncode == bool(expected), done


def check_routing(fabric):
    # Leaves and spines in a ring: leaves across reach each other only by going up again.
    text = clos(4, 4, 1).replace("\n  - {from: leaf0, from_port: Ethernet2", "\n#").replace("\n  - {from: leaf0, from_port: Ethernet1", "\n#")
    for leaf, spines in ((1, (2, 3)), (2, (0, 3)), (3, (0, 1))):
        for spine in spines:
            text = text.replace(f"\n  - {{from: leaf{leaf}, from_port: Ethernet{spine}", "\n#")
    assert not fabric.findings(text)
    assert "4 pairs of switches with hosts have no route" in fabric.run(text).stdout
    assert fabric.findings(text, "--routing", "shortest")
    given = clos(2, 3, 1, "{mode: routes, routes: [[h0, leaf0, spine0, leaf1, h1]]}")
    assert not fabric.findings(given, "--failures", "1")


def check_refusals(fabric):
    fabric.refused(clos(2, 2, 1, "{mode: up-down, routes: [[h0, leaf0, leaf1, h1]]}"), "fabric.yaml:", "leaf1")
    fabric.refused(clos(2, 2, 1, "{mode: up-down, flooding: [[leaf0, leaf9]]}"), "fabric.yaml:", "leaf9")
    done = fabric.run(RING, "--routing", "random")
    assert done.returncode == 2 and "up-down" in done.stderr, done
    assert fabric.run(RING, "--failures", "2").returncode == 2


def main():
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_clean, check_cycles, check_lint, check_routing, check_refusals):
            check(Fabric(pathlib.Path(folder)))


main()
