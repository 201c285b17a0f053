"""The cost model's choice of pattern in the lab: four hosts with ports of 100 Mbit/s, allreduces of 4 KiB to 4 MiB, every pattern and `auto` in turns of one job. What
`auto` chooses takes at most 1.1 times the best pattern's time.

The ports are slow, so that the network decides and not the few cores that all hosts of a lab share. What else runs on the machine only ever makes a round longer: a
pattern's time is the lower quartile of its rounds, and a size at which the choice looks bad is measured again, with twice the rounds, up to three times. A bad choice looks
bad each time.

The model is measured first, as LogP's is: an allreduce of 64 bytes at one owner takes two latencies on two hosts, and two message costs more for every further host; and at one
size, which is not among those that are judged, what many senders to one host lose against a ring. On few cores the hosts of a lab share them, so a message costs what it costs
with all of them at work."""

import collections
import statistics
import sys
import time

from daemons import BUILD, Daemons, Lab, expect, outputs, require_namespaces

PATTERNS = f"{BUILD}/tests/patterns"
NUMBERS = {"ring": 1, "parameter_server": 2, "halving_doubling": 3, "tree": 4, "auto": 255}  # tl_pattern_t
FIXED = [p for p in NUMBERS if p != "auto"]
HOSTS, RATE = 4, 100
SIZES = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20]
INCAST_SIZE = 512 << 10
ROUNDS, COUNT, ATTEMPTS = 8, 10, 3
WORSE = 1.1
# A prediction is off by less than this from 256 KiB on. The lab's ports let 32 KiB pass at once, which makes them faster than their rate for what is short.
MISJUDGED, JUDGED_FROM = 2.0, 256 << 10


def typical(times):
    return statistics.quantiles(times, n=4)[0]


def measure(daemons, job, patterns, sizes, rounds, hosts=None, meanwhile=lambda: None):
    """{(bytes, pattern): [median seconds of each round]}, from when the last rank has posted until the last has its result. Calls `meanwhile` in the job's time."""
    numbers = ",".join(str(NUMBERS[p]) for p in patterns)
    ranks = daemons.job(job, [PATTERNS, str(rounds), str(COUNT), numbers, *map(str, sizes)], hosts=hosts)
    meanwhile()
    results = outputs(ranks, 200)
    expect(all(status == 0 for _, status in results), f"the job failed: {results}")
    times = collections.defaultdict(list)
    for lines in zip(*(text.splitlines() for text, _ in results)):
        ranks = [line.split() for line in lines]
        expect(len({tuple(r[:3]) for r in ranks}) == 1, f"ranks are not at the same allreduce: {lines}")
        times[tuple(map(int, ranks[0][:3]))].append(max(float(r[4]) for r in ranks) - max(float(r[3]) for r in ranks))
    return {(size, p): [statistics.median(times[size, NUMBERS[p], r]) for r in range(rounds)] for size in sizes for p in patterns}


def choices_of(daemons, job, sizes):
    """By size, what the status says of the job, which has begun; it says it as long as the job lives."""
    end = time.monotonic() + 20
    while True:
        lane = daemons.status("h0")["lane"]
        found = {c["bytes"]: c for c in lane["pattern_choices"] if c["operation"] == "allreduce" and c["job"] == job}
        if lane["pattern"] == "auto" and set(found) == set(sizes):
            return found
        expect(time.monotonic() < end, f"the status does not say what was chosen: {lane}")
        time.sleep(0.05)


def calibrate(lab):
    """The value of network_model in daemon.yaml."""
    with Daemons(HOSTS, lab=lab) as daemons:
        two, four = (typical(measure(daemons, f"{hosts}hosts", ["parameter_server"], [64], 20, daemons.names[:hosts])[64, "parameter_server"]) for hosts in (2, HOSTS))
        long = measure(daemons, "long", ["ring", "parameter_server"], [INCAST_SIZE], 12)
    latency, message = two / 2, max(1e-6, (four - two) / 2 / (HOSTS - 2))
    lost = typical(long[INCAST_SIZE, "parameter_server"]) / typical(long[INCAST_SIZE, "ring"]) - 1
    incast = max(0.0, lost / (1 - 1 / (HOSTS - 1)))
    print(f"64 bytes: {two * 1e6:.0f} us on 2 hosts, {four * 1e6:.0f} us on {HOSTS}: latency {latency * 1e6:.0f} us, message cost {message * 1e6:.0f} us; incast {incast:.2f}", flush=True)
    return f"{{latency: {latency * 1e6:.0f} us, message_cost: {message * 1e6:.0f} us, incast_percent: {incast * 100:.0f}}}"


def judge(size, times, choice):
    """What is wrong with the choice for a size; nothing when it is as good as it should be."""
    took = {p: typical(times[size, p]) for p in NUMBERS}
    best = min(FIXED, key=took.get)
    predicted, chosen = choice["predicted_s"], choice["pattern"]
    ratio = min(took["auto"], took[chosen]) / took[best]  # `auto` runs what the pattern that it chose runs
    print(f"{size >> 10:>6} KiB: chose {chosen}: {took['auto'] * 1e3:.2f} ms as auto, {ratio:.2f} of the best, {best}. Measured (predicted): "
          + ", ".join(f"{p} {took[p] * 1e3:.2f} ({predicted[p] * 1e3:.2f})" for p in FIXED), flush=True)
    if ratio > WORSE:
        return f"{size} bytes: {chosen} takes {ratio:.2f} times as long as {best}"
    if size >= JUDGED_FROM and not 1 / MISJUDGED < predicted[chosen] / took["auto"] < MISJUDGED:
        return f"{size} bytes: {predicted[chosen] * 1e3:.2f} ms were predicted for {chosen}, which takes {took['auto'] * 1e3:.2f} ms"
    return None


def main():
    require_namespaces()
    with Lab(hosts=HOSTS, speed=f"{RATE} Mbit/s") as lab, Daemons(HOSTS, lab=lab, settings={"pattern": "auto", "network_model": calibrate(lab)}) as daemons:
        sizes = SIZES
        for attempt in range(ATTEMPTS):
            job = f"patterns{attempt}"
            choices = {}
            times = measure(daemons, job, list(NUMBERS), sizes, ROUNDS << min(attempt, 1), meanwhile=lambda: choices.update(choices_of(daemons, job, sizes)))
            for size in sizes:
                expect(f"of {size} bytes of float32 on {HOSTS} hosts in class" in daemons.log("h0"), f"the log does not say what was chosen for {size} bytes")
            failures = {size: wrong for size in sizes if (wrong := judge(size, times, choices[size]))}
            if not failures:
                return
            sizes = list(failures)
            print(f"not good enough, or the machine was disturbed: {'; '.join(failures.values())}", flush=True)
        raise AssertionError("; ".join(failures.values()))


if __name__ == "__main__":
    sys.exit(main())
