"""`tensorlane top` and `tensorlane report` on a job of two hosts: what they show is what the job does, in a terminal of any width and in a page that needs no network."""

import html.parser
import json
import os
import re
import signal
import subprocess
import sys
import termios
import time
import xml.etree.ElementTree

from daemons import BIN, BUILD, Daemons, PYTHON, expect, outputs
from terminal import Terminal

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.join(HERE, "..", "..", "client-lib", "python")
TENSORLANE = os.path.join(BIN, "tensorlane")
# Rank 1 computes for longer: the others wait for it.
JOB = {"seconds": 120, "layers": 4, "bytes": 1 << 16, "compute_ms": 4, "slow_rank": 1, "extra_compute_ms": 40}
XHTML = "{http://www.w3.org/1999/xhtml}"


def run(daemons, *command, host="h0", good=True):
    done = subprocess.run([TENSORLANE, *command, "--socket", daemons.socket(host)], capture_output=True, text=True, timeout=60)
    expect(not good or done.returncode == 0, f"{command} ended with {done.returncode}: {done.stderr}")
    return done


def check_once(daemons):
    deadline = time.monotonic() + 20
    while True:  # until the job is there and its first iterations have ended
        done = run(daemons, "top", "watched", "--json", good=time.monotonic() > deadline)
        said = json.loads(done.stdout or "{}")
        if said.get("iteration_s") or time.monotonic() > deadline:
            break
    expect({row["host"] for row in said["hosts"]} == {"h0", "h1"}, said["hosts"])
    expect(all(row["sent_bits_per_second"] > 0 and row["received_bits_per_second"] > 0 for row in said["hosts"]), said["hosts"])
    expect(0.04 < said["iteration_s"] < 2, said["iteration_s"])
    late = max(said["ranks"], key=lambda row: row["lag_s"])
    expect(len(said["ranks"]) == 2 and late["rank"] == 1 and late["host"] == "h1", said["ranks"])
    expect({row["class"] for row in said["classes"]} >= {"urgent", "bulk"}, said["classes"])
    every = json.loads(run(daemons, "top", "--all-hosts", "--json", "--interval", "0.5").stdout)
    expect({row["host"] for row in every["hosts"]} == {"h0", "h1"} and all(row["sent_bits_per_second"] > 0 and row["version"] for row in every["hosts"]), every["hosts"])
    expect([row["job"] for row in every["jobs"]] == ["watched"] and every["jobs"][0]["iteration_s"], every["jobs"])
    text = run(daemons, "top", "watched").stdout
    expect(all(word in text for word in ("job watched, asked on host h0", "h1", "ranks", "iteration")) and "\x1b" not in text, text)


def check_silent_host(daemons):
    """A daemon that stands still is named, with the reason; the others' figures are there."""
    os.kill(daemons.pid("h1"), signal.SIGSTOP)
    try:
        said = json.loads(run(daemons, "top", "watched", "--json", "--interval", "0.5", "--patience", "0.4").stdout)
    finally:
        os.kill(daemons.pid("h1"), signal.SIGCONT)
    rows = {row["host"]: row for row in said["hosts"]}
    expect("h1" in rows["h1"]["error"] and said["hosts_without_answer"] == 1 and rows["h0"]["sent_bits_per_second"] is not None, said["hosts"])
    gone = run(daemons, "top", "no such job", good=False)
    expect(gone.returncode == 1 and "no job 'no such job' of yours" in gone.stderr, gone)


def check_terminal(daemons):
    with Terminal([TENSORLANE, "top", "--socket", daemons.socket("h0"), "--interval", "0.5"], 200, 30) as terminal:
        terminal.wait_for(lambda text: re.search(r"watched +running +\d", text))
        expect(terminal.other_screen and terminal.cursor_hidden, "it does not use the terminal")
        terminal.press("\r")  # into the job
        terminal.wait_for(lambda text: "job watched" in text and re.search(r"^h1 .*\d", text, re.M) and "LANES" in text)
        for view, words in (("2", ("CLASS", "urgent", "QUEUE")), ("4", ("PEER", "RTT")), ("5", ("NIC", "SENT b/s")), ("6", ("▼LAG", "COMPUTE")), ("?", ("keys of tensorlane top",))):
            terminal.press(view)
            terminal.wait_for(lambda text, words=words: all(word in text for word in words))
        terminal.press("\x1b")
        for columns in (80, 20):
            terminal.resize(columns, 12)
            terminal.wait_for(lambda text: "LAG" in text and re.search(r"^ +1 h1 ", text, re.M))
            # What was drawn for the old width, and not yet written when the width changed, came before this.
            terminal.overflowed.clear()
            came = [terminal.read(0.1) for _ in range(13)]  # two frames or more
            expect(any(came) and not terminal.overflowed, f"{terminal.overflowed} is beyond column {columns}")
        terminal.resize(10, 3)
        terminal.wait_for("job watch")
        terminal.resize(80, 24)
        terminal.press("3")
        terminal.wait_for("HOST")
        terminal.press("\x7f")  # out of the job
        terminal.wait_for(lambda text: "JOB" in text and "host h0" in text)
        terminal.press("q")
        expect(terminal.end() == 0, "it does not end well")
        expect(not terminal.other_screen and not terminal.cursor_hidden and termios.tcgetattr(terminal.slave) == terminal.modes, "the terminal is not as before")
        expect(not terminal.unknown, f"the test does not know {terminal.unknown}")
    with Terminal([TENSORLANE, "top", "watched", "--socket", daemons.socket("h0"), "--patience", "0.3"], 80, 24) as terminal:
        os.kill(daemons.pid("h1"), signal.SIGSTOP)
        try:
            terminal.wait_for("1 of 2 hosts does not answer")
        finally:
            os.kill(daemons.pid("h1"), signal.SIGCONT)
        expect(terminal.colours, "what is wrong has no colour")
        terminal.wait_for(lambda text: "running, iteration" in text and "answer" not in text)
        os.kill(terminal.child.pid, signal.SIGTERM)
        terminal.end()
        expect(not terminal.other_screen and termios.tcgetattr(terminal.slave) == terminal.modes, "SIGTERM leaves the terminal in disorder")
    with Terminal([TENSORLANE, "top", "--socket", daemons.socket("h0")], 80, 24) as terminal:
        terminal.wait_for("host h0")
        terminal.press("\x03")
        expect(terminal.end() == 0 and not terminal.other_screen and termios.tcgetattr(terminal.slave) == terminal.modes, "Ctrl-C does not end it as q does")
    with Terminal([TENSORLANE, "top", "--socket", daemons.socket("h0")], 80, 24, {"TERM": "vt52"}) as terminal:
        terminal.press("q")
        expect(terminal.end() == 0 and not terminal.colours, "a terminal without colours gets some")


class Page(html.parser.HTMLParser):
    """What a browser would fetch or run."""

    def __init__(self, text):
        super().__init__()
        self.loads = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.loads += [(tag, name, value) for name, value in attributes if name in ("src", "href", "action", "data", "srcset", "poster") or name.startswith("on")]
        if tag in ("script", "link", "iframe", "object", "embed", "img", "base"):
            self.loads.append((tag,))


def rows_of(page, section):
    """The figures of a section's table, as they are for programs."""
    found = next(one for one in page.iter(XHTML + "section") if one.get("id") == section)
    table = next(found.iter(XHTML + "tbody"))
    return [[float(cell[0].get("value")) if len(cell) and cell[0].tag == XHTML + "data" else "".join(cell.itertext()) for cell in row] for row in table]


def check_page(path, said):
    with open(path, encoding="utf-8") as file:
        text = file.read()
    expect(not Page(text).loads, f"the page loads {Page(text).loads}")
    expect(not re.findall(r"url\(|@import|https?://(?!www\.w3\.org/1999/xhtml)", text), "the page names something of the network")
    expect("prefers-color-scheme: dark" in text and "color-scheme: light dark" in text, "the page has one look only")
    page = xml.etree.ElementTree.fromstring(text.replace("<!DOCTYPE html>", ""))
    expect([row[:3] for row in rows_of(page, "times")] == [[t["from_s"], t["to_s"], t["iteration_s"]] for t in said["times"]], rows_of(page, "times"))
    known = [[c["class"], *("-" if c[key] is None else c[key] for key in ("queue_s", "completion_s", "sent_bits_per_second"))] for c in said["classes"]]
    expect([row[:4] for row in rows_of(page, "classes")] == known, (rows_of(page, "classes"), known))
    ranks = [[r["rank"], r["host"], r["lag_s"]] for r in said["ranks"]]
    expect([row[:3] for row in rows_of(page, "ranks")] == ranks, (rows_of(page, "ranks"), ranks))
    for svg in page.iter(XHTML + "svg"):
        expect(svg.get("aria-label") or svg.get("aria-hidden"), "a chart has no name")
    return page, text


def check_report(daemons):
    page = os.path.join(daemons.folder, "report.html")
    said = json.loads(run(daemons, "report", "watched", "-o", page, "--seconds", "3", "--json").stdout)
    expect(said["hosts"] == 2 and 2 <= len(said["times"]) <= 4 and said["ranks"][0]["rank"] == 1, said)
    expect(said["tags"] and all(tag["as_asked"] for tag in said["tags"]) and {tag["dscp"] for tag in said["tags"]} >= {43, 27}, said["tags"])
    tree, text = check_page(page, said)
    tags = [["-" if tag[key] is None else tag[key] for key in ("asked_dscp", "dscp")] for tag in said["tags"]]
    expect([row[2:4] for row in rows_of(tree, "tags")] == tags, (rows_of(tree, "tags"), tags))
    expect(said["findings"][0]["cause"] in text, "the page does not say what bounds the job")


def check_kept(daemons):
    """From what `explain --save` has kept, with verdicts of `verify`, and names that would be tags."""
    kept, verdicts, page = (os.path.join(daemons.folder, name) for name in ("kept.json", "verify.json", "kept.html"))
    run(daemons, "explain", "watched", "--seconds", "1.5", "--save", kept)
    with open(kept) as file:
        reports = json.load(file)
    for pair in reports:
        pair["after"]["job"] = "<script>alert(1)</script>\x1b[2J"
    with open(kept, "w") as file:
        json.dump(reports, file)
    marks = [{"from": f"gpu{a:02}", "to": f"gpu{b:02}", "rail": 0, "family": 4, "class": cls, "dscp": "failed" if (a, b) == (39, 3) else "passed", "pcp": "untested", "text": ""}
             for a in range(40) for b in range(40) if a != b for cls in ("urgent", "bulk")]
    with open(verdicts, "w") as file:
        json.dump({"marks": marks, "findings": [{"where": "leaf0 <towards> spine1", "what": "DSCP 43 becomes 0", "cause": "no trust"}]}, file)
    said = json.loads(run(daemons, "report", "--load", kept, "--verify", verdicts, "-o", page, "--json").stdout)
    expect(said["verify"]["all"] == {"passed": 3118, "failed": 2, "untested": 0} and said["verify"]["other_hosts"] == 16, said["verify"])
    tree, text = check_page(page, said)
    expect("<script" not in text and "\x1b" not in text and "leaf0 &lt;towards&gt; spine1: DSCP 43 becomes 0" in text, "names are not escaped")
    bad = [cell for cell in tree.iter(XHTML + "td") if cell.get("class") == "bad"]
    expect(len(bad) == 1 and bad[0].text == "✗2" and bad[0].get("title").startswith("gpu39 to gpu03"), [(cell.text, cell.get("title")) for cell in bad])
    for arguments, word in ((["--load", page], "this is no JSON"), (["--load", verdicts], "there are no reports in it"), (["--load", kept, "--verify", kept], "there are no verdicts in it")):
        done = run(daemons, "report", *arguments, "-o", page, good=False)
        expect(done.returncode == 2 and word in done.stderr, (arguments, done))


def main():
    with Daemons(2) as daemons:
        env = {"PYTHONPATH": SOURCES, "TENSORLANE_LIBRARY": os.path.join(BUILD, "lib", "libtensorlane.so")}
        ranks = daemons.job("watched", [PYTHON, os.path.join(HERE, "explained_job.py"), json.dumps(JOB)], env=env)
        for check in (check_once, check_silent_host, check_terminal, check_report, check_kept):
            began = time.monotonic()
            check(daemons)
            print(f"good: {check.__name__} in {time.monotonic() - began:.1f} s")
        expect(all(rank.poll() is None for rank in ranks), f"watching has ended the job: {[rank.poll() for rank in ranks]}")
        for rank in ranks:
            rank.kill()
        outputs(ranks, 10)


if __name__ == "__main__":
    sys.exit(main())
