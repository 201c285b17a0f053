"""Rules about what code may use: the engine is pure, shared code has no feature switches, the tree names nobody's machines."""

import re

from length import cpp_functions
from rule import Rule
from tree import blank, line_of

ENGINE = "daemon/engine/"

_HEADERS = (
    "chrono ctime time.h thread mutex shared_mutex condition_variable atomic future semaphore latch barrier stop_token random fstream iostream "
    "istream ostream sstream iomanip cstdio stdio.h filesystem unordered_map unordered_set unistd.h fcntl.h poll.h signal.h csignal pthread.h "
    "netdb.h"
).split()
_HEADER_FOLDERS = ("sys/", "netinet/", "arpa/", "net/", "linux/", "zmq", "spdlog/", "prometheus/", "yaml-cpp/")
_CALLS = (
    "time clock gettimeofday clock_gettime clock_nanosleep nanosleep usleep sleep rand srand random rand_r drand48 getrandom getenv secure_getenv "
    "setenv printf fprintf puts fputs putchar perror fopen fread fwrite open read write close socket bind listen accept connect send recv poll "
    "epoll_wait mmap munmap fork exec system popen pthread_create"
).split()
_STD = (
    "chrono thread jthread mutex shared_mutex recursive_mutex lock_guard unique_lock scoped_lock condition_variable atomic\\w* future promise async "
    "random_device mt19937\\w* minstd_rand\\w* default_random_engine cout cerr clog cin ofstream ifstream fstream filesystem unordered_\\w+ getenv "
    "time rand"
).split()

_PATTERNS = [
    (re.compile(r"\bstd\s*::\s*(" + "|".join(_STD) + r")\b"), "impure or unordered: std::{0}"),
    (re.compile(r"(?<![\w.>:])(?:::\s*)?(" + "|".join(_CALLS) + r")\s*\((?!\s*\))"), "calls {0}()"),
    (re.compile(r"(?<![\w.>:])(?:::\s*)?(time|clock|rand|random|fork)\s*\(\s*\)\s*[;,)]"), "calls {0}()"),
    (re.compile(r"\b(thread_local)\b"), "state outside of the engine's objects: {0}"),
    (
        re.compile(r"^[ \t]*(?:inline\s+)?(static)\s+(?!(?:inline\s+)?const(?:expr|init const|eval)?\b|_assert)[\w:<>,&* \t]+?(?:=|;|\{)", re.MULTILINE),
        "mutable {0} state",
    ),
    (re.compile(r"\bstd\s*::\s*(?:multi)?(map|set)\s*<[^,<>;]*\*\s*[,>]"), "order by pointer: std::{0}"),
    (re.compile(r"\bfmt\s*::\s*(print|println|format_to|output_file)\b"), "fmt::{0}"),
]
_INCLUDE = re.compile(r"^\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", re.MULTILINE)


def _is_declaration(text, start):
    """True when the name at `start` follows a type, as in "bool read(int)"."""
    before = re.search(r"([\w>&*]+)\s*$", text[max(0, start - 80) : start])
    return before is not None and before[1] not in ("return", "else", "do", "co_return", "&&", "&", "*")


def _format_outside_status(text):
    """Offsets of fmt::format that make no Status: text costs an allocation, and only a failure may pay it. It makes one in a statement that
    names Status or Code, or in the return statement of a function whose result is a Status or Result."""
    fallible = [(first, last) for first, last, head in cpp_functions(text) if re.match(r"[^(]*\b(?:Status|Result)\b", head)]
    for match in re.finditer(r"\bfmt\s*::\s*format\s*\(", text):
        opening = re.split(r"[;}]|\{\s*\n", text[max(0, match.start() - 600) : match.start()])[-1]
        line = line_of(text, match.start())
        returned = re.search(r"\breturn\b", opening) and any(first <= line <= last for first, last in fallible)
        if not returned and not re.search(r"\b(?:Status|Code|TL_ASSERT)\b", opening):
            yield match.start()


def check_engine(tree):
    findings = []
    for path, text in tree.cpp(ENGINE):
        for match in _INCLUDE.finditer(blank(text, keep_strings=True)):
            if match[1] in _HEADERS or match[1].startswith(_HEADER_FOLDERS):
                findings.append(f"{path}:{line_of(text, match.start(1))}: includes <{match[1]}>")
        bare = blank(text)
        for pattern, what in _PATTERNS:
            for match in pattern.finditer(bare):
                if what.startswith("calls") and _is_declaration(bare, match.start()):
                    continue
                findings.append(f"{path}:{line_of(text, match.start(1))}: {what.format(match[1])}")
        for offset in _format_outside_status(bare):
            findings.append(f"{path}:{line_of(text, offset)}: fmt::format outside of a Status")
    return findings


def _engine(*lines):
    return [{ENGINE + "x.cc": line + "\n"} for line in lines]


# Conditions that shared code may ask: the language and byte order. Everything else is decided by which files CMake builds.
_ALLOWED_CONDITION = re.compile(r"^(?:defined\s*\(?\s*)?!?(?:__cplusplus|__BYTE_ORDER__|__has_include)\b|^__cplusplus\b|^__BYTE_ORDER__\b")
_CONDITION = re.compile(r"^[ \t]*#[ \t]*(if|ifdef|ifndef|elif)\b[ \t]*(.*)$", re.MULTILINE)
# Thread-safety annotations exist in one compiler only; this header is where that is decided.
_COMPILER_HEADERS = ("common/base/thread_annotations.h",)


def check_features(tree):
    findings = []
    for path, text in tree.cpp():
        if path in _COMPILER_HEADERS:
            continue
        bare = blank(text)
        guard = re.match(r"\s*#\s*ifndef\s+(\w+)\s+#\s*define\s+\1\b", bare)
        for match in _CONDITION.finditer(bare):
            if guard and match[1] == "ifndef" and match[2].strip() == guard[1]:
                continue
            if not _ALLOWED_CONDITION.match(match[2].strip()):
                findings.append(f"{path}:{line_of(text, match.start(1))}: #{match[1]} {match[2].strip()}")
    return findings


# Put together here, so that this file does not name them either.
_FOREIGN = [
    re.escape(a + b)
    for a, b in (
        ("/wo", "rk/"), ("/opt/whe", "els"), ("/opt/py", "pi"), ("py", "pi.org"), ("python", "hosted.org"), ("download.py", "torch.org"),
        ("deb.deb", "ian.org"), ("security.deb", "ian.org"), ("archive.ubu", "ntu.com"), ("registry.npm", "js.org"), ("crat", "es.io"),
        ("proxy.go", "lang.org"), ("gh", "cr.io"), ("docker", ".io/"), ("--index", "-url"), ("--extra-index", "-url"), ("--find", "-links"),
    )
]
_FOREIGN_NAME = re.compile(r"(?<![\w.}/])(?:" + "|".join(f for f in _FOREIGN if f.startswith("/")) + ")|" + "|".join(f for f in _FOREIGN if not f.startswith("/")))


def check_foreign(tree):
    return [
        f"{path}:{line_of(text, match.start())}: names {match[0]}"
        for path, text in tree.files.items()
        for match in _FOREIGN_NAME.finditer(text)
    ]


RULES = [
    Rule(
        "engine_purity",
        "the engine touches no clock, thread, random device, socket, file or unordered container, and keeps no state outside of its objects",
        check_engine,
        bad=_engine(
            "#include <chrono>", "#include <sys/socket.h>", "#include <unordered_map>", '#include "spdlog/spdlog.h"',
            "auto t = std::chrono::steady_clock::now();", "std::mutex lock_;", "std::unordered_map<int, int> m;", "long t = time(nullptr);",
            "int x = rand();", "int x = ::rand();", 'char* p = getenv("X");', "static int count = 0;", "  static std::vector<int> cache;",
            "thread_local int x;", "std::map<Tensor*, int> by_address;", 'printf("x");', 'fmt::print("x");',
            'std::string s = fmt::format("{}", 1);', 'std::string f() {\n  return fmt::format("{}", 1);\n}',
            'Status f() {\n  std::string s = fmt::format("{}", 1);\n  return {};\n}', "int f() { return ::read(1, b, 2); }", "int fd = socket(1, 2, 3);", "std::atomic<int> n;", "std::mt19937_64 random(1);",
        ),
        good=_engine(
            "// #include <chrono>\n/* std::mutex */ const char* s = \"rand()\";", "static constexpr int kMax = 3;", "static_assert(1 == 1);",
            "static const char* const kNames[] = {\"a\"};", 'return Status(Code::kMismatch, fmt::format("{} differs", 1), "x");',
            "Time time() const;", "queue.read(3); int runtime(int x);", "std::map<TensorId, int> ordered;", "static int add(int a, int b) { return a + b; }",
            'Status s = {Code::kMismatch, "a;b",\n  fmt::format("{}", 2), ""};',
        ) + [{"daemon/lane/x.cc": "#include <chrono>\n"}],
    ),
    Rule(
        "no_feature_switches",
        "what is built is decided by CMake, never by #if in the code",
        check_features,
        bad=[{"common/a.h": "#pragma once\n#ifdef HAVE_RDMA\n#endif\n"}, {"common/a.cc": "#if defined(TENSORLANE_CUDA)\n#endif\n"},
             {"daemon/a.cc": "#ifndef NDEBUG\n#endif\n"}, {"daemon/a.cc": "#if 0\n#endif\n"}],
        good=[{"a.h": "/* x */\n#ifndef A_H\n#define A_H\n#ifdef __cplusplus\n#endif\n#endif\n"},
              {"a.cc": "#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__\n#endif\n// #ifdef X\n"}],
    ),
    Rule(
        "no_foreign_names",
        "no file names a workplace or the host of a package registry",
        check_foreign,
        bad=[{"README.md": "see /wo" + "rk/main\n"}, {"deploy/x": "pip install --index" + "-url https://py" + "pi.org/simple x\n"},
             {"a.cc": "// http://deb.deb" + "ian.org/\n"}],
        good=[{"README.md": "see build/wo" + "rk/main, framewo" + "rk/x and ${dir}/wo" + "rk/x\n"}],
    ),
]
