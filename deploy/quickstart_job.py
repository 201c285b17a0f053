"""The main job of deploy/quickstart: trains the same model with and without priorities, side by side, in alternating blocks of one run.

Every arm is one `tensorlane run` of tensorlane.examples.digits with daemons of its own; all arms are up at once and take turns, so that what else happens on the
machine happens to all of them."""

import argparse
import json
import os
import random
import re
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
# In the contended parts only: what tags do where no port looks at them.
TAGS_ONLY = "network_fifo"
LABELS_CONTENDED = {**LABELS, TAGS_ONLY: "tensorlane, network priority's tags, FIFO ports"}
FIGURE5_ARMS = ["endhost", "network", TAGS_ONLY]
MODES = {"nocomm": "nocomm", "ddp_gloo": "ddp"}
RUN_OPTIONS = {"nopriority": ["--no-priorities"], "endhost": ["--no-tags"]}


def fail(what, where, fix, status=1):
    print(f"tensorlane: error: {what}: {where}: {fix}", file=sys.stderr)
    sys.exit(status)


class Fabric:
    """Where the hosts are: a lab whose ports can be switched between FIFO and strict, or loopback, which has no ports."""

    def __init__(self, kind, *shape):
        """`shape`: what hosts and links the lab has, in arguments of `tensorlane lab up`."""
        self.lab = f"quick{os.getpid()}" if kind == "lab" else None
        if self.lab:
            subprocess.run([TENSORLANE, "lab", "up", "--name", self.lab, *shape, "--policy", "fifo", "--owner", str(os.getpid())], check=True, stdout=subprocess.DEVNULL)

    def policy(self, policy):
        if self.lab:
            subprocess.run([TENSORLANE, "lab", "policy", policy, "--name", self.lab], check=True, stdout=subprocess.DEVNULL)

    def options(self, on=None):
        if not self.lab:
            return []
        return ["--hosts", "lab", "--lab", self.lab] + (["--on", ",".join(on)] if on else [])

    def on_host(self, host, command):
        return [TENSORLANE, "lab", "exec", host, "--name", self.lab, "--", *command] if self.lab else command

    def down(self):
        if self.lab:
            subprocess.run([TENSORLANE, "lab", "down", "--name", self.lab], check=False, stdout=subprocess.DEVNULL)


class Jobs:
    """The jobs that run now: started together, stopped together whatever happens."""

    def __init__(self, fabric, folder):
        self.fabric, self.folder, self.name, self.children = fabric, folder, os.path.basename(folder), {}
        shutil.rmtree(folder, ignore_errors=True)
        os.makedirs(folder)

    def start(self, name, ranks, options, command, on=None):
        argv = [TENSORLANE, "run", "-n", str(ranks), *self.fabric.options(on), *options, "--", sys.executable, "-m", *command]
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

    def save_metrics(self, arms):
        """What the daemon of each arm's first host says to Prometheus now, in OUT/metrics."""
        folder = os.path.join(OUT, "metrics", self.name)
        os.makedirs(folder, exist_ok=True)
        for arm in arms:
            with open(os.path.join(self.folder, f"{arm}.log")) as log:
                host, url = re.search(r"metrics of (\S+) at (\S+)", log.read()).groups()
            fetch = [sys.executable, "-c", "import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=5).read())", url]
            with open(os.path.join(folder, f"{arm}.txt"), "w") as file:
                subprocess.run(self.fabric.on_host(host, fetch), check=True, stdout=file)

    def stop(self, timeout=20):
        open(os.path.join(self.folder, "stop"), "w").close()
        deadline = time.monotonic() + timeout
        for child in self.children.values():
            try:
                child.wait(timeout=max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                child.send_signal(signal.SIGTERM)
                child.wait()


def digits(folder, *extra):
    return lambda arm: ["tensorlane.examples.digits", "--mode", MODES.get(arm, "tensorlane"), "--blocks", folder, "--arm", arm, *extra]


def start_arms(jobs, arms, ranks, options, command, on=None):
    """`command(arm)`: what each rank of the arm's job executes, after python -m."""
    for arm in arms:
        timeline = []
        if arm not in MODES:
            folder = os.path.join(OUT, "timeline", jobs.name, arm)
            os.makedirs(folder, exist_ok=True)
            timeline = ["--timeline", folder]
        jobs.start(arm, ranks, [*RUN_OPTIONS.get(arm, []), *timeline, *options], command(arm), on)
    for arm in arms:
        jobs.wait_file(os.path.join(jobs.folder, f"{arm}.ready"), 300)


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
    jobs.save_metrics(arm for arm in arms if arm not in MODES)
    return reports


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def summarize(reports):
    """One entry per arm. The first iteration of a block meets cold caches and is left out. Scaling efficiency where there is an arm without communication; loss and
    accuracy where something is trained."""
    arms = []
    for arm, blocks in reports.items():
        times = [t for r in blocks for t in r["times"][1:]]
        entry = {"name": arm, "iteration_s_median": statistics.median(times), "iteration_s_p99": percentile(times, 0.99)}
        if "nocomm" in reports:
            entry["scaling_efficiency"] = statistics.median(t for r in reports["nocomm"] for t in r["times"][1:]) / entry["iteration_s_median"]
        if "loss" in blocks[-1]:
            entry |= {"final_loss": blocks[-1]["loss"], "accuracy": blocks[-1]["accuracy"]}
        arms.append(entry)
    return arms


def compare(reports):
    """As summarize(), with every arm's iteration over end-host priority's."""
    return [{**arm, "ratio_to_endhost": ratio(reports, arm["name"], "endhost")} for arm in summarize(reports)]


def ratio(reports, arm, base):
    """Median over paired blocks of the arm's median iteration over the base's, with the 95% interval by bootstrap (seeded)."""
    pairs = [statistics.median(a["times"][1:]) / statistics.median(b["times"][1:]) for a, b in zip(reports[arm], reports[base])]
    draw = random.Random(2)
    medians = sorted(statistics.median(draw.choices(pairs, k=len(pairs))) for _ in range(2000))
    return {"median": statistics.median(pairs), "ci95": [medians[50], medians[1949]]}


def print_table(title, arms, ports=True):
    """`ports`: there are some, so that their policy is worth a word."""
    compared = any("ratio_to_endhost" in arm for arm in arms)
    print(f"\n{title}\n{'':48}{'median':>10}{'p99':>10}{'scaling':>9}{'loss':>8}{'accuracy':>10}{'   over end-host (95% interval)' if compared else ''}")
    for arm in arms:
        label = LABELS_CONTENDED[arm["name"]]
        line = f"{label if ports else label.rsplit(', ', 1)[0]:48}{arm['iteration_s_median'] * 1e3:7.1f} ms{arm['iteration_s_p99'] * 1e3:7.1f} ms"
        line += f"{arm['scaling_efficiency']:9.1%}" if "scaling_efficiency" in arm else f"{'':9}"
        line += f"{arm['final_loss']:8.3f}{arm['accuracy']:10.1%}" if "final_loss" in arm else f"{'':18}"
        if compared:
            low, high = arm["ratio_to_endhost"]["ci95"]
            line += f"   {arm['ratio_to_endhost']['median']:.3f} ({low:.3f} to {high:.3f})"
        print(line.rstrip())


def draw(path, result):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    parts = [("alone", result["arms"]), ("beside another job's bulk", result["contended"]), ("figure 5's placement", result["figure5"])]
    parts = [part for part in parts if part[1]]
    figure, axes = pyplot.subplots(1, len(parts), figsize=(6 * len(parts), 4), squeeze=False)
    for axis, (title, arms) in zip(axes[0], parts):
        axis.barh([a["name"] for a in arms], [a["iteration_s_median"] * 1e3 for a in arms], color="#4477aa")
        axis.invert_yaxis()
        axis.set_xlabel("median iteration, ms")
        axis.set_title(title)
        for i, arm in enumerate(arms):
            axis.text(arm["iteration_s_median"] * 1e3, i, f" {arm['scaling_efficiency']:.0%}" if "scaling_efficiency" in arm else "", va="center")
    figure.tight_layout()
    figure.savefig(path)


def alone(args, began):
    """The arms with the fabric to themselves."""
    fabric = Fabric(args.hosts, "--hosts", str(RANKS), "--speed", args.speed)
    jobs = Jobs(fabric, os.path.join(OUT, "alone"))
    try:
        start_arms(jobs, list(LABELS), RANKS, ["--pattern", args.pattern], digits(jobs.folder, "--width", str(args.width), "--batch", str(args.batch)))
        return summarize(run_blocks(jobs, list(LABELS), args.blocks, args.iterations, began))
    finally:
        jobs.stop()
        fabric.down()


def contended(args):
    """Computation emulated, so that the network decides; a second job's bulk arrives at the same hosts from four others."""
    fabric = Fabric("lab", "--hosts", str(2 * RANKS), "--speed", args.contended_speed)
    jobs = Jobs(fabric, os.path.join(OUT, "contended"))
    stop = os.path.join(jobs.folder, "stop")
    try:
        command = digits(jobs.folder, "--width", str(args.contended_width), "--batch", "4", "--emulate", str(args.emulate))
        start_arms(jobs, args.contended_arms, RANKS, ["--pattern", "parameter_server"], command, [f"h{i}" for i in range(RANKS)])
        for i in range(RANKS):
            jobs.start(f"flood{i}", 2, ["--pattern", "parameter_server"], ["tensorlane.examples.flood", "--mib", "4", "--stop", stop], [f"h{RANKS + i}", f"h{i}"])
        time.sleep(5)  # until the floods flow
        return compare(run_blocks(jobs, args.contended_arms, args.contended_blocks, args.contended_iterations, None))
    finally:
        jobs.stop()
        fabric.down()


def figure5(args):
    """One worker, two servers (tensorlane.examples.figure5). The worker's port is the slowest: the figure shows one worker of many, which share the servers' ports."""
    path = os.path.join(OUT, "figure5.yaml")
    with open(path, "w") as file:
        file.write("hosts:\n" + "".join(f"- {{name: h{i}, addresses: {{tcp: 10.77.0.{i + 1}}}}}\n" for i in range(3)) + "switches:\n- {name: s0}\nlinks:\n")
        for i, speed in enumerate((args.contended_speed, *[args.server_speed] * 2)):
            file.write(f"- {{from: h{i}, to: s0, speed: {speed}}}\n")
    fabric = Fabric("lab", "--config", path)
    jobs = Jobs(fabric, os.path.join(OUT, "figure5"))
    try:
        start_arms(jobs, FIGURE5_ARMS, 3, ["--pattern", "parameter_server"], lambda arm: ["tensorlane.examples.figure5", "--blocks", jobs.folder, "--arm", arm])
        return compare(run_blocks(jobs, FIGURE5_ARMS, args.contended_blocks, args.contended_iterations, None))
    finally:
        jobs.stop()
        fabric.down()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", choices=["lab", "loopback"], default="lab")
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--only", choices=["alone", "contended", "figure5"], action="append", help="this part of the run; may be given several times (default: all)")
    parser.add_argument("--pattern", default="ring")
    parser.add_argument("--speed", default="500 Mbit/s")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--batch", type=int, default=96)
    parser.add_argument("--blocks", type=int, default=5)
    parser.add_argument("--iterations", type=int, default=15)
    parser.add_argument("--contended-speed", default="200 Mbit/s")
    parser.add_argument("--contended-width", type=int, default=256)
    parser.add_argument("--server-speed", default="800 Mbit/s", help="of the servers' links in figure 5's placement")
    parser.add_argument("--contended-arms", type=lambda text: text.split(","), default=list(LABELS_CONTENDED), help="endhost must be among them")
    parser.add_argument("--contended-blocks", type=int, default=6)
    parser.add_argument("--contended-iterations", type=int, default=8)
    parser.add_argument("--emulate", type=float, default=0.01)
    args = parser.parse_args()
    began = time.monotonic()
    os.makedirs(OUT, exist_ok=True)
    if args.hosts == "loopback":
        print("on loopback: there are no ports, so network priority cannot show; run as root for the lab")
    parts = args.only or (["alone", "contended", "figure5"] if args.hosts == "lab" else ["alone"])
    if args.hosts == "loopback" and parts != ["alone"]:
        fail("there are no ports on loopback, so nothing can be shown there", f"--only {parts[0]}", "use --hosts lab as root, or --only alone", 2)
    result = {"fabric": args.hosts, "arms": [], "contended": [], "figure5": []}
    if "alone" in parts:
        result["arms"] = alone(args, began)
        print_table(f"{RANKS} hosts, {'ports of ' + args.speed if args.hosts == 'lab' else 'loopback'}, the fabric to itself", result["arms"], args.hosts == "lab")
    if "contended" in parts:
        print("\nnow with computation emulated, and bulk of a second job from four other hosts to the same receivers", flush=True)
        result["contended"] = contended(args)
        print_table(f"{RANKS} hosts, ports of {args.contended_speed}, beside another job's bulk, parameter server", result["contended"])
    if "figure5" in parts:
        print("\nnow the placement of Geryon's figure 5: an urgent and a bulky parameter from two servers to one worker", flush=True)
        result["figure5"] = figure5(args)
        print_table(f"a worker at {args.contended_speed}, two servers at {args.server_speed}", result["figure5"])
    chart = os.path.join(OUT, "iterations.png")
    draw(chart, result)
    for path in filter(None, {args.json, os.path.join(OUT, "result.json")}):
        with open(path, "w") as file:
            json.dump(result, file, indent=2)
    print(f"\nchart      {chart}\nresults    {os.path.join(OUT, 'result.json')}\n"
          f"timelines  {os.path.join(OUT, 'timeline')}/PART/ARM/HOST.json (open in https://ui.perfetto.dev or chrome://tracing)\n"
          f"metrics    {os.path.join(OUT, 'metrics')}/PART/ARM.txt, as Prometheus reads them from the address that `tensorlane run` prints while a job runs\n"
          f"logs       {OUT}/PART/ARM.log\nparts      {', '.join(parts)}")


if __name__ == "__main__":
    sys.exit(main())
