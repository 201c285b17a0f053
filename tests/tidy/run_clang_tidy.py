#!/usr/bin/env python3
"""Runs clang-tidy over the modules in which a defect costs most, and remembers what was clean.

usage: run_clang_tidy.py --build FOLDER [--root FOLDER]

The files of a module are checked together, since headers take most of the time; again when one of them, a header of the tree, .clang-tidy or their
command has changed. Before that, a planted defect must be found.
Exit status 1 if clang-tidy has something to say.
"""

import argparse
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

CLANG_TIDY = "clang-tidy-14"
TOGETHER = 12  # files
# Of the static analyser for one function: a fifth of its default, which takes three times as long.
EFFORT = ["-Xclang", "-analyzer-config", "-Xclang", "max-nodes=45000"]
CHECKED = ("common/", "daemon/engine/")
NOT_OURS = ("common/json/json.cc",)  # a library's templates
# In the engine, state outside of its objects would make two runs of one seed differ.
EXTRA = {"daemon/engine/": "cppcoreguidelines-avoid-non-const-global-variables"}
PLANTED = "int planted_global = 0;\nint* planted(bool b) {\n  int* p = 0;\n  if (b) *p = 1;\n  return p;\n}\n"


def tidy(paths, flags, config, extra=""):
    """The files as one: what is included is not looked at as closely. Exit status, and what was said of the files."""
    checks = ["--checks=" + extra] if extra else []  # added to the file's
    lines = [(path, number, line) for path in paths for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)]
    with tempfile.TemporaryDirectory() as folder:
        together = pathlib.Path(folder, "together.cc")
        together.write_text("".join(line + "\n" for _, _, line in lines), encoding="utf-8")
        command = [CLANG_TIDY, "--quiet", f"--config-file={config}", *checks, str(together), "--", *EFFORT, *flags]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    said = done.stdout + ("" if done.returncode == 0 else done.stderr)
    return done.returncode, re.sub(rf"{re.escape(str(together))}:(\d+)", lambda place: "{}:{}".format(*lines[int(place[1]) - 1][:2]), said)


def finds_planted_defect(config):
    with tempfile.TemporaryDirectory() as folder:
        planted, before = pathlib.Path(folder, "planted.cc"), pathlib.Path(folder, "before.cc")
        before.write_text("int before();\n", encoding="utf-8")
        planted.write_text(PLANTED, encoding="utf-8")
        status, said = tidy([before, planted], ["-std=c++20"], config, EXTRA["daemon/engine/"])
        return status != 0 and "NullDereference" in said and f"{planted}:1:5: error: variable 'planted_global'" in said


def flags_of(entry):
    """What clang-tidy needs of a compiler's command: includes, definitions and the language."""
    words = shlex.split(entry["command"])
    flags = []
    for word, following in zip(words, words[1:] + [""]):
        if word.startswith(("-I", "-D", "-std=")):
            flags.append(word)
        elif word == "-isystem":
            flags.append(word + following)
    return flags


def hash_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def sources_of(path):
    """What a file that is compiled stands for: itself, or the files that CMake compiles at once by it."""
    if not path.is_file():
        return []
    return [pathlib.Path(name) for name in re.findall(r'#include "([^"]+)"', path.read_text(encoding="utf-8"))] if path.parent.name == "Unity" else [path]


def work_list(build, root):
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    for entry in entries:
        for path in sources_of(pathlib.Path(entry["file"])):
            name = path.relative_to(root).as_posix() if path.is_relative_to(root) else ""
            if name.startswith(CHECKED) and name.endswith(".cc") and name not in NOT_OURS:
                yield name, flags_of(entry)


def groups_of(build, root):
    """(names, flags, checks of their own) of at most TOGETHER files, with the flags of all of them."""
    alike = {}
    for name, flags in work_list(build, root):
        extra = ",".join(checks for folder, checks in EXTRA.items() if name.startswith(folder))
        alike.setdefault(extra, []).append((name, flags))
    for extra, files in alike.items():
        for first in range(0, len(files), TOGETHER):
            group = files[first : first + TOGETHER]
            yield [name for name, _ in group], list(dict.fromkeys(flag for _, flags in group for flag in flags)), extra


def check(job):
    names, flags, extra, root, stamp = job
    if stamp.exists():
        return names, 0, ""
    status, said = tidy([root / name for name in names], flags, root / ".clang-tidy", extra)
    if status == 0:
        stamp.touch()
    return names, status, said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).resolve().parents[2])
    arguments = parser.parse_args()
    root = arguments.root.resolve()
    config = root / ".clang-tidy"
    if not finds_planted_defect(config):
        print("tests/tidy/run_clang_tidy.py:1: clang-tidy does not find the planted defect")
        return 1
    headers = [path.read_text(encoding="utf-8") for top in ("common", "daemon", "client-lib") for path in sorted((root / top).rglob("*.h"))]
    shared = hash_of(config.read_text(encoding="utf-8"), *headers)
    stamps = arguments.build / "clang-tidy-clean"
    stamps.mkdir(exist_ok=True)
    jobs = []
    for names, flags, extra in groups_of(arguments.build, root):
        texts = [(root / name).read_text(encoding="utf-8") for name in names]
        jobs.append((names, flags, extra, root, stamps / hash_of(shared, *names, *texts, *flags, extra, *EFFORT)))
    if not jobs:
        print(f"{arguments.build}/compile_commands.json:1: names no file of {CHECKED}")
        return 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, jobs))
    for names, status, said in results:
        if status != 0:
            print(f"{names[0]}:1: clang-tidy, of {len(names)} files:\n{said}")
    failed = sum(status != 0 for _, status, _ in results)
    print(f"{sum(len(names) for names, _, _ in results)} files in {len(results)} groups, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
