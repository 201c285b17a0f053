"""What docs/nccl.md says is true: its fabric file is one, its commands run, and its figures are of rules that exist."""

import os
import pathlib
import re
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["TENSORLANE_BUILD"])
TEXT = (ROOT / "docs" / "nccl.md").read_text()
COMMANDS = [line for block in re.findall(r"^```sh\n(.*?)^```", TEXT, re.M | re.S) for line in block.splitlines() if not line.startswith("build/venv/bin/python tests/")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("document")
    (folder / "fabric.yaml").write_text(re.search(r"^```yaml\n(.*?)^```", TEXT, re.M | re.S)[1])
    return folder


def test_there_are_commands():
    assert len(COMMANDS) >= 7


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(folder, command):
    variables = {"PATH": f"{BUILD / 'bin'}:{os.environ['PATH']}", "NCCL_IB_SL": "3", "NCCL_SOCKET_IFNAME": "eth0", "HOME": str(folder)}
    done = subprocess.run(command, shell=True, cwd=folder, env=variables, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_rules_of_the_document(folder):
    done = subprocess.run([BUILD / "bin" / "tensorlane", "classes", "--for", "nccl", "--fabric", folder / "fabric.yaml"], capture_output=True, text=True, check=True)
    rules = dict(re.findall(r"^  (\S+) +(urgent|bulk|mixed)", done.stdout, re.M))
    assert (rules["mesh_tp*"], rules["mesh_dp*"], rules["fsdp_reduce_scatter"], rules["*"]) == ("urgent", "urgent", "bulk", "mixed")
    assert "NCCL_SOCKET_IFNAME=eth0" in done.stdout and re.search(r"^urgent +43 +174 ", done.stdout, re.M)
