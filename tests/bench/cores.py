"""What workers gain over the ranks and the cores of this machine: the seconds of a sum by a lane with 0, 1, 2, ... workers, beside those of bare kernels on as many
threads. A gain is how many times as fast it is as with one. Standard library only, but for --chart.

    python3 tests/bench/cores.py build/bin/work_bench [--workers 0 1 2 4] [--ranks 2 8] [--rounds 30] [--json FILE] [--chart FILE.svg]
"""

import argparse
import json
import os
import subprocess


def parse():
    cores = os.cpu_count()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="Example: python3 tests/bench/cores.py build/bin/work_bench --ranks 8")
    parser.add_argument("bench", help="build/bin/work_bench")
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({0, 1, 2, *(n for n in (4, 8, 16) if n <= cores)}), help="numbers of workers; default: up to the cores of this machine")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="ranks of the host")
    parser.add_argument("--mib", type=int, default=4, help="of each rank's tensor")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", help="write every measurement to this file")
    parser.add_argument("--chart", help="draw the gains to this file; needs matplotlib")
    return parser.parse_args()


def measure(options, ranks, workers):
    command = [options.bench, "--ranks", str(ranks), "--workers", str(workers), "--mib", str(options.mib), "--rounds", str(options.rounds)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def rows(options):
    """[{"ranks", "workers", "lane", "bare", "lane_gain", "bare_gain"}]; gains are over one worker and one thread, None where one was not measured."""
    made = []
    for ranks in options.ranks:
        results = {}
        for workers in options.workers:
            results[workers] = measure(options, ranks, workers)
            print(f"measured {ranks} ranks, {workers} workers", flush=True)
        one = results.get(1)
        for workers, result in results.items():
            gain = {name: one[name]["median"] / result[name]["median"] if one else None for name in ("lane", "bare")}
            made.append({**result, "lane_gain": gain["lane"], "bare_gain": gain["bare"]})
    return made


def table(made):
    print(f"{'ranks':>5} {'workers':>7} {'lane, ms (p99)':>20} {'bare, ms (p99)':>20} {'gain':>6} {'bare':>6} {'share':>6}")
    for row in made:
        lane, bare = (f"{row[name]['median'] * 1e3:.2f} ({row[name]['p99'] * 1e3:.2f})" for name in ("lane", "bare"))
        gains = [f"{row[name]:.2f}" if row[name] else "" for name in ("lane_gain", "bare_gain")]
        share = f"{row['lane_gain'] / row['bare_gain']:.0%}" if row["lane_gain"] and row["workers"] > 1 else ""
        print(f"{row['ranks']:>5} {row['workers']:>7} {lane:>20} {bare:>20} {gains[0]:>6} {gains[1]:>6} {share:>6}")


def draw(made, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots()
    for ranks in sorted({row["ranks"] for row in made}):
        of_ranks = [row for row in made if row["ranks"] == ranks and row["workers"] > 0 and row["lane_gain"]]
        workers = [row["workers"] for row in of_ranks]
        drawn, = axes.plot(workers, [row["lane_gain"] for row in of_ranks], marker="o", label=f"{ranks} ranks, workers")
        axes.plot(workers, [row["bare_gain"] for row in of_ranks], linestyle="--", color=drawn.get_color(), label=f"{ranks} ranks, bare kernels")
    axes.set(xlabel="threads", ylabel="times as fast as one", title=f"Sums inside a host, {os.cpu_count()} cores")
    axes.legend()
    figure.savefig(path)


def main():
    options = parse()
    made = rows(options)
    table(made)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"cores": os.cpu_count(), "rows": made}, file, indent=1)
    if options.chart:
        draw(made, options.chart)


if __name__ == "__main__":
    main()
