"""How large a job the planner can simulate: one training iteration (and one before it) of ResNet-50 with eight ranks per host, whose
gradients are summed inside the host, then between the hosts by halving-doubling in batches of 25 MiB, over a number of hosts.

    build/venv/bin/python tests/bench/planner_scale.py build/bin/tensorlane --json scale.json --chart scale.svg [--most-hosts N]

Prints seconds, events per second and memory by number of hosts. --limit S: exit status 1 when 1,024 hosts take longer, or any simulated
iteration is shorter than its computation. The chart needs matplotlib, which is in build/venv."""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

HOSTS = [4, 16, 64, 256, 1024, 2048, 4096]
JUDGED = 1024
MODEL = ["--model", "resnet-50-v1", "--batch", "64", "--gpu-images-per-second", "68.8", "--ranks-per-host", "8", "--gbps", "100",
         "--pattern", "halving-doubling", "--batch-mib", "25", "--only", "network", "--iterations", "1"]


def simulate(binary, hosts):
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "plan.json"
        began = time.monotonic()
        process = subprocess.Popen([binary, "plan", *MODEL, "--hosts", str(hosts), "--json", report], stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - began
        if process.returncode != 0:
            sys.exit(f"planner_scale: {hosts} hosts: tensorlane plan ended with {process.returncode}")
        plan = json.loads(report.read_text())
    iteration, compute = plan["policies"][0]["iteration_s"], plan["assumptions"]["compute_s"]
    if iteration < compute:
        sys.exit(f"planner_scale: {hosts} hosts: an iteration of {iteration} s computes for {compute} s")
    return {"hosts": hosts, "seconds": round(seconds, 3), "cpu_seconds": round(usage.ru_utime + usage.ru_stime, 3), "events": plan["events"],
            "events_per_second": round(plan["events"] / seconds), "memory_mib": round(usage.ru_maxrss / 1024), "iteration_s": iteration}



def draw(rows, file):
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot

    hosts = [row["hosts"] for row in rows]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for axis, key, title in zip(axes, ("seconds", "events_per_second", "memory_mib"), ("seconds", "events per second", "memory, MiB")):
        axis.plot(hosts, [row[key] for row in rows], marker="o")
        axis.set(xscale="log", yscale="log", xlabel="hosts", title=title)
        axis.set_xticks(hosts, [str(h) for h in hosts])
        axis.minorticks_off()
        axis.grid(True, alpha=0.3)
    figure.suptitle("Simulating one iteration of ResNet-50, 8 ranks per host")
    figure.tight_layout()
    figure.savefig(file)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--most-hosts", type=int, default=HOSTS[-1])
    parser.add_argument("--limit", type=float, help="seconds for 1,024 hosts")
    parser.add_argument("--json")
    parser.add_argument("--chart", help="SVG")
    arguments = parser.parse_args()
    rows = []
    print(f"{'hosts':>6} {'seconds':>9} {'events':>12} {'events/s':>10} {'MiB':>7}")
    for hosts in [h for h in HOSTS if h <= arguments.most_hosts]:
        row = simulate(arguments.binary, hosts)
        rows.append(row)
        print(f"{hosts:>6} {row['seconds']:>9.2f} {row['events']:>12} {row['events_per_second']:>10} {row['memory_mib']:>7}", flush=True)
    if arguments.json:
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=2) + "\n")
    if arguments.chart:
        draw(rows, arguments.chart)
    judged = [row for row in rows if row["hosts"] == JUDGED]
    if arguments.limit and judged and judged[0]["seconds"] > arguments.limit:
        sys.exit(f"planner_scale: {JUDGED} hosts took {judged[0]['seconds']} s, more than {arguments.limit}")


if __name__ == "__main__":
    main()
