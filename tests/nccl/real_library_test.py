#!/usr/bin/env python3
"""NCCL itself with the env plugin: it loads it, asks it, and starts whatever the policy looks like. Needs no GPU.
usage: real_library_test.py VERSION BUILD PLUGIN TENSORLANE     the wheel is fetched into BUILD/nccl once; skipped where pip cannot get it"""

import ctypes
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import zipfile

from plugin import Plugin, child

# {version: the interface that it takes}; 2.27.7 has no env plugins.
INTERFACES = {"2.27.7": None, "2.28.9": 1, "2.32.3": 2}
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
USER = {"NCCL_SOCKET_IFNAME": "nosuchdevice", "NCCL_IB_TC": "106", "NCCL_DEBUG": "INFO"}
POLICY = {"version": 1, "for": "nccl", "process": {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_TC": None}}


def fetch(build, version):
    """The library of a wheel, which is kept in BUILD/nccl/VERSION; the wheel is not."""
    library = build / "nccl" / version / "libnccl.so.2"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        pip = next((python for python in (build / "venv" / "bin" / "python", sys.executable) if os.access(python, os.X_OK)))
        got = subprocess.run([pip, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps", "--only-binary", ":all:",
                              "-d", folder, f"nvidia-nccl-cu12=={version}"], capture_output=True, text=True)
        if got.returncode != 0:
            print(f"skipped: nccl_real_{version}: pip cannot get nvidia-nccl-cu12=={version}: {(got.stderr.strip().splitlines() or ['no word of it'])[-1]}")
            sys.exit(77)
        wheel, = pathlib.Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as packed, packed.open(LIBRARY) as source, open(f"{folder}/library", "wb") as target:
            shutil.copyfileobj(source, target)
        os.replace(f"{folder}/library", library)
    return library


def child_start(library, plugin, result):
    """Starts NCCL as far as it goes without a GPU. NCCL's own words go to standard output."""
    nccl, version, unique = ctypes.CDLL(library), ctypes.c_int(), ctypes.create_string_buffer(128)
    answer = {"version_status": nccl.ncclGetVersion(ctypes.byref(version)), "version": version.value, "status": nccl.ncclGetUniqueId(unique), "id": unique.raw.hex()}
    # The same object as NCCL's, which has called its init: here nobody does.
    answer["asked"] = {name: Plugin(plugin, interface).get(name) for interface in (1, 2) for name in USER}
    pathlib.Path(result).write_text(json.dumps(answer))


def start(library, plugin, folder, environment):
    """(what the child found, NCCL's words, what stands on standard error)"""
    result = folder / "result.json"
    done = child(__file__, "start", library, plugin, result, environment=environment)
    return json.loads(result.read_text()), done.stdout, done.stderr


def check_version(answer, version):
    major, minor, patch = map(int, version.split("."))
    assert (answer["version_status"], answer["version"]) == (0, major * 10000 + minor * 100 + patch), answer


def show(words):
    print("".join(f"  {line}\n" for line in words.splitlines() if "ENV/" in line or "env plugin" in line), end="")


def check_loaded(library, plugin, version, folder):
    policy = folder / "policy.json"
    policy.write_text(json.dumps(POLICY))
    with_plugin = {**USER, "NCCL_ENV_PLUGIN": plugin}
    named = {**with_plugin, "TENSORLANE_NCCL_POLICY": str(policy)}

    # What the user wrote cannot work.
    for environment in (USER, {**USER, "TENSORLANE_NCCL_POLICY": str(policy)}, {**named, "NCCL_ENV_PLUGIN": "none"}):
        answer, words, said = start(library, plugin, folder, environment)
        check_version(answer, version)
        assert answer["status"] != 0 and "ENV/Plugin: Using tensorlane" not in words and "tensorlane:" not in said, (answer, words, said)

    # With the policy it does, since NCCL takes the policy's interface.
    answer, words, said = start(library, plugin, folder, named)
    show(words)
    assert f"ENV/Plugin: Using tensorlane (v{INTERFACES[version]})" in words, words
    assert answer["status"] == 0 and int(answer["id"], 16) != 0, (answer, words)
    assert "NCCL_SOCKET_IFNAME set by environment to lo" in words, words
    assert answer["asked"] == {"NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_TC": None, "NCCL_DEBUG": "INFO"}, answer
    ours = [line for line in said.splitlines() if line.startswith("tensorlane: ")]
    assert ours == [f"tensorlane: NCCL_SOCKET_IFNAME=nosuchdevice of the environment is not used: {policy} says NCCL_SOCKET_IFNAME=lo",
                    f"tensorlane: NCCL_IB_TC=106 of the environment is not used: {policy} says that it is not to be set"], said

    # What NCCL takes from a file that nobody sees in the environment is held to the policy, too.
    (folder / "nccl.conf").write_text("NCCL_SOCKET_IFNAME=nosuchdevice\nNCCL_IB_TC=104\n")
    answer, words, said = start(library, plugin, folder, {"NCCL_DEBUG": "INFO", "NCCL_ENV_PLUGIN": plugin, "TENSORLANE_NCCL_POLICY": str(policy), "NCCL_CONF_FILE": str(folder / "nccl.conf")})
    assert answer["status"] == 0 and answer["asked"]["NCCL_IB_TC"] is None and "NCCL_IB_TC=104 of the environment is not used" in said, (answer, words, said)

    # As NCCL finds it by its short name.
    answer, words, _ = start(library, plugin, folder, {**named, "NCCL_ENV_PLUGIN": "tensorlane", "LD_LIBRARY_PATH": str(pathlib.Path(plugin).parent)})
    assert answer["status"] == 0 and f"ENV/Plugin: Using tensorlane (v{INTERFACES[version]})" in words, words

    # A policy that is none: one line, and NCCL starts with what the user wrote.
    (folder / "fabric.yaml").write_text("hosts: [{name: h0}]\n")
    (folder / "broken.json").write_text("[" * 100_000)
    os.mkfifo(folder / "fifo")
    for broken in ("fabric.yaml", "broken.json", "fifo", "missing"):
        answer, words, said = start(library, plugin, folder, {**with_plugin, "NCCL_SOCKET_IFNAME": "lo", "TENSORLANE_NCCL_POLICY": str(folder / broken)})
        assert answer["status"] == 0 and answer["asked"]["NCCL_IB_TC"] == "106" and f"ENV/Plugin: Using tensorlane (v{INTERFACES[version]})" in words, (broken, answer, words)
        assert said.count("tensorlane: ") == 1 and f"tensorlane: warning: NCCL's variables are left as they are: " in said and broken in said, (broken, said)


def check_not_loaded(library, plugin, version, folder, tensorlane):
    """NCCL without env plugins: it starts, no policy acts, and the doctor says so."""
    policy = folder / "policy.json"
    policy.write_text(json.dumps(POLICY))
    named = {**USER, "NCCL_ENV_PLUGIN": plugin, "TENSORLANE_NCCL_POLICY": str(policy)}
    answer, words, said = start(library, plugin, folder, {**named, "NCCL_SOCKET_IFNAME": "lo"})
    show(words)
    check_version(answer, version)
    assert answer["status"] == 0 and "ENV/Plugin" not in words and "tensorlane:" not in said and answer["asked"]["NCCL_IB_TC"] == "106", (answer, words, said)
    assert start(library, plugin, folder, named)[0]["status"] != 0, "the user's interface is not there, and nothing replaces it"
    done = subprocess.run([tensorlane, "doctor", "--nccl", "--nccl-library", library, "--json"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "NCCL_ENV_PLUGIN": plugin})
    found = [finding for finding in json.loads(done.stdout)["findings"] if finding["rule"] == "N8"]
    assert len(found) == 1 and f"NCCL {version} has no env plugin" in found[0]["message"] and found[0]["severity"] == "warning", done
    print("  the doctor:", found[0]["message"])


def main():
    version, build, plugin, tensorlane = sys.argv[1], pathlib.Path(sys.argv[2]).resolve(), os.path.abspath(sys.argv[3]), sys.argv[4]
    library = fetch(build, version)
    with tempfile.TemporaryDirectory() as name:
        if INTERFACES[version] is None:
            check_not_loaded(library, plugin, version, pathlib.Path(name), tensorlane)
        else:
            check_loaded(library, plugin, version, pathlib.Path(name))


if sys.argv[1] == "--child":
    globals()[f"child_{sys.argv[2]}"](*sys.argv[3:])
else:
    main()
