#!/usr/bin/env python3
"""NCCL's env plugin, loaded as NCCL loads it: what it answers, what it says, and that nothing that is wrong with its policy stops NCCL.
usage: env_plugin_test.py PLUGIN TENSORLANE"""

import json
import os
import pathlib
import re
import resource
import subprocess
import sys
import tempfile
import threading

from plugin import Plugin, child

HIGHEST_GLIBC = (2, 34)
POLICY = {"version": 1, "for": "nccl", "process": {"NCCL_IB_TC": None, "NCCL_IB_SL": "3", "NCCL_EMPTY": ""}}
FABRIC = "hosts: [{name: h0, addresses: {tcp: 10.0.0.1}}]\nswitches: [{name: s0}]\nlinks: [{from: h0, to: s0, speed: 100G}]\n"
USERS = {"NCCL_IB_TC": "106", "NCCL_IB_SL": "5", "NCCL_EMPTY": "x", "NCCL_SOCKET_IFNAME": "eth7"}


# What runs in a process of its own.

def child_answers(path, version):
    """Prints what the plugin answers before init, after it (twice), and after finalize."""
    plugin = Plugin(path, int(version))
    ask = lambda: {name: plugin.get(name) for name in (*USERS, "NCCL_NOT_SET_ANYWHERE")}
    rounds = [ask()]
    assert plugin.struct.name == b"tensorlane" and plugin.init() == 0 and plugin.get(None) is None
    addresses = {name: plugin.address(name) for name in USERS}
    rounds += [ask(), ask()]
    assert addresses == {name: plugin.address(name) for name in USERS}, "what was returned stays valid"
    assert plugin.finalize() == 0
    rounds.append(ask())
    assert plugin.finalize() == 0 and plugin.finalize() == 0 and plugin.init() == 0
    rounds.append(ask())
    print(json.dumps(rounds))


def child_ask(path, name):
    plugin = Plugin(path, 1)
    plugin.init()
    print(json.dumps(plugin.get(name)))


def child_init(path, *steps):
    """Inits under a fault that the process itself must make, and prints what becomes of a forced variable."""
    plugin = Plugin(path, 2)
    if "no_stderr" in steps:
        os.close(2)
    if "no_descriptors" in steps:
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))
    if "no_memory" in steps:
        used = int(re.search(r"VmSize:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) << 10
        resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 20), used + (1 << 20)))
    assert plugin.init() == 0
    print(json.dumps(plugin.get("NCCL_IB_TC")))


def child_threads(path):
    """All threads ask at once, the first time included."""
    plugin, start, answers = Plugin(path, 1), threading.Barrier(16), []
    plugin.init()

    def ask():
        start.wait()
        answers.append({(plugin.get("NCCL_IB_SL"), plugin.get("NCCL_IB_TC"), plugin.get("NCCL_SOCKET_IFNAME")) for _ in range(500)})

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [{("3", None, "eth7")}] * 16, answers


def child_unload(path):
    """What NCCL holds outlives NCCL's dlclose, and is there again after the next dlopen."""
    import _ctypes
    plugin = Plugin(path, 1)
    plugin.init()
    address = plugin.address("NCCL_IB_SL")
    _ctypes.dlclose(plugin.library._handle)
    again = Plugin(path, 2)
    assert again.address("NCCL_IB_SL") == address and again.get("NCCL_IB_SL") == "3"


# What looks at them.

def check_shared_object(path):
    read = lambda *options: subprocess.run(["readelf", "-W", *options, path], check=True, capture_output=True, text=True).stdout
    symbols = [line.split() for line in read("--dyn-syms").splitlines() if re.match(r"\s+\d+:", line)]
    assert sorted(words[7] for words in symbols if words[6] != "UND") == ["ncclEnvPlugin_v1", "ncclEnvPlugin_v2"], symbols
    dynamic = read("-d")
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)
    # The loader itself has what thread-local variables need.
    assert "libc.so.6" in needed and all(re.fullmatch(r"libc\.so\.6|libm\.so\.6|ld-linux.*", name) for name in needed), needed
    assert re.search(r"FLAGS_1.*NODELETE", dynamic) and not re.search(r"RPATH|RUNPATH", dynamic), dynamic
    versions = re.findall(r"Name: (\w+?)_([\d.]+)", read("-V"))
    highest = max(tuple(map(int, number.split("."))) for name, number in versions if name == "GLIBC")
    assert {name for name, _ in versions} == {"GLIBC"} and highest <= HIGHEST_GLIBC, versions
    print("needs glibc", ".".join(map(str, highest)), "and", ", ".join(needed))


def check_answers(path, policy):
    free = {**USERS, "NCCL_NOT_SET_ANYWHERE": None}
    held = {**free, "NCCL_IB_TC": None, "NCCL_IB_SL": "3", "NCCL_EMPTY": ""}
    for version in (1, 2):
        done = child(__file__, "answers", path, version, environment=USERS | {"TENSORLANE_NCCL_POLICY": str(policy)})
        assert json.loads(done.stdout) == [free, held, held, free, held], done
        assert sorted(done.stderr.splitlines()) == sorted([
            f"tensorlane: NCCL_IB_TC=106 of the environment is not used: {policy} says that it is not to be set",
            f"tensorlane: NCCL_IB_SL=5 of the environment is not used: {policy} says NCCL_IB_SL=3",
            f"tensorlane: NCCL_EMPTY=x of the environment is not used: {policy} says NCCL_EMPTY=",
        ]), done.stderr
    # Nobody is told what makes no difference; NCCL takes an empty variable for one that is not set.
    for environment in ({}, {"NCCL_IB_SL": "3", "NCCL_IB_TC": "", "NCCL_EMPTY": ""}):
        done = child(__file__, "answers", path, 1, environment=environment | {"TENSORLANE_NCCL_POLICY": str(policy)})
        after = json.loads(done.stdout)[1]
        assert done.stderr == "" and (after["NCCL_IB_TC"], after["NCCL_IB_SL"], after["NCCL_EMPTY"]) == (None, "3", ""), done
    # One line, which does not speak to the terminal and which a screen holds.
    done = child(__file__, "init", path, environment={"NCCL_IB_TC": "\n\x1b[2J" + "9" * 5000, "TENSORLANE_NCCL_POLICY": str(policy)})
    assert re.fullmatch(r"tensorlane: NCCL_IB_TC=\?\?\[2J9+\.\.\. of the environment is not used: .{0,200}\n", done.stderr) and len(done.stderr) < 600, done
    for name, value in (("NCCL_IB_TC", "\x1b\u00e9" * 5000), ("NCCL_IB_TC" + "x" * 5000, "1")):
        (policy.parent / "longer.json").write_text(json.dumps({**POLICY, "process": {name: value}}))
        done = child(__file__, "ask", path, name, environment={name: "106", "TENSORLANE_NCCL_POLICY": str(policy.parent / "longer.json")})
        assert json.loads(done.stdout) == value and re.fullmatch(r"tensorlane: NCCL_IB_TC[^\n\x1b]*\.\.\.\n", done.stderr), done
        assert 4080 < len(done.stderr.encode()) <= 4096, (len(done.stderr.encode()), done)
    done = child(__file__, "threads", path, environment=USERS | {"TENSORLANE_NCCL_POLICY": str(policy)})
    assert len(done.stderr.splitlines()) == 2, done.stderr
    child(__file__, "unload", path, environment={"TENSORLANE_NCCL_POLICY": str(policy)})


def check_rendered(path, tensorlane, folder):
    """What `tensorlane classes` prints is a policy."""
    fabric, policy = folder / "rendered.yaml", folder / "rendered.json"
    fabric.write_text(FABRIC)
    policy.write_text(subprocess.run([tensorlane, "classes", "--for", "nccl", "--fabric", fabric, "--json"], check=True, capture_output=True, text=True).stdout)
    done = child(__file__, "answers", path, 2, environment={**USERS, "TENSORLANE_NCCL_POLICY": str(policy)})
    after = json.loads(done.stdout)[1]
    assert (after["NCCL_IB_TC"], after["NCCL_IB_SL"], after["NCCL_SOCKET_IFNAME"]) == (None, "3", "eth7"), (done, policy.read_text())


def texts():
    """{name: (content, a part of the warning)} of files that are no policy."""
    policy = lambda **changes: json.dumps({**POLICY, **changes}).encode()
    return {
        "empty": (b"", "is no JSON"), "zeros": (bytes(4096), "is no JSON"), "words": (b"no policy\n", "is no JSON"), "cut": (policy()[:-2], "is no JSON"),
        "utf8": (policy(process={"NCCL_A": "\u00e9"}).replace(b"\\u00e9", b"\xe9\xff"), "is no JSON"), "number": (b"1e99999", "is no JSON"),
        "fabric.yaml": (FABRIC.encode(), "is a fabric file"), "fabric.json": (b'{"hosts": [], "switches": []}', "is a fabric file"),
        "list": (b"[]", "is no JSON object"), "text": (b'"nccl"', "is no JSON object"), "null": (b"null", "is no JSON object"),
        "deep": (b"[" * 1_000_000, "levels"), "deep_closed": (b'{"process":' + b"[" * 400_000 + b"]" * 400_000 + b"}", "levels"),
        "deep_objects": (b'{"a":' * 200_000, "levels"),
        "nothing": (b"{}", "'nccl'"), "other_library": (policy(**{"for": "ucx"}), "'nccl'"), "for_number": (policy(**{"for": 7}), "'nccl'"),
        **{f"version_{index}": (policy(version=version), "version") for index, version in enumerate((2, 0, -1, "1", 1.5, None, [1], {"1": 1}, 1 << 40))},
        **{f"process_{index}": (policy(process=process), "no object 'process'") for index, process in enumerate(([], "x", None, 1))},
        **{f"value_{index}": (policy(process={"NCCL_IB_TC": None, "NCCL_A": value}), "NCCL_A neither a text nor null")
           for index, value in enumerate((3, True, 1.5, [], {}, ["x"], "a\0b"))},
        **{f"name_{index}": (policy(process={name: "1"}), "names no variable") for index, name in enumerate(("", "A=B", "A\0B"))},
    }


def check_faults(path, folder):
    cases = []
    for name, (content, part) in texts().items():
        (folder / name).write_bytes(content)
        cases.append((folder / name, part, ()))
    with open(folder / "huge", "wb") as huge:
        huge.truncate(10 << 30)
    os.mkfifo(folder / "fifo")
    (folder / "loop").symlink_to("loop")
    (folder / "writable").write_text(json.dumps(POLICY))
    (folder / "writable").chmod(0o666)
    (folder / "open").mkdir()
    (folder / "open" / "policy").write_text(json.dumps(POLICY))
    (folder / "open").chmod(0o777)
    cases += [(folder / "huge", "has more than 1048576 bytes", ()), (folder / "fifo", "is no regular file", ()), (folder, "is no regular file", ()), ("/dev/zero", "is no regular file", ()),
              (folder / "missing", "No such file", ()), (folder / "loop", "symbolic links", ()), (folder / "empty" / "x", "Not a directory", ()),
              (folder / ("x" * 300), "File name too long", ()), (folder / "line\nof\x1bname", "line?of?name", ()), ("relative", "No such file", ()),
              (folder / "writable", "can be changed by everybody", ()), (folder / "open" / "policy", "everybody can replace", ()),
              (folder / "policy.json", "Too many open files", ("no_descriptors",)), (folder / "long", "out of memory", ("no_memory",))]
    (folder / "long").write_text(json.dumps({**POLICY, "process": {f"NCCL_{number}": "1" * 900 for number in range(1024)}}))
    for policy, part, steps in cases:
        done = child(__file__, "init", path, *steps, environment={"NCCL_IB_TC": "106", "TENSORLANE_NCCL_POLICY": str(policy)})
        assert json.loads(done.stdout) == "106", (policy, done)
        assert done.stderr.startswith("tensorlane: warning: NCCL's variables are left as they are: ") and done.stderr.count("\n") == 1, (policy, done)
        assert done.stderr.endswith("\n") and part in done.stderr, (policy, done)
    # The way out is said, and it does not write over the fabric file.
    said = {name: child(__file__, "init", path, environment={"TENSORLANE_NCCL_POLICY": str(folder / name)}).stderr for name in ("fabric.yaml", "words")}
    assert f"tensorlane classes --for nccl --json --fabric {folder}/fabric.yaml --out nccl-policy.json" in said["fabric.yaml"], said
    assert f"tensorlane classes --for nccl --json --fabric FILE --out {folder}/words\n" in said["words"], said
    # The same file is good where memory suffices, and a closed standard error is none of NCCL's troubles.
    for policy, forced, steps in ((folder / "long", "106", ()), (folder / "policy.json", None, ("no_stderr",)), (folder / "words", "106", ("no_stderr",))):
        done = child(__file__, "init", path, *steps, environment={"NCCL_IB_TC": "106", "TENSORLANE_NCCL_POLICY": str(policy)})
        assert json.loads(done.stdout) == forced and done.stderr == "", (policy, done)


def main():
    path, tensorlane = os.path.abspath(sys.argv[1]), sys.argv[2]
    check_shared_object(path)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "policy.json").write_text(json.dumps(POLICY))
        check_answers(path, folder / "policy.json")
        check_rendered(path, tensorlane, folder)
        check_faults(path, folder)


if sys.argv[1] == "--child":
    globals()[f"child_{sys.argv[2]}"](*sys.argv[3:])
else:
    main()
