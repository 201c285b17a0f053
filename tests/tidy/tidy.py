#!/usr/bin/env python3
"""Checks the rules of this project that a machine can check.

usage: tidy.py RULE [--root FOLDER]      tidy.py --list      tidy.py --check-registered CMAKELISTS

Before it looks at the tree, each rule is tried on small trees with a planted violation, and must find it, and on ones without, and must
keep quiet: a rule that cannot fail proves nothing. Exit status 0: the tree keeps the rule; 1: it does not, with FILE:LINE for each place.
"""

import argparse
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))

import documents  # noqa: E402
import laws  # noqa: E402
import layout  # noqa: E402
import length  # noqa: E402
import purity  # noqa: E402
import tools  # noqa: E402
from tree import Tree  # noqa: E402

RULES = {rule.name: rule for module in (purity, layout, length, documents, laws, tools) for rule in module.RULES}


def self_test(rule):
    """Lines that say where the rule is blind or sees ghosts."""
    wrong = []
    for number, files in enumerate(rule.bad):
        if not rule.check(Tree(files)):
            wrong.append(f"tests/tidy: rule {rule.name} does not find planted violation {number}: {sorted(files)}")
    for number, files in enumerate(rule.good):
        for finding in rule.check(Tree(files)):
            wrong.append(f"tests/tidy: rule {rule.name} finds what is no violation in example {number}: {finding}")
    if not rule.bad:
        wrong.append(f"tests/tidy: rule {rule.name} has no planted violation")
    return wrong


def check_registered(text):
    """Exit status: 0 if the words of the first foreach() are the names of all rules."""
    registered = set(re.search(r"foreach\(rule([^)]*)\)", text)[1].split())
    for name in sorted(registered ^ set(RULES)):
        print(f"tests/tidy/CMakeLists.txt:1: {name} is {'no rule' if name in registered else 'not registered'}")
    return 1 if registered != set(RULES) else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rule", nargs="?", choices=sorted(RULES))
    parser.add_argument("--root", default=str(pathlib.Path(__file__).resolve().parents[2]))
    parser.add_argument("--list", action="store_true", help="print the names of the rules")
    parser.add_argument("--check-registered", metavar="FILE", help="compare the rules with those that a CMakeLists.txt registers")
    arguments = parser.parse_args()
    if arguments.check_registered:
        return check_registered(pathlib.Path(arguments.check_registered).read_text(encoding="utf-8"))
    if arguments.list or arguments.rule is None:
        print("\n".join(sorted(RULES)))
        return 0 if arguments.list else 2
    rule = RULES[arguments.rule]
    findings = self_test(rule)
    if not findings:
        tree = Tree.read(arguments.root)
        findings = rule.check(tree)
        print(f"{rule.name}: {rule.says}")
        print(f"{len(tree.files)} files, {len(findings)} violations")
    for finding in findings:
        print(finding)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
