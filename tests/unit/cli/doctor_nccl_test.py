#!/usr/bin/env python3
"""`tensorlane doctor --nccl` on prepared hosts: a clean one has no finding, and each trap is found alone, by its rule at its place.
usage: doctor_nccl_test.py TENSORLANE"""

import json
import mmap
import os
import pathlib
import pwd
import subprocess
import sys
import tempfile
import time

TENSORLANE = sys.argv[1]
# Greenfield: urgent has traffic class 174 and service level 5, bulk 110 and 3, control 206 and 6. Brownfield: bulk has 106.
FABRIC = "hosts: [{name: h0, addresses: {tcp: 10.0.0.1}}]\nclasses: %s\n"
HOME = pwd.getpwuid(os.geteuid()).pw_dir.rstrip("/")
ETC, USER, OWN = "/etc/nccl.conf", f"{HOME}/.nccl.conf", "/opt/own.conf"
POLICY = "/etc/tensorlane/nccl-policy.json"
PLUGIN = "/opt/libnccl-env-tensorlane.so"
ELF = b"\x7fELF of a plugin"
IN_SYSTEM = {"/usr/lib/x86_64-linux-gnu/libnccl-env-tensorlane.so": ELF}  # where the loader looks
NAMED = {"NCCL_CONF_FILE": OWN}
DEVICE = "/sys/class/infiniband/mlx5_0/tc/1/traffic_class"
LEVEL = {"NCCL_IB_SL": "3"}
CHOICES = "expected one of 174 ('urgent'), 110 ('bulk'), 206 ('control')"


class Link(str):
    """What a symbolic link points to."""


def tc(value, place, read=None):
    """The finding of an NCCL_IB_TC."""
    return ("N1", "error", f"NCCL_IB_TC in {place}", f"all traffic of the process has traffic class {value if read is None else read} ", "take it out")


def conf(path, *lines):
    return {path: "".join(line + "\n" for line in lines)}


def passed_over(line, text):
    return ("N7", "warning", f"/etc/nccl.conf:{line}", f"NCCL passes over this line: '{text}'", "write NAME=VALUE from the first column")


# (files of the host, the environment beside NCCL_IB_SL=3, the one finding: rule, severity, place, part of the message, part of the fix)
FAULTS = [
    # NCCL_IB_TC in each place, and which of them holds.
    ({}, {"NCCL_IB_TC": "106"}, ("N1", "error", "NCCL_IB_TC in the environment", "106 (DSCP 26, which is no class of the fabric)", "take it out")),
    ({}, {"NCCL_IB_TC": "110"}, ("N1", "error", "NCCL_IB_TC in the environment", "110 (DSCP 27, class 'bulk')", "classes come from the policy")),
    (conf(ETC, "# fast", "", "NCCL_IB_TC=106"), {}, tc(106, "/etc/nccl.conf:3")),
    (conf(USER, "NCCL_DEBUG=WARN", "NCCL_IB_TC=174"), {}, tc(174, f"{USER}:2")),
    (conf(OWN, "NCCL_IB_TC=206"), NAMED, tc(206, f"{OWN}:1")),
    (conf(ETC, "NCCL_IB_TC=1") | conf(USER, "NCCL_IB_TC=2"), {"NCCL_IB_TC": "106"}, tc(106, "the environment")),
    (conf(ETC, "NCCL_IB_TC=1") | conf(USER, "NCCL_IB_TC=106"), {}, tc(106, f"{USER}:1")),
    (conf(ETC, "NCCL_IB_TC=106") | conf(USER, "NCCL_IB_TC=-1") | conf(OWN, "NCCL_DEBUG=WARN"), NAMED, tc(106, "/etc/nccl.conf:1")),
    (conf(ETC, f"NCCL_CONF_FILE={OWN}", "NCCL_IB_TC=106") | conf(OWN, "NCCL_IB_TC=1"), {}, tc(106, "/etc/nccl.conf:2")),
    (conf(ETC, "NCCL_IB_TC=106", "NCCL_IB_TC=-1"), {}, tc(106, "/etc/nccl.conf:1")),
    # Numbers are of base 0, and text is 0.
    ({}, {"NCCL_IB_TC": "0x6a"}, tc("0x6a", "the environment", 106)),
    ({}, {"NCCL_IB_TC": "0152"}, tc("0152", "the environment", 106)),
    ({}, {"NCCL_IB_TC": "bulk"}, ("N1", "error", "NCCL_IB_TC in the environment", "traffic class 0 (DSCP 0, which is no class of the fabric); NCCL reads 'bulk' as 0", "take it out")),
    ({}, {"NCCL_IB_TC": "-2"}, tc(-2, "the environment")),
    # Service levels.
    ({}, {"NCCL_IB_SL": None}, ("N2", "warning", "NCCL_IB_SL", "it is not set", "NCCL_IB_SL=3")),
    ({}, {"NCCL_IB_SL": ""}, ("N2", "warning", "NCCL_IB_SL", "174 does not fit into its 4 bits", "NCCL_IB_SL=3")),
    ({}, {"NCCL_IB_SL": "-1"}, ("N2", "warning", "NCCL_IB_SL in the environment", "it is not set", "NCCL_IB_SL=3")),
    ({}, {"NCCL_IB_SL": "16"}, ("N2", "error", "NCCL_IB_SL in the environment", "'16' is no service level", "NCCL_IB_SL=3")),
    (conf(ETC, "NCCL_IB_SL=-7"), {"NCCL_IB_SL": None}, ("N2", "error", "NCCL_IB_SL in /etc/nccl.conf:1", "'-7' is no service level", "NCCL_IB_SL=3")),
    ({}, {"NCCL_IB_SL": "4"}, ("N2", "warning", "NCCL_IB_SL in the environment", "service level 4 is that of no class", "NCCL_IB_SL=3")),
    ({}, {"NCCL_IB_SL": "high"}, ("N2", "warning", "NCCL_IB_SL in the environment", "NCCL reads 'high' as 0", "NCCL_IB_SL=3")),
    # Shared resources.
    ({}, {"NCCL_COMM_SPLIT_SHARE_RESOURCES": "1"}, ("N3", "error", "NCCL_COMM_SPLIT_SHARE_RESOURCES in the environment", "that split makes", "take it out")),
    (conf(ETC, "NCCL_COMM_SHRINK_SHARE_RESOURCES=1"), {}, ("N3", "error", "NCCL_COMM_SHRINK_SHARE_RESOURCES in /etc/nccl.conf:1", "that shrink makes", "take it out")),
    ({}, {"NCCL_COMM_SPLIT_SHARE_RESOURCES": "2"}, ("N3", "error", "NCCL_COMM_SPLIT_SHARE_RESOURCES in the environment", "that split makes", "take it out")),
    # Networks without classes.
    ({}, {"NCCL_NET": "Socket"}, ("N4", "error", "NCCL_NET in the environment", "NET/Socket sets no class", "IB, or take it out")),
    (conf(USER, "NCCL_NET=sOCKET"), {}, ("N4", "error", f"NCCL_NET in {USER}:1", "NET/Socket sets no class", "IB, or take it out")),
    ({}, {"NCCL_IB_DISABLE": "1"}, ("N4", "error", "NCCL_IB_DISABLE in the environment", "NET/Socket", "0, or take it out")),
    ({}, {"NCCL_NET": "AWS Libfabric"}, ("N4", "error", "NCCL_NET in the environment", "aws-ofi-nccl takes the class of a communicator and drops it", "NET/IB")),
    ({}, {"NCCL_NET_PLUGIN": "ofi"}, ("N4", "error", "NCCL_NET_PLUGIN in the environment", "aws-ofi-nccl", "NET/IB")),
    ({}, {"NCCL_NET_PLUGIN": "x,/opt/lib/libnccl-net-ofi.so"}, ("N4", "error", "NCCL_NET_PLUGIN in the environment", "aws-ofi-nccl", "NET/IB")),
    ({}, {"NCCL_NET_PLUGIN": "/opt/libnccl-net-uccl.so"}, ("N4", "error", "NCCL_NET_PLUGIN in the environment", "UCCL has one class", "UCCL_IB_TC")),
    ({}, {"NCCL_NET_PLUGIN": "libnccl-net-UCX.so"}, ("N4", "error", "NCCL_NET_PLUGIN in the environment", "NCCL over UCX has one class", "UCX_IB_TRAFFIC_CLASS")),
    ({"/opt/a/libnccl-net.so": Link("libnccl-net-ofi.so"), "/opt/a/libnccl-net-ofi.so": ""}, {"LD_LIBRARY_PATH": "/opt/b:/opt/a"},
     ("N4", "error", "LD_LIBRARY_PATH in the environment", "NCCL loads /opt/a/libnccl-net.so (libnccl-net-ofi.so) unasked: aws-ofi-nccl", "NET/IB")),
    ({"/opt/a/libnccl-net.so": Link("/opt/ofi/libnccl-net-ofi.so"), "/opt/ofi/libnccl-net-ofi.so": ""}, {"LD_LIBRARY_PATH": "/opt/a"},
     ("N4", "error", "LD_LIBRARY_PATH in the environment", "(libnccl-net-ofi.so)", "NET/IB")),
    # Messages beside those of communicators.
    ({}, {"NCCL_IB_FIFO_TC": "192"}, ("N5", "warning", "NCCL_IB_FIFO_TC in the environment", "clear-to-send messages have traffic class 192 (DSCP 48, which is no class", CHOICES)),
    (conf(ETC, "NCCL_GIN_IB_TC=174"), {}, ("N5", "warning", "NCCL_GIN_IB_TC in /etc/nccl.conf:1", "have traffic class 174 (DSCP 43, class 'urgent'), whatever the class of their communicator", "take it out")),
    # Other libraries.
    ({}, {"UCX_TLS": "rc"}, ("N6", "warning", "UCX_IB_TRAFFIC_CLASS", "it is not set: UCX sends with traffic class 106", CHOICES)),
    ({}, {"UCX_IB_TRAFFIC_CLASS": "auto"}, ("N6", "warning", "UCX_IB_TRAFFIC_CLASS in the environment", "it leaves the choice to the library: UCX sends with traffic class 106", CHOICES)),
    ({}, {"UCX_IB_TRAFFIC_CLASS": "104"}, ("N6", "warning", "UCX_IB_TRAFFIC_CLASS in the environment", "UCX sends with traffic class 104 (DSCP 26", CHOICES)),
    ({}, {"NVSHMEM_DEBUG": "INFO"}, ("N6", "warning", "NVSHMEM_IB_TRAFFIC_CLASS", "it is not set: NVSHMEM sends with traffic class 0", CHOICES)),
    ({}, {"NVSHMEM_IB_TRAFFIC_CLASS": "27"}, ("N6", "warning", "NVSHMEM_IB_TRAFFIC_CLASS in the environment", "NVSHMEM sends with traffic class 27", CHOICES)),
    # What beats a class from below or above.
    ({DEVICE: "Global tclass=106\n"}, {}, ("N1", "error", DEVICE, "puts all queue pairs into one class: traffic class 106 (DSCP 26", f"echo 0 > {DEVICE}")),
    ({DEVICE: "0\n", DEVICE.replace("mlx5_0", "mlx5_1"): "Global tclass=106\n"}, {}, ("N1", "error", DEVICE.replace("mlx5_0", "mlx5_1"), "puts all queue pairs into one class", "echo 0 > ")),
    ({}, {"NCCL_IB_ROCE_VERSION_NUM": "1"}, ("N1", "error", "NCCL_IB_ROCE_VERSION_NUM in the environment", "RoCE v1 packets have no DSCP", "2, or take it out")),
    ({}, {"TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}, ("N1", "warning", "TORCH_DISTRIBUTED_USE_TORCHCOMMS in the environment", "PyTorch before 2.14 passes no class on", "take it out")),
    # What files say in vain.
    (conf(ETC, "# x", "export NCCL_X=1"), {}, passed_over(2, "export NCCL_X=1")),
    (conf(ETC, "NCCL_IB_TC 106"), {}, passed_over(1, "NCCL_IB_TC 106")),
    (conf(ETC, " NCCL_IB_TC=1"), {}, passed_over(1, " NCCL_IB_TC=1")),
    (conf(ETC, "\x1b[31mNCCL_ x"), {}, passed_over(1, "?[31mNCCL_ x")),
    ({}, NAMED, ("N7", "warning", f"NCCL_CONF_FILE: {OWN}", "NCCL goes on without it and says nothing: cannot read NCCL's configuration file: No such file", "check the path")),
    ({}, {"NCCL_CONF_FILE": "own.conf"}, ("N7", "warning", "NCCL_CONF_FILE: own.conf", "its own working folder", "from / on")),
    ({f"{OWN}/x": ""}, NAMED, ("N7", "warning", f"NCCL_CONF_FILE: {OWN}", "is no regular file", "expected a file")),
    (conf(OWN, "#" * (2 << 20)), NAMED, ("N7", "warning", f"NCCL_CONF_FILE: {OWN}", "more than 1048576 bytes", "a shorter file")),
    # The env plugin.
    ({}, {"NCCL_ENV_PLUGIN": "libnccl-env-other.so"}, ("N7", "note", "NCCL_ENV_PLUGIN in the environment", "'libnccl-env-other.so', not tensorlane's", "where that is meant")),
    ({}, {"NCCL_ENV_PLUGIN": PLUGIN}, ("N7", "warning", "NCCL_ENV_PLUGIN in the environment", "it is no shared object that could be read", "libnccl-env-tensorlane.so")),
    ({PLUGIN: "text"}, {"NCCL_ENV_PLUGIN": PLUGIN}, ("N7", "warning", "NCCL_ENV_PLUGIN in the environment", "it is no shared object that could be read", "libnccl-env-tensorlane.so")),
    ({}, {"NCCL_ENV_PLUGIN": "tensorlane"}, ("N7", "warning", "NCCL_ENV_PLUGIN in the environment", "is neither in LD_LIBRARY_PATH nor in a folder of the system", "from / on")),
    ({PLUGIN: ELF, POLICY: json.dumps({"version": 1, "for": "nccl", "process": {"NCCL_IB_SL": "3", "NCCL_NET": "Socket"}})}, {"NCCL_ENV_PLUGIN": PLUGIN},
     ("N4", "error", "NCCL_NET in the policy", "NET/Socket", "IB")),
    ({PLUGIN: ELF}, {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_TC": "106", "NCCL_NET": "Socket"}, ("N4", "error", "NCCL_NET in the environment", "NET/Socket", "IB")),
]

# (files of the host, the environment beside NCCL_IB_SL=3)
CLEAN = [
    ({}, {}),
    (conf(ETC, "NCCL_IB_SL=3", "# NCCL_IB_TC=106", "#export NCCL_X", "", "other words"), {"NCCL_IB_SL": None}),
    (conf(USER, "NCCL_IB_SL=5"), {"NCCL_IB_SL": None}),
    (conf(OWN, "NCCL_IB_SL=0x6") | conf(USER, "NCCL_IB_TC=106"), {**NAMED, "NCCL_IB_SL": None}),
    (conf(ETC, "NCCL_IB_TC=106") | conf(USER, "NCCL_IB_TC=-1"), {}),
    (conf(ETC, "NCCL_IB_TC=106"), {"NCCL_IB_TC": ""}),
    (conf(ETC, "NCCL_IB_TC=", "NCCL_IB_TC=106"), {}),
    (conf(ETC, "NCCL_IB_TC=-1"), {}),
    ({}, {"NCCL_IB_TC": "99999999999999999999"}),
    ({}, {"NCCL_CONF_FILE": ""}),
    (conf(OWN, "#" * ((1 << 20) - 1)), NAMED),
    ({}, {"TENSORLANE_NCCL_POLICY": ""}),
    ({}, {"NCCL_IB_SL": "05"}),
    ({}, {"NCCL_COMM_SPLIT_SHARE_RESOURCES": "0", "NCCL_COMM_SHRINK_SHARE_RESOURCES": "no"}),
    ({}, {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0", "NCCL_SOCKET_IFNAME": "eth0"}),
    ({}, {"NCCL_NET_PLUGIN": "none"}),
    ({}, {"NCCL_NET_PLUGIN": "/opt/ofi/ucx/libnccl-net-tensorlane.so"}),
    ({}, {"NCCL_NET_PLUGIN": "libnccl-net-profiler.so"}),
    ({"/opt/a/libnccl-net.so": "", "/opt/b/libnccl-net.so": Link("libnccl-net-ofi.so"), "/opt/b/libnccl-net-ofi.so": ""}, {"LD_LIBRARY_PATH": "/opt/a:/opt/b"}),
    ({"/opt/b/libnccl-net.so": Link("libnccl-net-ofi.so"), "/libnccl-net.so": Link("ofi")} | conf(ETC, "LD_LIBRARY_PATH=/opt/b"), {"LD_LIBRARY_PATH": ":lib:/opt/none"}),
    ({"/opt/b/libnccl-net.so": Link("libnccl-net.so")}, {"LD_LIBRARY_PATH": "/opt/b"}),
    ({}, {"NCCL_IB_FIFO_TC": "206", "NCCL_GIN_IB_TC": "-1"}),
    ({}, {"NCCL_IB_FIFO_TC": "-1", "NCCL_GIN_IB_TC": ""}),
    ({}, {"UCX_TLS": "rc", "UCX_IB_TRAFFIC_CLASS": "110"}),
    ({}, {"NVSHMEM_DEBUG": "INFO", "NVSHMEM_IB_TRAFFIC_CLASS": "174"}),
    ({DEVICE: ""}, {}),
    ({DEVICE: "0\n", DEVICE.replace("mlx5_0", "mlx5_1"): "\n", "/sys/class/infiniband/rxe0/ports/1/state": "4: ACTIVE"}, {}),
    ({}, {"NCCL_IB_ROCE_VERSION_NUM": "2", "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "0"}),
    ({PLUGIN: ELF}, {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_SL": None}),
    ({PLUGIN: ELF} | conf(ETC, "NCCL_IB_TC=106"), {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_SL": "16", "NCCL_IB_FIFO_TC": "1", "NCCL_COMM_SPLIT_SHARE_RESOURCES": "1", "NCCL_IB_ROCE_VERSION_NUM": "1"}),
    (IN_SYSTEM, {"NCCL_ENV_PLUGIN": "tensorlane", "NCCL_IB_SL": None, "NCCL_IB_TC": "106"}),
    ({PLUGIN: ELF}, {"NCCL_ENV_PLUGIN": "libnccl-env-tensorlane.so", "LD_LIBRARY_PATH": "/nowhere:/opt", "NCCL_IB_SL": None}),
]


def write(root, files):
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(text, Link):
            path.symlink_to(text)
        elif isinstance(text, bytes):
            path.write_bytes(text)
        else:
            path.write_text(text)


def start(environment, *options):
    """The command with these variables of ours, and no others of the libraries."""
    environment = {"PATH": os.environ["PATH"]} | {name: value for name, value in environment.items() if value is not None}
    return subprocess.run([TENSORLANE, "doctor", "--nccl", *map(str, options)], capture_output=True, text=True, timeout=60, env=environment, errors="replace")


class Bench:
    """Hosts below one folder, each made anew."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        self.library = self.libnccl("2.30.7")
        self.green, self.brown, self.own = folder / "green.yaml", folder / "brown.yaml", folder / "own.yaml"
        self.green.write_text(FABRIC % "greenfield")
        self.brown.write_text(FABRIC % "brownfield")

    def libnccl(self, version, at=1000):
        path = self.folder / f"libnccl-{version}-{at}"
        path.write_bytes(b"\0" * at + b"NCCL version " + version.encode() + b"+cuda12.2\0" + b"x" * 100)
        return path

    def host(self, files):
        self.count += 1
        root = self.folder / f"host{self.count}"
        root.mkdir()
        write(root, files)
        return root

    def report(self, files, environment, *options, fabric="green", library=None):
        """The exit status and what --json printed."""
        if "tensorlane" in environment.get("NCCL_ENV_PLUGIN", "") and "TENSORLANE_NCCL_POLICY" not in environment:
            files = {POLICY: json.dumps(rendered(self, FABRIC % "greenfield"))} | files  # what the plugin reads unless it is told
        root = files if isinstance(files, pathlib.Path) else self.host(files)
        named = ("--fabric", getattr(self, fabric)) if fabric else ()
        done = start({**LEVEL, **environment}, "--root", root, "--json", "--nccl-library", library or self.library, *named, *options)
        assert done.returncode in (0, 1) and not done.stderr, (files, environment, done)
        return done.returncode, json.loads(done.stdout)

    def findings(self, *arguments, **options):
        status, report = self.report(*arguments, **options)
        assert status == int(any(f["severity"] != "note" for f in report["findings"])), report
        return report["findings"]


def fits(found, rule, severity, place, message, fix):
    return (found["rule"], found["severity"], found["device"], found["place"]) == (rule, severity, "", place) and message in found["message"] and fix in found["fix"]


def check_faults(bench):
    for files, environment, wanted in FAULTS:
        found = bench.findings(files, environment)
        assert len(found) == 1 and fits(found[0], *wanted), (wanted, found)


def check_clean(bench):
    for files, environment in CLEAN:
        status, report = bench.report(files, environment)
        assert status == 0 and report == {"findings": [], "unparsed": [], "unchecked": []}, (files, environment, report)
    # For people, and without a fabric.
    root = bench.host({})
    done = start(LEVEL, "--root", root, "--fabric", bench.green, "--nccl-library", bench.library)
    assert done.returncode == 0 and done.stdout.startswith("0 errors, 0 warnings, 0 notes"), done
    status, report = bench.report(root, {"UCX_TLS": "rc", "NCCL_IB_FIFO_TC": "1", "NCCL_IB_SL": "9"}, fabric=None)
    assert (status, report["findings"]) == (0, []) and [u["rules"] for u in report["unchecked"]] == ["N5 and N6"], report
    found = bench.findings(root, {"NCCL_IB_SL": "16"}, fabric=None)
    assert len(found) == 1 and fits(found[0], "N2", "error", "NCCL_IB_SL in the environment", "no service level", "expected 0 to 15"), found


def check_brownfield(bench):
    """There 106, UCX's own choice, is bulk's."""
    for environment in ({"UCX_TLS": "rc"}, {"UCX_IB_TRAFFIC_CLASS": "auto"}, {"NCCL_IB_FIFO_TC": "106"}):
        assert bench.findings({}, environment, fabric="brown") == []
    found = bench.findings({}, {"UCX_IB_TRAFFIC_CLASS": "110"}, fabric="brown")
    assert len(found) == 1 and "106 ('bulk')" in found[0]["fix"], found


def check_plugins(bench):
    """A plugin that is not ours, or not there, takes nothing out of anybody's hands."""
    for plugin, rules in (("libnccl-env-other.so", ["N1", "N7"]), (PLUGIN, ["N1", "N7"]), ("tensorlane", ["N1", "N7"])):
        found = bench.findings({}, {"NCCL_ENV_PLUGIN": plugin, "NCCL_IB_TC": "106"})
        assert [f["rule"] for f in found] == rules, (plugin, found)
    found = bench.findings({POLICY: ""} | IN_SYSTEM, {"NCCL_ENV_PLUGIN": "tensorlane", "NCCL_IB_TC": "106"})  # with nothing that it could read
    assert [(f["rule"], f["place"]) for f in found] == [("N1", "NCCL_IB_TC in the environment"), ("N7", POLICY)], found
    # What the plugin holds users to is what stands in its policy, in whichever of the two places.
    held = lambda **process: {POLICY: json.dumps({"version": 1, "for": "nccl", "process": process})}
    for named in ({}, {"TENSORLANE_NCCL_POLICY": ""}):
        assert [f["rule"] for f in bench.findings(held() | IN_SYSTEM, {"NCCL_ENV_PLUGIN": "tensorlane", "NCCL_IB_TC": "106", **named})] == ["N1"]
        for name, value in (("NCCL_IB_TC", "106"), ("NCCL_NET", "Socket"), ("NCCL_NET_PLUGIN", "ofi"), ("NCCL_IB_DISABLE", "1")):
            found = bench.findings(held(**{name: None}) | IN_SYSTEM, {"NCCL_ENV_PLUGIN": "tensorlane", name: value, **named})
            assert found == [], (name, found)
    found = bench.findings({POLICY: ""}, {"NCCL_ENV_PLUGIN": "tensorlane"}, library=bench.libnccl("2.28.3"))  # which knows no plugin that could read it
    assert [f["rule"] for f in found] == ["N8"], found
    # A host without RDMA, of which not all is known.
    _, report = bench.report({"/sys/class/net/eth0/mtu": "1500"}, {})
    assert report["findings"] == [] and [(u["rules"], "no RDMA device" in u["reason"]) for u in report["unchecked"]] == [("N4", True)], report
    found = bench.findings(IN_SYSTEM, {"NCCL_ENV_PLUGIN": "tensorlane", "NCCL_IB_TC": "106"}, library=bench.libnccl("2.28.3"))
    assert [(f["rule"], f["severity"], f["place"]) for f in found] == [
        ("N1", "error", "NCCL_IB_TC in the environment"), ("N8", "warning", "NCCL_ENV_PLUGIN in the environment")], found


def check_home(bench):
    """~ is the home of the user database for old releases, and what HOME says for new ones."""
    home = {"/elsewhere/.nccl.conf": "NCCL_IB_TC=1\n", USER: "NCCL_IB_TC=2\n"}
    for version, files, value in (("2.28.9", [USER], 2), ("2.32.3", ["/elsewhere/.nccl.conf"], 1), ("2.29.3", ["/elsewhere/.nccl.conf"], 1)):
        found = bench.findings(home, {"HOME": "/elsewhere"}, library=bench.libnccl(version))
        assert [f["place"] for f in found] == [f"NCCL_IB_TC in {name}:1" for name in files] and f"traffic class {value} " in found[0]["message"], (version, found)
    assert bench.findings(home, {"HOME": "/nowhere"}, library=bench.libnccl("2.32.3")) == []
    assert [f["place"] for f in bench.findings(home, {"HOME": "/nowhere"}, library=bench.libnccl("2.29.3"))] == [f"NCCL_IB_TC in {USER}:1"]
    assert bench.findings(home, {"HOME": "/elsewhere", "NCCL_GIN_IB_TC": "110", "NCCL_CONF_FILE": OWN}, library=bench.libnccl("2.28.9"))[0]["rule"] == "N7"  # GIN has no such variable there
    assert [f["rule"] for f in bench.findings({}, {"NCCL_GIN_IB_TC": "110"}, library=bench.libnccl("2.28.9"))] == []


def check_policy_of_the_host(bench):
    """Where /etc/tensorlane/nccl-policy.json is there, it is what the plugin goes by; what the operator wants of variables is looked at without it, too."""
    process = lambda **variables: json.dumps({"version": 1, "for": "nccl", "process": variables})
    files = {PLUGIN: ELF, POLICY: process(NCCL_IB_TC=None), "/own.json": process(NCCL_IB_TC="106")}
    named = {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_TC": "1", "TENSORLANE_NCCL_POLICY": "/own.json"}
    assert [f["rule"] for f in bench.findings(files, named, fabric=None)] == ["N7"]  # the hook's policy has no class; N1 is overridden
    del files[POLICY]
    assert sorted(f["place"] for f in bench.findings(files, named, fabric=None) if f["rule"] == "N1") == ["NCCL_IB_TC in the policy"]
    for text, words in (("{", "is no JSON"), ('{"version": 2, "for": "nccl", "process": {}}', "another version"), ('{"version": 1, "for": "ucx", "process": {}}', "for 'nccl'")):
        found = bench.findings({PLUGIN: ELF, POLICY: text}, {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_TC": "106"})
        assert [f["rule"] for f in found] == ["N1", "N7"] and words in found[1]["message"], (text, found)
    bench.own.write_text(FABRIC % "greenfield" + "nccl: {environment: {NCCL_SOCKET_IFNAME: eth0, NCCL_X: ~}}\n")
    for environment, wanted in (({}, [("NCCL_SOCKET_IFNAME", "it is not set, and the fabric file says 'eth0'")]), ({"NCCL_SOCKET_IFNAME": "eth0"}, []),
                                ({"NCCL_SOCKET_IFNAME": "eth1", "NCCL_X": "1"}, [("NCCL_SOCKET_IFNAME", "it is 'eth1'"), ("NCCL_X", "it is '1', and the fabric file says that it is not to be set")])):
        found = bench.findings({}, environment, fabric="own")
        assert [(f["place"], f["rule"]) for f in found] == [(place, "N7") for place, _ in wanted] and all(words in f["message"] for f, (_, words) in zip(found, wanted)), found
    found = bench.findings({}, {"TENSORLANE_NCCL_POLICY": POLICY, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"})
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD" in [f["place"] for f in found], found
    # Devices that NCCL does not use.
    forced = {DEVICE: "Global tclass=106\n", DEVICE.replace("mlx5_0", "mlx5_1"): "0\n"}
    for devices, count in (("mlx5_0", 1), ("mlx5_1:1", 0), ("^mlx5_0", 0), ("=mlx5_0:1,mlx5_1", 1), ("=mlx5", 0), ("mlx5", 1), ("^=mlx5_1", 1), ("^mlx5", 0)):
        assert len(bench.findings(forced, {"NCCL_IB_HCA": devices})) == count, devices


def check_files(bench):
    """What is no plain file of one's own is neither read nor waited for."""
    root = bench.host(conf(OWN, "NCCL_IB_TC=106"))
    own = root / OWN.lstrip("/")
    own.chmod(0o646)
    found = bench.findings(root, NAMED)
    assert len(found) == 1 and fits(found[0], "N7", "warning", f"NCCL_CONF_FILE: {OWN}", "NCCL may read it, and it was not looked at: NCCL's configuration file can be changed by everybody", "chmod o-w"), found
    if os.geteuid() != 0:
        own.chmod(0)
        found = bench.findings(root, NAMED)
        assert len(found) == 1 and fits(found[0], "N7", "warning", f"NCCL_CONF_FILE: {OWN}", "Permission denied", "permissions"), found
    own.unlink()
    os.mkfifo(own)
    found = bench.findings(root, NAMED)
    assert len(found) == 1 and fits(found[0], "N7", "warning", f"NCCL_CONF_FILE: {OWN}", "is no regular file", "FIFO"), found
    root = bench.host({"/etc/x": "", POLICY: "", "/x": ""})
    for path in (ETC, POLICY):
        (root / path.lstrip("/")).unlink(missing_ok=True)
        os.mkfifo(root / path.lstrip("/"))
    found = bench.findings(root, {"TENSORLANE_NCCL_POLICY": POLICY})
    assert [(f["rule"], f["place"]) for f in found] == [("N7", f"TENSORLANE_NCCL_POLICY: {POLICY}"), ("N7", ETC)], found


def check_versions(bench):
    no_plugin, no_class = ("N8", "note", "libnccl", "has no env plugin"), ("N8", "error", "libnccl", "knows no traffic class")
    for version, wanted in (("2.26.2", [no_class, no_plugin]), ("2.26.12", [no_class, no_plugin]), ("2.27.0", [no_plugin]), ("2.27.7", [no_plugin]), ("2.28.6", [no_plugin]), ("2.28.7", []), ("2.32.3", [])):
        found = bench.findings({}, {}, library=bench.libnccl(version))
        assert [(f["rule"], f["severity"], f["place"]) for f in found] == [w[:3] for w in wanted], (version, found)
        assert all(w[3] in f["message"] and f"NCCL {version} " in f["message"] for w, f in zip(wanted, found)), (version, found)
    # GIN is newer than 2.27.
    assert [f["rule"] for f in bench.findings({}, {"NCCL_GIN_IB_TC": "1"}, library=bench.libnccl("2.27.7"))] == ["N8"]
    # Wherever the text stands.
    for at in [(1 << 20) - i for i in range(0, 36)] + [(2 << 20) - 5, (2 << 20) + 27, 0]:
        assert [f["severity"] for f in bench.findings({}, {}, library=bench.libnccl("2.26.2", at))] == ["error", "note"], at
    short = bench.folder / "short"
    short.write_text("NCCL version 2.x NCCL version 2.8.3 NCCL version 2.26.2")
    assert [f["severity"] for f in bench.findings({}, {}, library=short)] == ["error", "note"]
    fifo = bench.folder / "fifo"
    os.mkfifo(fifo)
    for content, path in (("NCCL version", "none"), ("", "empty"), ("NCCL version 2.2", "cut"), (None, "missing"), (None, "fifo"), (None, ".")):
        path = bench.folder / path
        if content is not None:
            path.write_text(content)
        done = start(LEVEL, "--root", bench.host({}), "--nccl-library", path)
        assert done.returncode == 2 and not done.stdout and f"no version of NCCL is found in it: {path}: name a libnccl.so.2" in done.stderr, done


def check_library_search(bench):
    """What the loader of the process would find, in its order."""
    old, new = bench.libnccl("2.26.2").read_bytes(), bench.libnccl("2.28.9").read_bytes()

    def rules(files, environment):
        done = start({**LEVEL, **environment}, "--root", bench.host(files), "--fabric", bench.green, "--json")
        report = json.loads(done.stdout)
        return [f["rule"] for f in report["findings"]], [u["rules"] for u in report["unchecked"]]

    assert rules({}, {}) == ([], ["N8"])
    assert rules({"/usr/lib64/libnccl.so.2": old}, {}) == (["N8", "N8"], [])
    assert rules({"/usr/lib64/libnccl.so.2": old, "/opt/a/libnccl.so.2": new}, {"LD_LIBRARY_PATH": ":rel:/opt/none:/opt/a"}) == ([], [])
    assert rules({"/usr/lib64/libnccl.so.2": new, "/opt/a/libnccl.so.2": old, "/proc/77/environ": "NCCL_IB_SL=3\0"}, {"LD_LIBRARY_PATH": "/opt/a"}) == (["N8", "N8"], [])


def check_process(bench):
    """Of another process: of a copy of its host, and of one that runs."""
    library = "/opt/python/nvidia/nccl/lib/libnccl.so.2"
    maps = f"7f0000000000-7f0000100000 r-xp 00000000 08:01 42   /usr/lib/libc.so.6\n7f0000200000-7f0000300000 r-xp 00000000 08:01 43   {library}\n"
    files = {"/proc/77/environ": "A=b\0NCCL_IB_SL=3\0NCCL_IB_TC=106\0NCCL_IB_TC=-1\0", "/proc/77/maps": maps, library: bench.libnccl("2.26.2").read_bytes()}
    done = start({"NCCL_NET": "Socket"}, "--root", bench.host(files), "--pid", 77, "--fabric", bench.green, "--json")
    assert [(f["rule"], f["place"]) for f in json.loads(done.stdout)["findings"]] == [
        ("N1", "NCCL_IB_TC in the environment"), ("N8", "libnccl"), ("N8", "libnccl")], done
    done = start({}, "--root", bench.host(files), "--pid", 78)
    assert done.returncode == 2 and "the environment of the process cannot be read" in done.stderr, done
    loaded = bench.folder / "libnccl.so.2"
    loaded.write_bytes(bench.libnccl("2.26.2").read_bytes() + b"\0" * mmap.PAGESIZE)
    own = bench.folder / "own.conf"
    own.write_text("NCCL_COMM_SPLIT_SHARE_RESOURCES=1\n")
    program = "import mmap, sys; file = open(sys.argv[1], 'rb'); m = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ); print(flush=True); sys.stdin.read()"
    environment = {"PATH": os.environ["PATH"], "NCCL_IB_TC": "106", "NCCL_IB_SL": "3", "NCCL_CONF_FILE": str(own)}
    with subprocess.Popen([sys.executable, "-c", program, loaded], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        done = start({}, "--pid", child.pid, "--fabric", bench.green, "--json")
        child.stdin.close()
    # This very host may have faults of its own.
    found = {(f["rule"], f["place"]) for f in json.loads(done.stdout)["findings"]}
    assert found >= {("N1", "NCCL_IB_TC in the environment"), ("N3", f"NCCL_COMM_SPLIT_SHARE_RESOURCES in {own}:1"), ("N8", "libnccl")}, found


def check_process_elsewhere(bench):
    """Of a process whose / and whose user are not ours: its files are those below its own /, in its own user's home."""
    nobody = pwd.getpwnam("nobody") if os.geteuid() == 0 else None
    if nobody is None or nobody.pw_dir in ("", "/"):
        print("skipped: check_process_elsewhere: this needs root, and a user nobody who has a home")
        return
    root = bench.host(conf(ETC, "NCCL_IB_TC=106") | conf(f"{nobody.pw_dir}/.nccl.conf", "NCCL_COMM_SPLIT_SHARE_RESOURCES=1"))
    program = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
os.chroot(sys.argv[1])
os.setresuid(*[int(sys.argv[2])] * 3)
libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as of a process that was begun by this user
print("ready", flush=True)
sys.stdin.read()
"""
    bench.folder.chmod(0o755)
    with subprocess.Popen([sys.executable, "-c", program, root, str(nobody.pw_uid)], env={"PATH": os.environ["PATH"], **LEVEL}, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout.readline() == b"ready\n"
        done = start({}, "--pid", child.pid, "--fabric", bench.green, "--json", "--nccl-library", bench.library)
        child.stdin.close()
    found = sorted((f["rule"], f["place"]) for f in json.loads(done.stdout)["findings"])
    assert found == [("N1", "NCCL_IB_TC in /etc/nccl.conf:1"), ("N3", f"NCCL_COMM_SPLIT_SHARE_RESOURCES in {nobody.pw_dir}/.nccl.conf:1")], done


def policy_findings(bench, policy, environment={}, fabric="green", name=POLICY):
    """With TENSORLANE_NCCL_POLICY naming a file of this content; None: of none."""
    files = {PLUGIN: ELF} | {} if policy is None else {PLUGIN: ELF, name: policy if isinstance(policy, (str, bytes)) else json.dumps(policy)}
    return bench.findings(files, {"TENSORLANE_NCCL_POLICY": name, **environment}, fabric=fabric)


def rendered(bench, text):
    """The policy of a fabric file."""
    path = bench.folder / "rendered.yaml"
    path.write_text(text)
    return json.loads(subprocess.run([TENSORLANE, "classes", "--for", "nccl", "--fabric", path, "--json"], capture_output=True, text=True, timeout=60, check=True).stdout)


def check_policy(bench):
    """It is there, can be read, and is what the fabric file says now."""
    place = f"TENSORLANE_NCCL_POLICY: {POLICY}"
    green = FABRIC % "greenfield"
    missing = ("N7", "error", place, "groups get no classes: cannot read the policy: No such file", "check the path")
    stale = ("N7", "warning", place, "it is not what the fabric file says now", f"tensorlane classes --for nccl --fabric {bench.green} --json --out {POLICY}")
    for policy, wanted in (
        (None, missing), ("nothing of the kind", ("N7", "error", place, f"groups get no classes: it is neither a policy nor a fabric file ({POLICY}:1)", f"as the user of the process: tensorlane classes --for nccl --fabric {POLICY}")),
        ('{"version": 1,', ("N7", "error", place, "groups get no classes: it is neither a policy nor a fabric file", "")), (b"\xff\xfe\0", ("N7", "error", place, "groups get no classes", "")),
        ("#" * ((1 << 20) + 1), ("N7", "error", place, "the policy has more than 1048576 bytes", "a shorter file")),
        (rendered(bench, green + "nccl: {groups: [{group: '*', class: urgent}]}\n"), stale), (rendered(bench, FABRIC % "brownfield"), stale),
        (rendered(bench, green + "nccl: {separate_reduce_scatter: true}\n"), stale), (rendered(bench, green + "nccl: {environment: {NCCL_X: 1}}\n"), stale), (rendered(bench, green + "nccl: {dropped: refuse}\n"), stale), ({}, stale),
        (FABRIC % "brownfield", ("N7", "warning", place, "it is not what the fabric file says now", f"cp {bench.green} {POLICY}")),
    ):
        found = policy_findings(bench, policy)
        assert len(found) == 1 and fits(found[0], *wanted), (str(policy)[:100], found)
    # Where rules stand in a file, and which file it was, changes nothing.
    rules = "nccl:%s\n  groups: [{group: a, class: bulk}, {group: b, class: urgent, at_least: 1 KiB}]\n"
    bench.green.write_text(green + rules % "")
    assert policy_findings(bench, rendered(bench, "# moved\n\n" + green + rules % " # here")) == []
    assert policy_findings(bench, green + rules % " # here") == []
    assert len(policy_findings(bench, rendered(bench, green + rules.replace("bulk", "urgent") % ""))) == 1
    bench.green.write_text(green)
    assert policy_findings(bench, rendered(bench, green)) == [] and policy_findings(bench, rendered(bench, "classes: greenfield\n" + green.split("classes")[0])) == []
    found = policy_findings(bench, rendered(bench, green), name="policy.json")
    assert len(found) == 1 and fits(found[0], "N7", "warning", "TENSORLANE_NCCL_POLICY: policy.json", "its own working folder", "from / on"), found


def check_policy_for_fabric(bench):
    """Without --fabric, the classes are those of the policy."""
    for text, name in ((FABRIC % "brownfield", "brownfield"), ((FABRIC % "greenfield") + "nccl: {mixed: urgent}\n", "greenfield, mixed: urgent")):
        for policy in (rendered(bench, text), text):
            right, wrong = ("106", "110") if name == "brownfield" else ("110", "106")
            assert policy_findings(bench, policy, {"UCX_IB_TRAFFIC_CLASS": right}, fabric=None) == [], name
            found = policy_findings(bench, policy, {"UCX_IB_TRAFFIC_CLASS": wrong}, fabric=None)
            assert len(found) == 1 and fits(found[0], "N6", "warning", "UCX_IB_TRAFFIC_CLASS in the environment", f"class {wrong}", f"{right} ('bulk')"), (name, found)
            found = policy_findings(bench, policy, {"NCCL_IB_SL": None}, fabric=None)
            assert len(found) == 1 and found[0]["fix"] == ("NCCL_IB_SL=3" if name == "brownfield" else "NCCL_IB_SL=5"), (name, found)
            found = policy_findings(bench, policy, {"NCCL_IB_SL": None, "NCCL_IB_TC": "1", "NCCL_ENV_PLUGIN": PLUGIN}, fabric=None)
            if policy != text:
                assert found == [], name
            else:  # the plugin reads no fabric file, so that it overrides nothing
                assert sorted(f["rule"] for f in found) == ["N1", "N2", "N7"] and any("which the env plugin does not read" in f["message"] for f in found), found
    for value, fix in (("'7'", "NCCL_IB_SL=7"), ("'16'", "expected one of 5 ('urgent')"), ("x", "expected one of 5"), ("null", "expected one of 5")):
        found = policy_findings(bench, (FABRIC % "greenfield") + "nccl: {environment: {NCCL_IB_SL: %s}}\n" % value, {"NCCL_IB_SL": None}, fabric=None)
        assert len(found) == 1 and fix in found[0]["fix"], (value, found)
    found = policy_findings(bench, {"classes": []}, fabric=None)
    assert len(found) == 1 and fits(found[0], "N7", "error", f"TENSORLANE_NCCL_POLICY: {POLICY}", "groups get no classes: the policy has no class", "tensorlane classes --for nccl"), found


def hostile(policy):
    """A policy with one thing of the wrong kind."""
    things = (None, -1, 1 << 40, 1e300, "x", [[]], [{}], {"a": [1]})
    for thing in things:
        yield thing
        for key in policy:
            yield {**policy, key: thing}
        for key in policy["control"]:
            yield {**policy, "classes": [{**policy["control"], key: thing}], "control": {**policy["control"], key: thing}}
        for key in ("group", "class", "where"):
            yield {**policy, "rules": [{**policy["rules"][0], key: thing}]}
        yield {**policy, "process": {"NCCL_IB_SL": thing, "": thing, "NCCL_IB_TC": thing}}


def check_hostile_policies(bench):
    deep = 100000
    nested = ["[" * deep, "[" * deep + "]" * deep, '{"a":' * deep, '{"a":' * deep + "1" + "}" * deep, "- " * deep, "? " * deep, "{? " * deep]
    nested += ['{"%s": ' % key + "[" * deep + "]" * deep + "}" for key in ("a", "classes", "process", "rules", "fabric", "hosts", "version")]
    nested += ['{"classes": [{"name": ' + '{"a":' * deep + "1" + "}" * deep + "}]}", '{"a": "\\ud800"}', '{"a": 1, "a": 2}', '{"\xff": "\xff"}'.encode("latin1"), "&a [*a]", "a: &a {<<: *a}"]
    policy = rendered(bench, FABRIC % "greenfield")
    for text in [*nested, *hostile(policy)]:
        for fabric in ("green", None):
            found = policy_findings(bench, text if isinstance(text, bytes) or text in nested else json.dumps(text), fabric=fabric)
            assert all(f["rule"] == "N7" and "TENSORLANE_NCCL_POLICY" in f["place"] or f["rule"] == "N2" for f in found), (str(text)[:200], found)
    # Numbers are not cut: 2^32 + 106 is not 106.
    huge = {**policy, "classes": [{**c, "traffic_class": c["traffic_class"] + (1 << 32)} for c in policy["classes"]]}
    found = policy_findings(bench, huge, {"UCX_IB_TRAFFIC_CLASS": "110"}, fabric=None)
    assert [f["rule"] for f in found] == ["N2", "N6"] and found[1]["fix"] == "expected one of 206 ('control')", found


def check_what_others_choose(bench):
    """Whoever owns the process or the container chooses what is in its files, and where they lead: nothing outside is read, nothing waits, and nothing is told that only we may read."""
    for name in ("fifo", "zero"):
        root = bench.host({"/dev/none": ""})
        device = root / DEVICE.lstrip("/")
        device.parent.mkdir(parents=True)
        os.mkfifo(device) if name == "fifo" else device.symlink_to("/dev/zero")
        assert bench.findings(root, {}) == [], name
    for secret in ("root:$6$SECRET:19000::\n", "a: [SECRET\n", "hosts: [{name: h0, SECRET: 1}]\n", "SECRET: 1\n", '{"hosts": "SECRET"}', "classes: SECRET\nhosts: []\n"):
        found = policy_findings(bench, secret)
        assert len(found) == 1 and "SECRET" not in str(found) and "neither a policy nor a fabric file" in found[0]["message"], (secret, found)
    # Links are those of the process: to what is outside they lead nowhere, and inside they begin at its own /.
    outside = bench.folder / "outside.conf"
    outside.write_text("NCCL_IB_TC=106\n")
    assert [f["place"] for f in bench.findings({ETC: Link("/opt/own.conf"), OWN: "NCCL_IB_TC=106\n"}, {})] == [f"NCCL_IB_TC in {ETC}:1"]
    assert bench.findings({ETC: Link(outside)}, {}) == [] == bench.findings({ETC: Link("../../outside.conf")}, {})
    assert bench.findings({"/opt/real.so": ELF, PLUGIN: Link("/opt/real.so")}, {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_TC": "106"}) == []
    (bench.folder / "outside.so").write_bytes(ELF)
    assert [f["rule"] for f in bench.findings({PLUGIN: Link(bench.folder / "outside.so")}, {"NCCL_ENV_PLUGIN": PLUGIN, "NCCL_IB_TC": "106"})] == ["N1", "N7"]
    found = bench.findings({"/opt/o'fi.conf": "x"}, {"NCCL_CONF_FILE": "/opt/o'fi.conf"} | {"TENSORLANE_NCCL_POLICY": "/etc/x;reboot"})
    assert len(found) == 1 and found[0]["place"] == "TENSORLANE_NCCL_POLICY: /etc/x;reboot", found
    found = policy_findings(bench, "x", name="/etc/x;reboot $(id)")
    assert len(found) == 1 and found[0]["fix"].endswith(" --fabric '/etc/x;reboot $(id)'"), found
    for policy in ({}, FABRIC % "brownfield"):
        found = policy_findings(bench, policy, name="/etc/x y")
        assert len(found) == 1 and found[0]["fix"].endswith(" '/etc/x y'"), found
    # As long as any policy may be, of names alone.
    begun = time.monotonic()
    assert len(policy_findings(bench, "{" + ",".join(f'"{i:x}":0' for i in range(100000)) + "}")) == 1
    assert time.monotonic() - begun < 10, "its cost is that of its square"


def check_what_has_no_end(bench):
    """An environment that is longer than any, libraries that are larger than any, and more of them."""
    entries = b"".join(b"A%07d=\0" % i for i in range(1 << 20))
    root = bench.host({"/proc/77/environ": b"NCCL_IB_TC=106\0" + entries + b"NCCL_NET=Socket\0"})
    done = start({}, "--root", root, "--pid", 77, "--fabric", bench.green, "--nccl-library", bench.library, "--json")
    report = json.loads(done.stdout)
    assert [f["rule"] for f in report["findings"]] == ["N1", "N2"] and "environment of more than 8 MiB" in report["unchecked"][0]["reason"], report
    with (root / "proc/77/environ").open("wb") as file:
        file.truncate(64 << 30)
    done = start({}, "--root", root, "--pid", 77, "--nccl-library", bench.library)
    assert done.returncode == 1 and "more than 8 MiB" in done.stdout, done
    folders = [f"/opt/{i}" for i in range(80)]
    root = bench.host({f"{folder}/libnccl.so.2": "" for folder in folders} | {"/usr/lib64/libnccl.so.2": bench.libnccl("2.26.2").read_bytes()})
    for folder in folders:
        with (root / folder.lstrip("/") / "libnccl.so.2").open("wb") as file:
            file.truncate(8 << 30)
    for count, unchecked in ((60, []), (80, ["N8"])):
        report = json.loads(start({**LEVEL, "LD_LIBRARY_PATH": ":".join(folders[:count])}, "--root", root, "--fabric", bench.green, "--json").stdout)
        assert [u["rules"] for u in report["unchecked"]] == unchecked and all("the rest was not looked at" in u["reason"] for u in report["unchecked"]), report


def check_no_root(bench):
    os.mkfifo(bench.folder / "root")
    for root in ("/nowhere", bench.folder / "root", bench.green):
        done = start(LEVEL, "--root", root, "--nccl-library", bench.library)
        assert done.returncode == 2 and not done.stdout and f"there is no folder that could stand for /: {root}" in done.stderr, done
    # Nor is the fabric file waited for, unless it comes through a pipe that is open.
    for command in (["doctor", "--nccl"], ["doctor"], ["classes", "--for", "nccl"]):
        done = subprocess.run([TENSORLANE, *command, "--fabric", bench.folder / "root"], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "is a FIFO" in done.stderr, done
    for path in ("/dev/stdin", "/dev/fd/0"):
        done = subprocess.run([TENSORLANE, "classes", "--for", "nccl", "--fabric", path], input=FABRIC % "greenfield", capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done


def main():
    assert len(FAULTS) >= 30 and len(CLEAN) >= 30
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(pathlib.Path(name))
        for check in (check_clean, check_faults, check_brownfield, check_plugins, check_home, check_policy_of_the_host, check_files, check_versions, check_library_search, check_process, check_process_elsewhere, check_policy, check_policy_for_fabric,
                      check_hostile_policies, check_what_others_choose, check_what_has_no_end, check_no_root):
            check(bench)


main()
