#!/usr/bin/env python3
"""Which policy the env plugin takes: /etc/tensorlane/nccl-policy.json where it is there, else what TENSORLANE_NCCL_POLICY names.
usage: default_path_test.py PLUGIN     in a mount namespace of its own, with an /etc of its own; skipped where the kernel forbids that"""

import json
import os
import pathlib
import subprocess
import sys

from plugin import Plugin, child

ETC = pathlib.Path("/etc/tensorlane")
POLICY = ETC / "nccl-policy.json"


def child_ask(path):
    plugin = Plugin(path, 2)
    assert plugin.init() == 0
    print(json.dumps(plugin.get("NCCL_IB_TC")))


def ask(path, named=None):
    """(what NCCL gets for a variable that the user set, what was said)"""
    done = child(__file__, "ask", path, environment={"NCCL_IB_TC": "106", **({} if named is None else {"TENSORLANE_NCCL_POLICY": named})})
    return json.loads(done.stdout), done.stderr


def child_look(path):
    """In the namespace."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/etc"], check=True)
    ETC.mkdir()
    other = ETC / "other.json"
    other.write_text(json.dumps({"version": 1, "for": "nccl", "process": {"NCCL_IB_TC": "110"}}))
    assert ask(path, str(other))[0] == "110"
    value, said = ask(path)  # whoever loads the plugin wants a policy
    assert value == "106" and said.count("\n") == 1 and str(POLICY) in said and "No such file" in said, said
    POLICY.write_text(json.dumps({"version": 1, "for": "nccl", "process": {"NCCL_IB_TC": None}}))
    for named in (None, "", str(other)):  # users cannot put theirs in its place
        assert ask(path, named) == (None, "tensorlane: NCCL_IB_TC=106 of the environment is not used: /etc/tensorlane/nccl-policy.json says that it is not to be set\n")
    # One that is there and cannot be used is missed.
    for break_it in (lambda: POLICY.write_text("{}"), lambda: (POLICY.unlink(), POLICY.symlink_to(POLICY)), lambda: (POLICY.unlink(), POLICY.mkdir())):
        break_it()
        value, said = ask(path)
        assert value == "106" and said.count("\n") == 1 and str(POLICY) in said and "warning" in said, said


def main():
    path = os.path.abspath(sys.argv[1])
    namespace = ["unshare", "--user", "--map-root-user", "--mount"]
    tried = subprocess.run([*namespace, "mount", "-t", "tmpfs", "tmpfs", "/etc"], capture_output=True, text=True)
    if tried.returncode != 0:
        print(f"skipped: nccl_env_default_path: no mount namespace can be made here: {tried.stderr.strip()}")
        sys.exit(77)
    sys.exit(subprocess.run([*namespace, sys.executable, __file__, "--child", "look", path]).returncode)


if sys.argv[1] == "--child":
    globals()[f"child_{sys.argv[2]}"](*sys.argv[3:])
else:
    main()
