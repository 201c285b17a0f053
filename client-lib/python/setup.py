"""Builds the C client library into the wheel, as tensorlane/_libtensorlane.so: a C++ compiler (CXX, else c++) is all it
takes.

The C++ sources are those of the source tree around this folder, ../src and ../../common; a source distribution carries
a copy in _native_source.
"""

import os
import pathlib
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
COPY = HERE / "_native_source"
FOLDERS = ("client-lib/include", "client-lib/src", "common/base", "common/files", "common/protocol")
UNITS = (
    "client-lib/src/*.cc", "client-lib/src/cuda/*.cc", "common/files/*.cc",
    # The other files of common/base need libraries.
    *(f"common/base/{unit}.cc" for unit in ("assert", "available_memory", "status", "text")),
)


def source_root():
    """The folder that has FOLDERS in it."""
    for root in (COPY, HERE.parents[1]):
        if all((root / folder).is_dir() for folder in FOLDERS):
            return root
    raise SystemExit(
        f"tensorlane: error: the C++ sources are missing: {COPY} and {HERE.parents[1]}: install from the source tree, "
        "or from a source distribution"
    )


class Build(build_py):
    def run(self):
        super().run()
        self.compile_library(pathlib.Path(self.build_lib) / "tensorlane" / "_libtensorlane.so")

    def get_outputs(self, include_bytecode=1):
        return [
            *super().get_outputs(include_bytecode),
            str(pathlib.Path(self.build_lib) / "tensorlane" / "_libtensorlane.so"),
        ]

    @staticmethod
    def compile_library(output):
        root = source_root()
        units = sorted(str(unit) for pattern in UNITS for unit in root.glob(pattern))
        compiler = os.environ.get("CXX", "c++").split()
        output.parent.mkdir(parents=True, exist_ok=True)
        command = [
            *compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden",
            "-fvisibility-inlines-hidden", f"-I{root}", f"-I{root / 'client-lib' / 'include'}", *units,
            "-Wl,--as-needed", "-Wl,--no-undefined", "-ldl", "-o", str(output),
        ]
        try:
            subprocess.run(command, check=True)
        except FileNotFoundError:
            raise SystemExit(
                f"tensorlane: error: no C++ compiler: {compiler[0]}: install g++ 12 or clang 14 or newer, or set CXX"
            ) from None
        except subprocess.CalledProcessError as error:
            raise SystemExit(
                f"tensorlane: error: the client library does not compile: {root}: see the compiler's messages above"
            ) from error


class SourceDistribution(sdist):
    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        for folder in FOLDERS:
            shutil.copytree(
                source_root() / folder, pathlib.Path(base_dir) / "_native_source" / folder, dirs_exist_ok=True
            )


class NativeDistribution(Distribution):
    """The wheel holds a library of this platform, though no extension module of Python's."""

    def has_ext_modules(self):
        return True


setup(cmdclass={"build_py": Build, "sdist": SourceDistribution}, distclass=NativeDistribution)
