"""What _declarations.py says about tensorlane.h is what a C compiler reads there."""

import ctypes
import itertools
import os
import pathlib
import re
import runpy
import shutil
import subprocess

import pytest
from tensorlane import _declarations, _native, errors

ROOT = pathlib.Path(__file__).resolve().parents[2]

STRUCTS = {"tl_config_t": _native.Config, "tl_tensor_desc_t": _native.TensorDesc, "tl_options_t": _declarations.Options}
NUMBERS = {
    "TL_FLOAT32": _native.FLOAT32, "TL_FLOAT64": _native.FLOAT64, "TL_FLOAT16": _native.FLOAT16, "TL_BFLOAT16": _native.BFLOAT16,
    "TL_INT8": _native.INT8, "TL_INT32": _native.INT32, "TL_INT64": _native.INT64, "TL_UINT8": _native.UINT8,
    "TL_SUM": _native.SUM, "TL_AVERAGE": _native.AVERAGE, "TL_MIN": _native.MIN, "TL_MAX": _native.MAX, "TL_PRODUCT": _native.PRODUCT,
    "TL_ALLREDUCE": _native.ALLREDUCE, "TL_BROADCAST": _native.BROADCAST, "TL_ALLGATHER": _native.ALLGATHER, "TL_BARRIER": _native.BARRIER,
    "TL_PUSH": _native.PUSH, "TL_PULL": _native.PULL, "TL_REDUCESCATTER": _native.REDUCESCATTER, "TL_REDUCE": _native.REDUCE,
    "TL_GATHER": _native.GATHER, "TL_SCATTER": _native.SCATTER, "TL_ALLTOALL": _native.ALLTOALL,
    "TL_MEMORY_HOST": _native.MEMORY_HOST, "TL_MEMORY_CUDA": _native.MEMORY_CUDA,
    "TL_OK": errors.OK, "TL_IN_PROGRESS": errors.IN_PROGRESS, "TL_ERROR_TIMED_OUT": errors.TIMED_OUT,
    "TL_ERROR_INVALID_ARGUMENT": errors.InvalidArgumentError.status, "TL_ERROR_NOT_FOUND": errors.NotFoundError.status,
    "TL_ERROR_ALREADY_EXISTS": errors.AlreadyExistsError.status, "TL_ERROR_PERMISSION_DENIED": errors.PermissionDeniedError.status,
    "TL_ERROR_RESOURCE_EXHAUSTED": errors.ResourceExhaustedError.status, "TL_ERROR_UNAVAILABLE": errors.UnavailableError.status,
    "TL_ERROR_ABORTED": errors.AbortedError.status, "TL_ERROR_MISMATCH": errors.MismatchError.status,
    "TL_ERROR_VERSION_MISMATCH": errors.VersionMismatchError.status, "TL_ERROR_CORRUPT": errors.CorruptError.status,
    "TL_ERROR_INTERNAL": errors.InternalError.status, "((tl_config_t)TL_CONFIG_INIT).version": _native.CONFIG_VERSION,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("sizeof {name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
            lines.append(f'printf("sizeof {name}.{field} %zu\\n", sizeof((({name}*)0)->{field}));')
    lines += [f'printf("{name} %d\\n", (int){name});' for name in NUMBERS]
    folder = tmp_path_factory.mktemp("layout")
    source = "#include <stdio.h>\n#include <tensorlane/tensorlane.h>\nint main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    (folder / "layout.c").write_text(source)
    subprocess.run([compiler, f"-I{ROOT / 'client-lib' / 'include'}", str(folder / "layout.c"), "-o", str(folder / "layout")], check=True)
    output = subprocess.run([str(folder / "layout")], check=True, capture_output=True, text=True).stdout
    return {key: int(value) for key, value in (line.rsplit(" ", 1) for line in output.splitlines())}


@pytest.mark.parametrize("name", STRUCTS)
def test_structs(seen, name):
    struct = STRUCTS[name]
    assert ctypes.sizeof(struct) == seen[f"sizeof {name}"]
    for field, kind in struct._fields_:
        assert getattr(struct, field).offset == seen[f"{name}.{field}"], field
        assert ctypes.sizeof(kind) == seen[f"sizeof {name}.{field}"], field


def test_numbers(seen):
    assert {name: seen[name] for name in NUMBERS} == NUMBERS


def test_options_are_those_of_the_call():
    memories = (_native.MEMORY_HOST, _native.MEMORY_CUDA)
    kinds = list(itertools.product((-1.0, 0.25, 1.0), (False, True), (None, 4096, 8192), memories))
    for kind in kinds * 2:
        said = _declarations.options(*kind)._obj
        assert (said.urgency, said.queued, said.stream, said.memory) == kind, kind


def test_every_declared_call_is_in_the_header():
    header = (ROOT / "client-lib" / "include" / "tensorlane" / "tensorlane.h").read_text()
    for name, (arguments, _) in _native.SIGNATURES.items():
        declaration = re.search(rf"^TL_API [^;]*\b{name}\([^;]*;", header, re.M).group()
        count = 0 if "(void)" in declaration else declaration.count(",") + 1
        assert len(arguments) == count, name


def test_the_wheel_compiles_what_it_includes(monkeypatch):
    """A header that the client library includes has its .cc in the wheel, or the library does not link there."""
    setuptools = pytest.importorskip("setuptools")
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    wheel = runpy.run_path(str(ROOT / "client-lib" / "python" / "setup.py"))
    left = [unit for pattern in wheel["UNITS"] for unit in ROOT.glob(pattern)]
    units, seen = set(left), set()
    while left:
        source = left.pop()
        seen.add(source)
        included = [ROOT / name for name in re.findall(r'#include "((?:client-lib|common)/[^"]+)"', source.read_text())]
        left += [header for header in included if header not in seen]
    headers = {file for file in seen if file.suffix == ".h"}
    folders = [ROOT / folder for folder in wheel["FOLDERS"]]
    assert all(any(folder in header.parents for folder in folders) for header in headers)
    missing = {header.with_suffix(".cc") for header in headers if header.with_suffix(".cc").exists()} - units
    assert {str(unit.relative_to(ROOT)) for unit in missing} == {"common/protocol/plan.cc"}  # of which only numbers are used
