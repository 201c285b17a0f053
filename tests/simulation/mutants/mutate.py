#!/usr/bin/env python3
"""Plants the bugs of mutants into one file: mutate.py FILE.cc OUTPUT.cc MUTANT.json...

Copies the file. A function that a mutant changes has one body more for it, and TENSORLANE_MUTANT says which mutant's bodies
run: one compilation for all that are planted in a file. Fails when a text is not there exactly once, or in no function: the
file has changed, and the mutant must follow.
"""
import json
import pathlib
import re
import sys

PRELUDE = """#include <cstdlib>
#include <string_view>
// Which mutant of this file runs, or 0.
static int tl_planted() {{
  static const int planted = [] {{
    const char* const wanted = std::getenv("TENSORLANE_MUTANT");
    int number = 0;
    for (const std::string_view name : {{{names}}}) {{
      ++number;
      if (wanted != nullptr && name == wanted) return number;
    }}
    return 0;
  }}();
  return planted;
}}
"""
# What begins something that is no function.
NO_FUNCTION = re.compile(r"(#|//|\}|namespace\b|using\b|struct\b|class\b|enum\b|static_assert\b)")


def bodies(text: str, indent: str) -> list[tuple[int, int]]:
    """Where the body of each function begins and ends whose first and last line have this indent, as clang-format lays them out."""
    found, begin, in_head, at = [], None, False, 0
    for line in text.splitlines(keepends=True):
        end = at + len(line)
        if line == indent + "}\n" and begin is not None:
            found.append((begin, at))
        inner = line.removeprefix(indent)
        if line.startswith(indent) and inner[0] not in " \n":
            begin, in_head = None, NO_FUNCTION.match(inner) is None
        if in_head and line.endswith("{\n"):
            begin, in_head = end, False
        elif line.endswith(";\n"):
            in_head = False
        at = end
    return found


def fail(what: str, mutant: pathlib.Path, text: str) -> None:
    sys.exit(f"tensorlane: error: {what}: {mutant.name}: adapt the mutant:\n{text}")


def changed(text: str, functions: list[tuple[int, int]], mutant: pathlib.Path) -> dict[tuple[int, int], str]:
    """The bodies that a mutant changes, and what they are with it."""
    new = {}
    for replacement in json.loads(mutant.read_text())["replace"]:
        find = replacement["find"]
        if text.count(find) != 1:
            fail(f"the text to replace is there {text.count(find)} times", mutant, find)
        begin = text.index(find)
        around = [f for f in functions if f[0] <= begin and begin + len(find) <= f[1]]  # the outermost first
        if not around:
            fail("the text to replace is in no function's body", mutant, find)
        body = new.get(around[0], text[slice(*around[0])])
        if body.count(find) != 1:
            fail("two replacements are about one text", mutant, find)
        new[around[0]] = body.replace(find, replacement["with"])
    return new


def main() -> None:
    original, output, *mutants = map(pathlib.Path, sys.argv[1:])
    text = original.read_text()
    functions = bodies(text, "") + bodies(text, "  ")  # outside of classes, and in them
    versions = {function: "" for function in functions}
    for number, mutant in enumerate(mutants, 1):
        for function, body in changed(text, functions, mutant).items():
            versions[function] += f"if (tl_planted() == {number}) {{\n{body}}} else "
    parts, done = [], 0
    for (begin, end), other in sorted(versions.items()):
        if other:
            parts += [text[done:begin], other, "{\n", text[begin:end], "}\n"]
            done = end
    names = ", ".join(f'"{mutant.stem}"' for mutant in mutants)
    output.write_text(PRELUDE.format(names=names) + "".join(parts) + text[done:])


if __name__ == "__main__":
    main()
