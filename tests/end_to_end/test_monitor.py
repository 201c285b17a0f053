"""A real Prometheus scrapes two daemons during small allreduces, and its answers are right: bytes per class, queue wait, completion latency, a late tensor, CPU time,
tags in force. promtool finds nothing wrong with the page, `tensorlane status` and the timeline tell the same, and daemon/telemetry/README.md lists what there is."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request

from daemons import BIN, BUILD, Daemons, expect, first_port, outputs, skip

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
sys.path.append(os.path.join(ROOT, "tests", "monitor"))

import scraping  # noqa: E402
SCRAPE_SECONDS = 0.2
URGENT_BYTES, BULK_BYTES = 1 << 20, 8 << 20
ROUNDS = 2  # of `message pause`
LATE_SECONDS = 3.0
TAGS = {"urgent": (43, 5), "bulk": (27, 3), "control": (51, 6)}
HOSTS = ["h0", "h1"]


class Prometheus(scraping.Prometheus):
    """With the daemons of a test as its targets: with Prometheus(folder, {"h0": "127.0.0.1:9400"}) as prometheus: ..."""

    def __init__(self, folder, targets):
        statics = [{"targets": [address], "labels": {"host": host}} for host, address in targets.items()]
        scraped = [{"job_name": "tensorlane", "static_configs": statics}]
        super().__init__(folder, f"127.0.0.1:{first_port() + 40}", scraped, f"{round(SCRAPE_SECONDS * 1000)}ms")

    def query(self, text):
        """{labels but the name and instance, sorted: value}; nothing while the server does not answer."""
        url = f"http://{self.address}/api/v1/query?" + urllib.parse.urlencode({"query": text})
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body = json.load(answer)
        except OSError:
            return {}
        expect(body["status"] == "success", f"{text}: {body}")
        ours = {"host", "class", "peer"}
        return {tuple(v for k, v in sorted(r["metric"].items()) if k in ours): float(r["value"][1]) for r in body["data"]["result"]}

    def wait_for(self, text, good, seconds=10):
        """The first answer to the query that is good."""
        deadline = time.monotonic() + seconds
        while not good(answer := self.query(text)):
            expect(time.monotonic() < deadline, f"Prometheus answers {answer} to: {text}")
            expect(self.child.poll() is None, "Prometheus has ended")
            time.sleep(SCRAPE_SECONDS / 2)
        return answer


def page(address):
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=5) as answer:
        return answer.read().decode()


def check_page(text):
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True, timeout=10)
    expect(done.returncode == 0, f"promtool check metrics: {done.stdout}{done.stderr}")
    # What the exposing library says of itself is not ours to describe.
    there = {name for name in re.findall(r"^# TYPE (\w+) ", text, re.M) if name.startswith("tensorlane_")}
    with open(os.path.join(ROOT, "daemon", "telemetry", "README.md")) as file:
        listed = set(re.findall(r"^\| `(tensorlane_\w+)", file.read(), re.M))
    expect(there == listed, f"daemon/telemetry/README.md: lists too much: {sorted(listed - there)}; too little: {sorted(there - listed)}")


def check_status(daemons):
    """While the jobs run."""
    lane = daemons.status("h0")["lane"]
    flows = {(f["job"], f["peer"], f["class"]): (f["dscp"], f["pcp"]) for f in lane["flows"]}
    expect(flows == {(job, "h1", cls): tag for job in ("first", "second") for cls, tag in TAGS.items()}, f"tags in force: {flows}")
    expect(lane["sent_slices"] > 0 and lane["cpu_ns_per_slice"] > 0, f"CPU per slice: {lane}")
    text = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--socket", daemons.socket("h0")], capture_output=True, text=True, check=True).stdout
    for wanted in (r"CPU \d+\.\d\d s, \d+ ns per slice of \d+", r"flow to h1 +class urgent +DSCP 43 PCP 5", r"flow to h1 +class control +DSCP 51 PCP 6"):
        expect(re.search(wanted, text), f"tensorlane status does not say {wanted!r}: {text}")


def check_answers(prometheus):
    """When all has been sent. A ring of two moves a tensor's bytes once in each direction, per round."""
    sent = {(cls, host): ROUNDS * size for host in HOSTS for cls, size in (("urgent", URGENT_BYTES), ("bulk", BULK_BYTES))}
    data = 'class!="control"'
    prometheus.wait_for("tensorlane_jobs", lambda answer: answer == {("h0",): 0, ("h1",): 0})
    for direction in ("sent", "received"):
        prometheus.wait_for(f"tensorlane_{direction}_bytes_total{{{data}}}", lambda answer: answer == sent)
    operations = prometheus.query("tensorlane_sent_operations_total")
    expect(len(operations) == 6 and all(n > 0 for n in operations.values()), f"operations sent: {operations}")
    expect(prometheus.query("tensorlane_queue_wait_seconds_count") == operations, "every operation should have a queue wait")
    waits = prometheus.query('tensorlane_queue_wait_seconds_sum{class="bulk"}')
    expect(all(wait > 0 for wait in waits.values()), f"8 MiB never waited for their window: {waits}")
    quantiles = prometheus.query(f"histogram_quantile(0.99, tensorlane_queue_wait_seconds_bucket{{{data}}})")
    expect(len(quantiles) == 4 and all(0 < q < 10 for q in quantiles.values()), f"queue wait, 99th percentile: {quantiles}")
    expect(set(prometheus.query(f"tensorlane_completion_seconds_count{{{data}}}").values()) == {ROUNDS}, "each tensor completes twice")
    latency = prometheus.query('tensorlane_completion_seconds_sum{class="bulk"}')
    expect(latency["bulk", "h0"] - LATE_SECONDS / 2 > latency["bulk", "h1"] > 0, f"h0 waits for the late rank of h1: {latency}")
    late = prometheus.query("tensorlane_late_reports_total")
    expect(late[("h1",)] >= 1, f"the late rank is on h1: {late}")
    for cpu in ("tensorlane_lane_cpu_seconds_total", "tensorlane_cpu_seconds_total", "tensorlane_lane_cpu_seconds_total / tensorlane_sent_slices_total"):
        answer = prometheus.query(cpu)
        expect(len(answer) == 2 and all(0 < seconds < 60 for seconds in answer.values()), f"{cpu}: {answer}")
    for name, index in (("dscp", 0), ("pcp", 1)):
        answer = prometheus.query(f'max by (host, class, peer) (max_over_time(tensorlane_flow_{name}[1m]))')
        wanted = {(cls, host, peer): tag[index] for cls, tag in TAGS.items() for host, peer in zip(HOSTS, reversed(HOSTS))}
        expect(answer == wanted, f"{name} of the flows: {answer}")


def check_timeline(path):
    """After the daemon has closed it."""
    with open(path) as file:
        spans = [span for span in json.load(file) if span.get("name") == "QUEUE"]
    for cls, size in (("urgent", URGENT_BYTES), ("bulk", BULK_BYTES)):
        moved = sum(s["args"]["bytes"] for s in spans if s["args"]["class"] == cls)
        expect(moved == ROUNDS * size, f"QUEUE spans of class {cls} tell of {moved} bytes, expected {ROUNDS * size}")
    expect(any(s["dur"] > 0 for s in spans if s["args"]["class"] == "bulk"), "no QUEUE span of class bulk has a length")


def main():
    for program in ("prometheus", "promtool"):
        if shutil.which(program) is None:
            skip(f"needs {program}, of the Debian package prometheus")
    with Daemons(2, settings={"metrics": "127.0.0.1:0", "timeline": "{folder}/{host}.json", "late_after": "1 s"}) as daemons:
        targets = {host: daemons.status(host)["lane"]["metrics"] for host in HOSTS}
        with Prometheus(daemons.folder, targets) as prometheus:
            prometheus.wait_for("up", lambda answer: answer == {("h0",): 1, ("h1",): 1})
            message = [f"{BUILD}/tests/message", "pause"]
            ranks = daemons.job("first", message + [str(URGENT_BYTES), str(LATE_SECONDS), "0.9"])
            ranks += [daemons.rank("second", rank, 2, host, message + [str(BULK_BYTES), str(rank * LATE_SECONDS), "0.1"])
                      for rank, host in enumerate(HOSTS)]
            for rank in ranks:
                expect(rank.stdout.readline() == "pausing\n", "a job did not start")
            time.sleep(0.3)  # the lane publishes its counts ten times a second
            check_status(daemons)
            check_page(page(targets["h0"]))
            for text, status in outputs(ranks, timeout=20):
                expect(status == 0, f"a rank failed: {text}")
            check_answers(prometheus)
            expect(prometheus.query("up") == {("h0",): 1, ("h1",): 1}, "a daemon is down")
        daemons.children["h0"].terminate()
        daemons.children["h0"].wait()
        check_timeline(os.path.join(daemons.folder, "h0.json"))


if __name__ == "__main__":
    sys.exit(main())
