#!/usr/bin/env python3
"""`tensorlane order` as people and programs call it. usage: order_command_test.py TENSORLANE"""

import json
import pathlib
import subprocess
import sys
import tempfile

TENSORLANE = sys.argv[1]


def operation(name, kind, seconds, *inputs):
    resource = {"recv": "downlink", "compute": "gpu", "send": "uplink"}[kind]
    return {"name": name, "kind": kind, "resource": resource, "seconds": seconds, "inputs": list(inputs)}


def graph(*operations):
    return json.dumps({"version": 1, "operations": operations})


# TicTac, figure 1a, with 2 s and 3 s of transfers and 4 s and 1 s of computation; a gradient of each operation beside it.
FIGURE_1A = (
    operation("recv2", "recv", 3), operation("recv1", "recv", 2), operation("op1", "compute", 4, "recv1"), operation("op2", "compute", 1, "op1", "recv2"),
)
GRADIENTS = (operation("push2", "send", 1, "op2"), operation("push1", "send", 1, "op1"))


def run(*arguments, stdin=None):
    return subprocess.run([TENSORLANE, "order", *map(str, arguments)], input=stdin, capture_output=True, text=True, timeout=60)


def expect_result(algorithm, text, priorities, efficiency, speedup):
    done = run("--algorithm", algorithm, "-", "--json", "-", stdin=text)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["priorities"] == priorities, (algorithm, result)
    assert abs(result["E"] - efficiency) < 1e-9 and abs(result["S"] - speedup) < 1e-9, (algorithm, result)


def check_results():
    # recv1 first: op1 runs while recv2 arrives, 7 s of at least 5 and at most 10. The reverse: 10 s.
    expect_result("tac", graph(*FIGURE_1A), {"recv1": 0, "recv2": 1}, 0.6, 1.0)
    expect_result("layer", graph(*FIGURE_1A), {"recv1": 0, "recv2": 1}, 0.6, 1.0)
    # TIC cannot tell them apart, and recv2 stands first.
    expect_result("tic", graph(*FIGURE_1A), {"recv1": 2, "recv2": 2}, 0.0, 1.0)
    # push1 costs 4 s of computation, push2 5 s. recv2 first (nothing orders transfers): 3 + 2 + 4 + 1 + 1 s, of 12 and 5.
    expect_result("caramel", graph(*FIGURE_1A, *GRADIENTS), {"push1": 0, "push2": 1}, 1 / 7, 7 / 5)


def check_files_and_text(folder):
    path, out = folder / "graph.json", folder / "order.json"
    path.write_text(graph(*FIGURE_1A))
    done = run("--algorithm", "tac", path, "--json", out)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].split() == ["0", "recv1"] and lines[1].split() == ["1", "recv2"] and lines[2].startswith("E 0.6000  S 1.0000"), lines
    assert set(json.loads(out.read_text())["priorities"]) == {"recv1", "recv2"}
    shown = run("--help").stdout
    assert "tensorlane order --algorithm tac graph.json --json order.json" in shown, shown


def check_refusals(folder):
    path = folder / "bad.json"
    cases = [
        ("tac", "{", 1, "this is no JSON"),
        ("tac", graph(operation("a", "compute", 1, "b")), 2, "the input 'b' is no operation of the graph"),
        ("tac", graph(operation("a", "compute", 1, "b"), operation("b", "compute", 1, "a")), 2, "'a' -> 'b' -> 'a'"),
        ("tac", graph(operation("a", "compute", -1)), 2, "operations[0] 'a'"),
        ("tic", graph(operation("a", "compute", 1)), 2, "the graph has no recv operation"),
        ("caramel", graph(*FIGURE_1A), 2, "the graph has no send operation"),
        ("fastest", graph(*FIGURE_1A), 2, "the algorithm 'fastest' is unknown"),
    ]
    for algorithm, text, status, message in cases:
        path.write_text(text)
        done = run("--algorithm", algorithm, path)
        assert done.returncode == status and done.stderr.startswith("tensorlane: error: ") and message in done.stderr, (algorithm, text, done)
        assert len(done.stderr.splitlines()) == 1 and done.stdout == "", done
        assert algorithm == "fastest" or str(path) in done.stderr, done.stderr
    done = run("--algorithm", "tac", folder / "gone.json")
    assert done.returncode == 1 and "gone.json" in done.stderr, done
    path.write_text(graph(*FIGURE_1A))
    done = run("--algorithm", "tac", path, "--json", folder / "no" / "such" / "folder")
    assert done.returncode == 1 and "cannot write the file: " in done.stderr, done


with tempfile.TemporaryDirectory() as temporary:
    check_results()
    check_files_and_text(pathlib.Path(temporary))
    check_refusals(pathlib.Path(temporary))
