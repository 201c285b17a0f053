"""`cmake --install` into a folder: the installed daemon takes the installed examples, and the installed library serves a C program."""

import json
import os
import pathlib
import shutil
import stat
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()
PROGRAM = """
#include <stdio.h>
#include <tensorlane/tensorlane.h>
int main(void) { puts(tl_status_string(TL_OK)); return 0; }
"""


def run(*command, status=0, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == status, f"{command}: exit status {done.returncode}: {done.stderr}"
    return done


def check_daemon(prefix, folder):
    """The examples as they are, with real keys in the places of the examples' ones."""
    examples = next(prefix.glob("share/doc/*/examples"))
    etc = folder / "etc"
    shutil.copytree(examples, etc)
    fabric = (etc / "fabric.yaml").read_text()
    for host in ("gpu01", "gpu02"):
        key = etc / f"{host}.key"
        made = run(prefix / "bin/tensorlane", "make-key", "--json", "--secret-file", key)
        fabric = fabric.replace(f'"PUBLIC-KEY-OF-{host.upper()}"', json.dumps(json.loads(made.stdout)["public_key"]))
        assert stat.S_IMODE(key.stat().st_mode) == 0o600 and len(key.read_text()) == 41
        again = run(prefix / "bin/tensorlane", "make-key", "--secret-file", key, status=1)
        assert again.stderr == f"tensorlane: error: cannot write: File exists: {key}: name another file, or remove this one first\n", again.stderr
    (etc / "fabric.yaml").write_text(fabric)
    fabric_file = json.loads(run(prefix / "bin/tensorlane-switch", "deadlock", "--fabric", etc / "fabric.yaml", "--json").stdout)
    assert fabric_file["findings"] == [], fabric_file
    checked = run(prefix / "bin/tensorlaned", "--check-config", "--config", etc / "daemon.yaml")
    assert "good: host gpu01" in checked.stdout and "2 hosts, 2 data classes" in checked.stdout, checked.stdout


def check_service(prefix):
    service = (prefix / "lib/systemd/system/tensorlaned.service").read_text()
    assert "ExecStart=/" in service and "/bin/tensorlaned --config /" in service and "@" not in service, service
    if shutil.which("systemd-analyze"):
        text = service.replace("ExecStart=", f"ExecStart={prefix}/bin/tensorlaned #")
        unit = prefix / "tensorlaned.service"
        unit.write_text("\n".join(line.split(" #")[0] if line.startswith("ExecStart=") else line for line in text.splitlines()) + "\n")
        run("systemd-analyze", "verify", "--man=no", unit)


def check_library(prefix, folder):
    source = folder / "program.c"
    source.write_text(PROGRAM)
    library = next(prefix.glob("lib/**/libtensorlane.so")).parent
    run("cc", "-std=c99", "-Wall", "-Werror", source, f"-I{prefix}/include", f"-L{library}", "-ltensorlane", "-o", folder / "program")
    assert run(folder / "program", env={"LD_LIBRARY_PATH": str(library)}).stdout.strip() != ""


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prefix = folder / "usr"
        run("cmake", "--install", BUILD, "--prefix", prefix)
        check_daemon(prefix, folder)
        check_service(prefix)
        check_library(prefix, folder)
    print("good: the installed daemon, service, examples and library")


if __name__ == "__main__":
    sys.exit(main())
