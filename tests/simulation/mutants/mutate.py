#!/usr/bin/env python3
"""Plants the bug of a mutant: mutate.py MUTANT.json MODULE_FOLDER OUTPUT.cc

Copies one file of a module with the mutant's textual replacements. Fails when a text is not there exactly once: the
module has changed, and the mutant must follow.
"""
import json
import pathlib
import sys


def main() -> int:
    mutant_path, module, output = map(pathlib.Path, sys.argv[1:4])
    mutant = json.loads(mutant_path.read_text())
    text = (module / mutant["file"]).read_text()
    for replacement in mutant["replace"]:
        count = text.count(replacement["find"])
        if count != 1:
            print(
                f"tensorlane: error: the text to replace is there {count} times: {mutant_path.name} in {mutant['file']}: "
                f"adapt the mutant:\n{replacement['find']}",
                file=sys.stderr,
            )
            return 1
        text = text.replace(replacement["find"], replacement["with"])
    output.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
