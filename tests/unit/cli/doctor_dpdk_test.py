#!/usr/bin/env python3
"""`tensorlane doctor` for ports that a daemon drives itself, on copies of a host's files: a right host has no finding, and each fault is found alone, at its place.
usage: doctor_dpdk_test.py TENSORLANE HAS_DPDK"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

TENSORLANE, HAS_DPDK = sys.argv[1], sys.argv[2] == "1"
ADDRESS = "0000:3b:00.0"
PCI = f"sys/bus/pci/devices/{ADDRESS}"
HUGE = "sys/kernel/mm/hugepages/hugepages-2048kB"
GROUP = {f"sys/kernel/iommu_groups/42/devices/{address}": "" for address in (ADDRESS, "0000:3b:00.1")}
UNSAFE = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode"
LIMITS = "proc/5/limits"
MODE = "mode "  # of a file or folder, beside its text
LINK = "link "
FABRIC = """classes: greenfield
hosts: [{name: h0, addresses: {tcp: 10.0.0.1, dpdk: 10.1.0.1}}]
switches: [{name: s0}]
links: [{from: h0, to: s0, speed: 100G, mtu: 9000}]
"""
ON_PCI = f"{{devices: ['{ADDRESS}'], eal: ['-a', '{ADDRESS}']}}"
PACKET = "{devices: ['net_af_packet0,iface=eth1']}"
XDP = "{devices: ['net_af_xdp0,iface=eth1']}"
MEMIF = "{devices: ['net_memif0,role=server,socket=/run/ports/m.sock,socket-abstract=no']}"


def healthy():
    """A daemon of user 998 with a PCI device, an interface and a folder of sockets. None: it is removed again."""
    return {"sys/class/net/lo/mtu": "65536", "sys/class/net/eth1/mtu": "9000", "sys/class/net/eth1/operstate": "up", "sys/class/net/eth1/flags": "0x1003", f"{PCI}/vendor": "0x8086", f"{PCI}/class": "0x020000",
            LINK + f"{PCI}/driver": "../../../bus/pci/drivers/vfio-pci", LINK + f"{PCI}/iommu_group": "../../../kernel/iommu_groups/42", **GROUP, "dev/vfio/42": "", MODE + "dev/vfio/42": 0o666,
            UNSAFE: "N", f"{HUGE}/nr_hugepages": "256", f"{HUGE}/free_hugepages": "128", "proc/5/comm": "tensorlaned", "proc/5/status": "Name:\ttensorlaned\nUid:\t998\t998\t998\t998\nGid:\t998\t998\t998\t998",
            LIMITS: "Max locked memory  unlimited  unlimited  bytes", "proc/self/limits": "", "run/ports/x": "", MODE + "run/ports": 0o750}


# (`dpdk` of daemon.yaml, what is changed, severity, rule, part of the place, part of the message, part of the fix)
FAULTS = [
    (ON_PCI, {f"{PCI}/vendor": None, f"{PCI}/class": None, LINK + f"{PCI}/driver": None, LINK + f"{PCI}/iommu_group": None}, "error", "P1", PCI, "it is not there", "lspci"),
    (f"{{devices: ['{ADDRESS}']}}", {}, "error", "P1", "daemon.yaml", "does not let DPDK see", f"eal: ['-a', '{ADDRESS}']"),
    (ON_PCI, {f"{PCI}/class": "0x010802"}, "error", "P1", f"{PCI}/class", "is no NIC (class 0x010802)", "lspci"),
    (ON_PCI, {f"{PCI}/vendor": "0x15b3"}, "error", "P1", "driver", "beside mlx5_core", "drivers_probe"),
    (ON_PCI, {LINK + f"{PCI}/driver": None}, "error", "P1", "driver", "no driver is bound", "--bind=vfio-pci"),
    (ON_PCI, {LINK + f"{PCI}/driver": "../../../bus/pci/drivers/ice"}, "error", "P1", "driver", "'ice', a driver of the kernel", "--bind=vfio-pci"),
    (ON_PCI, {LINK + f"{PCI}/driver": "../../../bus/pci/drivers/igb_uio"}, "warning", "P1", "driver", "write to all memory", "--bind=vfio-pci"),
    (ON_PCI, {LINK + f"{PCI}/iommu_group": None}, "error", "P1", "iommu_group", "no IOMMU group", "intel_iommu=on"),
    (ON_PCI, {LINK + "sys/bus/pci/devices/0000:3b:00.1/driver": "../../../bus/pci/drivers/ice"}, "error", "P1", "iommu_groups/42/devices/0000:3b:00.1", "'ice' has this device of the same IOMMU group", "bind it to vfio-pci, too"),
    (ON_PCI, {"dev/vfio/42": None}, "error", "P1", "/dev/vfio/42", "no file", "modprobe vfio-pci"),
    (ON_PCI, {MODE + "dev/vfio/42": 0o600}, "error", "P1", "/dev/vfio/42", "user 998 of the daemon may not", "chown 998 /dev/vfio/42"),
    (ON_PCI, {UNSAFE: "Y", "dev/vfio/42": None, "dev/vfio/noiommu-42": "", MODE + "dev/vfio/noiommu-42": 0o666}, "warning", "P1", "enable_unsafe_noiommu_mode", "without an IOMMU", "echo 0 >"),
    (ON_PCI, {LIMITS: "Max locked memory  8388608  8388608  bytes"}, "error", "P1", "/proc/5/limits", "8388608 bytes", "LimitMEMLOCK"),
    (XDP, {LIMITS: "Max locked memory  8388608  8388608  bytes"}, "error", "P1", "/proc/5/limits", "8388608 bytes", "LimitMEMLOCK"),
    (ON_PCI, {f"{HUGE}/nr_hugepages": "0", f"{HUGE}/free_hugepages": "0"}, "warning", "P1", "hugepages", "no huge pages", "nr_hugepages"),
    (PACKET, {f"{HUGE}/nr_hugepages": "0"}, "note", "P1", "hugepages", "the daemon starts DPDK with --no-huge", "or say --no-huge in `eal`"),
    (PACKET.replace("]}", "], eal: ['--in-memory']}"), {f"{HUGE}/nr_hugepages": "0"}, "error", "P1", "hugepages", "asks for huge pages", "nr_hugepages"),
    (PACKET, {f"{HUGE}/free_hugepages": "0", "proc/5/comm": "other"}, "error", "P1", "hugepages", "all 256 huge pages are in use", "nr_hugepages"),
    (ON_PCI.replace("eal: [", "eal: ['--no-huge', "), {f"{HUGE}/nr_hugepages": "0"}, "warning", "P1", "daemon.yaml", "--no-huge", "nr_hugepages"),
    (PACKET, {"sys/class/net/eth1/mtu": None, "sys/class/net/eth1/operstate": None, "sys/class/net/eth1/flags": None}, "error", "P1", "net/eth1", "it is not there", "ip link"),
    (PACKET, {"sys/class/net/eth1/flags": "0x1002"}, "error", "P1", "eth1/flags", "not up", "ip link set dev eth1 up"),
    (XDP, {"sys/class/net/eth1/operstate": "lowerlayerdown"}, "error", "P1", "eth1/operstate", "its link is 'lowerlayerdown'", "cable"),
    (PACKET, {"sys/class/net/eth1/mtu": "1500"}, "error", "L7", "eth1/mtu", "1500 bytes, but the fabric's link has 9000", "ip link set dev eth1 mtu 9000"),
    ("{devices: ['net_af_packet0']}", {}, "error", "P1", "daemon.yaml", "names no interface", "iface="),
    (MEMIF, {MODE + "run/ports": 0o777}, "error", "P1", "/run/ports", "strangers may write", "chmod o-rwx /run/ports"),
    (MEMIF, {MODE + "run/ports": 0o755}, "warning", "P1", "/run/ports", "strangers may look up", "chmod o-rwx /run/ports"),
    (MEMIF.replace(",socket-abstract=no", ""), {}, "error", "P1", "daemon.yaml", "in no folder", "socket-abstract=no"),
    (MEMIF.replace("ports", "none"), {}, "error", "P1", "/run/none", "it is not there", "install -d"),
    ("{}", {}, "error", "P1", "daemon.yaml", "names no devices", "devices"),
]


def write(root, files):
    for name, text in files.items():
        if text is None or name.startswith(MODE):
            continue
        path = root / name.removeprefix(LINK)
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.startswith(LINK):
            path.symlink_to(text)
        else:
            path.write_text(text + "\n")
    for name, mode in files.items():
        if name.startswith(MODE) and (root / name.removeprefix(MODE)).exists():
            (root / name.removeprefix(MODE)).chmod(mode)


def write_config(folder, dpdk, more=""):
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    (folder / "fabric.yaml").write_text(FABRIC)
    path = folder / "daemon.yaml"
    path.write_text(f"fabric: fabric.yaml\nhost: h0\n{more}" + (f"dpdk: {dpdk}\n" if dpdk else ""))
    return path


def run(root, *options):
    return subprocess.run([TENSORLANE, "doctor", "--root", root, "--json", *map(str, options)], capture_output=True, text=True, timeout=60)


def found(root, *options):
    done = run(root, *options)
    assert done.stdout, done
    report = json.loads(done.stdout)
    about_build = [f for f in report["findings"] if "this build of tensorlane has none" in f["message"]]
    assert len(about_build) == (0 if HAS_DPDK or "noports" in str(root) else 1), report
    others = [f for f in report["findings"] if f not in about_build and f["place"] != "/sys/class/net"]
    worse = any(f["severity"] != "note" for f in [*others, *about_build])
    assert done.returncode == (1 if worse else 0) and not report["unchecked"], (done, report)
    return others


def main():
    os.umask(0o022)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for index, dpdk in enumerate((ON_PCI, ON_PCI.replace(ADDRESS, "3b:00.0"), PACKET, XDP, MEMIF)):
            root = folder / f"right{index}"
            write(root, healthy())
            assert found(root, "--config", write_config(folder / f"config{index}", dpdk)) == [], dpdk
        mlx5 = folder / "mlx5"
        write(mlx5, {**healthy(), LINK + f"{PCI}/driver": "../../../bus/pci/drivers/mlx5_core", LINK + f"{PCI}/iommu_group": None, "dev/vfio/42": None})
        assert found(mlx5, "--config", write_config(folder / "config", ON_PCI)) == [], "the kernel keeps such a device"
        for index, (dpdk, changed, severity, rule, place, message, fix) in enumerate(FAULTS):
            root = folder / f"fault{index}"
            write(root, {**healthy(), **changed})
            # Where a daemon looks, below the root.
            write_config(root / "etc/tensorlane", dpdk)
            all_found = found(root)
            assert len(all_found) == 1, (index, all_found)
            one = all_found[0]
            assert (one["severity"], one["rule"], one["device"]) == (severity, rule, "h0") and place in one["place"] and message in one["message"] and fix in one["fix"], (index, one)
        root = folder / "noports"
        write(root, {**healthy(), "sys/class/net/eth1/mtu": "1500"})
        assert found(root, "--config", write_config(folder / "none", "")) == [], "daemon.yaml names no ports"
        # What cannot be read.
        for options, text in ((("--config", folder / "nosuch.yaml"), "nosuch.yaml"), (("--config", write_config(folder / "bad", "[", "")), "daemon.yaml")):
            done = run(root, *options)
            assert done.returncode == 2 and text in done.stderr and not done.stdout, done
        # Of a foreign root nothing outside of it is read.
        (folder / "secret").write_text("SECRET: 1\n")
        foreign = folder / "foreign"
        write(foreign, {**healthy(), "sys/class/net/eth1/mtu": "1500"})
        for fabric in ("../../../secret", str(folder / "secret"), "link"):
            path = write_config(foreign / "etc/tensorlane", PACKET).parent
            (foreign / "etc/tensorlane/daemon.yaml").write_text((foreign / "etc/tensorlane/daemon.yaml").read_text().replace("fabric.yaml", fabric))
            (path / "link").unlink(missing_ok=True)
            (path / "link").symlink_to(folder / "secret")
            done = run(foreign)
            assert "links are taken for ones of 1500 bytes" in done.stdout and "SECRET" not in done.stdout, (fabric, done)
        write_config(root / "etc/tensorlane", "[")
        assert len(json.loads(run(root).stdout)["unchecked"]) == 1
        config = write_config(folder / "lone", PACKET)
        (folder / "lone/fabric.yaml").unlink()
        assert "links are taken for ones of 1500 bytes" in json.loads(run(root, "--config", config).stdout)["unchecked"][0]["reason"]


main()
