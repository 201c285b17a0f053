#!/usr/bin/env python3
"""`tensorlane-switch diff` on every system that lint reads beside SONiC: against its own rendering nothing; with N injected changes exactly those, with
their class and ports. usage: test_diff_systems.py TENSORLANE_SWITCH"""

import contextlib
import io
import json
import random
import re

import yaml

import checks
import fabrics
import fake_nic
import injections
import oracle

SEEDS = 8


def rendered(folder, text, nos):
    fabric, out = folder / "fabric.yaml", folder / "out"
    fabric.write_text(text)
    done = checks.run("render", "--fabric", fabric, "--target", nos, "--out", out)
    assert done.returncode == 0, (done, text)
    return fabric, out


def check_system(folder, system):
    nos, name, _ = injections.SYSTEMS[system]
    for seed in range(SEEDS):
        text, pick = fabrics.fabric_text(seed, nos), random.Random(seed)
        fabric, out = rendered(folder, text, nos)
        for device in out.iterdir():
            for other in device.iterdir():
                if other.name != name:
                    other.unlink()
        assert checks.difference(fabric, out) == [], (system, seed, "against itself")
        device = pick.choice(sorted(path.name for path in out.iterdir()))
        path = out / device / name
        changed, expected = injections.inject(system, pick, path.read_text(), device, oracle.Wanted(text))
        path.write_text(changed)
        for running in (out, path):
            found = {(*change[1:5], frozenset(change[5])) for change in checks.difference(fabric, running) if change[0] == device}
            assert found == expected, (system, seed, "not said", expected - found, "not meant", found - expected)
        for left in out.iterdir():
            for file in left.iterdir():
                file.unlink()


def systems(folder):
    for system in injections.SYSTEMS:
        (folder / system).mkdir()
        check_system(folder / system, system)


def shown_as_yaml(text, dump):
    """What `nv config show` prints of a switch with these commands."""
    tree = {}
    for line in text.splitlines():
        if line.startswith("nv set "):
            *path, last, value = line.split()[2:]
            for name in path[1].split(","):  # interfaces
                here = tree
                for word in (path[0], name, *path[2:]):
                    here = here.setdefault(word, {})
                here[last] = {number: {} for number in value.split(",")} if last == "switch-priority" and path[1] == "pfc" else value
    return dump([{"header": {"model": "SN4700", "nvue-api-version": "nvue_v1"}}, {"set": tree}])


def nvue_as_yaml(folder):
    for seed in range(SEEDS):
        text, pick = fabrics.fabric_text(seed, "cumulus"), random.Random(seed)
        fabric, out = rendered(folder, text, "cumulus")
        for suffix, dump in (("yaml", yaml.safe_dump), ("json", lambda tree: json.dumps(tree, indent=2))):
            path, commands = folder / f"leaf0.{suffix}", (out / "leaf0/nvue.sh").read_text()
            path.write_text(shown_as_yaml(commands, dump))
            assert checks.difference(fabric, path) == [], (seed, suffix)
            assert checks.run("lint", path, "--fabric", fabric).returncode == 0, (seed, suffix)
            changed, expected = injections.inject("nvue", pick, commands, "leaf0", oracle.Wanted(text))
            path.write_text(shown_as_yaml(changed, dump))
            found = {(*change[1:5], frozenset(change[5])) for change in checks.difference(fabric, path)}
            assert found == expected, (seed, suffix, "not said", expected - found, "not meant", found - expected)


def whole_maps(folder):
    """Where a port does not look at a mark at all, that is one difference, not one of each mark."""
    fabric, out = rendered(folder, fabrics.fabric_text(1, "eos"), "eos")
    path = out / "leaf0/config.txt"
    path.write_text(path.read_text().replace("   qos trust dscp\n", "   qos trust cos\n"))
    (change,) = [change for change in checks.difference(fabric, out) if change[0] == "leaf0"]
    assert change[1:5] == ("map of DSCP", "not configured", "configured", "") and "Ethernet1/1" in change[5], change


def equal_words(folder):
    """What means the same is no difference: a rate for a percentage where the speed is known, kilobytes for bytes."""
    text = fabrics.fabric_text(2, "eos").replace(" KiB", "000")
    fabric, out = rendered(folder, text, "eos")
    for path in out.glob("*/config.txt"):
        speed = re.search(r"! (\d+) Gbit/s", path.read_text())[1]
        config = path.read_text().replace("   service-profile", f"   speed forced {speed}gfull\n   service-profile").replace("000 bytes", " kbytes")
        path.write_text(re.sub(r"shape rate (\d+) percent", lambda m: f"shape rate {int(speed) * int(m[1]) * 10_000} kbps", config))
    config = path.read_text()
    assert "kbytes" in config and "kbps" in config
    assert checks.difference(fabric, out) == [], checks.difference(fabric, out)
    path.write_text(config.replace(f"speed forced {speed}gfull", "speed forced 10gfull", 1))
    assert ("speed", "10000000000 bit/s", f"{speed}000000000 bit/s") in [change[1:4] for change in checks.difference(fabric, out)]


def settings(scripts):
    """What apply.sh asks of eth0, as fake_nic keeps it."""
    text = (scripts / "apply.sh").read_text()
    numbers = lambda name: [int(n) for n in re.search(rf"^{name}=(\S+)", text, re.M)[1].split(",")]
    port = re.search(r"^  port 'eth0' '\S*' (\d+) (\S+) (\S+) (\d+) ", text, re.M)
    nic = {**fake_nic.NEW, "dcbx": "os", "trust": "dscp", "willing": "off", "prio_tc": list(range(8)), "cable": int(port[4]), "dscp2prio": numbers("dscp2prio"), "pfc": numbers("pfc"),
           "tsa": re.search(r"^tsa=(\S+)", text, re.M)[1].split(","), "bw": numbers("tcbw")}
    nic["app"] = {str(dscp): prio for dscp, prio in enumerate(nic["dscp2prio"])}
    return nic, [int(rate) for rate in port[2].split(",")], [fake_nic.rate_mbps(rate) for rate in port[3].split(",")], int(port[1])


def shown(show, *commands):
    """What a tool of the fake NIC prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        for command in commands:
            show(command)
    return out.getvalue()


def host(folder, tool):
    for seed in range(SEEDS):
        text, pick = fabrics.fabric_text(seed), random.Random(seed)
        fabric, scripts = rendered(folder, text, "host")
        wanted = oracle.Wanted(text)
        nic, gbps, mbps, mtu = settings(scripts / "h0")
        nic["rate"] = gbps if tool == "mlnx_qos" else mbps

        def difference():
            if tool == "mlnx_qos":
                output = shown(lambda args: fake_nic.mlnx_qos(nic, args), ["-i", "eth0"])
            else:
                words = [["ets", "show", "dev", "eth0", "willing", "tc-tsa", "tc-bw", "prio-tc"], ["pfc", "show", "dev", "eth0", "prio-pfc"],
                         ["maxrate", "show", "dev", "eth0", "tc-maxrate"], ["-N", "app", "show", "dev", "eth0", "dscp-prio"]]
                output = shown(lambda args: fake_nic.dcb(nic, args), *words) + f"/sys/class/net/eth0/mtu:{nic['mtu']}\n"
            for path in (folder / "running/h0/eth0.txt", folder / "h0.txt"):
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(output)
            spoken = [change for change in checks.difference(fabric, folder / "running") if change[0] == "h0"]
            assert checks.difference(fabric, folder / "h0.txt") == spoken, "the file alone"
            assert all(change[5] == ("eth0",) for change in spoken), spoken
            return {change[1:5] for change in spoken}

        nic["mtu"] = mtu
        assert difference() == set(), (tool, seed, "against what apply.sh sets")
        dscp, to = pick.choice([d for d in range(64) if d not in wanted.queue_of_dscp]), pick.choice([q for q in wanted.classes if q])
        nic["dscp2prio"][dscp] = nic["app"][str(dscp)] = to
        expected = {(f"DSCP {dscp}", str(to), "0", "default")}
        strict = pick.choice([q for q, cls in wanted.classes.items() if cls["strict"]])
        unit = 10 ** (9 if tool == "mlnx_qos" else 6)
        expected.add((f"scheduling of queue {strict}", *(f"strict, at most {rate * unit} bit/s" for rate in (nic["rate"][strict] + 1, nic["rate"][strict])), wanted.classes[strict]["name"]))
        nic["rate"][strict] += 1
        weighted = pick.choice([q for q, cls in wanted.classes.items() if not cls["strict"] and not cls["shaper"]])
        expected.add((f"scheduling of queue {weighted}", f"weight {nic['bw'][weighted] - 1}", f"weight {nic['bw'][weighted]}", wanted.classes[weighted]["name"]))
        nic["bw"][weighted] -= 1
        name = lambda queue: wanted.classes.get(queue, {"name": ""})["name"]
        priority = pick.randrange(8)
        nic["pfc"][priority] ^= 1
        expected.add((f"PFC of priority {priority}", *(("on", "off") if nic["pfc"][priority] else ("off", "on")), name(priority)))
        nic["prio_tc"][5] = 4
        expected.add(("queue of class 5", "4", "5", name(5)))
        if tool == "mlnx_qos":
            expected.add(("cable", f"{nic['cable'] + 1} m", f"{nic['cable']} m", ""))
            nic["cable"] += 1
        else:
            expected.add(("MTU", f"{mtu - 1} bytes", f"{mtu} bytes", ""))
            nic["mtu"] -= 1
        found = difference()
        assert found == expected, (tool, seed, "not said", expected - found, "not meant", found - expected)


def mlnx_qos(folder):
    host(folder, "mlnx_qos")


def dcb(folder):
    host(folder, "dcb")


def refusals(folder):
    fabric, out = rendered(folder, fabrics.fabric_text(3, "eos"), "eos")
    config = (out / "leaf0/config.txt").read_text()

    def refused(path, text, *words, more=()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        done = checks.run("diff", "--fabric", fabric, "--running", folder / path.relative_to(folder).parts[0], *more)
        assert done.returncode == 2 and not done.stdout and done.stderr.startswith("tensorlane-switch: error: ") and all(word in done.stderr for word in words), (words, done)

    refused(folder / "a" / "leaf0.txt", "what nobody says\n", "in no language that diff reads")
    refused(folder / "notes.txt", "what nobody says\n", "in no language", "--kind")
    refused(folder / "bad.yaml", "- set:\n    qos: {a: 1, [\n", "not YAML", "bad.yaml:")
    refused(folder / "leaf0.json", "{}", "this is a configuration of sonic, which 'leaf0' does not run")
    refused(folder / "stranger.txt", config, "the fabric has no switch or host")
    refused(folder / "b" / "leaf0.txt", "Priority trust state: dscp\n", "this is a configuration of mlnx_qos")
    refused(folder / "c" / "h0" / "config.txt", config, "this is a configuration of eos, which 'h0' does not run")
    refused(folder / "stranger.txt", config, "no switch or host 'leaf9'", more=("--device", "leaf9"))
    refused(folder / "stranger.txt", config, "unknown kind 'ios'", more=("--kind", "ios"))
    (folder / "e").mkdir()
    (folder / "e/leaf1.txt").write_text("hostname leaf0\n" + config)
    refused(folder / "e" / "leaf0.txt", config, "two configurations of device 'leaf0'")
    assert checks.difference(fabric, folder / "stranger.txt", "--device", "leaf0") == []
    fabric.write_text(fabrics.fabric_text(3, "onyx"))
    assert checks.run("render", "--fabric", fabric, "--target", "onyx", "--out", out).returncode == 0
    done = checks.run("diff", "--fabric", fabric, "--running", out)
    assert done.returncode == 2 and "in no language that diff reads" in done.stderr, done


checks.all_of(systems, nvue_as_yaml, whole_maps, equal_words, mlnx_qos, dcb, refusals)
