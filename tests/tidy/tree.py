"""The tree under test: which files belong to it, and their text with comments and strings taken out."""

import pathlib
import re
import subprocess

CPP = (".h", ".cc", ".c", ".cu", ".hpp")
CODE = CPP + (".py", ".sh", ".cmake")

# What a C++ scanner must not look into: comments, raw strings, strings, characters (but not the quote in 1'000).
_OPAQUE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s\\]{0,16})\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-zA-Z_])'(?:\\.|[^'\\\n])+'""",
    re.DOTALL,
)


def blank(text, keep_strings=False):
    """C++ text with comments and the insides of strings, unless kept, replaced by blanks: offsets and line numbers stay as they are."""

    def hide(match):
        found = match.group(0)
        if found.startswith("/"):
            return re.sub(r"[^\n]", " ", found)
        return found if keep_strings else found[0] + re.sub(r"[^\n]", " ", found[1:-1]) + found[-1]

    return _OPAQUE.sub(hide, text)


class Tree:
    """Files by path relative to the root, "/" between folders."""

    def __init__(self, files):
        self.files = dict(sorted(files.items()))

    def code(self):
        """(path, text) of every file with program text, scripts without a suffix included."""
        for path, text in self.files.items():
            if path.endswith(CODE) or path.endswith("CMakeLists.txt") or text.startswith("#!"):
                yield path, text

    def cpp(self, under=""):
        for path, text in self.files.items():
            if path.startswith(under) and path.endswith(CPP):
                yield path, text

    @staticmethod
    def read(root):
        """The files that git knows or would add. Those that are no text are left out."""
        listed = subprocess.run(
            ["git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            check=True, capture_output=True, text=True,
        ).stdout.split("\0")
        files = {}
        for name in listed:
            path = pathlib.Path(root, name)
            if not name or path.is_symlink() or not path.is_file():
                continue
            try:
                files[name] = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                continue
        return Tree(files)


def line_of(text, offset):
    return text.count("\n", 0, offset) + 1
