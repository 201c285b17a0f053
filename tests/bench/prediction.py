"""How well the planner predicts: a model's training on the lab (network namespaces, needs root) beside `tensorlane plan` for the same.

    build/venv/bin/python tests/bench/prediction.py build/bin/tensorlane [--json FILE] [--chart FILE.svg] [--limit PERCENT] [--iterations N]

The ranks exchange real gradients' bytes over real daemons and sleep instead of computing (tensorlane.examples.replay). Two constants, the share of a
link that payload gets and a host's latency, are fitted on one model at 500 Mbit/s and then frozen; predictions are for 200 and 1,000 Mbit/s, and for
another model and batch. --limit: exit status 1 when a prediction is further from what was measured. Standard library; the chart needs matplotlib."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
ARMS = {"sliced": ["--no-priorities", "--policy", "fifo"], "endhost": ["--no-tags", "--policy", "fifo"], "network": ["--policy", "strict"]}
HOSTS = 3
# (model, seconds that an iteration computes): the second is another model and another batch.
FITTED, OTHER = ("inception-v1", 0.6), ("inception-v2", 0.9)
FITTED_MBPS, MBPS = 500, (200, 1000)
GOODPUT = [0.86, 0.88, 0.90, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96]
LATENCY_US = [20, 50, 100, 200, 400, 800, 1200]


class Job:
    """A model whose layers take a given time in all, by their multiply-adds, a third of it forward."""

    def __init__(self, folder, model, compute):
        self.name, self.folder = model, folder
        self.model = ROOT / "simulator/planner/models" / f"{model}.json"
        layers = json.loads(self.model.read_text())["layers"]
        all_macs = sum(layer["macs"] for layer in layers)
        times = [{"name": layer["name"], "forward_s": compute * layer["macs"] / all_macs / 3, "backward_s": compute * layer["macs"] / all_macs * 2 / 3}
                 for layer in layers]
        self.times = pathlib.Path(folder) / f"{model}.times.json"
        self.times.write_text(json.dumps({"layers": times}))

    def measure(self, binary, arm, mbps, iterations):
        report = pathlib.Path(self.folder) / "iterations.json"
        subprocess.run([binary, "run", "-n", str(HOSTS), "--hosts", "lab", "--speed", f"{mbps} Mbit/s", "--quiet", *ARMS[arm], "--",
                        sys.executable, "-m", "tensorlane.examples.replay", "--model", self.model, "--layer-times", self.times,
                        "--iterations", str(iterations), "--json", report], check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
        return statistics.median(json.loads(report.read_text())["iterations_s"])

    def predict(self, binary, arm, mbps, goodput, latency_us):
        report = pathlib.Path(self.folder) / "plan.json"
        subprocess.run([binary, "plan", "--model", self.name, "--layer-times", self.times, "--hosts", str(HOSTS), "--gbps", str(mbps / 1000), "--pattern",
                        "ring", "--only", arm, *(["--thresholds", "0.5"] if arm == "network" else []), "--overhead-share", "0", "--iterations", "3",
                        "--goodput-share", str(goodput), "--host-latency-us", str(latency_us), "--json", report], check=True, stdout=subprocess.DEVNULL)
        return json.loads(report.read_text())["policies"][0]["iteration_s"]


def fit(binary, job, measured):
    """The constants with the smallest largest error over the arms."""
    def error(constants):
        return max(abs(job.predict(binary, arm, FITTED_MBPS, *constants) / seconds - 1) for arm, seconds in measured.items())
    return min(((goodput, latency) for goodput in GOODPUT for latency in LATENCY_US), key=error)


def draw(rows, file):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(5.5, 5))
    for arm in ARMS:
        mine = [row for row in rows if row["arm"] == arm]
        axes.scatter([row["measured_s"] for row in mine], [row["predicted_s"] for row in mine], label=arm)
    most = 1.1 * max(row["measured_s"] for row in rows)
    axes.plot([0, most], [0, most], color="#888")
    axes.fill_between([0, most], [0, 0.9 * most], [0, 1.1 * most], color="#888", alpha=0.15, label="within 10%")
    axes.set(xlabel="measured, s", ylabel="predicted, s", title="Iterations in the lab and in the planner")
    axes.legend()
    figure.tight_layout()
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--iterations", type=int, default=7)
    parser.add_argument("--limit", type=float, metavar="PERCENT")
    parser.add_argument("--json")
    parser.add_argument("--chart", help="SVG")
    arguments = parser.parse_args()
    binary, rows = arguments.binary, []
    with tempfile.TemporaryDirectory() as folder:
        fitted, other = Job(folder, *FITTED), Job(folder, *OTHER)
        constants = fit(binary, fitted, {arm: fitted.measure(binary, arm, FITTED_MBPS, arguments.iterations) for arm in ARMS})
        print(f"fitted on {fitted.name} at {FITTED_MBPS} Mbit/s: goodput {constants[0]}, host latency {constants[1]} us")
        print(f"{'model':<14} {'Mbit/s':>6} {'arm':<8} {'measured s':>11} {'predicted s':>12} {'error %':>8}")
        for job in (fitted, other):
            for mbps in MBPS:
                for arm in ARMS:
                    measured, predicted = job.measure(binary, arm, mbps, arguments.iterations), job.predict(binary, arm, mbps, *constants)
                    row = {"model": job.name, "mbps": mbps, "arm": arm, "measured_s": measured, "predicted_s": predicted,
                           "error_percent": 100 * (predicted / measured - 1)}
                    rows.append(row)
                    print(f"{job.name:<14} {mbps:>6} {arm:<8} {measured:>11.3f} {predicted:>12.3f} {row['error_percent']:>+8.1f}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps({"goodput_share": constants[0], "host_latency_us": constants[1], "rows": rows}, indent=2) + "\n")
    if arguments.chart:
        draw(rows, arguments.chart)
    worst = max(abs(row["error_percent"]) for row in rows)
    print(f"largest error {worst:.1f} %")
    if arguments.limit and worst > arguments.limit:
        sys.exit(f"prediction: the largest error is {worst:.1f} %, more than {arguments.limit}")


if __name__ == "__main__":
    main()
