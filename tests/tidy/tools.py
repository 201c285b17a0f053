"""Rules that another program checks."""

import os
import pathlib
import subprocess
import tempfile

from rule import Rule

CLANG_FORMAT = "clang-format-14"
STYLE = pathlib.Path(__file__).resolve().parents[2] / ".clang-format"


def check_format(tree):
    """Formats copies, so that a planted tree is checked as the real one is."""
    findings = []
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for path, text in tree.cpp():
            paths.append(path)
            copy = pathlib.Path(folder, path)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text, encoding="utf-8")
        pathlib.Path(folder, ".clang-format").write_text(STYLE.read_text(encoding="utf-8"), encoding="utf-8")
        for first in range(0, len(paths), 50):
            command = [CLANG_FORMAT, "--dry-run", "-Werror", "--ferror-limit=1", "--style=file", *paths[first : first + 50]]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}, check=False)
            findings += [line.split(" [")[0] for line in done.stderr.splitlines() if ": error:" in line]
    return findings


RULES = [
    Rule(
        "clang_format",
        f"{CLANG_FORMAT} changes no file",
        check_format,
        bad=[{"a.cc": "int  x;\n"}, {"sub/a.h": "void f(){\n}\n"}],
        good=[{"a.cc": "int x;\n"}, {"a.py": "x  = 1\n"}],
    ),
]
