#!/usr/bin/env python3
"""Checks that nvcc's code for the kernels rounds as the CPU does, and has all of them.

usage: kernels_ptx.py FILE.ptx (empty: the build has no kernels, and the test is skipped)

In PTX a correctly rounded division is one instruction, div.rn: the multiply-adds that it takes come only with machine code. So every other one is
a contraction, which rounds once where the CPU rounds twice. Kernels that finish divide, and those that combine do not. Before it looks at the file,
each rule must find a planted violation.
"""

import pathlib
import re
import sys

COMBINING = {
    f"tl_{operation}_{dtype}"
    for operation in ("sum", "product", "min", "max")
    for dtype in ("float32", "float64", "float16", "bfloat16", "int8", "int32", "int64", "uint8")
}
FINISHING = {f"tl_finish_{dtype}" for dtype in ("float32", "float64", "float16", "bfloat16")}
NAMES = COMBINING | FINISHING
RULES = {
    "contracts a multiplication and an addition": (r"\b(?:fma|mad)\.[\w.]*f(?:16|32|64)\b", "fma.rn.f32 %f1, %f2, %f3, %f4;"),
    "flushes subnormal numbers to zero": (r"\b[\w.]+\.ftz\b", "add.rn.ftz.f32 %f1, %f2, %f3;"),
    "does not round correctly": (r"\b\w+\.(?:approx|full)\b", "div.full.f32 %f1, %f2, %f3;"),
    "divides with another rounding": (r"\b(?:div\.(?!rn\.)|rcp\.)[\w.]*f(?:16|32|64)\b", "div.rz.f32 %f1, %f2, %f3;"),
    # These take -0 for less than 0, and the number where one is NaN.
    "has another minimum or maximum": (r"\b(?:min|max)\.[\w.]*f(?:16|32|64)\b", "min.f32 %f1, %f2, %f3;"),
}


def findings(text):
    lines = text.splitlines()
    for says, (pattern, _) in RULES.items():
        for number, line in enumerate(lines, 1):
            if re.search(pattern, line):
                yield f"{number}: {says}: {line.strip()}"
    entries = dict(re.findall(r"^\.visible \.entry (\w+)(.*?^\})", text, re.MULTILINE | re.DOTALL))
    for name in sorted(entries.keys() ^ NAMES):
        yield f"1: {name} {'is missing' if name in NAMES else 'is no kernel that anybody asks for'}"
    for name, body in entries.items():
        if bool(re.search(r"\bdiv\.rn\.f(?:32|64)\b", body)) != (name in FINISHING):
            yield f"1: {name} {'does not divide' if name in FINISHING else 'divides'}"


def self_test():
    """What the rules are blind to, and what they take for a violation."""
    division = "div.rn.f32 %f1, %f2, %f3;"
    entries = "".join(f".visible .entry {name}(\n{{\n{division if name in FINISHING else ''}\n}}\n" for name in sorted(NAMES))
    for says, (_, planted) in RULES.items():
        if not any(says in finding for finding in findings(entries + planted)):
            yield f"no rule finds {planted}"
    if not list(findings(entries.replace("tl_min_int8", "tl_min_int9"))):
        yield "a kernel that is missing is not found"
    if len(list(findings(entries.replace(division, "")))) != len(FINISHING):
        yield "a kernel that ought to divide and does not is not found"
    if len(list(findings(entries.replace("{\n\n}", f"{{\n{division}\n}}")))) != len(COMBINING):
        yield "a kernel that divides and ought not to is not found"
    for finding in findings(entries):
        yield f"no violation: {finding}"
    for fine in ("add.rn.f32 %f1, %f2, %f3;", division, "mad.lo.s64 %rd1, %rd2, %rd3, %rd4;", "min.s32 %r1, %r2, %r3;"):
        for finding in findings(entries + fine):
            yield f"no violation: {finding}"


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if not sys.argv[1]:
        print("skipped: this build has no GPU kernels: CMake says why")
        return 77
    wrong = [f"{pathlib.Path(__file__).name}: {finding}" for finding in self_test()]
    if not wrong:
        wrong = [f"{sys.argv[1]}:{finding}" for finding in findings(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))]
    print("\n".join(wrong) if wrong else f"{len(NAMES)} kernels, nothing found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
