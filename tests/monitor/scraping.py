"""A real Prometheus of the Debian package, and a small server of recorded pages for it to scrape. Standard library only."""

import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

ANSWER_SECONDS = 20


class Prometheus:
    """with Prometheus(folder, "127.0.0.1:9090", [{"job_name": ...}], interval="1s") as prometheus: ..."""

    def __init__(self, folder, address, scrape_configs, interval="1s"):
        self.address = address
        self.config = os.path.join(folder, "prometheus.yaml")
        self.log = os.path.join(folder, "prometheus.log")
        with open(self.config, "w") as file:  # JSON is YAML
            json.dump({"global": {"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": scrape_configs}, file)
        self.command = ["prometheus", f"--config.file={self.config}", f"--storage.tsdb.path={os.path.join(folder, 'prometheus')}",
                        f"--web.listen-address={address}", "--log.level=warn"]

    def __enter__(self):
        with open(self.log, "w") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log)
        return self

    def __exit__(self, *failure):
        self.child.terminate()
        self.child.wait()
        if failure[0] is not None:
            with open(self.log) as log:
                print(f"--- log of prometheus\n{log.read()[-3000:]}", file=sys.stderr)

    def ask(self, what, **parameters):
        """The series of an answer. An expression that Prometheus refuses is an AssertionError with its words."""
        url = f"http://{self.address}/api/v1/{what}?" + urllib.parse.urlencode(parameters)
        try:
            with urllib.request.urlopen(url, timeout=ANSWER_SECONDS) as answer:
                return json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"Prometheus refuses {parameters}: {error.read().decode()}") from error

    def now(self, expr):
        """[(labels, value)] as of now."""
        return [(series["metric"], float(series["value"][1])) for series in self.ask("query", query=expr)]

    def lately(self, expr, seconds=60, step=15):
        """[(labels, [values])] of the last seconds, as a graph asks."""
        end = time.time()
        series = self.ask("query_range", query=expr, start=end - seconds, end=end, step=step)
        return [(one["metric"], [float(value) for _, value in one["values"]]) for one in series]

    def wait_for(self, expr, good, seconds=20):
        """The first answer that is good."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                answer = self.now(expr)
            except OSError:
                answer = []  # it does not listen yet
            if answer and good(answer):
                return answer
            if time.monotonic() > deadline or self.child.poll() is not None:
                raise AssertionError(f"Prometheus answers {answer} to: {expr}")
            time.sleep(0.2)


class Recorded:
    """with Recorded({"/metrics": "file.prom"}) as pages: serves the files, at pages.address. Counters grow by a hundredth of what they were, and 0 stays 0, every second."""

    def __init__(self, files):
        self.began = time.monotonic()
        self.pages = {path: open(file).read() for path, file in files.items()}

    def page(self, path):
        grown = 1 + (time.monotonic() - self.began) / 100
        lines, counts = [], False
        for line in self.pages[path].splitlines():
            if kind := re.match(r"# TYPE \S+ (\w+)", line):
                counts = kind[1] != "gauge"
            if counts and not line.startswith("#"):
                series, value = line.rsplit(" ", 1)
                line = f"{series} {float(value) * grown:.6f}"
            lines.append(line)
        return "\n".join(lines) + "\n"

    def __enter__(self):
        recorded = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(200 if self.path in recorded.pages else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.end_headers()
                if self.path in recorded.pages:
                    self.wfile.write(recorded.page(self.path).encode())

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()
