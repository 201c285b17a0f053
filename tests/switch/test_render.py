#!/usr/bin/env python3
"""`tensorlane-switch render` against the oracle, what it refuses, and what it leaves on the disk. usage: test_render.py TENSORLANE_SWITCH"""

import copy
import filecmp
import itertools
import json
import pathlib

import fabrics
import oracle
from checks import all_of, render_time, run

RANDOM = 30


def rendered(folder, text, target, *options):
    fabric, out = folder / "fabric.yaml", folder / f"{target}{len(options)}"
    fabric.write_text(text)
    done = run("render", "--fabric", fabric, "--target", target, "--out", out, "--json", *options)
    assert done.returncode == 0, (done.stderr, text)
    wanted = oracle.Wanted(text)
    assert sorted(path.name for path in out.iterdir()) == sorted(wanted.ports) == sorted(device["name"] for device in json.loads(done.stdout)["devices"])
    return wanted, out


def read(out, device, target):
    if target == "sonic":
        return oracle.Sonic(json.loads((out / device / "config_db.json").read_text()))
    if target == "openconfig":
        return oracle.OpenConfig(json.loads((out / device / "openconfig.json").read_text()))
    return oracle.Linux((out / device / "apply.sh").read_text())


def check_random_fabrics(folder):
    for seed in range(RANDOM):
        text = fabrics.fabric_text(seed)
        for target, options in (("sonic", ()), ("sonic", ("--buffer-model", "traditional")), ("openconfig", ()), ("linux", ())):
            here = folder / f"{seed}-{len(options)}"
            here.mkdir(exist_ok=True)
            wanted, out = rendered(here, text, target, *options)
            for device in wanted.ports:
                found = oracle.differences(wanted, device, read(out, device, target))
                assert not found, (seed, target, found[:3], text)


def swaps(db):
    """Every map and row of a config_db in which two classes change places."""
    for table in ("DSCP_TO_TC_MAP", "DOT1P_TO_TC_MAP", "TC_TO_QUEUE_MAP", "TC_TO_PRIORITY_GROUP_MAP", "MAP_PFC_PRIORITY_TO_QUEUE",
                  "PFC_PRIORITY_TO_PRIORITY_GROUP_MAP"):
        for name, row in db[table].items():
            one_of = {value: key for key, value in row.items()}  # one code point of each class
            for a, b in itertools.combinations(sorted(one_of), 2):
                broken = copy.deepcopy(db)
                broken[table][name][one_of[a]], broken[table][name][one_of[b]] = b, a
                yield f"{table} {name} {one_of[a]} {one_of[b]}", broken
    port = sorted(db["PORT_QOS_MAP"])[0]
    for a, b in itertools.combinations((0, 3, 4, 5, 6), 2):
        first, second = f"{port}|{a}", f"{port}|{b}"
        broken = copy.deepcopy(db)
        rows = broken["QUEUE"]
        rows[first], rows[second] = rows[second], rows[first]
        served = [(db["SCHEDULER"][row["scheduler"]], row.get("wred_profile")) for row in (db["QUEUE"][first], db["QUEUE"][second])]
        if served[0] != served[1]:  # control and CNP are served alike, each in its queue
            yield f"QUEUE {a} {b}", broken
    for lossless in ("5", "3", "3,4", "0,3,5", ""):
        broken = copy.deepcopy(db)
        broken["PORT_QOS_MAP"][port].update(pfc_enable=lossless, pfcwd_sw_enable=lossless)
        yield f"pfc_enable {lossless}", broken


def check_the_oracle_notices(folder):
    """Greenfield: queues 0 default, 3 bulk, 4 CNP, 5 urgent, 6 control."""
    text = run("example", "clos", "--spines", 1, "--leaves", 1, "--hosts", 2, "--nos", "sonic").stdout
    wanted, out = rendered(folder, text, "sonic")
    db = read(out, "leaf0", "sonic").db
    assert not oracle.differences(wanted, "leaf0", oracle.Sonic(db))
    count = 0
    for what, broken in swaps(db):
        # Maps that no traffic takes (priorities that are not lossless) may say anything.
        unused = what.startswith(("MAP_PFC", "TC_TO_QUEUE", "TC_TO_PRIORITY")) and not set(what.split()[2:]) & set("03456")
        noticed = False
        try:
            noticed = bool(oracle.differences(wanted, "leaf0", oracle.Sonic(broken)))
        except (AssertionError, KeyError):
            noticed = True
        harmless = what.startswith("MAP_PFC") and not set(what.split()[2:]) & {"3", "5"}
        assert noticed or unused or harmless, what
        count += noticed
    assert count > 30, count
    wanted, out = rendered(folder, text, "openconfig")
    config = json.loads((out / "leaf0" / "openconfig.json").read_text())
    plain = json.dumps(config)
    for a, b in itertools.combinations(("TC0", "TC3", "TC4", "TC5", "TC6"), 2):
        for key in ("output-queue", "target-group"):
            fill = (lambda name: f'"{key}": "FG-{name}"') if key == "target-group" else (lambda name: f'"{key}": "{name}"')
            swapped = plain.replace(fill(a), fill("X")).replace(fill(b), fill(a)).replace(fill("X"), fill(b))
            assert swapped != plain and oracle.differences(wanted, "leaf0", oracle.OpenConfig(json.loads(swapped))), (key, a, b)
    order = copy.deepcopy(config)
    schedulers = order["openconfig-qos:qos"]["scheduler-policies"]["scheduler-policy"][0]["schedulers"]["scheduler"]
    schedulers[0]["sequence"], schedulers[1]["sequence"] = 1, 0
    assert oracle.differences(wanted, "leaf0", oracle.OpenConfig(order))
    wanted, out = rendered(folder, text, "linux")
    script = (out / "leaf0" / "apply.sh").read_text()
    assert not oracle.differences(wanted, "leaf0", oracle.Linux(script))
    for a, b in itertools.combinations(("1:13", "1:14", "1:15", "1:16"), 2):
        swapped = script.replace(f"flowid {a}\n", "flowid X\n").replace(f"flowid {b}\n", f"flowid {a}\n").replace("flowid X\n", f"flowid {b}\n")
        assert oracle.differences(wanted, "leaf0", oracle.Linux(swapped)), (a, b)
    assert oracle.differences(wanted, "leaf0", oracle.Linux(script.replace("prio 0", "prio X").replace("prio 1 ", "prio 0 ").replace("prio X", "prio 1")))


FABRIC = """hosts: [{name: h0, addresses: {tcp: 10.0.0.1}}, {name: h1, addresses: {tcp: 10.0.0.2}}]
switches: [{name: s0, nos: sonic, PLATFORM}]
links:
  - {from: h0, from_port: eth0, to: s0, to_port: Ethernet0, speed: 100G, cable: 3 m, mtu: 9216}
  - {from: h1, from_port: eth0, to: s0, to_port: Ethernet4, speed: 100G, cable: 3 m, mtu: 9216}
"""


def check_refusals(folder):
    """Each: what is changed in a fabric that is fine, and what the error says."""
    fine = FABRIC.replace("PLATFORM", "platform: SN4700")
    four = "classes: {data: [" + ", ".join(f"{{name: c{pcp}, dscp: {pcp}, pcp: {pcp}}}" for pcp in (5, 3, 2, 1)) + "]}\n"
    cases = [
        (FABRIC.replace("PLATFORM", "platform: Tomahawk9"), ":2: ", "limits are unknown"),
        (FABRIC.replace(", PLATFORM", ""), ":2: ", "limits are unknown"),
        (four + fine, "4 lossless classes on switch 's0'", "takes 2"),
        (four + FABRIC.replace("PLATFORM", "platform: {name: x, buffer: 64 MiB, lossless: 4}"), "4 lossless classes", "evidence"),
        (FABRIC.replace("PLATFORM", "platform: {name: x, asic: spectrum3, buffer: 256 KiB, lossless: 2}"), ":2: ", "more than half"),
        (FABRIC.replace("PLATFORM", "platform: {name: SN4700, port_headroom: 100 KiB}"), ":2: ", "ports of switch 's0': 2 priority groups need", "but the port has 102400"),
        (fine.replace("cable: 3 m, ", ""), ":4: ", "no cable length"),
        (fine.replace("to_port: Ethernet0, ", ""), ":4: ", "without the port's name"),
        (fine + "qos: {classes: {default: {strict: true}}}", ":6: ", "the default class is strict"),
        (fine + "qos: {classes: {bulk: {strict: true, shaper: 70 %}}}", "default traffic is guaranteed"),
        (fine + "qos: {classes: {urgent: {shaper: 90 %}}}", "guaranteed 0.0 % of a port"),
        (fine + "qos: {classes: {default: {weight: 5 %}, bulk: {weight: 95 %}}}", "guaranteed", "at least 10 %"),
        (fine + "qos: {classes: {urgent: {strict: false}, bulk: {strict: true, shaper: 40 %}}}", "the strict class 'bulk' has PCP 3"),
        (fine + "qos: {classes: {cnp: {dscp: 51}}}", "CNP has DSCP 51 of class 'control'", "'pcp: 6'"),
        (fine + "qos: {classes: {cnp: {dscp: 27, pcp: 3}}}", "CNP shares the queue of the lossless class 'bulk'"),
        (fine + "qos: {retry_budget: 300 ms}", "'retry_budget' of the fabric is 300 ms", "until the watchdog acts"),
        (fine + "qos: {watchdog: {detection: 150 ms}}", "at least two polls"),
        (fine + "qos: {watchdog: {poll: 1 ms, detection: 2 ms, restoration: 2 ms}}", "a weighted class may wait"),
        (fine.replace("nos: sonic", "nos: eos"), "no switch to render"),
        (fine.replace("to_port: Ethernet0", "to_port: swp1"), "SONiC has no port 'swp1'"),
        (fine.replace("nos: sonic", "nos: sonic, release: 201911"), "release '201911' of SONiC is not known", "from 202106 to 202612"),
        (fine.replace("nos: sonic", "nos: sonic, release: latest"), "release 'latest' of SONiC is not known"),
        (fine.replace("name: s0", "name: .."), "a link", "s0"),
        (fine.replace("s0", ".."), "no name for a folder"),
    ]
    path, out = folder / "fabric.yaml", folder / "out"
    path.write_text(fine)
    assert run("render", "--fabric", path, "--target", "sonic", "--out", folder / "fine").returncode == 0
    for i, (text, *words) in enumerate(cases):
        path.write_text(text)
        done = run("render", "--fabric", path, "--target", "sonic", "--out", out)
        assert done.returncode == 2 and not done.stdout, (i, done, text)
        assert done.stderr.startswith("tensorlane-switch: error: ") and done.stderr.count("\n") == 1, done.stderr
        for word in words:
            assert word in done.stderr, (i, word, done.stderr)
        assert not out.exists() and not list(folder.glob(".tensorlane*")), i


def check_lookup(folder):
    """Headroom from a vendor's table, which lies beside the fabric file: the next longer cable, and what groups share is in the pool."""
    (folder / "tables").mkdir()
    (folder / "tables/pg.ini").write_text("# speed cable size xon xoff threshold xon_offset\n100000 5m 1248 1248 54080 -3 2496\n100000 40m 1248 1248 59696 -3 2496\n")
    fabric, out = folder / "fabric.yaml", folder / "out"
    text = FABRIC.replace("PLATFORM", "platform: {name: x, asic: trident, buffer: 32 MiB, lossless: 2}") + "qos: {headroom: {lookup: tables/pg.ini}}"
    for cable, xoff in (("3 m", 54080), ("12 m", 59696)):
        fabric.write_text(text.replace("3 m", cable))
        done = run("render", "--fabric", fabric, "--target", "sonic", "--out", out)
        assert done.returncode == 0, done
        db = json.loads((out / "s0/config_db.json").read_text())
        (profile,) = (row for name, row in db["BUFFER_PROFILE"].items() if name.startswith("pg_lossless_"))
        assert profile == {"pool": "ingress_lossless_pool", "size": "1248", "xon": "1248", "xoff": str(xoff), "dynamic_th": "-3", "xon_offset": "2496"}, profile
        pool = db["BUFFER_POOL"]["ingress_lossless_pool"]
        assert int(pool["xoff"]) == 4 * xoff and int(pool["size"]) == (32 << 20) - 4 * (xoff + 1248), pool  # two ports, two lossless classes
        for command in (("lint", out), ("lint", "--fabric", fabric, out), ("diff", "--fabric", fabric, "--running", out)):
            done = run(*command)
            assert done.returncode == 0, done
    refused = lambda text, word, *options: (fabric.write_text(text), run("render", "--fabric", fabric, "--target", "sonic", "--out", folder / "refused", *options), word)
    for _, done, word in (refused(text.replace("3 m", "41 m"), "40"), refused(text.replace("100G", "200G"), "200"), refused(text.replace("pg.ini", "none.ini"), "tables/none.ini"),
                          refused(text.replace("trident", "spectrum3"), "exclude each other", "--buffer-model", "dynamic")):
        assert done.returncode == 2 and word in done.stderr and not (folder / "refused").exists(), (word, done)


def check_static_thresholds(folder):
    """A table whose thresholds are bytes, for pools that are static: the headroom is the vendor's, and what is not is said."""
    (folder / "pg.ini").write_text("100000 5m 4608 4608 160000 33004032 4608\n")
    fabric = folder / "fabric.yaml"
    fabric.write_text(FABRIC.replace("PLATFORM", "platform: {name: x, asic: trident, buffer: 32 MiB, lossless: 2}") + "qos: {headroom: {lookup: pg.ini}}")
    done = run("render", "--fabric", fabric, "--target", "sonic", "--out", folder / "out")
    assert done.returncode == 0 and "thresholds of the table are bytes" in done.stderr, done
    db = json.loads((folder / "out/s0/config_db.json").read_text())
    (profile,) = (row for name, row in db["BUFFER_PROFILE"].items() if name.startswith("pg_lossless_"))
    assert profile["xoff"] == "160000" and profile["dynamic_th"] == "0", profile
    assert run("headroom", "--lookup", folder / "pg.ini", "--speed", "100G", "--cable", "3m").stdout.startswith("xoff 160000 bytes")


def check_estimates(folder):
    """Headroom of an unknown ASIC is written where the file accepts an estimate, and whoever reads it is warned."""
    fabric, out = folder / "fabric.yaml", folder / "out"
    text = FABRIC.replace("PLATFORM", "platform: {name: 7060X6, asic: tomahawk5, buffer: 165000000, lossless: 2}").replace("100G, cable: 3 m", "400G, cable: 30 m")

    def render(more, target="sonic", *options):
        fabric.write_text(text + more)
        return run("render", "--fabric", fabric, "--target", target, "--out", out, *options)

    done = render("")
    assert done.returncode == 2 and "headroom of an unknown ASIC could only be estimated" in done.stderr and "'accept_estimate: true'" in done.stderr, done
    assert not out.exists()
    done = render("qos: {headroom: {accept_estimate: true}}")
    warning = "headroom of the ASIC 'tomahawk5' is an estimate and no vendor's number"
    assert done.returncode == 0 and done.stderr.startswith(f"tensorlane-switch: warning: s0: {warning}") and done.stderr.count("\n") == 1, done
    db = json.loads((out / "s0/config_db.json").read_text())
    (profile,) = (row for name, row in db["BUFFER_PROFILE"].items() if name.startswith("pg_lossless_"))
    estimate = json.loads(run("headroom", "--asic", "generic", "--speed", "400G", "--cable", "30m", "--json").stdout)
    assert int(profile["xoff"]) == estimate["xoff_upper"] >= 445770, (profile, estimate)  # what vendors' tables have
    assert run("lint", out).returncode == 0
    done = render("qos: {headroom: {accept_estimate: true}}", "sonic", "--json")
    (device,) = json.loads(done.stdout)["devices"]
    assert not done.stderr and len(device["warnings"]) == 1 and device["warnings"][0].startswith(warning), done
    done = run("diff", "--fabric", fabric, "--running", out)
    assert done.returncode == 0, done
    fabric.write_text(text)
    done = run("diff", "--fabric", fabric, "--running", out)
    assert done.returncode == 2 and "'accept_estimate: true'" in done.stderr, done
    done = render("", "sonic", "--buffer-model", "dynamic")  # which computes it itself
    assert done.returncode == 0 and "warning" not in done.stderr, done
    done = render("", "openconfig")  # which has no words for it
    assert done.returncode == 0, done
    done = render("qos: {headroom: {accept_estimate: true}}".replace("}}", "}}\n"), "linux")
    assert done.returncode == 0, done
    text = text.replace("165000000", "6000000")
    done = render("qos: {headroom: {accept_estimate: true}}")
    assert done.returncode == 2 and "more than half" in done.stderr, done


def check_memory(folder):
    """The pool of lossless classes at the egress is what SONiC's own templates give it, whatever a data sheet says."""
    fabric = folder / "fabric.yaml"
    known = {"SN2700": 13945824, "SN3700": 34287552, "SN4600C": 60817392, "SN4700": 60817392, "SN5600": 158229504, "SN5640": 136210432}
    known.update(dict.fromkeys(("SN2010", "SN2100", "SN2410"), known["SN2700"]) | dict.fromkeys(("SN3420", "SN3700C"), known["SN3700"]) | {"SN5400": known["SN5600"]})
    cases = [(name, size) for name, size in known.items()] + [("{name: SN2700, buffer: 16000000}", known["SN2700"]), ("{name: SN2700, buffer: 12000000}", 12000000),
                                                              ("{name: x, asic: spectrum4, buffer: 160000000, lossless: 2}", known["SN5600"])]
    for i, (platform, size) in enumerate(cases):
        fabric.write_text(FABRIC.replace("PLATFORM", f"platform: {platform}"))
        done = run("render", "--fabric", fabric, "--target", "sonic", "--out", folder / f"out{i}", "--json")
        assert done.returncode == 0, done
        pools = json.loads((folder / f"out{i}/s0/config_db.json").read_text())["BUFFER_POOL"]
        assert pools["egress_lossless_pool"]["size"] == str(size), (platform, pools)
        (device,) = json.loads(done.stdout)["devices"]
        assert any("the packet memory is taken as" in note for note in device["notes"]) == ("16000000" in platform), device


def check_marking(folder):
    """Without 'ecn' in the file: HPCC's thresholds by speed in steps, slower ports in proportion, the most urgent class at half, and no less than two packets."""
    fabric = folder / "fabric.yaml"
    for speed, kmin, kmax in (("10G", 40000, 160000), ("25G", 100000, 400000), ("40G", 200000, 800000), ("50G", 200000, 800000), ("100G", 400000, 1600000),
                              ("200G", 600000, 2400000), ("400G", 800000, 3200000), ("800G", 800000, 3200000)):
        fabric.write_text(FABRIC.replace("PLATFORM", "platform: SN5600").replace("100G", speed))
        done = run("render", "--fabric", fabric, "--target", "sonic", "--out", folder / speed)
        assert done.returncode == 0, done
        db = json.loads((folder / speed / "s0/config_db.json").read_text())
        for queue, share in (("5", 2), ("3", 1)):  # urgent, bulk
            least = max(kmin // share, 2 * 9216)
            profile = db["WRED_PROFILE"][db["QUEUE"][f"Ethernet0|{queue}"]["wred_profile"]]
            for colour in ("green", "yellow", "red"):
                found = (profile[f"{colour}_min_threshold"], profile[f"{colour}_max_threshold"], profile[f"{colour}_drop_probability"])
                assert found == (str(least), str(max(kmax // share, 4 * least)), "20"), (speed, queue, found)


def check_watchdog(folder):
    """Every time of the file is where SONiC looks for it."""
    fabric = folder / "fabric.yaml"
    for action in ("drop", "forward"):
        watchdog = f"qos: {{retry_budget: 5 s, watchdog: {{poll: 100 ms, detection: 300 ms, restoration: 700 ms, action: {action}}}}}"
        fabric.write_text(FABRIC.replace("PLATFORM", "platform: SN4700") + watchdog)
        done = run("render", "--fabric", fabric, "--target", "sonic", "--out", folder / action)
        assert done.returncode == 0, done
        rows = json.loads((folder / action / "s0/config_db.json").read_text())["PFC_WD"]
        assert rows["GLOBAL"] == {"POLL_INTERVAL": "100"}, rows
        assert rows["Ethernet0"] == {"action": action, "detection_time": "300", "restoration_time": "700"}, rows


def check_newer_releases(folder):
    """Are warned of, not refused."""
    fabric = folder / "fabric.yaml"
    for release, warns in (("202405", False), ("202612", False), ("202911", True)):
        fabric.write_text(FABRIC.replace("PLATFORM", "platform: SN4700").replace("nos: sonic", f"nos: sonic, release: {release}"))
        done = run("render", "--fabric", fabric, "--target", "sonic", "--out", folder / release)
        assert done.returncode == 0 and (f"release {release} of SONiC is newer than 202612" in done.stderr) == warns, done


def check_folder(folder):
    """Twice the same bytes, strangers' files are left alone, and nothing half-written stays."""
    (folder / "fabric.yaml").write_text(FABRIC.replace("PLATFORM", "platform: SN4700"))
    render = lambda out, target="sonic": run("render", "--fabric", folder / "fabric.yaml", "--target", target, "--out", out)
    assert render(folder / "a").returncode == 0 and render(folder / "b").returncode == 0
    assert filecmp.cmp(folder / "a/s0/config_db.json", folder / "b/s0/config_db.json", shallow=False)
    assert render(folder / "a", "linux").returncode == 0  # in the place of the other
    assert sorted(path.name for path in (folder / "a/s0").iterdir()) == ["apply.sh", "rollback.sh"]
    (folder / "a/s0/mine.txt").write_text("precious")
    done = render(folder / "a")
    assert done.returncode == 2 and "no folder of rendered configuration" in done.stderr, done
    assert (folder / "a/s0/mine.txt").read_text() == "precious"
    assert render(folder / "missing/a").returncode == 2
    unknown = render(folder / "c", "sonik")
    assert unknown.returncode == 2 and "expected one of sonic, cumulus, eos, " in unknown.stderr, unknown
    assert not (folder / "c").exists() and not list(folder.glob(".tensorlane*"))


def check_golden(folder):
    """One port with a link and one without, byte by byte: a change is read before it is kept."""
    golden = pathlib.Path(__file__).parent / "golden"
    for target in ("sonic", "openconfig", "linux"):
        out = folder / target
        assert run("render", "--fabric", golden / "fabric.yaml", "--target", target, "--out", out).returncode == 0
        names = sorted(path.name for path in (golden / target).iterdir())
        assert names == sorted(path.name for path in (out / "s0").iterdir()), names
        for name in names:
            assert (out / "s0" / name).read_text() == (golden / target / name).read_text(), f"{out / 's0' / name} is not {golden / target / name}"


def check_time(folder):
    """8,192 ports and what their hosts need in one page."""
    example = run("example", "clos", "--spines", 32, "--leaves", 64, "--hosts", 4096, "--nos", "sonic")
    assert example.returncode == 0 and example.stdout.count("\n") < 40, example
    (folder / "fabric.yaml").write_text(example.stdout)
    render_time(folder / "fabric.yaml", "sonic", folder / "out")
    ports = sum(len(json.loads(path.read_text())["PORT"]) for path in (folder / "out").glob("*/config_db.json"))
    assert ports == 64 * (64 + 32) + 32 * 64, ports


all_of(check_random_fabrics, check_the_oracle_notices, check_refusals, check_lookup, check_static_thresholds, check_estimates, check_memory, check_marking, check_watchdog, check_newer_releases, check_folder, check_golden, check_time)
