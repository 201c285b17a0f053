#!/usr/bin/env python3
"""Runs clang-tidy over the modules in which a defect costs most, and remembers what was clean.

usage: run_clang_tidy.py --build FOLDER [--root FOLDER]

A file is checked again when it, a header of the tree, .clang-tidy or its command has changed. Before that, a planted defect must be found.
Exit status 1 if clang-tidy has something to say.
"""

import argparse
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

CLANG_TIDY = "clang-tidy-14"
CHECKED = ("common/", "daemon/engine/")
# In the engine, state outside of its objects would make two runs of one seed differ.
EXTRA = {"daemon/engine/": "cppcoreguidelines-avoid-non-const-global-variables"}
PLANTED = "int planted_global = 0;\nint* planted(bool b) {\n  int* p = 0;\n  if (b) *p = 1;\n  return p;\n}\n"


def tidy(path, flags, config, extra=""):
    checks = ["--checks=" + extra] if extra else []  # added to the file's
    command = [CLANG_TIDY, "--quiet", f"--config-file={config}", *checks, path, "--", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + ("" if done.returncode == 0 else done.stderr)


def finds_planted_defect(config):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "planted.cc")
        path.write_text(PLANTED, encoding="utf-8")
        status, said = tidy(str(path), ["-std=c++20"], config, EXTRA["daemon/engine/"])
        return status != 0 and "NullDereference" in said and "avoid-non-const-global-variables" in said


def flags_of(entry):
    """What clang-tidy needs of a compiler's command: includes, definitions and the language."""
    words = shlex.split(entry["command"])
    flags = []
    for word, following in zip(words, words[1:] + [""]):
        if word.startswith(("-I", "-D", "-std=")):
            flags.append(word)
        elif word == "-isystem":
            flags += [word, following]
    return flags


def hash_of(*parts):
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()


def work_list(build, root):
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    for entry in entries:
        path = pathlib.Path(entry["file"])
        if not path.is_relative_to(root) or not path.is_file():
            continue
        name = path.relative_to(root).as_posix()
        if name.startswith(CHECKED) and name.endswith(".cc"):
            yield name, str(path), flags_of(entry)


def check(job):
    name, path, flags, config, stamp = job
    if stamp.exists():
        return name, 0, ""
    extra = ",".join(checks for folder, checks in EXTRA.items() if name.startswith(folder))
    status, said = tidy(path, flags, config, extra)
    if status == 0:
        stamp.touch()
    return name, status, said


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
    jobs = [
        (name, path, flags, config, stamps / hash_of(shared, name, pathlib.Path(path).read_text(encoding="utf-8"), *flags))
        for name, path, flags in work_list(arguments.build, root)
    ]
    if not jobs:
        print(f"{arguments.build}/compile_commands.json:1: names no file of {CHECKED}")
        return 1
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check, jobs))
    for name, status, said in results:
        if status != 0:
            print(f"{name}:1: clang-tidy:\n{said}")
    print(f"{len(results)} files, {sum(status != 0 for _, status, _ in results)} with findings")
    return 1 if any(status != 0 for _, status, _ in results) else 0


if __name__ == "__main__":
    sys.exit(main())
