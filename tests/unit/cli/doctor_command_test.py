#!/usr/bin/env python3
"""`tensorlane doctor` on copies of a host's sys and proc: a clean one has no finding, and each fault is found alone, by its rule at its place.
usage: doctor_command_test.py TENSORLANE"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

TENSORLANE = sys.argv[1]
FABRIC = """hosts: [{name: h0, addresses: {tcp: 10.0.0.1}, rdma_devices: [mlx5_0]}, {name: lone, addresses: {tcp: 10.0.0.2}}]
switches: [{name: s0, platform: SN4700}]
links: [{from: h0, from_port: eth0, to: s0, to_port: Ethernet0, speed: 100G, cable: 3 m, mtu: 9000}]
"""
# Greenfield: bulk has DSCP 27 and priority 3, CNP 48 and 4, urgent 43 and 5, control 51 and 6.
CLASSES = {27: 3, 48: 4, 43: 5, 51: 6}
QOS = "mlnx_qos/eth0"
DCB = "dcb/eth0"
CC_PARAMS = "sys/kernel/debug/mlx5/0000:41:00.0/cc_params"
ECN = "sys/class/net/eth0/ecn"
OVERRIDE = "sys/class/infiniband/mlx5_0/tc/1/traffic_class"
DEFAULT_TOS = "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos"


def mlnx_qos(trust="dscp", pfc=(3, 5), classes=CLASSES, dcbx="OS", tsa="ets"):
    lines = [f"DCBX mode: {dcbx} controlled", f"Priority trust state: {trust}"]
    if trust == "dscp":
        lines += ["dscp2prio mapping:"] + [f"\tprio:{classes.get(d, 0)} dscp:{d:02}," for d in range(64)]
    lines += ["default priority:", "Receive buffer size (bytes): 90000,90000,90000,0,0,0,0,0,", "Cable len: 3", "PFC configuration:",
              "\tpriority    0   1   2   3   4   5   6   7", "\tenabled     " + "   ".join(str(int(p in pfc)) for p in range(8)),
              "\tbuffer      0   0   0   1   0   2   0   0"]
    for tc in range(8):
        lines += [f"tc: {tc} ratelimit: unlimited, tsa: " + (f"{tsa}, bw: {[30, 1, 1, 68][tc]}%" if tc < 4 else "strict"), f"\t priority:  {tc}"]
    return "\n".join(lines) + "\n"


def dcb(pfc=(3, 5), classes=CLASSES, willing="off"):
    """As iproute2 prints the objects one after the other."""
    words = lambda pairs: " ".join(f"{a}:{b}" for a, b in pairs)
    return "\n".join([
        "host ieee", "pfc-cap 8 macsec-bypass off delay 0", "prio-pfc " + words((p, "on" if p in pfc else "off") for p in range(8)),
        *(["dscp-prio " + words(classes.items())] if classes else []), f"willing {willing} ets-cap 8 cbs off", "tc-bw " + words(enumerate([30, 1, 1, 68, 0, 0, 0, 0])),
        "tc-tsa " + words((tc, "ets" if tc < 4 else "strict") for tc in range(8)), "prio-tc " + words((p, p) for p in range(8)),
        "prio-buffer " + words((p, {3: 1, 5: 2}.get(p, 0)) for p in range(8)), "buffer-size 0:90000b 1:90000b 2:90000b 3:0b 4:0b 5:0b 6:0b 7:0b", "total-size 270000b"])


def healthy():
    files = {"sys/class/net/eth0/mtu": "9000", QOS: mlnx_qos(), f"{ECN}/roce_np/cnp_dscp": "48", f"{ECN}/roce_np/cnp_802p_prio": "4", OVERRIDE: "0",
             DEFAULT_TOS: "110", "sys/class/net/eth0/device/infiniband/mlx5_0/x": "", "proc/self/limits": "Max locked memory  65536  65536  bytes", "proc/5/comm": "tensorlaned", "proc/5/limits": "Max locked memory  unlimited  unlimited  bytes",
             "proc/77/limits": "Max locked memory  unlimited  unlimited  bytes", "proc/77/environ": "A=b\0"}
    for kind in ("np", "rp"):
        files |= {f"{ECN}/roce_{kind}/enable/{p}": str(int(p in (3, 5))) for p in range(8)}
    for index, kind in enumerate(("IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2")):
        files[f"sys/class/infiniband/mlx5_0/ports/1/gid_attrs/types/{index}"] = kind
    return files


# (what is changed in the files, the environment, rule, severity, part of the place, part of the message)
FAULTS = [
    ({"sys/class/net/eth0/mtu": "9216"}, {}, "L7", "error", "eth0/mtu", "larger packets are dropped"),
    ({"sys/class/net/eth0/mtu": "1500"}, {}, "L7", "warning", "eth0/mtu", "has 9000"),
    ({QOS: mlnx_qos(trust="pcp")}, {}, "L10", "warning", "Priority trust state", "trusts pcp"),
    ({QOS: mlnx_qos(pfc=(3,))}, {}, "L3", "error", "PFC configuration", "priorities 3, and the fabric's lossless ones are 3,5"),
    ({QOS: mlnx_qos(pfc=())}, {}, "L3", "error", "PFC configuration", "priorities none"),
    ({QOS: mlnx_qos(classes={**CLASSES, 27: 0})}, {}, "L1", "error", "dscp2prio 27", "in the fabric 3 ('bulk')"),
    ({QOS: mlnx_qos(classes={**CLASSES, 46: 5})}, {}, "L1", "warning", "dscp2prio 46", "DSCP 46 has priority 5"),
    ({QOS: mlnx_qos(dcbx="Firmware")}, {}, "L10", "warning", "DCBX mode", "firmware"),
    ({f"{ECN}/roce_rp/enable/5": "0"}, {}, "L5", "warning", "roce_rp/enable/5", "does not slow down"),
    ({f"{ECN}/roce_np/enable/3": "0"}, {}, "L5", "warning", "roce_np/enable/3", "sends no notifications"),
    ({f"{ECN}/roce_np/cnp_dscp": "46"}, {}, "L10", "warning", "cnp_dscp", "expects 48"),
    ({f"{ECN}/roce_np/cnp_802p_prio": "6"}, {}, "L10", "warning", "cnp_802p_prio", "expects 4"),
    ({OVERRIDE: "Global tclass=106"}, {}, "L10", "error", "traffic_class", "DSCP 26"),
    ({DEFAULT_TOS: "108"}, {}, "L10", "warning", "default_roce_tos", "without ECN"),
    ({DEFAULT_TOS: "0"}, {}, "L10", "warning", "default_roce_tos", "bulk's 27"),
    ({"proc/5/limits": "Max locked memory  65536  65536  bytes"}, {}, "L10", "error", "Max locked memory", "65536 bytes"),
    ({}, {"NCCL_IB_TC": "106"}, "L10", "warning", "NCCL_IB_TC", "DSCP 26, which is no class"),
    ({}, {"NCCL_IB_TC": "27"}, "L10", "warning", "NCCL_IB_TC", "27 would be the DSCP of class 'bulk'"),
    ({}, {"NCCL_IB_TC": "172"}, "L10", "warning", "NCCL_IB_TC", "without ECN"),
    ({}, {"NCCL_IB_TC": "x"}, "L9", "error", "NCCL_IB_TC", "'x' is no number"),
    ({}, {"NCCL_IB_TC": "300"}, "L9", "error", "NCCL_IB_TC", "no TOS byte"),
    ({}, {"NCCL_IB_TC": "174", "NCCL_IB_SL": "3"}, "L10", "warning", "NCCL_IB_SL", "class 'urgent'"),
    ({}, {"NCCL_IB_SL": "16"}, "L9", "error", "NCCL_IB_SL", "no service level"),
    ({}, {"NCCL_IB_GID_INDEX": "2"}, "L10", "error", "NCCL_IB_GID_INDEX", "of type IB/RoCE v1"),
    ({}, {"UCX_IB_GID_INDEX": "9"}, "L10", "error", "UCX_IB_GID_INDEX", "has no GID 9"),
    ({}, {"UCX_IB_TRAFFIC_CLASS": "104"}, "L10", "warning", "UCX_IB_TRAFFIC_CLASS", "DSCP 26"),
    ({}, {"UCX_IB_SL": "1"}, "L10", "warning", "UCX_IB_SL", "class 'bulk'"),
]


# The same host with upstream's driver and tools: what its tool or driver says, instead of the vendor's.
UPSTREAM_FAULTS = [
    ({DCB: dcb(pfc=(3,))}, "L3", "error", "prio-pfc", "dcb pfc set dev eth0 prio-pfc all:off 3:on 5:on"),
    ({DCB: dcb(classes={**CLASSES, 27: 0})}, "L1", "error", "dscp-prio 27", "dcb app replace dev eth0 dscp-prio 27:3"),
    ({DCB: dcb(willing="on")}, "L10", "warning", "willing", "dcb ets set dev IF willing off"),
    ({DCB: dcb(classes={})}, "L10", "warning", "dscp-prio", "dcb app replace dev eth0"),
    ({f"{CC_PARAMS}/np_cnp_dscp": "46"}, "L10", "warning", "np_cnp_dscp", "echo 48 >"),
    ({f"{CC_PARAMS}/np_cnp_prio": "6"}, "L10", "warning", "np_cnp_prio", "echo 4 >"),
]


def upstream():
    files = {name: text for name, text in healthy().items() if name != QOS and not name.startswith(ECN) and "/device/" not in name}
    return files | {DCB: dcb(), f"{CC_PARAMS}/np_cnp_dscp": "48", f"{CC_PARAMS}/np_cnp_prio": "4", "sys/devices/0000:41:00.0/infiniband/mlx5_0/x": ""}


def write(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")


def run(root, environment, *options):
    environment = {**{k: v for k, v in os.environ.items() if not k.startswith(("NCCL_", "UCX_"))}, **environment}
    return subprocess.run([TENSORLANE, "doctor", "--root", root, *map(str, options)], capture_output=True, text=True, timeout=60, env=environment)


def snapshot(root):
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def check_faults(folder, fabric):
    for index, (files, environment, rule, severity, place, message) in enumerate(FAULTS):
        root = folder / str(index)
        write(root, {**healthy(), **files})
        before = snapshot(root)
        done = run(root, environment, "--fabric", fabric, "--host", "h0", "--json")
        found = json.loads(done.stdout)["findings"]
        assert done.returncode == 1 and len(found) == 1, (index, found, done.stderr)
        assert (found[0]["rule"], found[0]["severity"], found[0]["device"]) == (rule, severity, "h0") and place in found[0]["place"], (index, found)
        assert message in found[0]["message"] and found[0]["fix"], (index, found)
        assert snapshot(root) == before


def check_clean(folder, fabric):
    root = folder / "clean"
    write(root, healthy())
    good = {"NCCL_IB_TC": "110", "NCCL_IB_SL": "3", "NCCL_IB_GID_INDEX": "3", "UCX_IB_TRAFFIC_CLASS": "174", "UCX_IB_SL": "5", "UCX_IB_GID_INDEX": "auto"}
    for environment in ({}, good):
        done = run(root, environment, "--fabric", fabric, "--host", "h0", "--json")
        assert done.returncode == 0 and json.loads(done.stdout) == {"findings": [], "unparsed": [], "unchecked": []}, done
        assert run(root, environment).returncode == 0
    # Without a fabric: what is wrong on any.
    write(root, {OVERRIDE: "106", "proc/77/environ": "NCCL_IB_GID_INDEX=0\0NCCL_IB_TC=104\0"})
    rules = lambda *options: [(f["rule"], f["place"].split("/")[-1]) for f in json.loads(run(root, {}, "--json", *options).stdout)["findings"]]
    assert rules() == [("L10", "traffic_class")], rules()
    assert sorted(rules("--pid", 77)) == [("L10", "NCCL_IB_GID_INDEX"), ("L10", "NCCL_IB_TC"), ("L10", "traffic_class")]
    # As in the installed example, the file may say nothing of ports.
    example = root / "example.yaml"
    example.write_text("hosts:\n  - {name: h0, addresses: {tcp: 10.0.0.1}}\nswitches:\n  - {name: leaf1}\nlinks:\n  - {from: h0, to: leaf1, speed: 100 Gbit/s}\nclasses: greenfield\n")
    notes = json.loads(run(root, {}, "--fabric", example, "--host", "h0", "--json").stdout)["findings"]
    assert [f["severity"] for f in notes if f["place"] == str(example)] == ["note"] and len(notes) == 2, notes
    # Nor of cables: a note, and all the rest is looked at.
    bare = folder / "bare.yaml"
    bare.write_text(FABRIC.replace(", cable: 3 m", ""))
    write(folder / "bare", healthy())
    notes = json.loads(run(folder / "bare", {}, "--fabric", bare, "--host", "h0", "--json").stdout)["findings"]
    assert [(f["severity"], "no cable length" in f["message"]) for f in notes] == [("note", True)], notes
    write(folder / "bare", {QOS: mlnx_qos(pfc=(3,))})
    found = json.loads(run(folder / "bare", {}, "--fabric", bare, "--host", "h0", "--json").stdout)["findings"]
    assert sorted(f["severity"] for f in found) == ["error", "note"], found
    # The daemon's limit counts, and only where something is locked.
    write(root, {"proc/5/limits": "Max locked memory  8388608  8388608  bytes"})
    assert ("L10", "Max locked memory") in rules(), rules()
    write(root, {"proc/5/limits": "Max locked memory  unlimited  unlimited  bytes"})
    tcp = folder / "tcp"
    write(tcp, {"sys/class/net/eth0/mtu": "9000", "proc/self/limits": "Max locked memory  65536  65536  bytes", "proc/5/comm": "tensorlaned",
                "proc/5/limits": "Max locked memory  65536  65536  bytes"})
    assert run(tcp, {}).returncode == 0, run(tcp, {})
    # What cannot be read is a note, and no fault.
    for path in (root / QOS, root / OVERRIDE, root / DEFAULT_TOS):
        path.unlink()
    done = run(root, {}, "--fabric", fabric, "--host", "h0", "--json")
    assert done.returncode == 0 and [f["severity"] for f in json.loads(done.stdout)["findings"]] == ["note"], done
    (root / "sys/class/net/eth0").rename(root / "sys/class/net/eth1")
    done = run(root, {}, "--fabric", fabric, "--host", "h0")
    assert done.returncode == 1 and "names this interface, and it is not there" in done.stdout, done


def check_upstream(folder, fabric):
    for index, (files, *wanted) in enumerate([({}, None), *UPSTREAM_FAULTS]):
        root = folder / f"upstream{index}"
        write(root, {**upstream(), **files})
        (root / "sys/class/net/eth0/device").symlink_to("../../../devices/0000:41:00.0")
        done = run(root, {}, "--fabric", fabric, "--host", "h0", "--json")
        found = json.loads(done.stdout)["findings"]
        if wanted == [None]:
            assert done.returncode == 0 and not found, (found, done.stderr)
            continue
        rule, severity, place, fix = wanted
        here = [f for f in found if (f["rule"], f["severity"]) == (rule, severity) and place in f["place"] and fix in f["fix"]]
        assert done.returncode == 1 and len(here) == 1 and found == here, (index, found, done.stderr)


def check_refusals(folder, fabric):
    root = folder / "refusals"
    write(root, healthy())
    for options, text in ((("--fabric", fabric, "--host", "h9"), "no host 'h9'"), (("--fabric", fabric, "--host", "lone"), "has no link to a switch"),
                          (("--fabric", root / "none.yaml"), "none.yaml"), (("--pid", 99), "99"), (("--root", root / "none"), "no sys/class")):
        done = run(root, {}, *options) if "--root" not in options else subprocess.run([TENSORLANE, "doctor", *map(str, options)], capture_output=True, text=True)
        assert done.returncode == 2 and text in done.stderr and not done.stdout, (options, done)
    write(root, {QOS: "no such device"})
    assert run(root, {}).returncode == 2
    assert subprocess.run([TENSORLANE, "doctor"], capture_output=True, timeout=60).returncode in (0, 1), "this very host"


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        fabric = folder / "fabric.yaml"
        fabric.write_text(FABRIC)
        check_clean(folder, fabric)
        check_faults(folder, fabric)
        check_upstream(folder, fabric)
        check_refusals(folder, fabric)


main()
