"""Real daemons tell what they did: on demand, when a job fails, and merged on one clock though their clocks differ by an hour. Every arrow has both ends, nothing arrives before it
left, the trace is as the format of Chrome's traces wants it, and merging a big file takes bounded memory."""

import glob
import json
import os
import random
import re
import signal
import subprocess
import sys
import time

from daemons import BIN, BUILD, Daemons, expect, outputs

MESSAGE = os.path.join(BUILD, "tests", "message")
HOUR_NS = 3_600_000_000_000
BIG_FILE_BYTES, MERGE_MEMORY_BYTES = 100_000_000, 96 << 20


def tensorlane(*words, status=0, **options):
    done = subprocess.run([os.path.join(BIN, "tensorlane"), *words], capture_output=True, text=True, **options)
    expect(done.returncode == status, f"tensorlane {' '.join(words)}: status {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout if status == 0 else done.stderr


def merge(files, out, *more):
    return json.loads(tensorlane("timeline", "merge", *files, "-o", out, "--json", *more))


def check_format(path):
    """What the format of trace events asks for, and that spans of a thread do not overlap. Returns the spans and the arrows, by id."""
    with open(path) as file:
        trace = json.load(file)
    expect(isinstance(trace, dict) and isinstance(trace["traceEvents"], list), f"{path}: no object with traceEvents")
    spans, arrows, named, rows = [], {}, set(), {}
    for event in trace["traceEvents"]:
        expect(event["ph"] in "XMsf" and isinstance(event["name"], str) and all(isinstance(event[key], int) for key in ("pid", "tid")), f"no event: {event}")
        expect(isinstance(event["ts"], (int, float)) and event["ts"] >= 0, f"an event without a time: {event}")
        if event["ph"] == "X":
            expect(event["dur"] > 0 and isinstance(event["args"], dict), f"no span: {event}")
            spans.append(event)
            rows.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["ts"] + event["dur"]))
        elif event["ph"] == "M":
            named.add((event["pid"], event["tid"] if event["name"].startswith("thread") else None))
        else:
            expect(event["ph"] == "s" or event["bp"] == "e", f"an arrow's end that holds to no span: {event}")
            ends = arrows.setdefault(event["id"], {})
            expect(event["ph"] not in ends, f"two ends alike: {event}")
            ends[event["ph"]] = event
    for row, times in rows.items():
        expect(row in named and (row[0], None) in named, f"row {row} has no name")
        times.sort()
        expect(all(later[0] >= earlier[1] - 0.0005 for earlier, later in zip(times, times[1:])), f"spans of row {row} overlap")
    for ends in arrows.values():
        expect(set(ends) == {"s", "f"}, f"an arrow with one end: {ends}")
        for end in ends.values():
            inside = [s for s in rows[end["pid"], end["tid"]] if s[0] <= end["ts"] <= s[1]]
            expect(inside, f"an arrow's end is in no span: {end}")
        expect(ends["f"]["ts"] >= ends["s"]["ts"], f"what arrives before it left: {ends}")
    return spans, arrows


def shift(path, out, ns):
    """The same file by a clock that is ahead."""
    with open(path) as source, open(out, "w") as target:
        for line in source:
            target.write(re.sub(r'"ts":(\d+)\.(\d\d\d)', lambda m: f'"ts":{int(m[1]) + ns // 1000}.{m[2]}', line))


def check_save(daemons):
    """While a job runs: the spans of one host, of all hosts into a folder, and merged."""
    out = os.path.join(daemons.folder, "saved.json")
    words = tensorlane("timeline", "save", out, "--socket", daemons.socket("h0"), "--job", "loop")
    expect(re.search(r"host h0 +\d+ spans", words), words)
    expect(os.stat(out).st_mode & 0o777 == 0o600, "others can read what was saved")
    events = json.load(open(out))
    spans = [e for e in events if e.get("ph") == "X"]
    expect({s["name"] for s in spans} >= {"QUEUE", "RECEIVE", "ALLREDUCE"} and {s["args"]["job"] for s in spans} == {"loop"}, f"what was saved: {spans[:3]}")
    expect(all(s["args"]["tensor"].startswith("message") or not s["args"]["tensor"].startswith("tensor ") for s in spans), "tensors have no names")
    merged = os.path.join(daemons.folder, "all.json")
    summary = json.loads(tensorlane("timeline", "save", merged, "--socket", daemons.socket("h0"), "--job", "loop", "--all-hosts", "--json"))
    expect([h["host"] for h in summary["hosts"]] == ["h0", "h1"] and all(h["spans"] > 0 and h["error"] is None for h in summary["hosts"]), summary)
    _, arrows = check_format(merged)
    expect(summary["merged"]["arrows"] == len(arrows) > 0 and summary["merged"]["backward_arrows"] == 0, summary)
    folder = os.path.join(daemons.folder, "each")
    os.mkdir(folder)
    tensorlane("timeline", "save", folder, "--socket", daemons.socket("h1"), "--all-hosts")
    expect(sorted(os.listdir(folder)) == ["h0.json", "h1.json"], os.listdir(folder))
    expect("there are no spans" in tensorlane("timeline", "save", out, "--socket", daemons.socket("h0"), "--job", "nosuch", status=1), "a job that is not there has spans")
    expect(not glob.glob(merged + ".*"), "something is left over")


def check_failure(daemons, ranks):
    """A rank dies: each host has the spans of the job in a file, which its log and its status name."""
    ranks[1].kill()
    outputs(ranks, 30)
    for host in daemons.names:
        for _ in range(100):
            saved = daemons.status(host)["lane"]["spans_saved"]
            if saved:
                break
            time.sleep(0.1)
        expect(len(saved) == 1 and saved[0]["job"] == "loop" and saved[0]["user"] == os.getuid(), f"{host} has saved {saved}")
        path = saved[0]["path"]
        expect(path in daemons.log(host) and os.stat(path).st_mode & 0o777 == 0o600, f"{path}: {daemons.log(host)}")
        expect(any(e.get("name") == "QUEUE" for e in json.load(open(path))), f"no operation in {path}")
        expect(os.path.dirname(path) == os.path.join(daemons.folder, f"{host}.spans"), path)
        shown = tensorlane("status", "--socket", daemons.socket(host))
        expect(f"spans of failed job 'loop': {path}" in shown, shown)


def check_silent(daemons):
    """After the job: one host does not answer, and before it is given up the spans of the other must not have become too old."""
    merged = os.path.join(daemons.folder, "without.json")
    os.kill(daemons.pid("h1"), signal.SIGSTOP)
    try:
        began = time.monotonic()
        summary = json.loads(tensorlane("timeline", "save", merged, "--socket", daemons.socket("h0"), "--all-hosts", "--last", "10 s", "--json"))
    finally:
        os.kill(daemons.pid("h1"), signal.SIGCONT)
    expect(time.monotonic() - began < 10, f"it took {time.monotonic() - began:.1f} s")
    spans = {host["host"]: (host["spans"], host["error"]) for host in summary["hosts"]}
    expect(spans["h0"][0] > 0 and spans["h0"][1] is None and "has not answered" in spans["h1"][1], spans)


def check_hour(daemons):
    """Of two hosts whose clocks are an hour apart: the daemons still write."""
    files = [os.path.join(daemons.folder, f"{host}.json") for host in daemons.names]
    time.sleep(0.2)
    late = os.path.join(daemons.folder, "late.json")
    shift(files[1], late, HOUR_NS)
    cut = os.path.join(daemons.folder, "cut.json")
    with open(files[0], "rb") as source, open(cut, "wb") as target:
        target.write(source.read()[:-20])  # its daemon has not written the last line whole
    out = os.path.join(daemons.folder, "merged.json")
    plain = merge(files, out)
    expect(plain["truncated"] == files, f"files that are still written: {plain}")
    summary = merge([cut, late], out)
    expect(cut in summary["truncated"], summary)
    h0, h1 = summary["hosts"]
    expect(h0["offset_ns"] == 0 and h0["clock"] == h1["clock"] == "matched operations" and h1["reference"] == "h0", summary)
    expect(abs(h1["offset_ns"] - HOUR_NS) <= h1["error_ns"], f"an hour is not within the error: {h1}")
    expect(0 <= h1["error_ns"] < 1_000_000_000, f"the error: {h1}")
    spans, arrows = check_format(out)
    ends = [s for s in spans if s["name"] in ("QUEUE", "RECEIVE")]
    expect(len(arrows) == summary["arrows"] and 2 * len(arrows) + summary["ends_without_other"] == len(ends), summary)
    expect(len(arrows) > 0.9 * len(ends) / 2 and summary["backward_arrows"] == 0 and summary["clocks_moved_ns"] == 0, summary)
    expect({s["args"]["job"] for s in spans} == {"loop"}, "a span of another job")
    printed = tensorlane("timeline", "merge", cut, late, "-o", out)
    expect(re.search(r"host h1 .* its clock is \+3600\d\d\d\.\d+ ms from that of h0, give or take|host h1 .* its clock is \+3599\d\d\d\.\d+ ms", printed), printed)
    expect("lacks its end" in printed, printed)
    metadata = json.load(open(out))["otherData"]["clocks"]
    expect(metadata[1]["offset_ns"] == h1["offset_ns"] and metadata[1]["error_ns"] == h1["error_ns"], metadata)
    last = merge([cut, late], out, "--last", "100 ms")
    expect(0 < last["spans"] < summary["spans"] and abs(last["hosts"][1]["offset_ns"] - HOUR_NS) <= last["hosts"][1]["error_ns"], last)
    check_format(out)
    alone = merge([files[0]], out)
    expect(alone["hosts"][0]["clock"] == "wall clock" and alone["hosts"][0]["error_ns"] is None and alone["arrows"] == 0, alone)
    expect("its wall clock as it is" in tensorlane("timeline", "merge", files[0], "-o", out), "it is not said that nothing is known of the clock")


def check_bad_files(daemons):
    good, bad, out = (os.path.join(daemons.folder, name) for name in ("h0.json", "bad.json", "bad-out.json"))
    lines = open(good).read().splitlines(keepends=True)
    for content, error in ((b"", "no timeline: it is empty"), (b"hello\n", "no timeline: it does not begin with a list"),
                           ("".join(lines[:6] + ['{"name":nothing}\n'] + lines[6:]).encode(), f"{bad}:7, byte {sum(map(len, lines[:6])) + 10}"),
                           ("".join(lines[:1] + lines[7:]).encode(), "of which no line before says the host"),
                           (b"[\n{}]\n", "there is no span in these files")):
        with open(bad, "wb") as file:
            file.write(content)
        said = tensorlane("timeline", "merge", good, bad, "-o", out, status=2) if b"{}]" not in content else tensorlane("timeline", "merge", bad, "-o", out, status=2)
        expect(error in said and not os.path.exists(out), f"{content[:40]}: {said}")
    expect("would replace one that it is made of" in tensorlane("timeline", "merge", good, "-o", good, status=2), "a timeline is overwritten")
    tensorlane("timeline", "merge", good, "-o", out, "--since", "yesterday", status=2)


def write_big(folder):
    """Two hosts that have exchanged very many operations."""
    rng = random.Random(1)
    head = '{{"name":"process_name","ph":"M","pid":{0},"args":{{"name":"host g{0}"}}}},\n{{"name":"tensorlane","ph":"M","pid":{0},"args":{{"host":"g{0}","boot":"b{0}","wall_clock_ahead_ns":0}}}},\n'
    line = ('{{"name":"{}","cat":"urgent","ph":"X","pid":{},"tid":0,"ts":{}.{:03},"dur":5.000,"args":{{"tensor":"layer.17.weight","job":"train","epoch":7,"sequence":{},"class":"urgent",'
            '"dscp":43,"bytes":262144,"peer":"{}","rail":0,"tensor_id":17,"slice":3,"offset":0,"grant":1048577,"eager":false}}}},\n')
    paths = [os.path.join(folder, f"g{host}.json") for host in range(2)]
    files = [open(path, "w") for path in paths]
    for host, file in enumerate(files):
        file.write("[\n" + head.format(host))
    size, sequence = 0, 0
    while size < BIG_FILE_BYTES:
        texts = ["", ""]
        for _ in range(2000):
            sequence += 1
            sender, sent = sequence % 2, 10_000_000_000_000 + sequence * 10_000
            received = sent + 20_000 + int(rng.random() * 30_000)
            by_clock = [sent, received] if sender == 0 else [received, sent]
            by_clock[1] += 7_000_000  # g1 is 7 ms ahead
            for host in range(2):
                ns = by_clock[host] - 5000
                texts[host] += line.format("QUEUE" if host == sender else "RECEIVE", host, ns // 1000, ns % 1000, sequence, f"g{1 - host}")
        for file, text in zip(files, texts):
            file.write(text)
            size += len(text)
    for file in files:
        file.write("{}]\n")
        file.close()
    return paths, sequence


def check_big(folder):
    paths, operations = write_big(folder)
    out = os.path.join(folder, "big.json")
    before = time.monotonic()
    said = os.path.join(folder, "summary.json")
    with open(said, "w") as file:
        child = subprocess.Popen([os.path.join(BIN, "tensorlane"), "timeline", "merge", *paths, "-o", out, "--json"], stdout=file)
        _, child.returncode, usage = os.wait4(child.pid, 0)  # of it alone: daemons were children, too
    expect(child.returncode == 0, "a big file cannot be merged")
    used = usage.ru_maxrss << 10
    with open(said) as file:
        summary = json.load(file)
    expect(summary["arrows"] == operations and summary["ends_without_other"] == 0, summary)
    g1 = summary["hosts"][1]
    expect(abs(g1["offset_ns"] - 7_000_000) <= g1["error_ns"] < 30_000, g1)
    expect(summary["compared_one_in"] > 1, "all operations were kept in memory")
    expect(used < MERGE_MEMORY_BYTES, f"merging {BIG_FILE_BYTES >> 20} MiB took {used >> 20} MiB of memory")
    with open(out) as file:
        file.seek(os.path.getsize(out) - 4)
        expect(file.read() == "\n]}\n", "the trace has no end")
    print(f"it took {usage.ru_utime + usage.ru_stime:.1f} s of a core")
    print(f"merged {BIG_FILE_BYTES / 1e6:.0f} MB in {time.monotonic() - before:.1f} s with {used >> 20} MiB")


def main():
    settings = {"timeline": "{folder}/{host}.json", "spans_on_failure": "{folder}/{host}.spans", "detection": "2 s"}
    with Daemons(2, settings=settings) as daemons:
        ranks = daemons.job("loop", [MESSAGE, "loop", "1000000", "60", "0.9"])
        for rank in ranks:
            expect(rank.stdout.readline() == "running\n", "the job did not start")
        time.sleep(0.5)
        check_save(daemons)
        check_failure(daemons, ranks)
        check_silent(daemons)
        check_hour(daemons)
        check_bad_files(daemons)
        for host in daemons.names:
            daemons.children[host].send_signal(signal.SIGTERM)
            daemons.children[host].wait()
        check_big(daemons.folder)
    print("hosts tell their last spans on demand and on failure, and their timelines merge on one clock")


if __name__ == "__main__":
    sys.exit(main())
