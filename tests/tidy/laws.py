"""Rules about docs/architecture.md: the laws that code cites are there and the other way round, and so are the files that it names."""

import re

from rule import Rule
from tree import line_of

PAGE = "docs/architecture.md"
NOT_CITED = "No code cites this law"

_LAW = re.compile(r"^### Law (\d+): ", re.MULTILINE)
# What may stand between two words of a comment: blanks, and the end of a line with the mark of the next line's comment.
_GAP = r"(?:[ \t]|\n[ \t]*(?://+|#+|\*)?[ \t]*)+"
_CITATION = re.compile(rf"\b[Ll]aws?{_GAP}(\d+(?:(?:,{_GAP}(?:and{_GAP})?|{_GAP}and{_GAP}|/)\d+)*)\b")
_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)+/?)`")


def laws(page):
    """(number, line, text) of each law of the page, in its order."""
    heads = list(_LAW.finditer(page))
    ends = [head.start() for head in heads[1:]] + [len(page)]
    return [(int(head[1]), line_of(page, head.start()), page[head.end() : end]) for head, end in zip(heads, ends)]


def citations(text):
    """(number, line) of each law that the text cites: "law 7", "laws 7, 10 and 18", over the ends of lines, too."""
    for match in _CITATION.finditer(text):
        for number in re.finditer(r"\d+", match[1]):
            yield int(number[0]), line_of(text, match.start(1) + number.start())


def check_laws(tree):
    defined = laws(tree.files.get(PAGE, ""))
    findings = [] if defined else [f"{PAGE}:1: defines no law ('### Law 1: ...')"]
    for place, (number, line, _) in enumerate(defined, 1):
        if number != place:
            findings.append(f"{PAGE}:{line}: law {number} stands in the place of law {place}: each number once, from 1 on")
    known = {number for number, _, _ in defined}
    cited = set()
    code = {path for path, _ in tree.code()}
    for path, text in tree.files.items():
        for number, line in citations(text):
            if number not in known:
                findings.append(f"{path}:{line}: cites law {number}, which {PAGE} does not have")
            if path in code:
                cited.add(number)
    for number, line, text in defined:
        if number not in cited and NOT_CITED not in text:
            findings.append(f"{PAGE}:{line}: nothing in the code cites law {number}: cite it where it is kept, or write \"{NOT_CITED}\" and why")
        if number in cited and NOT_CITED in text:
            findings.append(f"{PAGE}:{line}: says \"{NOT_CITED}\" of law {number}, but code does")
    return findings


def check_paths(tree):
    page = tree.files.get(PAGE, "")
    folders = {path[:end] for path in tree.files for end, sign in enumerate(path) if sign == "/"}
    return [
        f"{PAGE}:{line_of(page, match.start())}: no such file or folder: {match[1]}"
        for match in _PATH.finditer(page)
        if match[1].rstrip("/") not in folders and match[1] not in tree.files and not match[1].startswith("build/")
    ]


def _tree(cites, *numbers, more=""):
    """A page with these laws, and a file with this comment. LAW stands for the word, else this file would cite the laws of its examples."""
    page = "# x\n\n" + "".join(f"### Law {number}: x\n\nText.\n\n" for number in numbers) + more
    return {PAGE: page, "a.cc": "// " + cites.replace("LAW", "law") + "\n"}


RULES = [
    Rule(
        "laws_defined",
        f"every law that is cited stands in {PAGE}, and code cites every law there",
        check_laws,
        bad=[
            {"a.cc": ""},
            _tree("LAW 2", 1),
            _tree("LAW 1, LAW 3", 1, 2),
            _tree("LAWs 1, 2 and 3", 1, 2),
            _tree("LAWs 1,\n// 2 and\n  // 3", 1, 2),
            _tree("LAW\n  # 2, LAW 1", 1),
            _tree("LAW 1", 1, more="As law" + " 7 says.\n"),
            _tree("LAW 1", 1, 2),
            _tree("LAWs 1, 2, 3", 1, 3),
            _tree("LAWs 1, 2", 1, 2, 2),
            _tree("LAW 1", 1, more=NOT_CITED + ": it is about people.\n"),
        ],
        good=[
            _tree("LAWs 1, 2 and\n// 3; a LAWyer's 9; outLAW 8; the LAW of 10 hosts", 1, 2, 3),
            _tree("see LAW 1", 1, 2, more=NOT_CITED + ": it is about people.\n"),
        ],
    ),
    Rule(
        "architecture_paths",
        f"the files and folders that {PAGE} names exist",
        check_paths,
        bad=[{PAGE: "see `daemon/x/y.cc`\n", "daemon/x/z.cc": ""}, {PAGE: "see `daemon/y/`\n", "daemon/x/z.cc": ""}],
        good=[{PAGE: "see `daemon/x/z.cc`, `daemon/x`, `daemon/x/`, `build/bin/z`, `a.cc` and `f(a/b)`\n", "daemon/x/z.cc": ""}],
    ),
]
