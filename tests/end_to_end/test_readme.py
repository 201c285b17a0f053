"""Runs the README's commands: every line of its `sh` blocks, but for the two that this very test is a part of."""

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


def main():
    documented_keys()
    with open(os.path.join(ROOT, "README.md")) as file:
        blocks = re.findall(r"```sh\n(.*?)```", file.read(), re.S)
    commands = [line for block in blocks for line in block.splitlines() if line]
    assert OURS < set(commands), commands
    for command in commands:
        if command in OURS:
            continue
        if "--hosts lab" in command and os.geteuid() != 0:
            print(f"left out, needs root: {command}")
            continue
        done = subprocess.run(command.replace("build/", BUILD + "/"), shell=True, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: exit status {done.returncode}: {done.stderr}"
        print(f"good: {command}")


if __name__ == "__main__":
    sys.exit(main())
