"""Rules about documents: commands in them exist, and folders whose name does not say it all explain themselves."""

import os
import posixpath
import re
import shlex
import shutil

from rule import Rule

# Folders that need a README.md once they hold files.
EXPLAINED = (
    "daemon/engine", "daemon/lane", "daemon/ports", "daemon/session", "simulator", "tests/conformance", "tests/bench/peers", "deploy", "monitor/cli",
)
_BUILTIN = {"cd", "export", "source", ".", "echo", "exit", "set", "test", "[", "if", "for", "while", "until", "do", "done", "then", "fi", "true", "wait"}
_FENCE = re.compile(r"^```(?:sh|bash|shell)[ \t]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Programs that the build makes: by target or by OUTPUT_NAME.
_MADE = re.compile(r"add_executable\s*\(\s*([\w-]+)|OUTPUT_NAME\s+\"?([\w-]+)")


def commands(text):
    """(line, first word) of every command in the fenced shell blocks of a Markdown text."""
    for block in _FENCE.finditer(text):
        line = text.count("\n", 0, block.start(1)) + 1
        for logical in re.sub(r"\\\n", " \x00", block[1]).splitlines():
            for part in re.split(r"&&|\|\||[|;](?![^'\"]*['\"]$)", logical.replace("\x00", "").strip().removeprefix("$ ")):
                try:
                    words = shlex.split(part, comments=True)
                except ValueError:
                    words = part.split()
                while words and (re.match(r"^\w+=", words[0]) or words[0] in ("sudo", "env", "time", "exec")):
                    words.pop(0)
                if words:
                    yield line, words[0]
            line += 1 + logical.count("\x00")


def _exists(word, tree, made):
    if word.startswith("build/bin/"):
        return word.removeprefix("build/bin/") in made
    if word.startswith("build/venv/bin/") or word in _BUILTIN or "$" in word:
        return True
    path = posixpath.normpath(word)
    if "/" in word and not word.startswith("/"):
        return path in tree.files
    return word in made or shutil.which(word) is not None or os.access(word, os.X_OK)


def check_commands(tree):
    made = set()
    for path, text in tree.files.items():
        if path.endswith("CMakeLists.txt"):
            made.update(name for pair in _MADE.findall(text) for name in pair if name)
    findings = []
    if "README.md" not in tree.files:
        findings.append("README.md:1: there is none")
    for path, text in tree.files.items():
        if path.endswith(".md"):
            findings += [f"{path}:{line}: no such command: {word}" for line, word in commands(text) if not _exists(word, tree, made)]
    return findings


def check_explained(tree):
    findings = []
    for folder in EXPLAINED:
        used = any(path.startswith(folder + "/") for path in tree.files)
        if used and len(tree.files.get(folder + "/README.md", "").strip()) < 40:
            findings.append(f"{folder}/README.md:1: say in a few lines what this folder is for")
    return findings


# Why a port drops packets, as metrics name it, and the page that tells operators what to do.
_DROPS, _DROPS_PAGE = "daemon/transport/dpdk/port/packet_port.cc", "daemon/transport/dpdk/README.md"


def check_drops(tree):
    names = re.search(r"char\* drop_name\(.*?kNames = \{(.*?)\};", tree.files.get(_DROPS, ""), re.DOTALL)
    if names is None:
        return [f"{_DROPS}:1: drop_name() lists no names"] if _DROPS in tree.files else []
    rows = re.findall(r"^\| `(\w+)` \| [^|]+ \| [^|]+ \|$", tree.files.get(_DROPS_PAGE, ""), re.MULTILINE)
    return [f"{_DROPS_PAGE}:1: say what the reason {name} means and what to do about it" for name in re.findall(r'"(\w+)"', names[1]) if name not in rows]


def _drops(*rows):
    code = 'const char* drop_name(Drop drop) {\n  static constexpr std::array<const char*, 2> kNames = {"short",\n "own"};\n'
    return {_DROPS: code, _DROPS_PAGE: "".join(row + "\n" for row in rows)}


def _readme(*lines):
    return {"README.md": "# x\n\n```sh\n" + "\n".join(lines) + "\n```\n"}


RULES = [
    Rule(
        "readme_commands",
        "every command in a fenced sh block of a Markdown file exists",
        check_commands,
        bad=[
            {"a.cc": ""}, _readme("deploy/nothing"), _readme("build/bin/nothing"), _readme("cd x && no-such-command-anywhere"),
            _readme("tests/run \\", "  -L unit", "no-such-command-anywhere") | {"tests/run": ""},
        ],
        good=[
            _readme("$ A=1 tests/run -L unit  # comment", "build/bin/tool --x | head -3", "build/venv/bin/python x.py", "ls \\", "  -l")
            | {"tests/run": "", "CMakeLists.txt": "set_target_properties(t PROPERTIES OUTPUT_NAME tool)"},
        ],
    ),
    Rule(
        "folders_explained",
        "a folder whose name does not say it all has a README.md",
        check_explained,
        bad=[{"daemon/lane/lane.h": ""}, {"daemon/lane/lane.h": "", "daemon/lane/README.md": "lane\n"}],
        good=[{"daemon/lane/lane.h": "", "daemon/lane/README.md": "The loop that hosts engines and carries out what they decide.\n"}, {"common/base/a.h": ""}],
    ),
    Rule(
        "drops_explained",
        "each reason for which a packet port drops packets is explained to operators",
        check_drops,
        bad=[{_DROPS: "nothing"}, _drops("| `short` | a frame | nothing |"), _drops("| `short` | a frame | nothing |", "| `own` | |")],
        good=[_drops("| `short` | a frame | nothing |", "| `own` | an own frame | look |"), {"a.cc": ""}],
    ),
]
