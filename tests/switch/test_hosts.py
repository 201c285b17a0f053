#!/usr/bin/env python3
"""Runs the scripts of hosts in a network namespace, with a NIC of `fake_nic.py`, and compares what they set with the oracle. usage: test_hosts.py TENSORLANE_SWITCH"""

import json
import os
import pathlib
import shutil
import subprocess
import sys

import checks
import fabrics
import fake_nic
import oracle

SWITCH = sys.argv[1]
TOOLS = ("mlnx_qos", "tc", "ethtool", "ip")
SKIP = 77
MTU = 1500  # of the namespace's interface at first


class Host:
    """A root folder with sysfs and configfs, and a NIC, in a namespace of its own whose eth0 is one end of a pair."""

    def __init__(self, folder, scripts, tools=TOOLS):
        self.root, self.scripts, self.nic, self.bin = folder / "root", scripts, folder / "nic.json", folder / "bin"
        self.bin.mkdir()
        fake_nic.install(self.bin, *tools)
        for command in ("sh", "awk", "sed", "cat", "cmp", "mkdir", "rmdir", "rm", "mv", "cp", "chmod", "ln", "tr", "sort", "readlink", "dirname", "env", "python3"):
            (self.bin / command).symlink_to(shutil.which(command))
        sys_class = self.root / "sys/class"
        for kind in ("np", "rp"):
            for prio in range(8):
                self.put(sys_class / f"net/eth0/ecn/roce_{kind}/enable/{prio}", "0")
        self.put(sys_class / "net/eth0/ecn/roce_np/cnp_dscp", "46")
        self.put(sys_class / "net/eth0/ecn/roce_np/cnp_802p_prio", "7")
        (sys_class / "net/eth0/device/infiniband/mlx5_0").mkdir(parents=True)
        self.put(sys_class / "infiniband/mlx5_0/tc/1/traffic_class", "Global tclass=106")
        self.put(self.root / "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode", "IB/RoCE v1")
        self.put(self.root / "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos", "0")
        self.namespace = subprocess.Popen(["unshare", "-rn", "sh", "-c", f"ip link add eth0 mtu {MTU} type veth peer name other && echo up && exec cat"],
                                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.usable = self.namespace.stdout.readline() == "up\n"

    def put(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")

    def close(self):
        self.namespace.stdin.close()
        self.namespace.wait()

    def enter(self, *command, **env):
        inside = ["nsenter", "-U", "-n", "--preserve-credentials", "-t", str(self.namespace.pid), *map(str, command)]
        env = {"PATH": str(self.bin), "TENSORLANE_ROOT": str(self.root), "FAKE_NIC": str(self.nic), **env}
        return subprocess.run([shutil.which("nsenter"), *inside[1:]], capture_output=True, text=True, timeout=240, env=env)

    def run(self, script, **env):
        return self.enter(shutil.which("sh"), self.scripts / f"{script}.sh", **env)

    def state(self):
        nic = json.loads(self.nic.read_text()) if self.nic.exists() else dict(fake_nic.NEW)
        return {key: value for key, value in nic.items() if key != "changes"}

    def files(self):
        return {str(path.relative_to(self.root)): path.read_text() for path in self.root.rglob("*")
                if path.is_file() and "default_roce" not in path.name or "default_roce" in path.name}

    def mtu(self):
        return int(self.enter(self.bin / "ip", "-o", "link", "show", "dev", "eth0").stdout.split(" mtu ")[1].split()[0])

    def everything(self):
        return self.state(), self.files(), self.mtu()


def normal(everything):
    """VLAN entries that map to 0 are the same as none; what the driver does not show before it trusts DSCP cannot be restored."""
    nic, files, mtu = everything
    nic = {**nic, **{key: {a: b for a, b in nic[key].items() if int(b)} for key in ("vlan_egress", "vlan_ingress")}}
    nic["vlan_egress"] = {str(a): str(b) for a, b in nic["vlan_egress"].items()}
    nic["app"] = {str(a): str(b) for a, b in nic["app"].items()}
    return nic, {path: text.replace("Global tclass=", "") for path, text in files.items()}, mtu


def compare(host, wanted, text):
    """What the NIC does now is what the fabric file asks for."""
    nic, files, mtu = host.everything()
    lossless = [int(bool(wanted.classes.get(p, {}).get("lossless"))) for p in range(8)]
    assert nic["pfc"] == lossless, (nic["pfc"], text)
    maps = nic["dscp2prio"] if "mlnx_qos" in os.listdir(host.bin) else [int(nic["app"].get(str(d), -1)) for d in range(64)]
    assert maps == [wanted.queue_of_dscp.get(d, 0) for d in range(64)], text
    assert nic["prio_tc"] == list(range(8)) and sum(nic["bw"]) == 100
    for queue, cls in wanted.classes.items():
        assert (nic["tsa"][queue] == "strict") == cls["strict"], (queue, nic["tsa"], text)
        assert bool(nic["rate"][queue]) == bool(cls["shaper"]), (queue, nic["rate"], text)
        assert cls["strict"] or nic["bw"][queue] > 0
    buffers = [nic["prio2buffer"][p] for p in range(8) if lossless[p]]
    if nic["sizes"] != fake_nic.NEW["sizes"]:  # a NIC that holds them all
        assert len(set(buffers)) == len(buffers) and 0 not in buffers and all(nic["sizes"][b] for b in buffers), nic
        assert all(nic["prio2buffer"][p] == 0 for p in range(8) if not lossless[p])
    marked = {p for p, cls in wanted.classes.items() if cls.get("data")}
    for kind in ("np", "rp"):
        assert {p for p in range(8) if files[f"sys/class/net/eth0/ecn/roce_{kind}/enable/{p}"] == "1\n"} == marked
    cnp = next((queue, cls["dscp"]) for queue, cls in wanted.classes.items() if cls["name"] == "cnp")
    assert (files["sys/class/net/eth0/ecn/roce_np/cnp_802p_prio"], files["sys/class/net/eth0/ecn/roce_np/cnp_dscp"]) == tuple(f"{n}\n" for n in cnp)
    bulk = [cls for cls in wanted.classes.values() if cls.get("data")][-1]
    assert files["sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos"] == f"{bulk['dscp'] * 4 + 2}\n", text
    assert files["sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_mode"] == "RoCE v2\n"
    assert files["sys/class/infiniband/mlx5_0/tc/1/traffic_class"] == "0\n"
    tos = {(family, int(value.split("/")[0], 16) >> 2): int(prio) for family, _, value, prio in nic["filters"]}
    assert tos == {(family, d): queue for family in ("ip", "ipv6") for d, queue in wanted.queue_of_dscp.items()}, tos
    assert nic["qdisc"].split()[:8] == list("01234567") and nic["pause"] == ["off", "off"]
    assert {a: int(b) for a, b in nic["vlan_egress"].items() if int(b)} == {str(p): p for p in range(1, 8)}
    assert f"mtu: {mtu}" in text or "mtu" not in text
    unit = host.root / "etc/systemd/system/tensorlane-nic.service"
    assert "ExecStart=/var/lib/tensorlane/nic/apply.sh\n" in unit.read_text()
    assert (host.root / "etc/systemd/system/multi-user.target.wants/tensorlane-nic.service").resolve() == unit.resolve()
    assert (host.root / "var/lib/tensorlane/nic/apply.sh").read_text() == (host.scripts / "apply.sh").read_text()


def rendered(folder, text, host="h0"):
    (folder / "fabric.yaml").write_text(text)
    done = subprocess.run([SWITCH, "render", "--fabric", folder / "fabric.yaml", "--target", "host", "--out", folder / "out"], capture_output=True, text=True)
    assert done.returncode == 0, (done.stderr, text)
    return oracle.Wanted(text), folder / "out" / host


FABRIC = (pathlib.Path(__file__).parent / "golden/fabric.yaml").read_text()


def check_apply_verify_rollback(folder, host):
    """What verify says before and after, what a second apply does, and that rollback leaves nothing behind."""
    before = host.everything()
    done = host.run("verify")
    assert done.returncode == 1 and not done.stderr, done
    for line in ('eth0 trust: is "pcp", expected "dscp"', 'eth0 pfc 3: is "0", expected "1"', 'eth0 mtu: is "1500", expected "9216"',
                 '/sys/class/infiniband/mlx5_0/tc/1/traffic_class override: is "106", expected "0"', 'tensorlane-nic.service boot: is "no", expected "yes"'):
        assert line in done.stdout.splitlines(), (line, done.stdout)
    assert host.everything() == before, "verify changed something"
    done = host.run("apply")
    assert done.returncode == 0 and not done.stderr, done
    done = host.run("verify")
    assert (done.returncode, done.stdout) == (0, "all is set\n"), done
    applied, changes = host.everything(), json.loads(host.nic.read_text())["changes"]
    done = host.run("apply")
    assert (done.returncode, done.stdout) == (0, "all is set already\n") and json.loads(host.nic.read_text())["changes"] == changes, done
    assert host.everything() == applied
    return before


def check_drift(host):
    """All settings become something else at once: verify names each, and apply sets them."""
    drifts = {"pfc": [0, 0, 0, 1, 0, 0, 0, 0], "prio_tc": [0, 1, 2, 3, 4, 5, 6, 6], "rate": [0] * 8, "dcbx": "fw", "cable": 100,
              "prio2buffer": [0, 0, 0, 1, 0, 1, 0, 0], "pause": ["on", "off"], "qdisc": None, "filters": [], "vlan_egress": {"1": 1}}
    files = ("sys/class/net/eth0/ecn/roce_rp/enable/5", "sys/class/net/eth0/ecn/roce_np/cnp_dscp", "sys/class/infiniband/mlx5_0/tc/1/traffic_class",
             "sys/kernel/config/rdma_cm/mlx5_0/ports/1/default_roce_tos")
    good = json.loads(host.nic.read_text())
    host.nic.write_text(json.dumps({**good, **drifts}))
    for file in files:
        (host.root / file).write_text("9\n")
    done = host.run("verify")
    named = sorted({" ".join(line.split(": is ")[0].split()[:2]) for line in done.stdout.splitlines()})
    expected = [f"eth0 {name}" for name in ("pfc", "prio_tc", "ratelimit", "dcbx", "cable", "buffers", "pause", "qdisc", "egress")] + ["eth0.100 vlan_egress"]
    assert done.returncode == 1 and named == sorted(expected + [f"/{file} {'override' if 'traffic' in file else 'file'}" for file in files]), done
    assert host.run("apply").returncode == 0 and host.run("verify").returncode == 0
    now = json.loads(host.nic.read_text())
    assert all(now[key] == good[key] for key in drifts if key != "vlan_egress")


def check_failures(folder, scripts, before):
    """A NIC that refuses one change: apply says which, and rollback restores all of it."""
    for fails in (6, 20):
        (folder / str(fails)).mkdir()
        host = Host(folder / str(fails), scripts)
        done = host.run("apply", FAKE_FAILS=str(fails))
        assert done.returncode == 2 and "rollback.sh restores" in done.stderr, (fails, done)
        assert host.run("rollback").returncode == 0
        assert normal(host.everything()) == normal(before), fails
        host.close()


def mlnx(folder):
    wanted, scripts = rendered(folder, FABRIC)
    host = Host(folder, scripts)
    if not host.usable:
        sys.exit(SKIP)
    before = check_apply_verify_rollback(folder, host)
    compare(host, wanted, FABRIC)
    check_drift(host)
    done = host.run("rollback")
    assert done.returncode == 0, done
    assert normal(host.everything()) == normal(before)
    assert host.run("rollback").stdout == "nothing was changed\n"
    host.close()
    check_failures(folder, scripts, before)


def dcb(folder):
    """The same by dcb, where mlnx_qos is not installed."""
    wanted, scripts = rendered(folder, FABRIC)
    host = Host(folder, scripts, ("dcb", "tc", "ethtool", "ip"))
    before = host.everything()
    assert host.run("verify").returncode == 1 and host.everything() == before
    done = host.run("apply")
    assert done.returncode == 0, done
    assert host.run("verify").stdout == "all is set\n" and host.run("apply").stdout == "all is set already\n"
    compare(host, wanted, FABRIC)
    nic = json.loads(host.nic.read_text())
    nic["app"]["27"] = 0
    host.nic.write_text(json.dumps(nic))
    assert host.run("verify").returncode == 1 and host.run("apply").returncode == 0 and host.run("verify").returncode == 0
    assert host.run("rollback").returncode == 0
    assert {**normal(host.everything())[0], "dcbx": 0} == {**normal(before)[0], "dcbx": 0}
    host.close()


def random_fabrics(folder):
    for seed in range(2):
        here = folder / str(seed)
        here.mkdir()
        text = fabrics.fabric_text(seed)
        wanted, scripts = rendered(here, text)
        host = Host(here, scripts)
        done = host.run("apply")
        assert done.returncode == 0, (seed, done)
        compare(host, wanted, text)
        assert host.run("verify").returncode == 0
        (here / "h0.txt").write_text(host.enter(host.bin / "mlnx_qos", "-i", "eth0").stdout)
        assert checks.difference(here / "fabric.yaml", here / "h0.txt") == [], seed
        host.close()


def refusals(folder):
    """Names are never commands; a host without a link has no NIC to set up; a missing interface changes nothing."""
    for name in ("eth0;reboot", "$(touch bad)", "`id`", "eth0 -x", "a'b", "eth0\n", "../x"):
        (folder / "fabric.yaml").write_text(FABRIC.replace("from_port: eth0", "from_port: " + json.dumps(name)))
        done = subprocess.run([SWITCH, "render", "--fabric", folder / "fabric.yaml", "--target", "host", "--out", folder / "out"], capture_output=True, text=True)
        assert done.returncode == 2 and not (folder / "out").exists(), (name, done)
    (folder / "fabric.yaml").write_text(FABRIC.replace("hosts: [", "hosts: [{name: lone, addresses: {tcp: 10.0.0.9}}, "))
    render = lambda target, *options: subprocess.run([SWITCH, "render", "--fabric", folder / "fabric.yaml", "--target", target, "--out", folder / "out", *options],
                                                     capture_output=True, text=True)
    for done in (render("host"), render("sonic", "--hosts")):
        assert done.returncode == 2 and "host 'lone' has no link to a switch" in done.stderr and not (folder / "out").exists(), done
    (folder / "fabric.yaml").write_text(FABRIC)
    assert render("sonic", "--hosts").returncode == 0 and sorted(path.name for path in (folder / "out").iterdir()) == ["h0", "s0"]
    assert render("sonic").returncode == 0 and [path.name for path in (folder / "out").iterdir()] == ["s0"]
    _, scripts = rendered(folder, FABRIC.replace("from_port: eth0", "from_port: eth7"))
    host = Host(folder, scripts)
    before = host.everything()
    done = host.run("apply")
    assert done.returncode == 2 and "eth7: there is no such interface" in done.stderr and host.everything() == before, done
    host.close()


def golden(folder):
    """Byte by byte: a change is read before it is kept."""
    _, scripts = rendered(folder, FABRIC)
    for script in ("apply", "verify", "rollback"):
        kept = pathlib.Path(__file__).parent / f"golden/host/{script}.sh"
        assert (scripts / kept.name).read_text() == kept.read_text() and os.access(scripts / kept.name, os.X_OK), f"{scripts / kept.name} is not {kept}"


checks.all_of(mlnx, dcb, random_fabrics, refusals, golden)
