"""A real Prometheus scrapes three daemons under two jobs, and recorded pages of hardware that is not here. It accepts every expression of every dashboard, filled in as
Grafana does, and at least 99 of 100 questions get numbers. Then a daemon dies, and the fleet dashboard says so.

usage: dashboards_live_test.py BUILD"""

import collections
import math
import os
import pathlib
import shutil
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "end_to_end"))
from daemons import BUILD, Daemons, expect, first_port, skip  # noqa: E402

from boards import NAMES, RECORDED, fill, load, needs_hardware, panels, targets, variables  # noqa: E402
from scraping import Prometheus, Recorded  # noqa: E402

HOSTS = ["h0", "h1", "h2"]
CLASSES = ["urgent", "bulk"]
# A name with what regular expressions and links treat as special.
JOBS = {"llm.7b (a|b)": ("262144", "1.0"), "embeddings+": ("4194304", "0.1")}
WARM_SECONDS, ROUNDS = 12, 25
ENOUGH, FEW_EMPTY = 0.99, 0.2  # of all questions; of the rounds, for a single query
NODE = "nics"


def scrape_configs(daemons, pages):
    """One daemon has a label `host` from its scrape, too, as some give it: what the dashboards show must not depend on that."""
    addresses = {host: daemons.status(host)["lane"]["metrics"] for host in HOSTS}
    plain = {"targets": [addresses[host] for host in HOSTS[:2]]}
    named = {"targets": [addresses[HOSTS[2]]], "labels": {"host": HOSTS[2]}}
    other = {"static_configs": [{"targets": [pages.address], "labels": {"instance": NODE}}]}
    return [
        {"job_name": "tensorlane", "static_configs": [plain, named]},
        {"job_name": "node", "metrics_path": "/nics", **other},
        {"job_name": "tensorlane-rdma", "metrics_path": "/rdma", "static_configs": [{"targets": [pages.address], "labels": {"instance": "rdma"}}]},
    ]


def choices(board, turn):
    """What somebody may have chosen: each dashboard is asked with `All`, with several and with single values, in turns."""
    jobs = list(JOBS)
    several = {"host": [".*", HOSTS + ["rdma0"]], "class": [".*", CLASSES], "node": [".*", [NODE]]}
    single = {"host": HOSTS, "job": jobs}
    chosen = {}
    for name, variable in variables(board).items():
        if variable["type"] == "query":
            values = (several if variable["includeAll"] else single)[name]
            chosen[name] = values[turn % len(values)]
    return chosen


def numbers_of(prometheus, panel, target, chosen):
    """The numbers that a panel would show: NaN, the quantile of nothing, is none."""
    expr = fill(target["expr"], chosen)
    if target["instant"]:
        values = [value for _, value in prometheus.now(expr)]
    else:
        values = [value for _, line in prometheus.lately(expr) for value in line]
    return [value for value in values if math.isfinite(value)]


def ask_all(prometheus):
    """Asks every expression in ROUNDS rounds."""
    asked, empty, lines = collections.Counter(), collections.Counter(), 0
    for turn in range(ROUNDS):
        began = time.monotonic()
        for name in NAMES:
            board = load(name)
            chosen = choices(board, turn)
            for panel, target in targets(board):
                place = f"{name}: {panel['title']}: {target['refId']}"
                values = numbers_of(prometheus, panel, target, chosen)
                kind = "recorded" if needs_hardware(target["expr"]) else "daemons"
                asked[kind] += 1
                lines = max(lines, len(values))
                if not values:
                    empty[kind, place, str(chosen)] += 1
        time.sleep(max(0.0, 1 - (time.monotonic() - began)))
    for kind in ("daemons", "recorded"):
        missing = sum(count for (of, _, _), count in empty.items() if of == kind)
        print(f"{kind}: {asked[kind] - missing} of {asked[kind]} questions had numbers")
        expect(asked[kind] - missing >= ENOUGH * asked[kind], f"no answer to: {[key for key in empty if key[0] == kind]}")
    # One query that never has an answer is less than 1 of 100.
    often = collections.Counter()
    for (_, place, _), count in empty.items():
        often[place] += count
    expect(not often or max(often.values()) <= ROUNDS * FEW_EMPTY, f"too often no answer to: {often}")
    print(f"{sum(asked.values())} questions in {ROUNDS} rounds; the longest answer has {lines} numbers")


def answer(prometheus, board, title, ref="A", **chosen):
    """[(labels, value)] of one query, as of now."""
    panel = next(panel for panel in panels(load(board)) if panel["title"] == title)
    target = next(target for target in panel["targets"] if target["refId"] == ref)
    # A rate over more than there is would be too low.
    return prometheus.now(fill(target["expr"], {"__rate_interval": "20s", "host": ".*", "class": ".*", "node": ".*", "job": next(iter(JOBS)), **chosen}))


def value(prometheus, board, title, ref="A", **chosen):
    found = answer(prometheus, board, title, ref, **chosen)
    expect(len(found) == 1, f"{board}: {title}: one number expected: {found}")
    return found[0][1]


def check_answers(prometheus):
    """That the expressions mean what their panels say, where the test knows it."""
    expect(value(prometheus, "fleet", "Up and down") == 4, "three daemons and a recorded one are up")
    expect(value(prometheus, "fleet", "Up and down", "B") == 0, "none is down")
    expect(value(prometheus, "fleet", "Jobs and sessions") == len(JOBS), "as many jobs as were started")
    expect({labels["training_job"] for labels, _ in answer(prometheus, "fleet", "Jobs")} == set(JOBS), "the table lists the jobs")
    expect({labels["host"] for labels, _ in answer(prometheus, "fleet", "Hosts")} == set(HOSTS), "the table lists the hosts by their names")
    for job in JOBS:
        expect(value(prometheus, "job", "Hosts and flows", job=job) == len(HOSTS), f"{job} has ranks on all hosts")
        expect({labels["host"] for labels, _ in answer(prometheus, "job", "Its hosts", job=job)} == set(HOSTS), f"hosts of {job}")
    expect(value(prometheus, "job", "Demoted share") > 0.1, "the urgent job has a limit, and sends more")
    expect(value(prometheus, "job", "Demoted share", job=list(JOBS)[1]) == 0, "the other one has none")
    for ref, what in (("A", "DSCP"), ("B", "PCP"), ("D", "files")):
        expect(value(prometheus, "fabric", "Tags that are wrong", ref) == 0, f"{what}: nothing is wrong")
    rows = answer(prometheus, "fabric", "Tags in force against those asked for")
    expect({labels["class"] for labels, _ in rows} == {*CLASSES, "control"}, f"tags of all classes: {rows}")
    for labels, _ in rows:
        expect(labels["dscp"] in ("-1", labels["asked_dscp"]) and labels["service_level"], f"tags: {labels}")
    paused = {(labels["device"], labels["priority"]): rate for labels, rate in answer(prometheus, "fabric", "Pause received")}
    with open(RECORDED / "node_exporter.prom") as file:
        recorded = dict(line.rsplit(" ", 1) for line in file if not line.startswith("#"))
    expected = {("ens1np0", "3"): "received_prio3_pause", ("ens2f0np0", "3"): "received_pfc_ena_frames_pri3", ("ens3f0", "3"): "received_priority_3_xoff_nic"}
    for key, counter in expected.items():
        grows = float(recorded[f'node_ethtool_{counter}{{device="{key[0]}"}}']) / 100
        expect(0.9 * grows < paused.get(key, 0) < 1.1 * grows, f"{key}: {paused.get(key)} frames a second, recorded {grows}")


def check_failure(prometheus, daemons):
    daemons.children["h2"].kill()
    daemons.children["h2"].wait()
    down = fill("count(up == 0 and on (job, instance) last_over_time(tensorlane_host_info[1d])) or vector(0)", {})
    prometheus.wait_for(down, lambda found: found[0][1] == 1)
    expect(value(prometheus, "fleet", "Up and down", "B") == 1 and value(prometheus, "fleet", "Up and down") == 3, "one daemon is down")
    failed = 'sum(tensorlane_jobs_failed_total)'
    prometheus.wait_for(failed, lambda found: found[0][1] >= 2, seconds=30)
    time.sleep(2)
    expect(value(prometheus, "fleet", "Failed in this time") > 0, "jobs failed")


def main():
    if shutil.which("prometheus") is None:
        skip("needs prometheus, of the Debian package prometheus")
    files = {"/nics": RECORDED / "node_exporter.prom", "/rdma": RECORDED / "rdma_daemon.prom"}
    settings = {"metrics": "127.0.0.1:0", "detection": "2 s", "job_limits": "[{class: urgent, rate: 20 Mbit/s, burst: 1 MiB}]"}
    with Daemons(len(HOSTS), settings=settings, machines=["m", "m", "other"]) as daemons, Recorded(files) as pages:
        seconds = str(WARM_SECONDS + 4 * ROUNDS + 60)
        with Prometheus(daemons.folder, f"127.0.0.1:{first_port() + 40}", scrape_configs(daemons, pages)) as prometheus:
            ranks = [rank for job, (size, urgency) in JOBS.items() for rank in daemons.job(job, [os.path.join(BUILD, "tests", "message"), "loop", size, seconds, urgency])]
            for rank in ranks:
                expect(rank.stdout.readline() == "running\n", "a job did not start")
            prometheus.wait_for("count(tensorlane_host_info)", lambda found: found[0][1] == len(HOSTS) + 1)
            time.sleep(WARM_SECONDS)
            ask_all(prometheus)
            check_answers(prometheus)
            expect(all(rank.poll() is None for rank in ranks), "a job has ended")
            check_failure(prometheus, daemons)


if __name__ == "__main__":
    sys.exit(main())
