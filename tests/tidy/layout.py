"""Rules about where things are: who includes whom, and that CMake knows every file."""

import posixpath
import re

from rule import Rule
from tree import blank, line_of

# A folder, and the folders whose headers its files may include beside their own. The longest folder that fits a file counts. Everyone
# may see common/, but inside of common/ the table says who sees whom.
MAY_INCLUDE = {
    "common/base": [],
    "common/command_line": ["common/base"],
    "common/fabric": ["common/base"],
    "common/files": ["common/base"],
    "common/json": [],
    "common/nccl": ["common/base", "common/files", "common/json"],
    "common/probe": ["common/json"],  # not even common/base: its program is linked statically
    "common/process": ["common/base"],
    "common/protocol": ["common/base"],
    "common/spans": ["common/base", "common/json"],
    "daemon/engine": [],
    "daemon/engine_log": ["daemon/engine"],
    "daemon/ports": [],
    "daemon/config": [],
    "daemon/control": ["daemon/ports", "daemon/engine/classify", "daemon/progress"],  # the leader searches for thresholds
    "daemon/memory": ["daemon/ports"],
    "daemon/planning": ["daemon/config", "daemon/engine", "daemon/ports"],
    "daemon/progress": [],
    "daemon/reduce": ["daemon/ports"],
    "daemon/session": ["daemon/ports"],
    "daemon/telemetry": ["daemon/ports"],
    "daemon/transport": ["daemon/ports"],
    "daemon/transport/handshake": ["daemon/ports", "daemon/transport/*.h", "daemon/transport/protect"],
    "daemon/transport/ledger": [],
    "daemon/transport/resume": ["daemon/ports", "daemon/transport/*.h", "daemon/transport/handshake", "daemon/transport/ledger"],
    "daemon/transport/tcp": ["daemon/ports", "daemon/transport/*.h", "daemon/transport/handshake", "daemon/transport/ledger", "daemon/transport/protect", "daemon/transport/resume"],
    "daemon/transport/rdma": ["daemon/ports", "daemon/transport/*.h", "daemon/transport/handshake", "daemon/transport/ledger", "daemon/transport/resume"],
    "daemon/transport/datagram": ["daemon/ports", "daemon/transport/protect"],
    "daemon/transport/dpdk": ["daemon/ports", "daemon/transport/datagram", "daemon/transport/dpdk/port", "daemon/transport/handshake", "daemon/transport/protect"],
    "daemon/transport/dpdk/port": [],
    "daemon/transport/dpdk/ethdev": ["daemon/transport/dpdk/port"],
    "daemon/transport/local": ["daemon/ports", "daemon/transport/*.h", "daemon/transport/handshake"],
    "daemon/transport/mixed": ["daemon/ports", "daemon/transport/*.h"],
    "daemon/host": ["daemon/engine", "daemon/engine_log", "daemon/ports"],
    "daemon/lane": ["daemon/host", "daemon/ports"],
    "daemon/wiring": ["daemon/config", "daemon/control", "daemon/engine_log", "daemon/host", "daemon/lane", "daemon/memory", "daemon/planning", "daemon/ports", "daemon/progress", "daemon/reduce", "daemon/session", "daemon/telemetry", "daemon/transport"],
    "daemon/main.cc": ["daemon"],
    "simulator": ["daemon/engine", "daemon/engine_log", "daemon/host", "daemon/ports", "daemon/progress", "daemon/transport/ledger", "simulator/orders"],
    "simulator/orders": [],
    "client-lib": ["tensorlane"],
    "switch-config": [],
    "monitor": ["tensorlane"],
    "monitor/answers": ["monitor/explain"],
    "monitor/explain": [],
    "monitor/remedies": ["daemon/engine/batching", "monitor/explain", "simulator/planner"],
    "monitor/report": ["monitor/answers", "monitor/explain"],
    "monitor/timeline": [],
    "monitor/top": ["monitor/answers", "monitor/explain"],
    "monitor/top/terminal": ["monitor/top"],
    "monitor/cli": ["tensorlane", "daemon/engine/batching", "daemon/engine_log", "monitor/answers", "monitor/explain", "monitor/remedies", "monitor/report", "monitor/timeline", "monitor/top", "simulator/orders", "simulator/planner", "switch-config/findings", "switch-config/lint", "switch-config/model", "switch-config/policy", "switch-config/render", "monitor/verify"],
    "monitor/probe": [],
    "monitor/verify": [],
    "tests": ["common", "daemon", "simulator", "client-lib", "switch-config", "monitor", "tensorlane"],
}
ROOTS = ("common/", "daemon/", "simulator/", "client-lib/", "switch-config/", "monitor/", "tests/", "tensorlane/")
PUBLIC = "client-lib/include/"  # the client library's headers are included as "tensorlane/..."

TEST_LIBRARIES = ("gtest/", "gmock/")

_QUOTED = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"', re.MULTILINE)


def _module(path):
    fits = [module for module in MAY_INCLUDE if path == module or path.startswith(module + "/")]
    return max(fits, key=len) if fits else None


def _allowed(included, module):
    seen = [module] + MAY_INCLUDE[module] + ([] if module.startswith("common/") else ["common"])
    for folder in seen:
        if folder.endswith("/*.h"):  # the folder's own headers, not those of the folders in it
            if posixpath.dirname(included) == folder[:-4]:
                return True
        elif included == folder or included.startswith(folder + "/"):
            # A module's transports are modules themselves: daemon/transport sees no daemon/transport/tcp.
            inner = _module(included)
            if folder != module or inner in (None, module) or not inner.startswith(module + "/"):
                return True
    return False


def _sibling(path, name):
    """A test's helpers are beside it and named without a folder: only modules are published by a path from the root."""
    return posixpath.join(posixpath.dirname(path), name) if "/" not in name else ""


def check_includes(tree):
    findings = []
    for path, text in tree.cpp():
        module = _module(path)
        if module is None:
            findings.append(f"{path}:1: belongs to no module: add it to the table in tests/tidy/layout.py and to the architecture")
            continue
        for match in _QUOTED.finditer(blank(text, keep_strings=True)):
            place = f"{path}:{line_of(text, match.start(1))}"
            if module == "tests" and (_sibling(path, match[1]) in tree.files or match[1].startswith(TEST_LIBRARIES)):
                continue
            if not match[1].startswith(ROOTS) or ".." in match[1]:
                findings.append(f'{place}: "{match[1]}" is no path from the root of the tree')
            elif not _allowed(match[1], module):
                findings.append(f"{place}: {module} may not include {match[1]}")
    return findings


_FOREACH = re.compile(r"foreach\s*\(\s*(\w+)((?:\s+[^\s()$]+)+)\s*\)(.*?)endforeach\s*\(", re.DOTALL)
_MODULE_CALL = re.compile(r"tl_module\s*\(\s*\S+\s+(\S+)([^()]*)\)")


def _unroll(text):
    """CMake text with comments taken out and loops over words written out."""
    text = re.sub(r"#[^\n]*", "", text)
    while match := _FOREACH.search(text):
        bodies = (match[3].replace("${" + match[1] + "}", word) for word in match[2].split())
        text = text[: match.start()] + "\n".join(bodies) + "(" + text[match.end() :]
    return text


def _listed(tree):
    """Paths of all source files that a CMakeLists.txt names."""
    paths = set()
    for path, text in tree.files.items():
        if posixpath.basename(path) != "CMakeLists.txt" and not path.endswith(".cmake"):
            continue
        folder = posixpath.dirname(path)
        text = _unroll(text)
        text = re.sub(r"\$\{(PROJECT|CMAKE)_SOURCE_DIR\}/", "//", text)
        text = re.sub(r"\$\{CMAKE_CURRENT_(SOURCE|LIST)_DIR\}/", "", text)
        for module in _MODULE_CALL.finditer(text):
            paths.update(posixpath.normpath(posixpath.join(module[1], word)) for word in module[2].split())
        for word in re.findall(r"[^\s()\"]+", text):
            paths.add(word[2:] if word.startswith("//") else posixpath.normpath(posixpath.join(folder, word)))
    return paths


def check_listed(tree):
    listed = _listed(tree)
    included = set()
    for path, text in tree.cpp():
        for name in _QUOTED.findall(blank(text, keep_strings=True)) + re.findall(r"#\s*include\s*<(tensorlane/[^>]+)>", text):
            if name != path:
                included.add(PUBLIC + name if name.startswith("tensorlane/") else name)
                included.add(_sibling(path, name))
    findings = []
    for path, _ in tree.cpp():
        if path.endswith((".h", ".hpp")):
            if path not in included and path not in listed:
                findings.append(f"{path}:1: nothing includes this header")
        elif path not in listed:
            findings.append(f"{path}:1: no CMakeLists.txt names this file")
    return findings


RULES = [
    Rule(
        "include_directions",
        "a module includes only the modules below it, by paths from the root",
        check_includes,
        bad=[
            {"daemon/engine/a.cc": '#include "daemon/ports/clock.h"\n'},
            {"daemon/session/a.cc": '#include "daemon/engine/engine.h"\n'},
            {"daemon/transport/tcp/a.cc": '#include "daemon/transport/rdma/flow.h"\n'},
            {"daemon/transport/factory.cc": '#include "daemon/transport/tcp/flow.h"\n'},
            {"common/base/a.h": '#include "common/fabric/fabric.h"\n'},
            {"common/protocol/a.h": '#include "common/fabric/fabric.h"\n'},
            {"daemon/lane/a.cc": '#include "daemon/telemetry/metrics.h"\n'},
            {"client-lib/src/a.cc": '#include "daemon/session/ring.h"\n'},
            {"simulator/a.cc": '#include "daemon/lane/lane.h"\n'},
            {"daemon/lane/a.cc": '#include "../engine/engine.h"\n'},
            {"daemon/lane/a.cc": '#include "lane.h"\n'},
            {"elsewhere/a.cc": "\n"},
            {"tests/lane/a.cc": '#include "b.h"\n'},
        ],
        good=[
            {"daemon/engine/egress/a.cc": '#include <map>\n#include "common/base/units.h"\n#include "daemon/engine/types.h"\n'},
            {"daemon/main.cc": '#include "daemon/transport/tcp/listener.h"\n#include "daemon/lane/lane.h"\n'},
            {"daemon/transport/tcp/a.cc": '#include "daemon/transport/tags.h"\n#include "daemon/transport/tcp/flow.h"\n'},
            {"client-lib/src/a.cc": '#include "tensorlane/tensorlane.h"\n#include "client-lib/src/b.h"\n'},
            {"daemon/lane/a.cc": '// #include "daemon/session/x.h"\n'},
            {"tests/lane/a.cc": '#include "b.h"\n#include "gtest/gtest.h"\n', "tests/lane/b.h": ""},
        ],
    ),
    Rule(
        "listed_in_cmake",
        "a CMakeLists.txt names every source file, and some file includes every header",
        check_listed,
        bad=[
            {"common/CMakeLists.txt": "add_library(x a.cc)", "common/a.cc": "", "common/b.cc": ""},
            {"common/CMakeLists.txt": "add_library(x a.cc) # b.cc", "common/a.cc": "", "common/b.cc": ""},
            {"common/CMakeLists.txt": "add_library(x a.cc)", "common/a.cc": "", "common/a.h": ""},
            {"common/CMakeLists.txt": "add_library(x a.cc)", "common/a.cc": "", "daemon/a.cc": ""},
        ],
        good=[
            {"common/CMakeLists.txt": "tl_module(t common/base SOURCES a.cc DEPENDS y)", "common/base/a.cc": '#include "common/base/a.h"\n', "common/base/a.h": ""},
            {"tests/CMakeLists.txt": "foreach(t a b)\n tl_test(${t} unit SOURCES ${t}.cc)\nendforeach()", "tests/a.cc": "", "tests/b.cc": ""},
            {"x/CMakeLists.txt": "add_executable(a ${PROJECT_SOURCE_DIR}/y/a.cc sub/b.cc)", "y/a.cc": "", "x/sub/b.cc": ""},
        ],
    ),
]
