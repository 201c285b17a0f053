#!/usr/bin/env python3
"""`tensorlane plan` as people call it: `check_plan.py TENSORLANE`. Geryon's table II, a traced graph, what the report holds, and bad input."""

import json
import pathlib
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

FABRIC = """classes: greenfield
hosts:
  - {name: a, addresses: {tcp: 10.1.0.11}}
  - {name: b, addresses: {tcp: 10.1.0.12}}
  - {name: c, addresses: {tcp: 10.1.0.13}}
switches:
  - {name: leaf1}
links:
  - {from: a, to: leaf1, speed: 10 Gbit/s}
  - {from: b, to: leaf1, speed: 10 Gbit/s}
  - {from: c, to: leaf1, speed: 25 Gbit/s}
"""


LOSSY_CLASSES = """classes:
  control: {name: control, dscp: 51, pcp: 6, service_level: 6, lossless: false}
  data:
    - {name: urgent, dscp: 43, pcp: 5, service_level: 5, lossless: true, rank: 0}
    - {name: bulk, dscp: 27, pcp: 3, service_level: 3, lossless: false, rank: 1}
  thresholds: [0.5]"""

# What tensorlane.torch.trace() writes: three layers of 25 million parameters, 30 ms forward, 60 ms backward.
LAYERS = ("first", "second", "third")
GRAPH = {"version": 1, "operations": (
    [{"name": f"recv/{layer}", "kind": "recv", "resource": "downlink", "seconds": 0.08, "bytes": 100_000_000, "inputs": []} for layer in LAYERS]
    + [{"name": f"forward/{layer}", "kind": "compute", "resource": "cuda:0", "seconds": 0.03,
        "inputs": [f"recv/{layer}"] + [f"forward/{before}" for before in LAYERS[max(0, i - 1):i]]} for i, layer in enumerate(LAYERS)]
    + [{"name": f"backward/{layer}", "kind": "compute", "resource": "cuda:0", "seconds": 0.06,
        "inputs": ([f"backward/{LAYERS[i + 1]}"] if i < 2 else ["forward/third"]) + [f"recv/{layer}"]} for i, layer in reversed(list(enumerate(LAYERS)))]
    + [{"name": f"send/{layer}", "kind": "send", "resource": "uplink", "seconds": 0.08, "bytes": 100_000_000,
        "inputs": [f"backward/{layer}"]} for layer in LAYERS])}


def run(*arguments):
    return subprocess.run([sys.argv[1], "plan", *map(str, arguments)], capture_output=True, text=True, timeout=100)


def check(condition, what):
    if not condition:
        sys.exit(f"check_plan: {what}")


def check_table(folder):
    report, chart = folder / "plan.json", folder / "plan.svg"
    done = run("--model", "vgg-19", "--batch", 64, "--gpu-images-per-second", 36.9, "--hosts", 8, "--gbps", 10, "--pattern", "ps",
               "--most-classes", 3, "--json", report, "--chart", chart)
    check(done.returncode == 0, done.stderr)
    plan = json.loads(report.read_text())
    best = {}
    for policy in plan["policies"]:
        for key in ("name", "classes", "iteration_s", "scaling_efficiency", "schedule_efficiency"):
            check(key in policy, f"a policy without {key}")
        best[policy["name"]] = max(best.get(policy["name"], 0), 100 * policy["scaling_efficiency"])
    for name, paper, tolerance in (("vanilla", 26.9, 8), ("sliced", 79.3, 6), ("network", 94.6, 6)):
        check(abs(best[name] - paper) <= tolerance, f"{name}: {best[name]:.1f} instead of {paper}")
    check([p["classes"] for p in plan["policies"]] == [1, 1, 1, 2, 3], "the policies")
    check(plan["assumptions"]["parameters"] == 143667240 and "overhead_share_of_compute" in plan["assumptions"], "assumptions")
    check(plan["recommended"]["depth"] >= 1 and plan["recommended"]["net_gain"] > 0.1, f"recommended {plan['recommended']}")
    check("overhead_share_of_compute" in done.stdout and "recommended: network" in done.stdout, done.stdout)
    picture = xml.etree.ElementTree.parse(chart).getroot()
    check(picture.tag.endswith("svg"), "the chart")
    labels = [text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")]
    check("network, 3 classes" in labels and "2 jobs: network, 3 classes" in labels and "recommended" in labels, f"the chart's labels {labels}")
    # 1.5 times the 7 us that a transfer takes beside its bytes, at 91.3 % of 10 Gbit/s (Caramel, section 4.2).
    check(abs(plan["assumptions"]["batching_threshold_bytes"] - 1.5 * 7e-6 * 9.13e9 / 8) < 2, f"{plan['assumptions']}")
    check_search(plan)
    check("a layer's wait: urgent gains" in done.stdout and "2 jobs like this one share" in done.stdout, done.stdout)


def check_search(plan):
    """Slices, thresholds, batches and depth are tried, nothing that was tried is worth more than what is recommended, and two jobs are planned, too."""
    (shared,) = plan["shared"]
    check(plan["jobs"] == 1 and shared["jobs"] == 2, f"{plan['jobs']} and {shared['jobs']} jobs")
    check([p["classes"] for p in shared["policies"]] == [1, 1, 1, 2, 3], "the policies of two jobs")
    for one in (plan, shared):
        tried, best = one["tried"], one["recommended"]["iteration_s"]
        for what in ("thresholds", "slices of", "batches of", "depth 8"):
            check(any(t["what"].startswith(what) for t in tried), f"no {what} in {tried}")
        check(min(t["iteration_s"] for t in tried) * 1.01 > best, f"{best} s is recommended, tried were {tried}")
        check(len(one["recommended"]["job_iteration_s"]) == one["jobs"], f"{one['recommended']}")
    check(shared["recommended"]["iteration_s"] >= plan["recommended"]["iteration_s"], "two jobs are faster than one")


def check_patterns(folder):
    """Every pattern; a barrier of many hosts, which takes staging, too; and a network from a file."""
    speed = ("--model", "alexnet", "--batch", 64, "--gpu-images-per-second", 100, "--most-classes", 2, "--jobs", 1)
    for pattern, hosts in (("ring", 28), ("halving-doubling", 6), ("tree", 5), ("auto", 6)):
        done = run(*speed, "--hosts", hosts, "--gbps", 10, "--pattern", pattern)
        check(done.returncode == 0 and "recommended" in done.stdout, f"{pattern}: {done.stderr}")
    fabric, report = folder / "fabric.yaml", folder / "fabric.json"
    fabric.write_text(FABRIC)
    done = run(*speed, "--fabric", fabric, "--pattern", "ring", "--json", report)
    check(done.returncode == 0, done.stderr)
    plan = json.loads(report.read_text())
    assumed = plan["assumptions"]
    check(plan["shared"] == [], "one job was asked for")
    for pattern in ("auto", "ps", "halving-doubling", "tree"):
        check(any(t["what"] == f"pattern {pattern}" for t in plan["tried"]), f"{pattern} is not among {plan['tried']}")
    check(assumed["hosts"] == 3 and assumed["host_gbps"] == 10, f"the fabric file: {assumed}")


def check_depth():
    """The largest tensor has 512 x 512 x 9 = 2,359,296 elements, many times the threshold, so that Caramel cuts it into 8."""
    done = run("--model", "resnet-50-v1", "--batch", 64, "--gpu-images-per-second", 300, "--hosts", 4, "--gbps", 10, "--pattern", "ring", "--most-classes", 2, "--jobs", 1)
    check(done.returncode == 0 and "slices of 294912 elements, 8 of the largest tensor" in done.stdout, f"{done.stdout}{done.stderr}")


def check_batches_and_ranks(folder):
    """Batches take fewer messages; ranks of a host have to be added before it sends, by the CPU."""
    report = folder / "only.json"

    def simulate(*more):
        done = run("--model", "resnet-50-v1", "--batch", 64, "--gpu-images-per-second", 1000, "--hosts", 8, "--gbps", 100, "--pattern",
                   "halving-doubling", "--only", "network", "--iterations", 1, "--json", report, *more)
        check(done.returncode == 0, done.stderr)
        plan = json.loads(report.read_text())
        check([p["name"] for p in plan["policies"]] == ["network"], "--only simulates one policy")
        return plan["events"], plan["policies"][0]["iteration_s"]

    events, seconds = simulate()
    fewer, _ = simulate("--batch-mib", 25)
    check(fewer < 0.9 * events, f"{fewer} events with batches, {events} without")
    _, added = simulate("--ranks-per-host", 8)
    # 8 x 102 MB at 5 GB/s are 163 ms; the iteration computes for 64.
    check(added > 0.163 > seconds, f"{added} s with eight ranks, {seconds} s with one")


def check_graph(folder):
    """A traced graph: its own times, scaled ones, replaced ones; what is assumed is said; and what cannot be planned."""
    graph, report = folder / "graph.json", folder / "traced.json"
    graph.write_text(json.dumps(GRAPH))

    def plan_of(*more):
        done = run("--model", graph, "--hosts", 4, "--gbps", 10, "--pattern", "ring", "--most-classes", 2, "--jobs", 1, "--json", report, *more)
        check(done.returncode == 0, done.stderr)
        check("graph_order" in done.stdout, done.stdout)
        return json.loads(report.read_text())

    plan = plan_of()
    assumed = plan["assumptions"]
    check(assumed["times"] == "the graph's operations" and assumed["graph_layers"] == 3 and assumed["parameters"] == 75_000_000, assumed)
    check(abs(assumed["compute_s"] - 0.27) < 1e-9 and abs(assumed["forward_share_of_compute"] - 1 / 3) < 1e-9, assumed)
    check(assumed["graph_gradients_later_by_at_most_s"] == 0 and assumed["graph_parameters_without_gradient"] == 0, assumed)
    # A ring of 4 moves 1.5 x 300 MB in and out of each host, at 91.3 % of 10 Gbit/s: 394 ms, of which the backward pass can hide a part.
    best = min(policy["iteration_s"] for policy in plan["policies"])
    check(0.394 < best < 0.27 + 0.394, f"an iteration of {best} s")

    scaled = plan_of("--batch", 27, "--gpu-images-per-second", 10)["assumptions"]
    check(abs(scaled["compute_s"] - 2.7) < 1e-6 and "scaled" in scaled["times"], scaled)
    times = folder / "times.json"
    times.write_text(json.dumps({"layers": [{"name": f"forward/{layer}", "forward_s": 0.2, "backward_s": 0.3} for layer in LAYERS]}))
    replaced = plan_of("--layer-times", times)["assumptions"]
    check(abs(replaced["compute_s"] - 1.5) < 1e-9 and replaced["times"] == str(times), replaced)

    network = ("--hosts", 2, "--gbps", 10)
    unsent = folder / "forward.json"
    unsent.write_text(json.dumps({"version": 1, "operations": [op for op in GRAPH["operations"] if op["kind"] != "send"]}))
    broken = folder / "broken.json"
    broken.write_text("{")
    cyclic = folder / "cyclic.json"
    cyclic.write_text(json.dumps({"version": 1, "operations": [
        {"name": name, "kind": "compute", "resource": "cuda:0", "seconds": 1, "inputs": [before]} for name, before in (("a", "b"), ("b", "a"))]}))
    for arguments, expected in (
        (("--model", unsent, *network), "no gradient is sent"),
        (("--model", broken, *network), "broken.json"),
        (("--model", cyclic, *network), "'a' -> 'b' -> 'a'"),
        (("--model", folder, *network), "cannot be read"),
        (("--model", graph, *network, "--gpu-images-per-second", 10), "give --batch"),
        (("--model", graph, *network, "--batch", 1, "--gpu-images-per-second", 10, "--layer-times", times), "both say how fast"),
        (("--model", folder / "none.json", *network), "or a file with a traced graph"),
    ):
        done = run(*arguments)
        check(done.returncode in (1, 2) and expected in done.stderr and done.stderr.count("\n") == 1, f"{arguments}: {done.returncode} {done.stderr}")


def check_congestion(folder):
    """Shared buffers, pauses, marks and others: each leaves its trace in the report, and what was assumed is said."""
    report = folder / "crowded.json"

    def simulate(only, *more):
        done = run("--model", "alexnet", "--batch", 64, "--gpu-images-per-second", 800, "--hosts", 4, "--gbps", 10, "--pattern", "ps",
                   "--only", only, "--iterations", 2, "--json", report, *more)
        check(done.returncode == 0, done.stderr)
        plan = json.loads(report.read_text())
        return plan["assumptions"], plan["policies"][0], done.stdout

    assumed, plain, _ = simulate("sliced")
    check(assumed["switch_buffers"].startswith("lossless") and plain["pauses"] == plain["notifications"] == plain["sent_again"] == 0, plain)
    # Three servers fill one worker's link: 1 MiB is too little for their windows of 2.5 MB each.
    assumed, full, text = simulate("sliced", "--switch-buffer-mib", 1)
    check(full["sent_again"] > 0 and assumed["switch_buffer_bytes"] == 1048576 and "sent again" in text, full)
    # RoCE begins again at what is missing: more is sent again than was refused. With flow control nothing is.
    assumed, again, _ = simulate("sliced", "--switch-buffer-mib", 1, "--go-back-n")
    check(full["sent_again"] == full["refused"] and again["sent_again"] > again["refused"] > 0, f"{full}, {again}")
    check(assumed["recovery"].startswith("go back N"), assumed)
    _, lossless, _ = simulate("sliced", "--switch-buffer-mib", 1, "--go-back-n", "--pfc")
    check(lossless["sent_again"] == 0 and lossless["iteration_s"] < again["iteration_s"], f"{lossless} with flow control, {again} without")
    assumed, paused, _ = simulate("sliced", "--switch-buffer-mib", 1, "--pfc")
    check(paused["sent_again"] == 0 and paused["pauses"] > 0 and "flow control" in assumed["switch_buffers"], paused)
    check(assumed["lossless_classes"] == list(range(8)), assumed)
    assumed, marked, _ = simulate("sliced", "--switch-buffer-mib", 1, "--pfc", "--ecn", "40,200,0.1")
    check(marked["notifications"] > 0 and marked["pauses"] < paused["pauses"], f"{marked} with ECN, {paused} without")
    check(assumed["ecn"]["k_min_bytes"] == 40960 and assumed["dcqcn"]["fast_recovery"] == 5, assumed)
    # Which classes are lossless stands in the fabric file: greenfield's are, these are not.
    lossy = folder / "lossy.yaml"
    lossy.write_text(FABRIC.replace("classes: greenfield", LOSSY_CLASSES))
    done = run("--model", "alexnet", "--batch", 64, "--gpu-images-per-second", 800, "--fabric", lossy, "--pattern", "ps", "--only", "network",
               "--iterations", 1, "--switch-buffer-mib", 1, "--pfc", "--json", report)
    check(done.returncode == 0, done.stderr)
    plan = json.loads(report.read_text())
    check(plan["assumptions"]["lossless_classes"] == [0] and plan["policies"][0]["sent_again"] > 0, f"{plan['assumptions']}, {plan['policies']}")
    # Others in the class of bulk cost everything in a FIFO, and less where the urgent class passes them.
    assumed, fifo, _ = simulate("sliced", "--foreign-load", 0.4)
    check(fifo["iteration_s"] > 1.1 * plain["iteration_s"] and assumed["foreign_class"] == "the least urgent one", f"{fifo}, {plain}")
    _, strict, _ = simulate("network", "--foreign-load", 0.4)
    check(strict["iteration_s"] < fifo["iteration_s"], f"{strict}, {fifo}")


def check_errors(folder):
    speed = ("--batch", 1, "--gpu-images-per-second", 10)
    network = ("--hosts", 2, "--gbps", 10)
    empty, apart = folder / "empty.yaml", folder / "apart.yaml"
    empty.write_text("classes: greenfield\nhosts: []\n")
    apart.write_text(FABRIC[:FABRIC.index("switches:")])
    for arguments, expected in (
        (("--model", "vgg-20", *speed, *network), "vgg-16, vgg-19"),
        (("--model", "vgg-19", *network), "give either --gpu-images-per-second or --layer-times"),
        (("--model", "vgg-19", "--gpu-images-per-second", 10, *network), "give --batch"),
        (("--model", "vgg-19", *speed), "give --hosts and --gbps or --network-model, or --fabric"),
        (("--model", "vgg-19", *speed, "--hosts", 1, "--gbps", 1), "--hosts"),
        (("--model", "vgg-19", *speed, *network, "--pattern", "star"), "--pattern"),
        (("--model", "vgg-19", *speed, *network, "--thresholds", "0.5"), "add --only network"),
        (("--model", "vgg-19", *speed, *network, "--only", "network", "--thresholds", "0.3,0.7"), "descending"),
        (("--model", "vgg-19", *speed, *network, "--pattern", "ring", "--exchange", "push-pull"), "only ps has servers"),
        (("--model", "vgg-19", *network, "--layer-times", folder / "none.json"), "cannot be read"),
        (("--model", "vgg-19", *speed, *network, "--pfc"), "add --switch-buffer-mib"),
        (("--model", "vgg-19", *speed, *network, "--go-back-n"), "add --switch-buffer-mib"),
        (("--model", "vgg-19", *speed, *network, "--ecn", "400,100,0.1"), "K_min and K_max in KiB"),
        (("--model", "vgg-19", *speed, "--fabric", folder / "none.yaml"), "none.yaml"),
        (("--model", "vgg-19", *speed, "--fabric", empty), "no hosts"),
        (("--model", "vgg-19", *speed, "--fabric", apart), "describe the links"),
        (("--model", "vgg-19", *speed, "--hosts", 2, "--gbps", "nan"), "no number"),
        (("--model", "vgg-19", *speed, "--hosts", 2, "--gbps", -10), "--gbps"),
        (("--model", "vgg-19", *speed, *network, "--jobs", "1,0"), "--jobs"),
        (("--model", "vgg-19", "--layer-times", folder, *network), "cannot be read"),
        (("--model", "vgg-19", *speed, *network, "--json", folder / "none" / "plan.json"), "cannot write the file: "),
        (("--model", "vgg-19", *speed, *network, "--chart", folder), "cannot write the file: "),
    ):
        done = run(*arguments)
        check(done.returncode in (1, 2) and expected in done.stderr, f"{arguments}: {done.returncode} {done.stderr}")
        check(done.stderr.count("\n") == 1, f"{arguments}: more than one line: {done.stderr}")
    check("Example" in run("--help").stdout, "--help without an example")


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_table(folder)
        check_patterns(folder)
        check_depth()
        check_batches_and_ranks(folder)
        check_graph(folder)
        check_congestion(folder)
        check_errors(folder)


if __name__ == "__main__":
    main()
