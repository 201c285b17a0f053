"""What lanes and workers gain over the rails, the ranks and the cores of this machine. Standard library only, but for --chart.

    python3 tests/bench/cores.py build/bin [--workers 0 1 2 4] [--ranks 2 8] [--rails 2 4] [--rounds 30] [--json FILE] [--chart FILE.svg]

First, the ranks of one host sum a tensor: the seconds with 0, 1, 2, ... workers, beside those of bare kernels on as many threads. A gain is how many times as fast it is
as with one. Then two hosts of this machine sum over several rails, with 1, 2, ... lanes and with and without workers: the throughput of each as a multiple of that of one
lane without workers. These take turns in one run, round by round. "range" is the middle half of the rounds' gains."""

import argparse
import json
import os
import subprocess

CORES = len(os.sched_getaffinity(0))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], epilog="Example: python3 tests/bench/cores.py build/bin --ranks 8")
    parser.add_argument("bin", help="the folder of work_bench and rails_bench: build/bin")
    parser.add_argument("--workers", type=int, nargs="+", default=sorted({0, 1, 2, *(n for n in (4, 8, 16) if n <= CORES)}), help="numbers of workers; default: up to the cores of this machine")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8], help="ranks of a host that sums")
    parser.add_argument("--rails", type=int, nargs="*", default=[n for n in (2, 4, 8) if n == 2 or 2 * n <= CORES], help="rails of each of two hosts; default: up to half of the cores")
    parser.add_argument("--rail-ranks", type=int, nargs="+", default=[1, 4], help="ranks of each of two hosts")
    parser.add_argument("--mib", type=int, default=4, help="of each rank's tensor, for each rail")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--json", help="write every measurement to this file")
    parser.add_argument("--chart", help="draw the gains to this file; needs matplotlib")
    return parser.parse_args()


def run(options, program, **arguments):
    command = [os.path.join(options.bin, program), "--rounds", str(options.rounds)]
    for name, value in arguments.items():
        values = value if isinstance(value, list) else [value]
        command += [f"--{name}", *map(str, values)]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)


def sums(options):
    """[{"ranks", "workers", "lane", "bare", "lane_gain", "bare_gain"}]; gains are over one worker and one thread, None where one was not measured."""
    made = []
    for ranks in options.ranks:
        results = {}
        for workers in options.workers:
            results[workers] = run(options, "work_bench", ranks=ranks, workers=workers, mib=options.mib)
            print(f"measured {ranks} ranks, {workers} workers", flush=True)
        one = results.get(1)
        for workers, result in results.items():
            gain = {name: one[name]["median"] / result[name]["median"] if one else None for name in ("lane", "bare")}
            made.append({**result, "lane_gain": gain["lane"], "bare_gain": gain["bare"]})
    return made


def lanes_of(rails):
    """1, 2, 4, ... and as many as there are rails."""
    return sorted({*(n for n in (1, 2, 4, 8) if n <= rails), rails})


def over_rails(options):
    """[{"rails", "ranks", "bytes", "lanes", "workers", "median", "p99", "gain"}]"""
    made = []
    for rails in options.rails:
        # Of both hosts together no more than there are cores, and one for each lane.
        workers = sorted({0, rails, *(n for n in options.workers if rails < n and 2 * n <= CORES)})
        for ranks in options.rail_ranks:
            result = run(options, "rails_bench", rails=rails, ranks=ranks, mib=options.mib * rails, lanes=lanes_of(rails), workers=workers)
            print(f"measured {rails} rails, {ranks} ranks", flush=True)
            made += [{"rails": rails, "ranks": ranks, "bytes": result["bytes"], **row} for row in result["rows"]]
    return made


def sums_table(made):
    print(f"\nranks of one host\n{'ranks':>5} {'workers':>7} {'lane, ms (p99)':>20} {'bare, ms (p99)':>20} {'gain':>6} {'bare':>6} {'share':>6}")
    for row in made:
        lane, bare = (f"{row[name]['median'] * 1e3:.2f} ({row[name]['p99'] * 1e3:.2f})" for name in ("lane", "bare"))
        gains = [f"{row[name]:.2f}" if row[name] else "" for name in ("lane_gain", "bare_gain")]
        share = f"{row['lane_gain'] / row['bare_gain']:.0%}" if row["lane_gain"] and row["workers"] > 1 else ""
        print(f"{row['ranks']:>5} {row['workers']:>7} {lane:>20} {bare:>20} {gains[0]:>6} {gains[1]:>6} {share:>6}")


def rails_table(made):
    print(f"\ntwo hosts\n{'rails':>5} {'ranks':>5} {'workers':>7} {'lanes':>5} {'ms (p99)':>16} {'Gbit/s':>7} {'gain':>6}  range")
    for row in made:
        milliseconds = f"{row['median'] * 1e3:.2f} ({row['p99'] * 1e3:.2f})"
        print(f"{row['rails']:>5} {row['ranks']:>5} {row['workers']:>7} {row['lanes']:>5} {milliseconds:>16} {row['bytes'] * 8e-9 / row['median']:>7.1f} {row['gain']['median']:>6.2f}  "
              f"{row['gain']['low']:.2f} to {row['gain']['high']:.2f}")


def draw(made, rails_made, path):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (axes, rails_axes) = pyplot.subplots(1, 2, figsize=(11, 4.5))
    for ranks in sorted({row["ranks"] for row in made}):
        of_ranks = [row for row in made if row["ranks"] == ranks and row["workers"] > 0 and row["lane_gain"]]
        workers = [row["workers"] for row in of_ranks]
        drawn, = axes.plot(workers, [row["lane_gain"] for row in of_ranks], marker="o", label=f"{ranks} ranks, workers")
        axes.plot(workers, [row["bare_gain"] for row in of_ranks], linestyle="--", color=drawn.get_color(), label=f"{ranks} ranks, bare kernels")
    axes.set(xlabel="threads", ylabel="times as fast as one", title=f"Sums inside a host, {CORES} cores")
    for rails, ranks, workers in sorted({(row["rails"], row["ranks"], row["workers"]) for row in rails_made}):
        line = [row for row in rails_made if (row["rails"], row["ranks"], row["workers"]) == (rails, ranks, workers)]
        rails_axes.plot([row["lanes"] for row in line], [row["gain"]["median"] for row in line], marker="o", label=f"{rails} rails, {ranks} ranks, {workers} workers")
    rails_axes.set(xlabel="lanes", ylabel="times as fast as one lane without workers", title=f"Two hosts over rails, {CORES} cores")
    for each in (axes, rails_axes):
        each.legend(fontsize="small")
    figure.tight_layout()
    figure.savefig(path)


def main():
    options = parse()
    made, rails_made = sums(options), over_rails(options)
    print(f"\n{CORES} cores")
    sums_table(made)
    rails_table(rails_made)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({"cores": CORES, "rows": made, "rails": rails_made}, file, indent=1)
    if options.chart:
        draw(made, rails_made, options.chart)


if __name__ == "__main__":
    main()
