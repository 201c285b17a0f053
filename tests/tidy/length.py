"""Rules about size: a file is read in a sitting, a function on a screen."""

import ast
import re

from rule import Rule
from tree import CPP, blank, line_of

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70
MAX_PYTHON_COLUMNS = 120  # of the package that users read

_TEMPLATE = re.compile(r"^template\s*<")
_CONTAINER = re.compile(r'^(?:inline\s+|typedef\s+|static\s+|constexpr\s+|const\s+)*(?:namespace|class|struct|union|enum)\b|^extern\s*(?:"[^"]*"|\s)\s*$')
_SHELL_FUNCTION = re.compile(r"^(?:function[ \t]+)?([\w-]+)[ \t]*\(\)[ \t]*[{(][ \t]*(?:#.*)?$", re.MULTILINE)


def check_files(tree):
    findings = []
    for path, text in tree.code():
        lines = len(text.splitlines())
        if lines > MAX_FILE_LINES:
            findings.append(f"{path}:{MAX_FILE_LINES + 1}: {lines} lines; at most {MAX_FILE_LINES}: there are two things in it")
    return findings


def check_columns(tree):
    findings = []
    for path, text in tree.code():
        if path.startswith("client-lib/python/") and path.endswith(".py"):
            for number, line in enumerate(text.splitlines(), 1):
                if len(line) > MAX_PYTHON_COLUMNS:
                    findings.append(f"{path}:{number}: {len(line)} columns; at most {MAX_PYTHON_COLUMNS}")
    return findings


def _without_template(header):
    """What follows "template <...>", nested brackets included."""
    while _TEMPLATE.match(header):
        depth = 0
        for i in range(header.index("<"), len(header)):
            depth += {"<": 1, ">": -1}.get(header[i], 0)
            if depth == 0:
                break
        header = header[i + 1 :].lstrip()
    return header


def _is_function(header):
    header = _without_template(header)
    if _CONTAINER.match(header) and not re.search(r"\)\s*(?:const|noexcept|override|final|->[^()]*)*\s*$", header):
        return False
    return "(" in header


def cpp_functions(text):
    """(first line, last line, head) of every function body outside of other functions; a lambda belongs to the function around it."""
    bare = re.sub(r"^[ \t]*#(?:[^\n\\]|\\.|\\\n)*", lambda match: re.sub(r"[^\n]", " ", match[0]), blank(text), flags=re.MULTILINE)
    depth_of_function = None
    depth = 0
    head_start = 0
    for match in re.finditer(r"[{};]|(?<=\w)\s*:(?!:)(?=\s*\n)", bare):
        symbol = match[0]
        if symbol == "{":
            header = bare[head_start : match.start()]
            if depth_of_function is None and _is_function(header.strip()):
                depth_of_function = depth
                first = head_start + len(header) - len(header.lstrip())
            depth += 1
        elif symbol == "}":
            depth -= 1
            if depth_of_function == depth:
                head = " ".join(bare[first : first + 100].split("{")[0].split())
                yield line_of(bare, first), line_of(bare, match.start()), head
                depth_of_function = None
        if depth_of_function is None:
            head_start = match.end()


def _python_functions(text):
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node.lineno, node.end_lineno, node.name


def _shell_functions(text):
    for match in _SHELL_FUNCTION.finditer(text):
        end = re.compile(r"^[})]", re.MULTILINE).search(text, match.end())
        if end:
            yield line_of(text, match.start()), line_of(text, end.start()), match[1]


def check_functions(tree):
    findings = []
    for path, text in tree.code():
        first_line = text.split("\n", 1)[0]
        if path.endswith(CPP):
            functions = cpp_functions(text)
        elif path.endswith(".py") or "python" in first_line and first_line.startswith("#!"):
            functions = _python_functions(text)
        elif path.endswith(".sh") or first_line.startswith("#!"):
            functions = _shell_functions(text)
        else:
            continue
        for first, last, name in functions:
            if last - first + 1 > MAX_FUNCTION_LINES:
                findings.append(f"{path}:{first}: {last - first + 1} lines; at most {MAX_FUNCTION_LINES}: {name}")
    return findings


_LONG = "  x();\n" * (MAX_FUNCTION_LINES - 1)
_FITS = "  x();\n" * (MAX_FUNCTION_LINES - 2)

RULES = [
    Rule(
        "file_length",
        f"a file has at most {MAX_FILE_LINES} lines",
        check_files,
        bad=[{path: "x\n" * (MAX_FILE_LINES + 1)} for path in ("a.cc", "a.h", "a.py", "x/CMakeLists.txt")] + [{"tool": "#!/bin/sh\n" + "x\n" * MAX_FILE_LINES}],
        good=[{"a.cc": "x\n" * MAX_FILE_LINES, "data.json": "x\n" * 1000, "README.md": "x\n" * 1000}],
    ),
    Rule(
        "python_columns",
        f"a line of the Python package has at most {MAX_PYTHON_COLUMNS} columns",
        check_columns,
        bad=[{"client-lib/python/a/b.py": "x\n" + "#" * (MAX_PYTHON_COLUMNS + 1)}],
        good=[{"client-lib/python/a/b.py": "#" * MAX_PYTHON_COLUMNS, "tests/a.py": "#" * 200}],
    ),
    Rule(
        "function_length",
        f"a function has at most {MAX_FUNCTION_LINES} lines",
        check_functions,
        bad=[
            {"a.cc": "void f() {\n" + _LONG + "}\n"},
            {"a.cc": "namespace a {\nclass B : public C {\n public:\n  int g(int x) const {\n" + _LONG + "}\n};\n}\n"},
            {"a.cc": "template <class T, class U = std::vector<T>>\nT g(T x) {\n" + _LONG + "}\n"},
            {"a.cc": "A::A() : x_{1}, y_(2) {\n" + _LONG + "}\n"},
            {"a.cc": "void f() {\n  auto g = [] {\n" + _LONG + "  };\n}\n"},
            {"a.cc": "TEST(Suite, Case) {\n  const char* s = \"}\"; char c = '}'; auto r = R\"(})\"; // }\n" + _LONG + "}\n"},
            {"a.cc": 'extern "C" {\nint f(void) {\n' + _LONG + "}\n}\n"},
            {"a.cc": "auto f() -> Result<int> {\n  int n = 1'000; int m = 2'000;\n" + _LONG + "}\n"},
            {"a.py": "class A:\n  def f(self):\n" + "    x()\n" * MAX_FUNCTION_LINES},
            {"a.sh": "f() {\n" + _LONG + "}\n"},
        ],
        good=[
            {"a.cc": "void f() {\n" + _FITS + "}\nvoid g() {\n" + _FITS + "}\n"},
            {"a.cc": "namespace {\nstruct A {\n" + "  int x;\n" * 100 + "};\n}\n"},
            {"a.cc": "constexpr int kTable[] = {\n" + "  1,\n" * 100 + "};\n"},
            {"a.cc": "class TL_CAPABILITY(\"mutex\") M {\n" + "  int x;\n" * 100 + "};\n"},
            {"a.py": "def f():\n" + "  x()\n" * 10 + "x = 1\n" * 100},
        ],
    ),
]
