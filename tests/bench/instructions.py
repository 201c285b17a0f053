"""Instructions for each slice, by callgrind, on both hosts together: from the client's submission over the lane, the engine and the transport
to the completion. lane_bench runs twice with different numbers of rounds; the difference is what the additional rounds cost, by the module
whose code it is. Needs valgrind; what the kernel does is not in it. Standard library only.

    tests/bench/instructions.py build/bin/lane_bench [--slice-bytes N] [--functions N] [--json FILE] [--limit N]

--functions: the most expensive ones by name. --limit: exit status 1 when engine and protocol together take more, three times in a row."""

import argparse
import collections
import json
import re
import shutil
import subprocess
import sys
import tempfile

ROUNDS, SLICES = (4, 12), 128
# The first that matches a function's name. Templates of the standard library count for the module of the types that they are made for.
MODULES = [
    ("the benchmark itself", r"^main$|^tensorlane::(bench::|\(anonymous namespace\))|^operator (new|delete)"),
    ("engine", r"^tensorlane::engine::"),
    ("spans", r"^tensorlane::telemetry::"),
    ("host, lane", r"^tensorlane::(host|lane)::"),
    ("transport", r"^tensorlane::(tcp|handshake)::|^std::.*tensorlane::(ports::FlowKey|tcp|handshake)"),
    ("protocol", r"^tensorlane::protocol::|^crc32"),
    ("memory, reduce", r"^tensorlane::(memory|reduce)::"),
    ("copies", r"^_*mem(cpy|move|set|cmp)"),
    ("other", r""),
]
# What a limit holds for. A lane and a transport that wait take turns of their loops in vain, more or fewer as the machine is busy.
LIMITED = ("engine", "protocol")
SPANS_LIMIT = 350  # of keeping the last spans: one where a slice leaves, one where it arrives, and one of its sum
ATTEMPTS = 3


def profile(bench, rounds, options):
    """(lane_bench's line, instructions by function)."""
    with tempfile.TemporaryDirectory() as folder:
        out = f"{folder}/callgrind"
        done = subprocess.run(["valgrind", "-q", "--tool=callgrind", "--compress-strings=no", "--fair-sched=yes", f"--callgrind-out-file={out}", bench,
                               "--rounds", str(rounds), "--slices", str(SLICES), *options], check=True, capture_output=True, text=True)
        with open(out) as file:
            return json.loads(done.stdout), functions(file)


def functions(lines):
    """Own instructions of each function."""
    own = collections.Counter()
    name, called = None, False
    for line in lines:
        if line.startswith("fn="):
            name = line[3:].strip()
        elif line.startswith("calls="):
            called = True  # the next line is what the callee took
        elif re.match(r"[+\-*\d]", line):
            if not called and name is not None:
                own[name] += int(line.split()[1])
            called = False
    return own


def module(function):
    return next(name for name, pattern in MODULES if re.search(pattern, function))


def measure(bench, options):
    """(the result, instructions for each slice by function)."""
    (few, before), (many, after) = (profile(bench, rounds, options) for rounds in ROUNDS)
    slices = many["slices"] - few["slices"]
    costs = collections.Counter({name: (after[name] - before[name]) / slices for name in after})
    modules = {name: round(sum(each for function, each in costs.items() if module(function) == name), 1) for name, _ in MODULES}
    return {"transport": many["transport"], "slice_bytes": many["slice_bytes"], "slices": slices, "instructions_per_slice": modules}, costs


def show(result, expensive):
    print(f"instructions for each of {result['slices']} slices of {result['slice_bytes']} bytes, over {result['transport']}:")
    for name, each in result["instructions_per_slice"].items():
        print(f"  {name:<22}{each:10.1f}")
    for function, each in expensive:
        print(f"  {each:10.1f}  {module(function):<22}{function[:100]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bench")
    parser.add_argument("--slice-bytes", default="4096")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--limit", type=int)
    parser.add_argument("--functions", type=int, default=0)
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("skipped: no valgrind: run deploy/install-deps packages")
        return 77
    options = ["--slice-bytes", arguments.slice_bytes]
    for _ in range(ATTEMPTS):
        result, costs = measure(arguments.bench, options)
        show(result, costs.most_common(arguments.functions))
        limited = sum(result["instructions_per_slice"][name] for name in LIMITED)
        spans = result["instructions_per_slice"]["spans"]
        if arguments.limit is None or (limited <= arguments.limit and spans <= SPANS_LIMIT):
            break
    if arguments.json:
        with open(arguments.json, "w") as file:
            json.dump(result, file, indent=1)
    if arguments.limit is not None and limited > arguments.limit:
        print(f"{' and '.join(LIMITED)} take {limited:.0f}, more than {arguments.limit}")
        return 1
    if arguments.limit is not None and spans > SPANS_LIMIT:
        print(f"the spans take {spans:.0f}, more than {SPANS_LIMIT}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
