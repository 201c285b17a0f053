"""`tensorlane top` beside daemons that have much to say, lie, hang or are of another release: it answers soon, or says clearly why not.

usage: top_command_test.py TENSORLANE"""

import json
import os
import subprocess
import sys
import tempfile
import time

from fake_daemon import FakeDaemon

TENSORLANE = sys.argv[1]
HOSTS = 1024
SILENT = 7
JOB = 5


def report_of(number, seconds):
    """As a daemon's, of a job with 100 Mbit/s in each class on each host."""
    grown = {"urgent": int(12.5e6 * seconds), "bulk": int(12.5e6 * seconds)}
    host = f"gpu{number:04}"
    return {"host": host, "job": "train", "at_ns": int(seconds * 1e9), "wall_clock_ns": 0, "iterations": int(10 * seconds), "batched_operations": 0, "cpus": 64,
            "lanes": {"count": 1, "times": {"run_ns": int(seconds * 1e8), "runnable_ns": 0}}, "staging_bytes": 0, "staging_limit_bytes": 1,
            "ranks": [{"rank": 8 * number + r, "operations": int(60 * seconds), "wait_ns": int(2e9 * seconds), "late_ns": 0, "blocked_ns": int(3e8 * seconds),
                       "waiter": None} for r in range(8)],
            "classes": [{"name": name, "dscp": 1, "sent_bytes": sent, "received_bytes": sent, "demoted_bytes": 0, "operations": int(60 * seconds), "completion_ns": 1,
                         "sends": int(60 * seconds), "queue_ns": 1, "host_window_stalls": 0, "window_bytes": 1, "limit_bits_per_second": None} for name, sent in grown.items()],
            "connections": [{"peer": f"gpu{(number + p) % HOSTS:04}", "class": name, "rail": 0, "rtt_ns": 20000, "min_rtt_ns": 10000, "segments": 1, "resent": 0, "acked_bytes": 1,
                             "busy_ns": 1, "peer_limited_ns": 0} for p in (1, 2, 4, 8) for name in grown],
            "rails": [{"nic": "eth0", "bits_per_second": 400000000000, "sent_bytes": 1, "received_bytes": 1, "nic_sent_bytes": 1, "nic_received_bytes": 1}]}


def status_of(job=JOB):
    hosts = [{"name": f"gpu{h:04}", "ranks": list(range(8 * h, 8 * h + 8))} for h in range(HOSTS)]
    return json.dumps({"host": "gpu0000", "version": "0.1.0", "uptime_s": 1, "jobs": [{"name": "train", "id": job, "state": "running", "hosts": hosts}]})


def answers_of(make):
    """All hosts answer but SILENT of them; each report is made in advance, and only its time is new."""
    silent = [{"host": f"gpu{h:04}", "error": {"code": "timed out", "what": "it has not answered in 1 s", "where": f"gpu{h:04}", "fix": ""}} for h in range(HOSTS - SILENT, HOSTS)]
    return json.dumps({"host": "gpu0000", "answers": [{"host": f"gpu{h:04}", "text": make(h)} for h in range(HOSTS - SILENT)] + silent})


def top(socket, *arguments, timeout=30):
    began = time.monotonic()
    done = subprocess.run([TENSORLANE, "top", "--socket", socket, *arguments], capture_output=True, text=True, timeout=timeout, env={**os.environ, "LANG": "C.UTF-8"})
    return done, time.monotonic() - began


def a_thousand_hosts(socket):
    """The daemon's own time is not measured here: both its answers are there already."""
    texts = [answers_of(lambda h, at=at: json.dumps(report_of(h, at))) for at in (10, 11)]
    asked = []

    def ask(question):
        question = json.loads(question)
        if question.get("job"):
            asked.append(question)
            return texts[min(len(asked), 2) - 1]
        return json.dumps({"host": "gpu0000", "answers": []})

    with FakeDaemon(socket, status_of, ask):
        done, seconds = top(socket, "train", "--once")
        assert done.returncode == 0, done.stderr
        assert seconds < 10, f"{seconds:.1f} s for {HOSTS} hosts"
        for text in (f"{SILENT} of {HOSTS} hosts do not answer", "gpu1023 it has not answered in 1 s", "--json has all", "running, iteration 100ms"):
            assert text in done.stdout, (text, done.stdout)
        assert len(done.stdout) < 50000, len(done.stdout)
        assert all(len(line) <= 120 for line in done.stdout.splitlines())
        asked.clear()
        done, seconds = top(socket, str(JOB), "--json")
        said = json.loads(done.stdout)
        assert seconds < 3 and len(said["hosts"]) == HOSTS and len(said["ranks"]) == 8 * (HOSTS - SILENT), (seconds, len(said["hosts"]), len(said["ranks"]))
        sent = {row["class"]: row["sent_bits_per_second"] for row in said["classes"]}
        assert abs(sent["urgent"] / (HOSTS - SILENT) - 1e8) < 1, sent
    print(f"good: {HOSTS} hosts in {seconds:.1f} s")


def daemons_that_lie(socket):
    """Whatever they say: a status and one line for people, and no byte that steers the terminal."""
    evil = "\x1b[2J\x1b]0;owned\x07"
    job = [{"name": evil, "id": JOB, "state": evil, "hosts": [{"name": evil, "ranks": 3}]}]
    liars = {
        "no JSON": ("\x00\xff", "cannot be read"),
        "no object": ("[]", "cannot be read"),
        "other types": (json.dumps({"host": "h0", "jobs": {"a": 1}, "lane": [1]}), None),
        "escapes": (json.dumps({"host": "h0", "jobs": job}), None),
        "no host": (json.dumps({"host": 3, "jobs": job}), "cannot be read"),
    }
    answers = ["{", "[]", json.dumps({"host": "h0", "answers": 3}), json.dumps({"host": 3, "answers": [{"host": 1, "text": 2}]}), json.dumps({"error": "no"}),
               json.dumps({"host": "h0", "answers": [{"host": evil, "text": evil}, {"host": "h1", "text": json.dumps({"host": 1, "ranks": evil})}]}), "[" * 100000]
    for name, (status, wanted) in liars.items():
        for answer in answers:
            with FakeDaemon(socket, lambda: status, lambda question: answer):
                for arguments in (["--once"], [str(JOB), "--once"], ["--all-hosts", "--json"]):
                    done, _ = top(socket, "--interval", "0.2", *arguments)
                    assert done.returncode in (0, 1), (name, answer[:80], done)
                    assert "\x1b" not in done.stdout + done.stderr and "\x07" not in done.stdout + done.stderr, (name, answer[:80], done)
                    assert done.returncode == 0 or done.stderr.startswith("tensorlane: error: "), done.stderr
                    if wanted and "--once" in arguments:
                        assert wanted in done.stderr, (name, done.stderr)
    print("good: liars")


def other_commands(socket, folder):
    """What asks daemons, beside top: texts that are too deep, of other types or steer the terminal are an error, and no path is a host's choice."""
    evil, out = "\x1b[2J\x9b1m", os.path.join(folder, "out")
    os.mkdir(out)
    deep = "[" * 200000 + "]" * 200000
    texts = [deep, '{"host": "h0", "lane": ' + deep + "}", json.dumps({"host": evil, "version": evil, "jobs": [{"name": evil, "hosts": []}]}),
             json.dumps({"host": 5, "jobs": [{"name": 5, "hosts": [1, None]}], "lane": {"classes": [{"name": 5}], "rails": {}}, "uptime_s": "x", "fabric": []})]
    for text in texts:
        answer = json.dumps({"host": "h0", "answers": [{"host": "h0", "text": text}]})
        with FakeDaemon(socket, lambda: text, lambda question: answer):
            for words in (["status"], ["status", "--host", "h0"], ["status", "--json"], ["explain", "x", "--seconds", "0.5"], ["timeline", "save", os.path.join(folder, "t.json")],
                          ["report", "x", "--seconds", "2", "-o", os.path.join(folder, "r.html")]):
                done = subprocess.run([TENSORLANE, *words, "--socket", socket], capture_output=True, text=True, timeout=30)
                assert done.returncode in (0, 1), (words, text[:80], done)
                assert "\x1b" not in done.stdout + done.stderr and "\x9b" not in done.stdout + done.stderr or "--json" in words, (words, text[:80], done)
    answer = json.dumps({"host": "h0", "answers": [{"host": "../victim", "text": '{"spans": 10}'}]})
    with FakeDaemon(socket, lambda: "{}", lambda question: answer):
        done = subprocess.run([TENSORLANE, "timeline", "save", "--all-hosts", out, "--socket", socket], capture_output=True, text=True, timeout=30)
    assert done.returncode == 1 and "this is no name of a host" in done.stderr and os.listdir(out) == [], done
    assert not os.path.exists(os.path.join(folder, "victim.json"))
    print("good: other commands beside liars")


def output_that_is_full(socket):
    with FakeDaemon(socket, status_of, lambda question: json.dumps({"host": "gpu0000", "answers": []})), open("/dev/full", "w") as full:
        done = subprocess.run([TENSORLANE, "top", "--socket", socket, "--json", "--interval", "0.2"], stdout=full, stderr=subprocess.PIPE, text=True, timeout=30)
    assert done.returncode == 1 and "No space left on device" in done.stderr, done
    print("good: a full device")


def daemons_that_hang(socket):
    with FakeDaemon(socket, lambda: None, lambda question: None):
        done, seconds = top(socket, "--once")
        assert done.returncode == 1 and "did not answer" in done.stderr and seconds < 10, (done, seconds)
    # The daemon of this host says who it is, and then nothing of the job.
    with FakeDaemon(socket, status_of, lambda question: None):
        done, seconds = top(socket, "train", "--once", "--patience", "0.1")
        assert done.returncode == 1 and "did not answer" in done.stderr and seconds < 15, (done, seconds)
    print("good: a daemon that hangs")


def daemons_of_another_release(socket):
    with FakeDaemon(socket, status_of, lambda question: (10, "message 12 is not known")):
        done, _ = top(socket, "--once", "--interval", "0.2")
        assert done.returncode == 0 and "train" in done.stdout, done
        done, _ = top(socket, "train", "--once")
        assert done.returncode == 1 and "message 12 is not known" in done.stderr, done
    old = json.dumps({"host": "gpu0001", "job": "train", "at_ns": 1})
    with FakeDaemon(socket, status_of, lambda question: json.dumps({"host": "gpu0000", "answers": [{"host": "gpu0001", "text": old}]})):
        done, _ = top(socket, "train", "--once", "--interval", "0.2")
        assert done.returncode == 0 and "gpu0001 the reports of host gpu0001 make no sense" in done.stdout, done
    print("good: another release")


def hosts_that_say_nothing(socket):
    """`explain` names five of them and counts the others; one of its two answers is none."""
    quiet = [{"host": f"gpu{h:04}", "error": {"code": "timed out", "what": "it has not answered in 1 s", "where": f"gpu{h:04}", "fix": ""}} for h in range(2, 9)]
    asked = []

    def ask(question):
        asked.append(question)
        said = [{"host": f"gpu{h:04}", "text": json.dumps(report_of(h, 9 + len(asked)))} for h in range(2)]
        late = {"host": "gpu0002", "text": json.dumps(report_of(2, 11))}
        return json.dumps({"host": "gpu0000", "answers": said + (quiet if len(asked) % 2 == 1 else [late] + quiet[1:])})

    with FakeDaemon(socket, lambda: "{}", ask):
        for more in ([], ["--json"]):
            asked.clear()
            done = subprocess.run([TENSORLANE, "explain", "train", "--seconds", "0.5", "--socket", socket, *more], capture_output=True, text=True, timeout=30)
            assert done.returncode == 0 and len(asked) == 2, done
            if more:
                assert [host["host"] for host in json.loads(done.stdout)["hosts_without_answer"]] == [f"gpu{h:04}" for h in range(2, 9)], done.stdout
            else:
                named = [line.split()[5].rstrip(":") for line in done.stdout.splitlines() if line.startswith("nothing is known of host ")]
                assert named == [f"gpu{h:04}" for h in range(2, 7)], done.stdout
                assert "nothing is known of 2 hosts more: --json says why" in done.stdout, done.stdout
    print("good: hosts that say nothing")


def jobs_that_end_or_stall(socket):
    """`explain` of a job that ends while it is watched says that, and `status` says who is late in words."""
    asked = []

    def ask(question):
        asked.append(question)
        if len(asked) > 1:
            return (2, "no job 'train' of yours is on this host")
        return json.dumps({"host": "gpu0000", "answers": [{"host": "gpu0000", "text": json.dumps(report_of(0, 1))}]})

    late = {"rank": 3, "host": "gpu0000", "what": "tensor 'w'", "seconds": 2.5, "reported_s_ago": 1.0}
    status = json.dumps({"host": "gpu0000", "jobs": [{"name": "train", "id": JOB, "state": "running", "late": [late]}]})
    with FakeDaemon(socket, lambda: status, ask):
        done = subprocess.run([TENSORLANE, "explain", "train", "--seconds", "0.5", "--socket", socket], capture_output=True, text=True, timeout=30)
        assert done.returncode == 1 and "the job ended while it was watched: job 'train'" in done.stderr and len(asked) == 2, done
        done = subprocess.run([TENSORLANE, "status", "--socket", socket], capture_output=True, text=True, timeout=30)
        assert "  late: rank 3 on host gpu0000 with tensor 'w': 2.5 s, said 1 s ago\n" in done.stdout, done
    print("good: jobs that end or stall")


def main():
    with tempfile.TemporaryDirectory(prefix="tl-top-") as folder:
        socket = os.path.join(folder, "daemon.sock")
        done, _ = top(socket, "--once")
        assert done.returncode == 1 and "no daemon answers" in done.stderr, done
        a_thousand_hosts(socket)
        daemons_that_lie(socket)
        other_commands(socket, folder)
        output_that_is_full(socket)
        daemons_that_hang(socket)
        daemons_of_another_release(socket)
        hosts_that_say_nothing(socket)
        jobs_that_end_or_stall(socket)


if __name__ == "__main__":
    main()
