"""What watching costs: the time of an allreduce under daemons that keep spans, serve metrics that are read once a second, and probe each other's marks every second, beside
daemons that do none of it. Both sets take turns, in pairs of blocks whose order is drawn from a seed; while one works, the processes of the other are stopped. Every sum is
checked. A host's daemon and rank have a processor of their own, or the kernel's choice of where they run would be most of the difference. Daemons are started anew several times,
because where their memory lies is luck that stays. Prints the median of the pairs' ratios, of the time of an operation and of the daemons' processor time, each with an interval of
95 % (bootstrap over starts and pairs). Standard library only.

    tests/bench/watching.py BUILD [--hosts N] [--starts N] [--pairs N] [--bytes N] [--operations N] [--seed N] [--json FILE]
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import sys
import threading
import time
import urllib.request

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "end_to_end"))
from daemons import BUILD, Daemons, expect, first_port, outputs, wait_for  # noqa: E402

WATCHED = {"metrics": "{address}:9400", "probe_marks": "1 s"}
ALONE = {"spans": "off", "probe_marks": "off"}
SAMPLES = 10_000  # of the bootstrap


def send(daemons, number):
    for name in daemons.names:
        os.kill(daemons.pid(name), number)


def pin(pid, host):
    """All threads that the process has, to a processor of the host's."""
    processors = sorted(os.sched_getaffinity(0))
    for thread in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread), {processors[host % len(processors)]})


@contextlib.contextmanager
def scraped(daemons):
    """Prometheus would read the metrics every 15 s or so; here it is once a second."""
    done, pages = threading.Event(), []

    def scrape():
        while not done.wait(1 if pages else 0.1):
            for name in daemons.names:
                with urllib.request.urlopen(f"http://{daemons.address(name)}:9400/metrics", timeout=5) as page:
                    pages.append(len(page.read()))
    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    expect(pages and min(pages) > 1000, f"the metrics were not read: {pages}")


def processor_seconds(daemons):
    """Of all daemons' threads, by the scheduler."""
    total = 0
    for name in daemons.names:
        for thread in os.listdir(f"/proc/{daemons.pid(name)}/task"):
            with open(f"/proc/{daemons.pid(name)}/task/{thread}/schedstat") as file:
                total += int(file.read().split()[0])
    return total * 1e-9


def block(daemons, job, options):
    """Median seconds of an operation, of the slowest rank; and the daemons' processor time of the block."""
    before = processor_seconds(daemons)
    children = daemons.job(job, [f"{BUILD}/tests/message", "sum", str(options.bytes), str(options.operations), "0.5"])
    for host, child in enumerate(children):
        pin(child.pid, host)
    ranks = outputs(children, 120)
    expect(all(status == 0 for _, status in ranks), ranks)
    expect(len({text.split()[1] for text, _ in ranks}) == 1, f"unlike sums: {ranks}")
    return max(float(text.split()[0]) for text, _ in ranks), processor_seconds(daemons) - before


def interval(starts, seed):
    """Of the median of all pairs: whole starts are drawn, and pairs of each."""
    draw = random.Random(seed)
    medians = sorted(statistics.median(ratio for start in draw.choices(starts, k=len(starts)) for ratio in draw.choices(start, k=len(start))) for _ in range(SAMPLES))
    return medians[int(0.025 * SAMPLES)], medians[int(0.975 * SAMPLES)]


def measure(watched, alone, draw, options):
    """Of each pair of blocks (the first one warms up): what each took."""
    pairs = []
    for daemons in (watched, alone):
        for host, name in enumerate(daemons.names):
            pin(daemons.pid(name), host)
    send(watched, signal.SIGSTOP)
    send(alone, signal.SIGSTOP)
    for pair in range(options.pairs + 1):
        took = {}
        for name, daemons in draw.sample([("watched", watched), ("alone", alone)], 2):
            send(daemons, signal.SIGCONT)
            with scraped(daemons) if name == "watched" else contextlib.nullcontext():
                took[name] = block(daemons, f"{name}{pair}", options)
            send(daemons, signal.SIGSTOP)
        pairs.append(took)
    return pairs[1:]


def measure_once(draw, options):
    with Daemons(options.hosts, settings=WATCHED) as watched, Daemons(options.hosts, settings=ALONE, network=1, port=first_port() + 25) as alone:
        try:
            pairs = measure(watched, alone, draw, options)
        finally:
            for daemons in (watched, alone):
                send(daemons, signal.SIGCONT)
        # A run of few operations may be over before the first probes are answered.
        wait_for(lambda: all(counts["kept"] > 0 for counts in watched.status("h0")["marks"]["classes"].values()), lambda: watched.status("h0")["marks"])
    return pairs


def report(starts, options):
    for name in ("watched", "alone"):
        seconds = sorted(pair[name][0] for pairs in starts for pair in pairs)
        print(f"{name}: median {statistics.median(seconds) * 1e3:.3f} ms, p99 {seconds[int(0.99 * len(seconds))] * 1e3:.3f} ms of {len(seconds)} blocks")
    said = {}
    for which, what in ((0, "time"), (1, "processor time of daemons")):
        ratios = [[pair["watched"][which] / pair["alone"][which] for pair in pairs] for pairs in starts]
        every = [ratio for start in ratios for ratio in start]
        low, high = interval(ratios, options.seed)
        print(f"{what}, watched / alone: {statistics.median(every):.4f} ({low:.4f} to {high:.4f}), {len(every)} pairs in {len(starts)} starts")
        said[what] = {"ratio": statistics.median(every), "low": low, "high": high, "ratios": ratios}
    return said


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, default in (("--hosts", 2), ("--starts", 4), ("--pairs", 10), ("--bytes", 1 << 20), ("--operations", 400), ("--seed", 1)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--json")
    options = parser.parse_args(sys.argv[2:])
    draw, starts = random.Random(options.seed), []
    for start in range(options.starts):
        if sys.stderr.isatty():
            print(f"start {start + 1} of {options.starts}", file=sys.stderr)
        starts.append(measure_once(draw, options))
    said = report(starts, options)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(said, file)


if __name__ == "__main__":
    main()
