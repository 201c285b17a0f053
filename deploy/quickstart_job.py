"""The main job of deploy/quickstart: trains the same model with and without priorities, side by side, in alternating blocks of one run.

Every arm is one `tensorlane run` of tensorlane.examples.digits with daemons of its own; all arms are up at once and take turns, so that what else happens on the
machine happens to all of them."""

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
BUILD = os.path.join(ROOT, "build")
TENSORLANE = os.path.join(BUILD, "bin", "tensorlane")
OUT = os.path.join(BUILD, "quickstart")
RANKS = 4
LABELS = {
    "nocomm": "no communication (ideal)",
    "ddp_gloo": "PyTorch DDP over Gloo, FIFO ports",
    "nopriority": "tensorlane, no priority, FIFO ports",
    "endhost": "tensorlane, end-host priority, FIFO ports",
    "network": "tensorlane, network priority, strict ports",
}
MODES = {"nocomm": "nocomm", "ddp_gloo": "ddp"}
RUN_OPTIONS = {"nopriority": ["--no-priorities"], "endhost": ["--no-tags"]}


def fail(what, where, fix, status=1):
    print(f"tensorlane: error: {what}: {where}: {fix}", file=sys.stderr)
    sys.exit(status)


class Fabric:
    """Where the hosts are: a lab whose ports can be switched between FIFO and strict, or loopback, which has no ports."""

    def __init__(self, kind, hosts, speed):
        self.lab = f"quick{os.getpid()}" if kind == "lab" else None
        if self.lab:
            subprocess.run([TENSORLANE, "lab", "up", "--name", self.lab, "--hosts", str(hosts), "--speed", speed, "--policy", "fifo", "--owner", str(os.getpid())],
                           check=True, stdout=subprocess.DEVNULL)

    def policy(self, policy):
        if self.lab:
            subprocess.run([TENSORLANE, "lab", "policy", policy, "--name", self.lab], check=True, stdout=subprocess.DEVNULL)

    def options(self, on=None):
        if not self.lab:
            return []
        return ["--hosts", "lab", "--lab", self.lab] + (["--on", ",".join(on)] if on else [])

    def down(self):
        if self.lab:
            subprocess.run([TENSORLANE, "lab", "down", "--name", self.lab], check=False, stdout=subprocess.DEVNULL)


class Jobs:
    """The jobs that run now: started together, stopped together whatever happens."""

    def __init__(self, fabric, folder):
        self.fabric, self.folder, self.children, self.port = fabric, folder, {}, 7100
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)

    def start(self, name, ranks, options, command, on=None):
        argv = [TENSORLANE, "run", "-n", str(ranks), "--first-port", str(self.port), *self.fabric.options(on), *options, "--", sys.executable, "-m", *command]
        self.port += 100
        log = open(os.path.join(self.folder, f"{name}.log"), "w")
        self.children[name] = subprocess.Popen(argv, stdout=log, stderr=log)

    def wait_file(self, path, timeout):
        deadline = time.monotonic() + timeout
        while not os.path.exists(path):
            for name, child in self.children.items():
                if child.poll() is not None:
                    tail = open(os.path.join(self.folder, f"{name}.log")).read()[-1500:]
                    fail(f"the job '{name}' ended with status {child.returncode}", os.path.join(self.folder, f"{name}.log"), f"its last words: {tail}")
            if time.monotonic() > deadline:
                fail(f"nothing from the jobs for {timeout} s", path, f"look at the logs in {self.folder}")
            time.sleep(0.005)
        return path

    def block(self, arm, block, iterations):
        """Lets an arm run a block; its report."""
        path = os.path.join(self.folder, f"{arm}.go.{block}")
        with open(path + ".part", "w") as file:
            file.write(str(iterations))
        os.replace(path + ".part", path)
        return json.load(open(self.wait_file(os.path.join(self.folder, f"{arm}.done.{block}"), 120)))

    def stop(self, timeout=20):
        open(os.path.join(self.folder, "stop"), "w").close()
        deadline = time.monotonic() + timeout
        for child in self.children.values():
            try:
                child.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGTERM)
                child.wait()


def digits(arm, folder, extra):
    return ["tensorlane.examples.digits", "--mode", MODES.get(arm, "tensorlane"), "--blocks", folder, "--arm", arm, *extra]


def start_arms(jobs, arms, options, extra, on=None):
    for arm in arms:
        timeline = []
        if MODES.get(arm, "tensorlane") == "tensorlane":
            folder = os.path.join(OUT, "timeline", arm)
            os.makedirs(folder, exist_ok=True)
            timeline = ["--timeline", folder]
        jobs.start(arm, RANKS, [*RUN_OPTIONS.get(arm, []), *timeline, *options], digits(arm, jobs.folder, extra), on)
    for arm in arms:
        jobs.wait_file(os.path.join(jobs.folder, f"{arm}.ready"), 120)


def run_blocks(jobs, arms, blocks, iterations, began):
    """Reports of every arm, block by block. The order of the arms changes from block to block, by a fixed seed."""
    order = random.Random(1)
    reports = {arm: [] for arm in arms}
    for block in range(blocks):
        turn = list(arms)
        order.shuffle(turn)
        for arm in turn:
            jobs.fabric.policy("strict" if arm == "network" else "fifo")
            report = jobs.block(arm, block, iterations)
            if began is not None:
                print(f"first iterations {time.monotonic() - began:.0f} s after the start", flush=True)
                began = None
            reports[arm].append(report)
        line = ", ".join(f"{arm} {statistics.median(reports[arm][-1]['times'][1:]) * 1e3:.0f} ms" for arm in arms)
        print(f"block {block + 1} of {blocks}: {line}", flush=True)
    return reports


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def summarize(reports):
    """One entry per arm. The first iteration of a block meets cold caches and is left out."""
    ideal = statistics.median(t for r in reports["nocomm"] for t in r["times"][1:])
    arms = []
    for arm, blocks in reports.items():
        times = [t for r in blocks for t in r["times"][1:]]
        median = statistics.median(times)
        arms.append({"name": arm, "iteration_s_median": median, "iteration_s_p99": percentile(times, 0.99), "scaling_efficiency": ideal / median,
                     "final_loss": blocks[-1]["loss"], "accuracy": blocks[-1]["accuracy"]})
    return arms


def ratio(reports, arm, base):
    """Median over paired blocks of the arm's median iteration over the base's, with the 95% interval by bootstrap (seeded)."""
    pairs = [statistics.median(a["times"][1:]) / statistics.median(b["times"][1:]) for a, b in zip(reports[arm], reports[base])]
    draw = random.Random(2)
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return {"median": statistics.median(pairs), "ci95": [medians[50], medians[1949]]}


def print_table(title, arms):
    print(f"\n{title}\n{'':44}{'median':>10}{'p99':>10}{'scaling':>9}{'loss':>8}{'accuracy':>10}")
    for arm in arms:
        print(f"{LABELS[arm['name']]:44}{arm['iteration_s_median'] * 1e3:7.1f} ms{arm['iteration_s_p99'] * 1e3:7.1f} ms{arm['scaling_efficiency']:9.1%}"
              f"{arm['final_loss']:8.3f}{arm['accuracy']:10.1%}")


def draw(path, result):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [("alone", result["arms"])] + ([("beside another job's bulk", result["contended"])] if result["contended"] else [])
    figure, axes = pyplot.subplots(1, len(parts), figsize=(6 * len(parts), 4), squeeze=False)
    for axis, (title, arms) in zip(axes[0], parts):
        axis.barh([a["name"] for a in arms], [a["iteration_s_median"] * 1e3 for a in arms], color="#4477aa")
        axis.invert_yaxis()
        axis.set_xlabel("median iteration, ms")
        axis.set_title(f"{RANKS} hosts, {title}")
        for i, arm in enumerate(arms):
            axis.text(arm["iteration_s_median"] * 1e3, i, f" {arm['scaling_efficiency']:.0%}", va="center")
    figure.tight_layout()
    figure.savefig(path)


def alone(args, began):
    """The arms with the fabric to themselves."""
    fabric = Fabric(args.hosts, RANKS, args.speed)
    jobs = Jobs(fabric, os.path.join(OUT, "alone"))
    try:
        start_arms(jobs, list(LABELS), ["--pattern", args.pattern], ["--width", str(args.width), "--batch", str(args.batch)])
        return summarize(run_blocks(jobs, list(LABELS), args.blocks, args.iterations, began))
    finally:
        jobs.stop()
        fabric.down()


def contended(args):
    """Computation emulated, so that the network decides; a second job's bulk arrives at the same hosts from four others."""
    fabric = Fabric(args.hosts, 2 * RANKS, args.contended_speed)
    jobs = Jobs(fabric, os.path.join(OUT, "contended"))
    arms = ["nocomm", "endhost", "network"]
    stop = os.path.join(jobs.folder, "stop")
    try:
        workers = [f"h{i}" for i in range(RANKS)]
        start_arms(jobs, arms, ["--pattern", "parameter_server"], ["--width", str(args.contended_width), "--batch", "4", "--emulate", str(args.emulate)], workers)
        for i in range(RANKS):
            jobs.start(f"flood{i}", 2, ["--pattern", "parameter_server"], ["tensorlane.examples.flood", "--mib", "4", "--stop", stop], [f"h{RANKS + i}", f"h{i}"])
        time.sleep(5)  # until the floods flow
        reports = run_blocks(jobs, arms, args.contended_blocks, args.contended_iterations, None)
        result = summarize(reports)
        for arm in result:
            arm["ratio_to_endhost"] = ratio(reports, arm["name"], "endhost")
        return result
    finally:
        jobs.stop()
        fabric.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", choices=["lab", "loopback"], default="lab")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", choices=["alone", "contended"], help="one part of the run")
    parser.add_argument("--pattern", default="ring")
    parser.add_argument("--speed", default="500 Mbit/s")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--contended-speed", default="200 Mbit/s")
    parser.add_argument("--contended-width", type=int, default=256)
    parser.add_argument("--contended-blocks", type=int, default=8)
    parser.add_argument("--contended-iterations", type=int, default=8)
    parser.add_argument("--emulate", type=float, default=0.01)
    args = parser.parse_args()
    began = time.monotonic()
    os.makedirs(OUT, exist_ok=True)
    if args.hosts == "loopback":
        print("on loopback: there are no ports, so network priority cannot show; run as root for the lab")
    result = {"fabric": args.hosts, "arms": [], "contended": []}
    if args.only != "contended":
        result["arms"] = alone(args, began)
        print_table(f"{RANKS} hosts, {'ports of ' + args.speed if args.hosts == 'lab' else 'loopback'}, the fabric to itself", result["arms"])
    if args.hosts == "lab" and args.only != "alone":
        print("\nnow with computation emulated, and bulk of a second job from four other hosts to the same receivers", flush=True)
        result["contended"] = contended(args)
        print_table(f"{RANKS} hosts, ports of {args.contended_speed}, beside another job's bulk, parameter server", result["contended"])
        for arm in result["contended"]:
            low, high = arm["ratio_to_endhost"]["ci95"]
            print(f"{arm['name']:10} iteration over end-host priority's: {arm['ratio_to_endhost']['median']:.3f} (95% interval {low:.3f} to {high:.3f})")
    chart = os.path.join(OUT, "iterations.png")
    draw(chart, result)
    for path in filter(None, {args.json, os.path.join(OUT, "result.json")}):
        with open(path, "w") as file:
            json.dump(result, file, indent=2)
    print(f"\nchart      {chart}\nresults    {os.path.join(OUT, 'result.json')}\ntimelines  {os.path.join(OUT, 'timeline')}/ARM/HOST.json (open in https://ui.perfetto.dev or chrome://tracing)\n"
          f"logs       {OUT}/alone and {OUT}/contended\nmetrics    while a job runs: the address that `tensorlane run` prints; Prometheus reads it")


if __name__ == "__main__":
    sys.exit(main())
