"""What users build: without the tests nothing of GoogleTest and Google Benchmark is needed, and warnings are errors only where the presets ask for it."""

import json
import pathlib
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(sys.argv[1]).resolve()


def commands(folder):
    return [entry["command"] for entry in json.loads((folder / "compile_commands.json").read_text())]


def check_users_build():
    absent = [f"-DCMAKE_DISABLE_FIND_PACKAGE_{package}=ON" for package in ("GTest", "benchmark")]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["cmake", "-S", SOURCE, "-B", folder, "-G", "Ninja", "-DBUILD_TESTING=OFF", *absent], check=True, capture_output=True)
        ours = commands(pathlib.Path(folder))
        parts = subprocess.run(["ninja", "-C", folder, "-t", "query", "programs"], check=True, capture_output=True, text=True).stdout.split()
    assert ours and not [command for command in ours if "-Werror" in command or f"{SOURCE}/tests/" in command]
    for program in ("tensorlaned", "tensorlane", "tensorlane-probe", "tensorlane-switch", "tensorlane-swarm", "tensorlane-example-allreduce"):
        assert f"bin/{program}" in parts, (program, parts)
    assert not [part for part in parts if part.startswith("tests")], parts


def check_preset():
    own = [command for command in commands(BUILD) if f" -c {SOURCE}/" in command or "Unity" in command]
    assert own and [command for command in own if "-Werror" in command]
    assert [command for command in commands(BUILD) if "/tests/" in command]


check_users_build()
check_preset()
