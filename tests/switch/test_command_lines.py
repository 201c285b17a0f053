#!/usr/bin/env python3
"""What `tensorlane-switch render` writes for systems that are configured by commands, against the oracle. usage: test_command_lines.py TENSORLANE_SWITCH"""

import filecmp
import itertools
import pathlib
import re

import fabrics
import oracle
import oracle_cumulus
import oracle_eos
import oracle_junos
import oracle_nxos
import oracle_onyx
from checks import all_of, render_time, run

RANDOM = 12
GOLDEN = pathlib.Path(__file__).parent / "golden"
ECN = "qos: {classes: {urgent: {ecn: {kmin: 200000, kmax: 800000, pmax: 5 %}}, bulk: {ecn: {kmin: 400000, kmax: 1600000, pmax: 20 %}}}}\n"
NOT_NAMES = ("; reboot", "$(reboot)", "`reboot`", "a b", "a'b", "a|b", "a>b", "a&b", "a\\\\b", "a\\nreload", "a\\u001b[2J", "a!b", "a#b", "a{b}", "")


class Target:
    """readers: of every file of a device, what the oracle makes of its text. swaps: what is written of a class, of which two change places, but
    for those that are alike. edits: text and what stands in its place."""

    def __init__(self, readers, swaps, edits, alike=()):
        self.readers, self.swaps, self.edits, self.alike = readers, swaps, edits, alike


TARGETS = {
    "cumulus": Target({"nvue.sh": oracle_cumulus.Nvue, "qos_features.conf": oracle_cumulus.QosFeatures},
                      [" switch-priority {}\n", "dscp {} switch", "pcp {} switch", "switch-priority {} traffic-class", " traffic-class {}\n", "FABRIC-0 traffic-class {} ", "traffic-class {} mode",
                       "traffic.cos_{}.", "dscp = [{}]", "8021p = [{}]", "fabric0.egr_queue_{}.", "egress_sched.egr_queue_{}.", "queue_list = [{}]"],
                      [("switch-priority 3,5", "switch-priority 3,4"), ("cos_list = [3,5]", "cos_list = [5]"), ("tx enable", "tx disable"), ("rx_enable = true", "rx_enable = false"),
                       ("pfc-watchdog state", "pfc-watchdog stat"), ("pfc_watchdog.fabric0.port_set = swp1", "pfc_watchdog.fabric0.port_set = swp2"), ("max-rate 40000000", "max-rate 60000000"),
                       ("[0, 40000000]", "[0, 60000000]"), ("bw-percent 29", "bw-percent 9"), ("egr_queue_0.bw_percent = 29", "egr_queue_0.bw_percent = 9"), ("match ip dscp 27", "match ip dscp 28"),
                       ("trust port", "trust l3"), ("[port]", "[dscp]"), ("swp2 acl FABRIC-EDGE4", "swp1 acl FABRIC-EDGE4"), ("min-threshold 400000", "min-threshold 4000000"),
                       ("min_threshold_bytes = 400000", "min_threshold_bytes = 4000000"), ("mtu 9216", "mtu 9000"), ("robustness 2", "robustness 3"), ("3 ecn enable", "3 ecn disable")],
                      [("dscp {} switch", "01234567"), ("pcp {} switch", "0127"), ("switch-priority {} traffic-class", "127"), (" traffic-class {}\n", "127"), ("FABRIC-0 traffic-class {} ", "46"),
                       ("traffic-class {} mode", "4567"), ("traffic-class {} mode", "0123"), ("fabric0.egr_queue_{}.", "46"), ("egress_sched.egr_queue_{}.", "4567"),
                       ("egress_sched.egr_queue_{}.", "127"), ("egress_sched.egr_queue_{}.", "03")]),
    "eos": Target({"config.txt": oracle_eos.Eos},
                  ["to traffic-class {}\n", "to tx-queue {}\n", "   uc-tx-queue {}\n", "dscp {} to", "cos {} to"],
                  [("priority 5 no-drop", "priority 4 no-drop"), ("priority 3 no-drop", "priority 1 no-drop"), ("   priority-flow-control on\n", ""),
                   ("   priority-flow-control pause watchdog\n", ""), ("shape rate 40 percent", "shape rate 60 percent"), ("timeout 0.2", "timeout 0.3"),
                   ("minimum-threshold 400000", "minimum-threshold 4000000"), ("match dscp 27 43 51", "match dscp 27 51"), ("mtu 9214", "mtu 9000"),
                   ("      set dscp 0\n", ""), ("   qos trust dscp\n", ""), ("action drop", "action no-drop"), ("bandwidth percent 29", "bandwidth percent 9")],
                  [("   uc-tx-queue {}\n", "46"), ("   uc-tx-queue {}\n", "02")]),
    "junos": Target({"junos.set": oracle_junos.from_set, "junos.xml": oracle_junos.from_xml},
                    ["FABRIC-DSCP forwarding-class fabric-{} ", "FABRIC-PCP forwarding-class fabric-{} ", "queue-num {}\n", "pfc-priority {}\n", "flow-control-queue {}\n",
                     "scheduler FABRIC-{}-0\n", "drop-profile FABRIC-{}-0\n", "<scheduler>FABRIC-{}-0<", "<drop-profile>FABRIC-{}-0<", "<queue-num>{}<", "<pfc-priority>{}<",
                     "<flow-control-queue>{}<", "schedulers FABRIC-{}-0 ", "drop-profiles FABRIC-{}-0 "],
                    [("code-point 011011 pfc", "code-point 011010 pfc"), (" fabric-5 no-loss\n", " fabric-5\n"), ("shaping-rate percent 40", "shaping-rate percent 60"), ("<percent>40<", "<percent>60<"),
                     ("fill-level 10", "fill-level 50"), ("<fill-level>10<", "<fill-level>50<"), ("transmit-rate percent 29", "transmit-rate percent 9"), ("<percent>29<", "<percent>9<"),
                     ("detection 2", "detection 3"), ("<detection>2<", "<detection>3<"), ("from dscp 27", "from dscp 28"), ("from traffic-class 27", "from traffic-class 28"),
                     ("mtu 9216", "mtu 9000"), ("<mtu>9216<", "<mtu>9000<"), ("priority low", "priority strict-high"), ("explicit-congestion-notification\n", "\n"), ("then discard", "then accept"),
                     ("<discard/>", "<accept/>"), ("cable-length 3", "cable-length 2")],
                    [("scheduler FABRIC-{}-0\n", "46"), ("<scheduler>FABRIC-{}-0<", "46"), ("schedulers FABRIC-{}-0 ", "46")]),
    "onyx": Target({"config.txt": oracle_onyx.Onyx},
                   ["to switch-priority {}\n", "map dscp {} to", "map pcp {} dei", "bind switch-priority {}\n", "1/1 traffic-class {} "],
                   [("priority 5 enable", "priority 4 enable"), ("mode on force", "mode off force"), ("shape 40000M", "shape 60000M"), ("minimum-absolute 400 ", "minimum-absolute 4000 "),
                    ("ets wrr 29", "ets wrr 9"), ("any dscp 27", "any dscp 28"), ("trust port", "trust both"), ("mtu 9216", "mtu 9000"), ("pcp 3 dei 1", "pcp 3 dei 0"),
                    ("interface ethernet 1/2 ipv6 port access-group FABRIC-EDGE6\n", ""), ("dcb priority-flow-control enable force\n", "")],
                   [("map dscp {} to", "01234567"), ("map pcp {} dei", "0127"), ("bind switch-priority {}\n", "127"), ("1/1 traffic-class {} ", "127")]),
    "nxos": Target({"config.txt": oracle_nxos.Nxos},
                   ["set qos-group {}\n", "c-8q-nq{}\n", "c-out-8q-q{}\n", "pause pfc-cos {}\n", "priority level {}\n", "match dscp {}\n", "match cos {}\n", "class FABRIC-TC{}\n"],
                   [("pause pfc-cos 5", "pause pfc-cos 4"), ("    pause pfc-cos 3\n", ""), ("flow-control mode on", "flow-control mode off"), ("max 40000 mbps", "max 60000 mbps"),
                    ("  priority-flow-control watch-dog-interval on\n", ""), ("minimum-threshold 400000", "minimum-threshold 4000000"), ("match dscp 27,43,51", "match dscp 27,51"),
                    ("    set dscp 0\n", ""), ("shutdown-multiplier 2", "shutdown-multiplier 3"), ("remaining percent 29", "remaining percent 9"), ("buffer-size", "buffersize"),
                    ("service-policy type qos input FABRIC-EDGE", "service-policy type qos input FABRIC-IN"), ("  mtu 9216\n", "  mtu 9000\n")],
                   [("c-8q-nq{}\n", "57"), ("c-out-8q-q{}\n", "124")]),
}


def with_qos(text, more):
    """A golden fabric file with `more`, which is a line of its own that begins with "qos: {"."""
    own = "qos: {headroom: {accept_estimate: true}}\n"
    if own not in text:
        return text + more
    return text.replace(own, more.replace("qos: {", "qos: {headroom: {accept_estimate: true}, ", 1))


def rendered(folder, text, nos):
    fabric, out = folder / "fabric.yaml", folder / nos
    fabric.write_text(text)
    done = run("render", "--fabric", fabric, "--target", nos, "--out", out)
    assert done.returncode == 0, (done.stderr, text)
    return oracle.Wanted(text), out


def differences(wanted, device, text, reader):
    """What the oracle says, where text that it cannot walk is a difference, too."""
    try:
        return oracle.differences(wanted, device, reader(text, wanted, device))
    except (AssertionError, KeyError, ValueError, IndexError, TypeError) as wrong:
        return [f"{type(wrong).__name__}: {wrong}"]


def check_random_fabrics(folder):
    for (nos, target), seed in itertools.product(TARGETS.items(), range(RANDOM)):
        text = fabrics.fabric_text(seed, nos)
        wanted, out = rendered(folder, text, nos)
        assert sorted(path.name for path in out.iterdir()) == sorted(wanted.ports)
        for device, (name, reader) in itertools.product(wanted.ports, target.readers.items()):
            found = differences(wanted, device, (out / device / name).read_text(), reader)
            assert not found, (seed, nos, found[:3], text)


def swapped(text, template, a, b):
    first, second = template.format(a), template.format(b)
    return text.replace(first, "\0").replace(second, first).replace("\0", second)


def check_the_oracle_notices(folder):
    """Two classes change places, and a port is missing, or one too many. Greenfield: queues 0 default, 3 bulk, 4 CNP, 5 urgent, 6 control."""
    for nos, target in TARGETS.items():
        wanted, out = rendered(folder, with_qos((GOLDEN / f"fabric-{nos}.yaml").read_text(), ECN), nos)
        texts = {name: (out / "s0" / name).read_text() for name in target.readers}
        assert all(any(old in text for text in texts.values()) for old, _ in target.edits), nos
        for name, reader in target.readers.items():
            text = texts[name]
            assert not differences(wanted, "s0", text, reader), (nos, name, differences(wanted, "s0", text, reader)[:3])
            count = 0
            for template, (a, b) in itertools.product(target.swaps, itertools.combinations([str(n) for n in (*range(8), 27, 43, 48, 51)], 2)):
                broken = swapped(text, template, a, b)
                if broken == text or any(template == of and {a, b} <= set(ones) for of, ones in target.alike):
                    continue
                assert differences(wanted, "s0", broken, reader), (nos, name, template, a, b)
                count += 1
            assert count >= 10, (nos, name, count)
            for old, new in target.edits:
                assert old not in text or differences(wanted, "s0", text.replace(old, new), reader), (nos, name, old)
            for port in wanted.ports["s0"]:
                assert port in text and differences(wanted, "s0", text.replace(port, port[:-1] + "77"), reader), (nos, name, port)


def check_golden(folder):
    """One port with a link and one without, byte by byte: a change is read before it is kept. Twice the same bytes."""
    for nos, target in TARGETS.items():
        for out in (folder / nos, folder / f"{nos}-again"):
            assert run("render", "--fabric", GOLDEN / f"fabric-{nos}.yaml", "--target", nos, "--out", out).returncode == 0
            names = sorted(path.name for path in (GOLDEN / nos).iterdir())
            assert names == sorted(path.name for path in (out / "s0").iterdir()), names
            for name in names:
                assert filecmp.cmp(out / "s0" / name, GOLDEN / nos / name, shallow=False), f"{out / 's0' / name} is not {GOLDEN / nos / name}"


def refused(folder, text, nos, *words):
    (folder / "fabric.yaml").write_text(text)
    done = run("render", "--fabric", folder / "fabric.yaml", "--target", nos, "--out", folder / "out")
    assert done.returncode == 2 and not done.stdout and done.stderr.count("\n") == 1, (done, text)
    for word in words:
        assert word in done.stderr, (word, done.stderr)
    assert not (folder / "out").exists() and not list(folder.glob(".tensorlane*"))


def check_refusals(folder):
    """No name becomes a command, and nothing is written for a release, port or platform that is not known."""
    for nos in TARGETS:
        fine = (GOLDEN / f"fabric-{nos}.yaml").read_text()
        port = sorted(oracle.Wanted(fine).ports["s0"])[0]
        for bad in NOT_NAMES if nos == "eos" else NOT_NAMES[:3]:  # all are read by the same code
            refused(folder, fine.replace("name: s0", f'name: "{bad}"').replace("to: s0", f'to: "{bad}"'), nos, "name")
            refused(folder, fine.replace(port, f'"{bad}"'), nos)
            refused(folder, fine + f'classes: {{data: [{{name: "{bad}", dscp: 1, pcp: 5}}, {{name: b, dscp: 2, pcp: 3}}]}}\n', nos, "expected")
            refused(folder, re.sub(r"release: \S+, ", "", fine).replace("nos:", f'release: "{bad}", nos:'), nos)
        fine = re.sub(r"release: \S+, ", "", fine)
        refused(folder, fine.replace(port, "Vlan7"), nos, "has no port 'Vlan7'", "expected")
        refused(folder, fine.replace("nos:", "release: 0.1, nos:"), nos, "release '0.1' of", "expected one from")
        refused(folder, fine.replace(f"nos: {nos}", "nos: vrp"), nos, "vrp", "expected one of sonic, cumulus, eos")
        refused(folder, fine.replace(", lossless: 2", "").replace("platform: SN", "platform: XX"), nos, "limits are unknown")
    watchdog = "qos: {watchdog: {poll: 31 s, detection: 62 s, restoration: 62 s}, retry_budget: 1000 s}\n"
    refused(folder, (GOLDEN / "fabric-eos.yaml").read_text() + watchdog, "eos", "62 s", "EOS takes 0.01 s to 60 s")


def check_words(folder):
    """What depends on the release, the platform or the watchdog's action."""
    forward = "qos: {watchdog: {action: forward}}\n"
    for nos, name, change, present, absent in (
            ("cumulus", "nvue.sh", ("5.11.1", "5.16.0"), "qos pfc-watchdog state enable\n", "state enabled"),
            ("cumulus", "nvue.sh", ("release: 5.11.1, ", ""), "the file names no release", "state enabled"),
            ("cumulus", "nvue.sh", ("5.11.1", "5.30.1"), "# Warning: release 5.30.1 of Cumulus is newer than 5.17, the last", "state enabled"),
            ("cumulus", "qos_features.conf", ("5.11.1", "6.1"), "# Warning: release 6.1 of Cumulus is newer", "# Words of"),
            ("eos", "config.txt", ("asic: tomahawk4, ", ""), "In doubt: chips with separate queues", "   uc-tx-queue"),
            ("eos", "config.txt", ("tomahawk4", "jericho2"), "   tx-queue 5", "In doubt"),
            ("eos", "config.txt", ("nos: eos", "nos: eos, release: 4.99.1F"), "! Warning: release 4.99.1F of EOS is newer than 4.36", "estimate and no"),
            ("eos", "config.txt", ("hosts:", forward + "hosts:"), "watchdog action no-drop", "action drop"),
            ("nxos", "config.txt", ("accept_estimate: true}", "accept_estimate: true}, watchdog: {action: forward}"), "watch-dog-interval on disable-action", "interval on\n  service"),
            ("nxos", "config.txt", ("cable: 150 m", "cable: 100 m"), "mode on", "pause buffer-size"),
            ("junos", "junos.set", ("QFX5200-32C", "QFX5130-32CD"), "shared-buffer ingress buffer-partition lossless-headroom percent 10", "Junos Evolved"),
            ("junos", "junos.set", ("QFX5200-32C", "QFX5240-64OD"), "shared-buffer egress buffer-partition lossless percent 80", "Junos Evolved"),
            ("junos", "junos.set", ("QFX5200-32C", "QFX5220-32CD"), "In doubt: whether this model of Junos Evolved has partitions", "junos-qfx"),
            ("junos", "junos.xml", ("QFX5200-32C", "QFX5240-64OD"), '<class-of-service xmlns="http://yang.juniper.net/junos/conf/class-of-service">', "junos-qfx"),
            ("junos", "junos.xml", ("24.4R1", "24.4R1-S2-EVO"), '<configuration xmlns="http://yang.juniper.net/junos/conf/root">', "junos-qfx"),
            ("junos", "junos.xml", ("QFX5200-32C", "QFX5200-48Y"), '<interfaces xmlns="http://yang.juniper.net/junos-qfx/conf/interfaces">', "net/junos/"),
            ("junos", "junos.set", ("hosts:", forward + "hosts:"), "watchdog-action forward", "watchdog-action drop"),
            ("junos", "junos.xml", ("s0", "a--b"), "a- -b", "a--b")):
        fine = (GOLDEN / f"fabric-{nos}.yaml").read_text()
        assert change[0] in fine, (nos, change)
        wanted, out = rendered(folder, fine.replace(*change), nos)
        text = next(out.glob(f"*/{name}")).read_text()
        assert present in text and absent not in text, (nos, change, present in text, absent in text)
    refused(folder, (GOLDEN / "fabric-junos.yaml").read_text().replace("QFX5200-32C", "QFX5100-48S"), "junos", "3 strict classes on a QFX5100")
    unknown = (GOLDEN / "fabric-nxos.yaml").read_text().replace("qos: {headroom: {accept_estimate: true}}\n", "")
    refused(folder, unknown, "nxos", "headroom of an unknown ASIC", "'lookup'", "'accept_estimate: true'")
    wanted, out = rendered(folder, unknown.replace("150 m", "40 m"), "nxos")  # which the switch sizes itself
    assert "was checked with an estimate" in (out / "s0/config.txt").read_text()
    mtu = (GOLDEN / "fabric-nxos.yaml").read_text().replace("mtu: 9216", "mtu: 9300")
    refused(folder, mtu, "nxos", "an MTU of 9300", "NX-OS takes at most 9216")


def check_time(folder):
    for nos in TARGETS:
        (folder / "fabric.yaml").write_text(run("example", "clos", "--spines", 32, "--leaves", 64, "--hosts", 4096, "--nos", nos).stdout)
        print(f"{nos}: 8,192 ports in {render_time(folder / 'fabric.yaml', nos, folder / nos):.2f} s")


all_of(check_random_fabrics, check_the_oracle_notices, check_golden, check_refusals, check_words, check_time)
