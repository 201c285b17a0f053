"""What the oracles of command lines share: blocks by indentation, and lists of numbers."""

import functools
import re


def blocks(text, comment):
    """[(line, [its indented lines as such pairs])], without comments and separators."""
    root = []
    stack = [(-1, root)]
    for line in text.splitlines():
        if not line.strip() or line.strip().startswith(comment):
            continue
        depth = len(line) - len(line.lstrip())
        while depth <= stack[-1][0]:
            stack.pop()
        inner = []
        stack[-1][1].append((line.strip(), inner))
        stack.append((depth, inner))
    return root


def find(lines, pattern):
    """The groups of every line that is wholly of this pattern, with what is indented below it."""
    return [(*match.groups(), inner) for line, inner in lines for match in [re.fullmatch(pattern, line)] if match]


def one(lines, pattern):
    found = find(lines, pattern)
    assert len(found) == 1, (pattern, found)
    return found[0]


@functools.cache
def numbers(text):
    """"1 3-5,7" -> {1, 3, 4, 5, 7}"""
    found = set()
    for part in re.split(r"[ ,]+", text.strip()):
        first, _, last = part.partition("-")
        found |= set(range(int(first), int(last or first) + 1))
    return frozenset(found)


def only_known(lines, *patterns):
    """Nothing is written that the oracle does not look at."""
    for line, _ in lines:
        assert any(re.fullmatch(pattern, line) for pattern in patterns), line


class Renumbered:
    """A NOS that gives a class another number than the fabric does. native: the fabric's number -> its own."""

    def __init__(self, native):
        self.native, self.ours = native, {own: number for number, own in native.items()}

    def number(self, own):
        return self.ours.get(own, f"unused {own}")
