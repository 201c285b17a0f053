"""How well jobs find their threshold between classes on the lab (network namespaces, needs root): `search_thresholds` beside every fixed threshold.

    build/venv/bin/python tests/bench/threshold_search.py build/bin/tensorlane [--json FILE] [--chart FILE.svg] [--check] [--iterations N]

Two jobs exchange real gradients' bytes over real daemons and sleep instead of computing (tensorlane.examples.replay): one whose transfers are longer
than its backward pass, and one with nothing to gain. Fixed thresholds, a single class and what a search found are measured in turn, in the same lab,
and the median counts. --check: exit status 1 where the search ended more than 15% over the best threshold (5% over a single class where there is
nothing to gain), or its trials cost more than 5% of the first 100 iterations. Takes eight minutes. The chart needs matplotlib."""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from prediction import HOSTS, Job

# What: (model, seconds that an iteration computes, Mbit/s).
JOBS = {"gains": ("inception-v1", 0.35, 500), "nothing to gain": ("inception-v1", 0.9, 1000)}
THRESHOLDS = [0.1, 0.25, 0.4, 0.55, 0.7, 0.85]
SEARCHED = 100  # iterations in which trials may cost 5%
FABRIC = """classes:
  data:
    - {{name: urgent, dscp: 43, pcp: 5, service_level: 5, rank: 0}}
    - {{name: bulk, dscp: 27, pcp: 3, service_level: 3, rank: 1}}
  control: {{name: control, dscp: 51, pcp: 6, service_level: 6}}
  thresholds: [{threshold}]
hosts: [{hosts}]
switches: [{{name: s0}}]
links: [{links}]
"""


@contextlib.contextmanager
def lab(binary, folder, threshold, mbps):
    """Of hosts on one strict switch; the name of it."""
    file, name = pathlib.Path(folder) / "fabric.yaml", f"thr{os.getpid()}"
    file.write_text(FABRIC.format(
        threshold=threshold, hosts=", ".join(f"{{name: h{i}, addresses: {{tcp: 10.77.0.{i + 1}}}}}" for i in range(HOSTS)),
        links=", ".join(f"{{from: h{i}, to: s0, speed: {mbps} Mbit/s}}" for i in range(HOSTS))))
    subprocess.run([binary, "lab", "up", "--name", name, "--config", file, "--owner", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)
    try:
        yield name
    finally:
        subprocess.run([binary, "lab", "down", "--name", name], check=True, stdout=subprocess.DEVNULL)


def seconds(binary, job, name, iterations, *options):
    report = pathlib.Path(job.folder) / "iterations.json"
    subprocess.run([binary, "run", "-n", str(HOSTS), "--hosts", "lab", "--lab", name, "--quiet", *options, "--", sys.executable, "-m",
                    "tensorlane.examples.replay", "--model", job.model, "--layer-times", job.times, "--iterations", str(iterations), "--json", report],
                   check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, timeout=600)
    return json.loads(report.read_text())["iterations_s"]


def measure(binary, folder, what, iterations):
    model, compute, mbps = JOBS[what]
    job = Job(folder, model, compute)
    taken = {"single": []} | {threshold: [] for threshold in THRESHOLDS}
    with lab(binary, folder, 0.5, mbps) as name:
        search = seconds(binary, job, name, SEARCHED + 4 * iterations, "--set", "search_thresholds=true")
    for _ in range(2):
        with lab(binary, folder, 0.5, mbps) as name:
            taken["single"] += seconds(binary, job, name, iterations, "--no-priorities")
        for threshold in THRESHOLDS:
            with lab(binary, folder, threshold, mbps) as name:
                taken[threshold] += seconds(binary, job, name, iterations)
    single, *fixed = (statistics.median(times) for times in taken.values())
    chosen = statistics.median(search[SEARCHED:])
    row = {"job": what, "single_class_s": single, "thresholds_s": dict(zip(map(str, THRESHOLDS), fixed)), "chosen_s": chosen,
           "over_best": chosen / min(single, *fixed), "over_single_class": chosen / single,
           "trials_cost": sum(search[:SEARCHED]) / (SEARCHED * chosen) - 1, "search_s": search}
    print(f"{what}: single class {single:.3f} s; " + ", ".join(f"{t}: {s:.3f}" for t, s in zip(THRESHOLDS, fixed)))
    print(f"  the search ends with {chosen:.3f} s: {row['over_best']:.3f} of the best, {row['over_single_class']:.3f} of a single class; "
          f"the first {SEARCHED} iterations took {100 * row['trials_cost']:+.1f} % more", flush=True)
    return row


def complaints(row):
    if row["over_best"] > 1.15:
        yield f"{row['job']}: {row['over_best']:.3f} of the best threshold, more than 1.15"
    if row["job"] == "nothing to gain" and row["over_single_class"] > 1.05:
        yield f"{row['job']}: {row['over_single_class']:.3f} of a single class, more than 1.05"
    if row["trials_cost"] > 0.05:
        yield f"{row['job']}: the trials cost {100 * row['trials_cost']:.1f} %, more than 5"


def draw(rows, file):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, len(rows), figsize=(5 * len(rows), 3.5))
    for axes, row in zip(all_axes, rows):
        axes.plot(row["search_s"], ".", label="iterations of the search")
        axes.axhline(row["single_class_s"], color="#888", label="single class")
        axes.axhline(min(row["thresholds_s"].values()), color="#2a2", label="best fixed threshold")
        axes.set(xlabel="iteration", ylabel="s", title=row["job"], ylim=(0, None))
        axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--iterations", type=int, default=10, help="of every fixed threshold, twice")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--chart", help="SVG")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rows = [measure(arguments.binary, folder, what, arguments.iterations) for what in JOBS]
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")
    if arguments.chart:
        draw(rows, arguments.chart)
    wrong = [text for row in rows for text in complaints(row)]
    if arguments.check and wrong:
        sys.exit("threshold_search: " + "; ".join(wrong))


if __name__ == "__main__":
    main()
