"""`cmake --install` into a folder: the installed daemon takes the installed examples, and the installed library serves a C program."""

import json
import os
import pathlib
import re
import shutil
import stat
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
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
    """The examples with real keys in the places of the examples' ones, and with an address that this host has."""
    examples = next(prefix.glob("share/doc/*/deploy/examples"))
    etc = folder / "etc"
    shutil.copytree(examples, etc)
    fabric = (etc / "fabric.yaml").read_text()
    assert "tcp: 10.1.0.11}" in fabric, fabric
    fabric = fabric.replace("tcp: 10.1.0.11}", "tcp: 127.0.0.1}")
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
    for target in ("sonic", "linux", "host"):
        run(prefix / "bin/tensorlane-switch", "render", "--fabric", etc / "fabric.yaml", "--target", target, "--out", folder / target)
        assert any((folder / target).rglob("*.*")), target
    said = " ".join(run(prefix / "bin/tensorlaned", "--help").stdout.split())
    for document in re.findall(r"([\w./]+\.md) of the installed documents", said) or ["none named"]:
        assert (examples.parent.parent / document).is_file(), document
    checked = run(prefix / "bin/tensorlaned", "--check-config", "--config", etc / "daemon.yaml")
    assert "good: host gpu01" in checked.stdout and "2 hosts, 2 data classes" in checked.stdout, checked.stdout


def paths_of(unit):
    service = unit.read_text()
    assert "@" not in service.replace("@system-service", "").replace("@privileged", "").replace("@resources", ""), service
    return re.search(r"^ExecStart=(\S+) --config (\S+)$", service, re.M).groups()


def check_documents(documents):
    """What the installed documents and examples name of the source's documents is installed in the same place."""
    named = re.compile(r"(?:common|daemon|client-lib|simulator|switch-config|monitor|docs|deploy)(?:/[\w.-]+)+")
    found = set()
    for document in [*documents.rglob("*.md"), *documents.rglob("*.yaml")]:
        text = document.read_text()
        for path in {match.rstrip("./") for match in named.findall(text)}:
            here = SOURCE / path
            if here.suffix == ".md" or (here / "README.md").is_file() or path.startswith(("deploy/examples", "deploy/ansible")):
                assert (documents / path).exists(), f"{document} names {path}"
                found.add(path)
        for link in re.findall(r"\]\(([\w./-]+)\)", text):
            assert (document.parent / link).exists(), f"{document} links to {link}"
    assert len(found) > 10, found


def check_steps(package):
    """The paths in the steps of the service are those of what was installed, or what the steps make."""
    made = {"/etc/tensorlane/gpu01.key", "/etc/tensorlane/fabric.yaml", "/etc/tensorlane/daemon.yaml", "/etc/systemd/system/tensorlaned.service.d", "/var/lib/tensorlane"}
    paths = set(re.findall(r"(/(?:usr|etc|var|run)/[\w./-]*\w)", (package / "usr/share/doc/tensorlane/deploy/README.md").read_text()))
    assert len(paths) > 6, paths
    for path in paths - made:
        assert os.path.exists(f"{package}{path}"), path


def check_service(prefix, folder):
    """The unit as it is written, for a folder of one's own and for /usr in a package's folder."""
    unit = prefix / "lib/systemd/system/tensorlaned.service"
    command, config = paths_of(unit)
    assert command == f"{prefix}/bin/tensorlaned" and os.access(command, os.X_OK), command
    assert config == f"{prefix}/etc/tensorlane/daemon.yaml" and os.path.isdir(os.path.dirname(config)), config
    package = folder / "package"
    run("cmake", "--install", BUILD, "--prefix", "/usr", env={**os.environ, "DESTDIR": str(package)})
    command, config = paths_of(package / "usr/lib/systemd/system/tensorlaned.service")
    assert (command, config) == ("/usr/bin/tensorlaned", "/etc/tensorlane/daemon.yaml"), (command, config)
    assert os.access(f"{package}{command}", os.X_OK) and (package / "etc/tensorlane").is_dir()
    assert "/etc/tensorlane 0750 root tensorlane" in (package / "usr/lib/tmpfiles.d/tensorlane.conf").read_text()
    check_steps(package)
    if shutil.which("systemd-analyze"):
        run("systemd-analyze", "verify", "--man=no", unit)
        for drop_in in (None, package / "usr/share/doc/tensorlane/deploy/examples/tensorlaned.service.d"):
            if drop_in is not None:
                shutil.copytree(drop_in, f"{unit}.d")
                run("systemd-analyze", "verify", "--man=no", unit)
            score = subprocess.run(["systemd-analyze", "security", "--offline=true", str(unit)], capture_output=True, text=True).stdout
            exposure = float(re.search(r"Overall exposure level for \S+: ([0-9.]+)", score)[1])
            assert exposure <= 2.5, score
    if shutil.which("systemd-sysusers"):
        made = run("systemd-sysusers", "--dry-run", f"--root={package}", package / "usr/lib/sysusers.d/tensorlane.conf")
        assert "tensorlane" in made.stderr + made.stdout, made


def check_library(prefix, folder):
    source = folder / "program.c"
    source.write_text(PROGRAM)
    library = next(prefix.glob("lib/**/libtensorlane.so")).parent
    flags = [f"-I{prefix}/include", f"-L{library}", "-ltensorlane"]
    if shutil.which("pkg-config"):
        environment = {**os.environ, "PKG_CONFIG_PATH": str(library / "pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "tensorlane", env=environment).stdout.split()
    run("cc", "-std=c99", "-Wall", "-Werror", source, *flags, "-o", folder / "program")
    assert run(folder / "program", env={"LD_LIBRARY_PATH": str(library)}).stdout.strip() != ""


def main():
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        prefix = folder / "usr"
        run("cmake", "--install", BUILD, "--prefix", prefix)
        check_daemon(prefix, folder)
        check_documents(next(prefix.glob("share/doc/*/deploy")).parent)
        check_service(prefix, folder)
        check_library(prefix, folder)
    print("good: the installed daemon, service, examples and library")


if __name__ == "__main__":
    sys.exit(main())
