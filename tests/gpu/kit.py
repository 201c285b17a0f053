"""The kit that tests/gpu/pack makes, and jobs of its programs on this machine. Standard library only."""

import ctypes
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


class Failed(Exception):
    """A part has failed, and why."""


class Skipped(Exception):
    """A part cannot run here, and why."""


def version_of_glibc():
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):
        raise Failed("this machine's C library is not glibc: the kit's programs need it")
    libc.gnu_get_libc_version.restype = ctypes.c_char_p
    return [int(part) for part in libc.gnu_get_libc_version().decode().split(".")]


def version_of_glibcxx():
    """The newest version that this machine's libstdc++ has; [0] where there is none."""
    try:
        ctypes.CDLL("libstdc++.so.6")
        with open("/proc/self/maps") as maps:
            path = next(line.split()[-1] for line in maps if "libstdc++" in line)
        text = pathlib.Path(path).read_bytes()
    except (OSError, StopIteration):
        return [0]
    return max([[int(part) for part in found.decode().split(".")] for found in re.findall(rb"GLIBCXX_(\d+\.\d+(?:\.\d+)?)\0", text)], default=[0])


def dotted(version):
    return ".".join(str(part) for part in version)


def end(child):
    """Ends a command that has run out of time, and what it has started: `tensorlane run` cleans up when it is asked to."""
    for sign, patience in ((signal.SIGTERM, 10), (signal.SIGKILL, 10)):
        try:
            os.killpg(child.pid, sign)
            child.wait(patience)
        except subprocess.TimeoutExpired:
            continue
        except ProcessLookupError:
            return


class Kit:
    """Where things are, and how they are started. `fake`: the build's fake driver stands for the GPU."""

    def __init__(self, folder, build, fake):
        self.folder = pathlib.Path(folder)
        self.build = pathlib.Path(build)
        self.fake = fake
        manifest = self.folder / "manifest.json"
        if not manifest.exists():
            raise Failed(f"there is no kit in {self.folder}: run tests/gpu/pack where the project is built, and bring its build/gpu-kit along")
        self.manifest = json.loads(manifest.read_text())
        self.python = str(self.build / "venv" / "bin" / "python") if fake else sys.executable
        self.driver = str(self.build / "tests" / "fake-cuda" / "libcuda.so.1") if fake else "libcuda.so.1"
        self.libraries = [str(self.folder / "lib")]
        self.scratch = tempfile.TemporaryDirectory(prefix="tensorlane-gpu-")

    def check_machine(self):
        """Raises Failed where the kit cannot work."""
        if os.uname().machine != self.manifest["machine"]:
            raise Failed(f"the kit is for {self.manifest['machine']}, this machine is {os.uname().machine}: build and pack on such a machine")
        if version_of_glibc() < self.manifest["glibc"]:
            raise Failed(f"glibc here is {dotted(version_of_glibc())}, the kit needs {dotted(self.manifest['glibc'])}: build and pack on an older system")
        if version_of_glibcxx() < self.manifest["glibcxx"]:
            self.libraries.append(str(self.folder / "compiler"))

    def environment(self):
        """Of our programs. Python must not get our libraries: its modules bring their own (python_command())."""
        mine = dict(os.environ)
        before = mine.get("LD_LIBRARY_PATH")
        mine["LD_LIBRARY_PATH"] = ":".join(self.libraries + ([before] if before else []))
        mine["TENSORLANE_LIBRARY"] = str(self.folder / "lib" / "libtensorlane.so.0")
        mine["PYTHONPATH"] = os.pathsep.join([str(self.folder / "python"), *filter(None, [mine.get("PYTHONPATH")])])
        mine.update(PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", CUBLAS_WORKSPACE_CONFIG=":4096:8")
        mine.pop("CUDA_LAUNCH_BLOCKING", None)
        if self.fake:
            mine.update(TENSORLANE_FAKE_CUDA="seed=1,delay_us=20,print=1", FAKE_CUDA_LIBRARY=self.driver, TENSORLANE_BUILD=str(self.build), OMP_NUM_THREADS="1")
        return mine

    def python_command(self, script, *arguments):
        before = os.environ.get("LD_LIBRARY_PATH")
        clean = ["-u", "LD_LIBRARY_PATH"] if before is None else [f"LD_LIBRARY_PATH={before}"]
        return ["env", *clean, self.python, str(HERE / script), *(["--fake"] if self.fake else []), *map(str, arguments)]

    def gpu_check(self, part, *arguments):
        return [str(self.folder / "bin" / "gpu_check"), part, "--driver", self.driver, *map(str, arguments)]

    def path(self, name):
        """A file that goes with the run."""
        return pathlib.Path(self.scratch.name) / name

    def command(self, command, limit, environment=None):
        """What a command of the kit prints. Raises Failed with the end of it when it fails or takes too long."""
        child = subprocess.Popen(command, env={**self.environment(), **(environment or {})}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                 errors="replace", start_new_session=True)
        try:
            text, _ = child.communicate(timeout=limit)
        except subprocess.TimeoutExpired:
            end(child)
            text, _ = child.communicate()
            raise Failed(f"it was not done after {limit:.0f} s: {last_lines(text)}")
        finally:
            if child.poll() is None:  # this run is being ended
                end(child)
        if child.returncode != 0:
            raise Failed(f"it ended with status {child.returncode}: {last_lines(text)}")
        return text

    def job(self, ranks, per_host, command, limit, settings=(), environment=None):
        """Runs the ranks of a job on daemons of their own; the figures that rank 0 has written."""
        out = self.path("figures.json")
        out.unlink(missing_ok=True)
        run = [str(self.folder / "bin" / "tensorlane"), "run", "-n", str(ranks), "--ranks-per-host", str(per_host)]
        for setting in settings:
            run += ["--set", setting]
        text = self.command([*run, "--", *command, "--out", str(out)], limit, environment)
        if not out.exists():
            raise Failed(f"rank 0 has written no figures: {last_lines(text)}")
        return json.loads(out.read_text())


def last_lines(text, count=12):
    return "\n    ".join(["", *text.strip().splitlines()[-count:]])
