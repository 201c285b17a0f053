#!/usr/bin/env python3
"""Makes every check of frames that an engine's file does one that can be left out:

    checks.py FILE.cc OUTPUT.cc    copies the file; what TENSORLANE_UNCHECKED names is left out
    checks.py --list FILE.cc...    prints the names of all checks

A check is what returns a text that says which rule a frame breaks. Its name is that text in short; the second check
with the same text has a 2 behind it.
"""
import pathlib
import re
import sys

RETURN = re.compile(r'return ("[^"]+");')
PRELUDE = """#include <cstdlib>
#include <string_view>
static bool tl_is_checked(std::string_view name) {
  const char* left_out = std::getenv("TENSORLANE_UNCHECKED");
  return left_out == nullptr || name != left_out;
}
#define TL_CHECKED(name) ([] { static const bool checked = tl_is_checked(name); return checked; }())
"""


def name_of(text: str, names: list[str]) -> str:
    name = re.sub(r"[^a-z0-9]+", "_", text.lower()).strip("_")
    count = sum(1 for n in names if n == name or re.fullmatch(re.escape(name) + r"_\d+", n))
    return name if count == 0 else f"{name}_{count + 1}"


def condition_before(text: str, at: int) -> int | None:
    """Where the parenthesis of the `if (...)` opens that ends right before `at`, if there is one."""
    end = len(text[:at].rstrip())
    if text[end - 1] != ")":
        return None
    depth = 0
    for i in range(end - 1, -1, -1):
        depth += {")": 1, "(": -1}.get(text[i], 0)
        if depth == 0:
            return i if text[:i].endswith("if ") else None
    return None


def rewrite(text: str, names: list[str]) -> str:
    parts, done = [], 0
    for found in RETURN.finditer(text):
        name = name_of(found.group(1), names)
        names.append(name)
        opened = condition_before(text, found.start())
        if opened is None:
            parts += [text[done : found.start()], f'return TL_CHECKED("{name}") ? {found.group(1)} : nullptr;']
        else:
            condition = text[opened : found.start()].rstrip()
            parts += [text[done:opened], "(", condition, f' && TL_CHECKED("{name}")) ', found.group(0)]
        done = found.end()
    return PRELUDE + "".join(parts) + text[done:]


def main() -> None:
    names: list[str] = []
    if sys.argv[1] == "--list":
        for path in sys.argv[2:]:
            rewrite(pathlib.Path(path).read_text(), names)
        print(";".join(names))
        return
    pathlib.Path(sys.argv[2]).write_text(rewrite(pathlib.Path(sys.argv[1]).read_text(), names))


if __name__ == "__main__":
    main()
