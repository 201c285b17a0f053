"""Builds the C client library into the wheel, as tensorlane/_libtensorlane.so: a C++ compiler (CXX, else c++) is all it
takes.

The backend of torch.distributed goes into the wheel as tensorlane/torch/_backend_MINOR.so, one for each torch that it
is compiled for: the one that the interpreter of the build has (with pip, --no-build-isolation), and those whose folders
("site-packages/torch") TENSORLANE_TORCH lists, separated by colons. Without any, the wheel has no backend.

The C++ sources are those of the source tree around this folder, ../src, ../torch and ../../common; a source
distribution carries a copy in _native_source.
"""

import concurrent.futures
import importlib.util
import os
import pathlib
import re
import shutil
import subprocess

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = pathlib.Path(__file__).resolve().parent
COPY = HERE / "_native_source"
FOLDERS = (
    "client-lib/include", "client-lib/src", "client-lib/torch", "common/base", "common/files", "common/nccl",
    "common/protocol",
)
UNITS = (
    "client-lib/src/*.cc", "client-lib/src/cuda/*.cc", "common/files/*.cc",
    # The other files of common/nccl need libraries, too.
    *(f"common/nccl/{unit}.cc" for unit in ("preflight", "settings", "version")),
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


def torch_folders():
    """{minor version: folder} of each torch that the backend is compiled for."""
    folders = [pathlib.Path(each) for each in os.environ.get("TENSORLANE_TORCH", "").split(":") if each]
    found = importlib.util.find_spec("torch")
    if found is not None and found.submodule_search_locations:
        folders.append(pathlib.Path(found.submodule_search_locations[0]))
    return {torch_version(folder): folder for folder in folders}


def torch_version(folder):
    """MAJOR.MINOR of the torch in a folder, which is not imported."""
    try:
        text = (folder / "version.py").read_text()
    except OSError as error:
        raise SystemExit(
            f"tensorlane: error: there is no torch: {folder} ({error}): list folders like site-packages/torch in "
            "TENSORLANE_TORCH"
        ) from None
    return re.search(r"__version__ = '(\d+\.\d+)", text)[1]


def has_new_strings(torch):
    """Whether std::string, as a parameter of torch's functions, is that of GCC 5 and newer, not the one before."""
    # Of c10::Error's constructor. Other functions have both, of libraries that are linked into it.
    return b"14SourceLocationENSt7__cxx1112basic_string" in (torch / "lib" / "libc10.so").read_bytes()


def compile_units(command, what, source=None):
    try:
        subprocess.run(command, check=True, input=source, text=True)
    except FileNotFoundError:
        raise SystemExit(
            f"tensorlane: error: no C++ compiler: {command[0]}: install g++ 12 or clang 14 or newer, or set CXX"
        ) from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(
            f"tensorlane: error: {what} does not compile: {source_root()}: see the compiler's messages above"
        ) from error


class Build(build_py):
    def run(self):
        super().run()
        self.library().parent.mkdir(parents=True, exist_ok=True)
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            compiled = [pool.submit(self.compile_backend, *backend) for backend in self.backends().items()]
            compiled.append(pool.submit(self.compile_library, self.library()))
            compiled.append(pool.submit(self.compile_kernels, self.kernels()))
            for each in compiled:
                each.result()

    def get_outputs(self, include_bytecode=1):
        kernels = [str(self.kernels())] if self.kernels().exists() else []
        return [*super().get_outputs(include_bytecode), str(self.library()), *kernels, *map(str, self.backends())]

    def library(self):
        return pathlib.Path(self.build_lib) / "tensorlane" / "_libtensorlane.so"

    def kernels(self):
        return pathlib.Path(self.build_lib) / "tensorlane" / "_kernels.fatbin"

    def backends(self):
        """{shared object: folder of its torch}"""
        inside = pathlib.Path(self.build_lib) / "tensorlane" / "torch"
        return {inside / f"_backend_{minor}.so": folder for minor, folder in torch_folders().items()}

    @staticmethod
    def compile_backend(output, torch):
        root = source_root()
        units = sorted((root / "client-lib" / "torch").glob("*.cc"))
        strings = f"-D_GLIBCXX_USE_CXX11_ABI={int(has_new_strings(torch))}"
        command = [
            *os.environ.get("CXX", "c++").split(), "-std=c++20", "-O2", "-fPIC", "-shared", "-pthread",
            "-fvisibility=hidden", "-fvisibility-inlines-hidden", strings, f"-I{root}",
            f"-I{root / 'client-lib' / 'include'}", f"-isystem{torch / 'include'}",
            f"-isystem{torch / 'include' / 'torch' / 'csrc' / 'api' / 'include'}", "-xc++", "-", f"-L{torch / 'lib'}",
            "-ltorch_cpu", "-lc10", "-ldl", "-o", str(output),
        ]
        # As one unit: torch's headers take longer than the rest.
        compile_units(command, f"the backend for {torch}", "".join(f'#include "{unit}"\n' for unit in units))

    @staticmethod
    def compile_kernels(output):
        """What the ranks of a host sum with on their GPUs. Without an nvcc that can, the package has none."""
        places = [os.environ.get("PATH", ""), f"{os.environ.get('CUDA_HOME', '')}/bin", "/usr/local/cuda/bin"]
        nvcc = shutil.which("nvcc", path=os.pathsep.join(places))
        if nvcc is None:
            return print("tensorlane: no kernels for GPUs: there is no nvcc in PATH, CUDA_HOME or /usr/local/cuda")
        root = source_root()
        command = [  # as in cmake/cuda_kernels.cmake
            nvcc, "-fatbin", "-O3", "-fmad=false", "-std=c++20", "--expt-relaxed-constexpr", f"-I{root}",
            "-gencode=arch=compute_75,code=[compute_75,sm_80,sm_90]", "-o", str(output),
            str(root / "client-lib" / "src" / "cuda" / "kernels" / "combine.cu"),
        ]
        if subprocess.run(command, check=False).returncode != 0:
            print(f"tensorlane: no kernels for GPUs: {nvcc} does not compile them: see its messages above")

    @staticmethod
    def compile_library(output):
        root = source_root()
        units = sorted(str(unit) for pattern in UNITS for unit in root.glob(pattern))
        compiler = os.environ.get("CXX", "c++").split()
        command = [
            *compiler, "-std=c++20", "-O2", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden",
            "-fvisibility-inlines-hidden", f"-I{root}", f"-I{root / 'client-lib' / 'include'}", *units,
            "-Wl,--as-needed", "-Wl,--no-undefined", "-ldl", "-o", str(output),
        ]
        compile_units(command, "the client library")


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
