"""A real Prometheus, with the rules of monitor/alerts, scrapes three daemons under two jobs, and counters of NICs that are made up. Every recording rule gives series, and no
alert but the watchdog fires. Then a daemon is killed: the alert that a daemon is down names its host, and no other one fires but that jobs fail.
The rules are the real ones with shorter times: windows of 5 minutes have 5 s here, longer ones 10 s, and every `for` is 2 s."""

import http.server
import json
import os
import re
import shutil
import sys
import threading
import time
import urllib.parse
import urllib.request

from daemons import BUILD, Daemons, expect, skip, wait_for
from test_monitor import Prometheus

ALERTS = os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), "monitor", "alerts")
FILES = ["tensorlane.rules.yaml", "tensorlane.alerts.yaml"]
HOSTS = ["h0", "h1", "h2"]
JOBS = {"small": ("65536", "0.9"), "large": ("4194304", "0.1")}
FABRIC = "lab"
SHORT, LONG, FOR, LOOK = "5s", "10s", "2s", 10
AWAITED = {"Watchdog", "TensorlaneDaemonDown"}
AFTERWARDS = AWAITED | {"TensorlaneJobsFail"}  # both jobs fail


class Nics(http.server.BaseHTTPRequestHandler):
    """A node_exporter of a healthy host: packets come, and nothing is paused, dropped or marked."""

    began = time.monotonic()

    def do_GET(self):
        packets = int((time.monotonic() - self.began) * 1000)
        still = [f"node_ethtool_{way}_prio{priority}_pause_duration" for way in ("received", "transmitted") for priority in range(8)]
        still += [f"node_ethtool_{way}_discards_phy" for way in ("received", "transmitted")] + ["node_ethtool_transmitted_pause_storm_error_events"]
        lines = [f'{name}{{device="eth0"}} 7' for name in still]
        port = '{device="mlx5_0",port="1"}'
        lines += [f"node_infiniband_port_discards_{way}_total{port} 7" for way in ("received", "transmitted")]
        lines += [f"node_infiniband_np_{name}_total{port} 7" for name in ("cnp_packets_sent", "ecn_marked_roce_packets_received")]
        lines += [f"node_infiniband_port_packets_received_total{port} {packets}", "node_memory_MemAvailable_bytes 5e9", "node_memory_MemTotal_bytes 1e10"]
        page = "".join(line + "\n" for line in lines).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, *_):
        pass


def shortened(text):
    text = re.sub(r"^(\s+for:) \w+$", rf"\1 {FOR}", text, flags=re.M)
    text = re.sub(r"\[5m\]", f"[{SHORT}]", text)
    text = re.sub(r"\[\d+m\]", f"[{LONG}]", text)
    return re.sub(r"offset 10m", f"offset {LONG}", re.sub(r"offset 5m", f"offset {SHORT}", text))


class Watching(Prometheus):
    """The server of test_monitor.py, with the rules and the made up NICs."""

    def __init__(self, folder, targets, nics):
        super().__init__(folder, targets)
        with open(self.config) as file:
            config = json.load(file)
        config["global"]["evaluation_interval"] = "500ms"
        config["rule_files"] = FILES
        for target in config["scrape_configs"][0]["static_configs"]:
            target["labels"]["fabric"] = FABRIC
        config["scrape_configs"].append({"job_name": "node", "static_configs": [{"targets": [nics], "labels": {"host": "h0", "fabric": FABRIC}}]})
        with open(self.config, "w") as file:
            json.dump(config, file)
        self.recorded = []
        for name in FILES:
            with open(os.path.join(ALERTS, name)) as file:
                text = file.read()
            self.recorded += re.findall(r"record: \"?([\w:]+)", text)
            with open(os.path.join(folder, name), "w") as file:
                file.write(shortened(text))

    def ask(self, what, **parameters):
        url = f"http://{self.address}/api/v1/{what}?" + urllib.parse.urlencode(parameters)
        with urllib.request.urlopen(url, timeout=5) as answer:
            return json.load(answer)["data"]

    def without_series(self):
        """Recording rules that have given nothing lately."""
        there = self.ask("query", query='count by (__name__) ({__name__=~".+:.+:.+"})')["result"]
        return sorted(set(self.recorded) - {series["metric"]["__name__"] for series in there})

    def fired(self, seconds):
        """{alert: hosts} of the last seconds."""
        found = {}
        for series in self.ask("query", query=f'count_over_time(ALERTS{{alertstate="firing"}}[{seconds}s])')["result"]:
            found.setdefault(series["metric"]["alertname"], set()).add(series["metric"].get("host"))
        return found


def check_healthy(prometheus):
    expect(len(prometheus.recorded) > 30, f"recording rules: {prometheus.recorded}")
    unhealthy = [rule for group in prometheus.ask("rules")["groups"] for rule in group["rules"] if rule["health"] == "err"]
    expect(not unhealthy, f"rules that cannot be evaluated: {unhealthy}")
    wait_for(lambda: not prometheus.without_series(), lambda: f"recording rules without series: {prometheus.without_series()}", 30)
    time.sleep(LOOK)
    expect(prometheus.without_series() == [], f"recording rules without series: {prometheus.without_series()}")
    fired = prometheus.fired(LOOK)
    expect(set(fired) == {"Watchdog"}, f"alerts under healthy jobs: {fired}")


def check_killed(prometheus, host):
    def all_fired():
        alerts = prometheus.fired(2)
        return alerts if AWAITED <= set(alerts) else None
    fired = wait_for(all_fired, lambda: f"alerts after the kill: {prometheus.fired(2)}")
    expect(fired["TensorlaneDaemonDown"] == {host}, f"the daemon of {host} is down: {fired}")
    alerts = [alert for alert in prometheus.ask("alerts")["alerts"] if alert["labels"]["alertname"] == "TensorlaneDaemonDown"]
    expect(len(alerts) == 1 and host in alerts[0]["annotations"]["summary"] and FABRIC in alerts[0]["annotations"]["description"], f"what it says: {alerts}")
    time.sleep(LOOK)
    fired = prometheus.fired(LOOK)
    expect(set(fired) <= AFTERWARDS and fired["TensorlaneDaemonDown"] == {host}, f"alerts after the daemon of {host} was killed: {fired}")


def main():
    if shutil.which("prometheus") is None:
        skip("needs prometheus, of the Debian package prometheus")
    nics = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Nics)
    threading.Thread(target=nics.serve_forever, daemon=True).start()
    with Daemons(len(HOSTS), settings={"metrics": "127.0.0.1:0", "detection": "1 s"}) as daemons:
        targets = {host: daemons.status(host)["lane"]["metrics"] for host in HOSTS}
        ranks = [rank for job, (size, urgency) in JOBS.items() for rank in daemons.job(job, [f"{BUILD}/tests/message", "loop", size, "100", urgency])]
        for rank in ranks:
            expect(rank.stdout.readline() == "running\n", "a job did not start")
        with Watching(daemons.folder, targets, f"127.0.0.1:{nics.server_address[1]}") as prometheus:
            prometheus.wait_for('up{job="tensorlane"}', lambda answer: set(answer.values()) == {1} and len(answer) == len(HOSTS))
            check_healthy(prometheus)
            expect(all(rank.poll() is None for rank in ranks), "a rank ended too soon")
            daemons.children["h2"].kill()
            check_killed(prometheus, "h2")
    nics.shutdown()


if __name__ == "__main__":
    sys.exit(main())
