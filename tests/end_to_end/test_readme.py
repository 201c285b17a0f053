"""Runs the documents' commands: every line of the README's `sh` blocks, but for the two that this very test is a part of; two daemons by hand."""

import json
import os
import re
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
BUILD = os.path.abspath(sys.argv[1])
OURS = {"deploy/quickstart", "tests/run"}  # tests/run calls this; deploy/quickstart has a test of its own


def documented_keys():
    """daemon/config/README.md explains every key that the daemon takes; the daemon itself names them."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as config:
        config.write("no such key: 1\n")
        config.flush()
        error = subprocess.run([f"{BUILD}/bin/tensorlaned", "--check-config", "--config", config.name], capture_output=True, text=True).stderr
    keys = re.search(r"expected one of (.*)", error)[1].split(", ")
    with open(os.path.join(ROOT, "daemon", "config", "README.md")) as file:
        text = file.read()
    missing = [key for key in keys if f"`{key}`" not in text]
    assert len(keys) > 20 and not missing, f"keys without an explanation: {missing}"


def keys_of(schema):
    """All names of properties in a JSON schema."""
    inner = schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ()
    own = set(schema.get("properties", {})) if isinstance(schema, dict) else set()
    return own.union(*(keys_of(value) for value in inner))


def documented_fabric_keys():
    """common/fabric/README.md explains every key of the schema, which test_schema.py compares with the loader, in a row of a table."""
    with open(os.path.join(ROOT, "common", "fabric", "fabric.schema.json")) as file:
        keys = keys_of(json.load(file))
    with open(os.path.join(ROOT, "common", "fabric", "README.md")) as file:
        rows = "\n".join(line for line in file if line.startswith("|"))
    missing = [key for key in sorted(keys) if f"`{key}`" not in rows]
    assert len(keys) > 40 and not missing, f"keys without an explanation: {missing}"


def blocks_of(*path):
    with open(os.path.join(ROOT, *path)) as file:
        return re.findall(r"```sh\n(.*?)```", file.read(), re.S)


def two_hosts_by_hand():
    """The page about daemon.yaml shows how, as one script."""
    (script,) = blocks_of("daemon", "config", "README.md")
    done = subprocess.run(["bash", "-e", "-c", script.replace("build/", BUILD + "/")], cwd=ROOT, capture_output=True, text=True, timeout=240)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert all(word in said for word in ("good: host h0", "rank 0", "rank 1")), said
    print("good: two hosts by hand")


def main():
    documented_keys()
    documented_fabric_keys()
    two_hosts_by_hand()
    blocks = blocks_of("README.md")
    commands = [line for block in blocks for line in block.splitlines() if line]
    assert OURS < set(commands), commands
    for command in commands:
        if command in OURS:
            continue
        if "--hosts lab" in command and os.geteuid() != 0:
            print(f"left out, needs root: {command}")
            continue
        done = subprocess.run(command.replace("build/", BUILD + "/"), shell=True, cwd=ROOT, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, f"{command}: exit status {done.returncode}: {done.stderr}"
        print(f"good: {command}")


if __name__ == "__main__":
    sys.exit(main())
