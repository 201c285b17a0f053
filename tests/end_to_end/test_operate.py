"""As an operator works with a daemon: SIGHUP reloads what can be reloaded and never stops it, mistakes are found before a start, and the log tells who was refused."""

import os
import re
import signal
import subprocess
import sys
import time

from daemons import BIN, BUILD, Daemons, expect, outputs, skip, wait_for

MESSAGE = os.path.join(BUILD, "tests", "message")
GUEST = 64002


def configuration(daemons, host):
    return os.path.join(daemons.folder, host + ".yaml")


def rewrite(daemons, host, change):
    with open(configuration(daemons, host)) as file:
        text = file.read()
    with open(configuration(daemons, host), "w") as file:
        file.write(change(text))


def reload(daemons, host):
    before = daemons.log(host).count("reloaded")
    daemons.children[host].send_signal(signal.SIGHUP)
    wait_for(lambda: daemons.log(host).count("reloaded") > before, "the line that tells of the reload")
    expect(daemons.children[host].poll() is None, "SIGHUP has ended the daemon")
    return [line for line in daemons.log(host).splitlines() if "reloaded" in line][-1]


def guest(daemons):
    os.chmod(daemons.folder, 0o755)
    return subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--socket", daemons.socket("h0")], capture_output=True, text=True, user=GUEST)


def reloading(daemons):
    refused = guest(daemons)
    expect(refused.returncode != 0, f"a guest came in: {refused}")
    wait_for(lambda: re.search(rf"a process of user {GUEST} \(pid \d+\) was refused: this user may not use the daemon", daemons.log("h0")), "who was refused")
    rewrite(daemons, "h0", lambda text: text + f"users: [{GUEST}]\nlog_level: debug\nspin: 5 us\n")
    line = reload(daemons, "h0")
    expect(line.endswith("log_level and users changed; spin takes effect when the daemon is started again"), line)
    expect(guest(daemons).returncode == 0, "the new user may not come in")
    rewrite(daemons, "h0", lambda text: text.replace("log_level: debug", "log_level: loud"))
    line = reload(daemons, "h0")
    expect("nothing was reloaded" in line and "log_level" in line, line)
    expect(guest(daemons).returncode == 0, "a refused reload has changed something")
    rewrite(daemons, "h0", lambda text: text.replace("log_level: loud", "log_level: debug"))


def joining(daemons):
    """With log_level: debug, of h0."""
    results = outputs(daemons.job("told", [MESSAGE, "loop", "4096", "0.2", "0"]), 60)
    expect(all(status == 0 for _, status in results), f"the job failed: {results}")
    for wanted in ("debug h0: job 'told': rank 0 has come (user 0, pid ", "2 ranks on 2 hosts (h0, h1), led by h0; here rank 0 (pid ", "its flows to 1 host go over tcp",
                   "job 'told' of user 0 is over on this host: "):
        wait_for(lambda: wanted in daemons.log("h0"), wanted)
    expect(" 0 iterations" not in daemons.log("h0"), f"the job's end does not tell of its iterations")


def wrong_secret(daemons):
    child = daemons.rank("guessed", 0, 2, "h0", [MESSAGE, "loop", "4096", "1", "0"])
    wait_for(lambda: "job 'guessed': rank 0 has come" in daemons.log("h0"), "the first rank")
    second = daemons.rank("guessed", 1, 2, "h0", [MESSAGE, "loop", "4096", "1", "0"], env={"TENSORLANE_JOB_SECRET": "another"})
    text, status = outputs([second], 30)[0]
    expect(status != 0 and "another secret" in text, f"another secret did: {text}")
    wait_for(lambda: f"(pid {second.pid}) was refused: rank 1 brings another secret" in daemons.log("h0"), "who brought another secret")
    child.kill()
    child.wait()


def checking(daemons):
    def check(change, wanted):
        rewrite(daemons, "h1", change)
        done = subprocess.run([os.path.join(BIN, "tensorlaned"), "--check-config", "--config", configuration(daemons, "h1")], capture_output=True, text=True, timeout=20)
        expect(wanted in done.stdout + done.stderr and (done.returncode == 0) == (wanted == "good: host h1"), f"--check-config: {done}, not {wanted!r}")

    check(lambda text: re.sub(r"(?m)^timeline:.*\n", "", text), "good: host h1")  # though the daemon has the ports
    for line, wanted in (("metrics: '9400'", "is no address to serve metrics on"), ("metrics: 192.0.2.1:9400", "Cannot assign requested address"),
                         ("timeline: /no/such/folder/t.json", "cannot write the timeline"), ("timeline: /dev/full", "it is no regular file"), ("record: /no/such", "cannot write an engine's log")):
        check(lambda text, line=line: text + line + "\n", wanted)
        check(lambda text, line=line: text.replace(line + "\n", ""), "good: host h1")
    os.chmod(configuration(daemons, "h1"), 0o666)
    check(lambda text: text, "the daemon's configuration can be changed by everybody")


def too_many_tensors(daemons):
    """Who is refused learns what he has, and the operator from the log who was refused."""
    rewrite(daemons, "h0", lambda text: text + "max_tensors: 1\nusers_guaranteed: 0\n")
    reload(daemons, "h0")
    time.sleep(1.1)  # a user's refusals have a line a second
    results = outputs(daemons.job("full", [os.path.join(BIN, "tensorlane-example-allreduce")], hosts=["h0"], per_host=2), 60)
    wanted = "1 needed, 1 of max_tensors = 1 in use; user 0 has 1 of them"
    expect(any(wanted in text for text, _ in results), f"what was refused: {results}")
    wait_for(lambda: re.search(r"user 0 \(pid \d+\) was refused: .*" + re.escape(wanted), daemons.log("h0")), "who was refused")
    rewrite(daemons, "h0", lambda text: text.replace("max_tensors: 1\nusers_guaranteed: 0\n", ""))
    reload(daemons, "h0")


def starting_twice(daemons):
    """A second start with the same file fails, and leaves the timeline of the daemon that runs where it is."""
    timeline = os.path.join(daemons.folder, "h0.json")
    before = os.stat(timeline).st_ino
    done = subprocess.run([os.path.join(BIN, "tensorlaned"), "--config", configuration(daemons, "h0")], capture_output=True, text=True, timeout=20)
    expect(done.returncode != 0 and "Address already in use" in done.stderr, f"a second start: {done}")
    expect(os.stat(timeline).st_ino == before and not os.path.exists(timeline + ".1"), "a second start has moved the timeline of the daemon that runs")


def main():
    if os.geteuid() != 0:
        skip("needs root, to be another user for a moment")
    with Daemons(2, settings={"join_timeout": "5 s", "timeline": "{folder}/{host}.json"}) as daemons:
        for part in (reloading, joining, wrong_secret, too_many_tensors, starting_twice, checking):
            part(daemons)
            print(f"{part.__name__}: as it must be", flush=True)
        child = daemons.children["h0"]
        begin = time.monotonic()
        child.terminate()
        expect(child.wait(timeout=10) == 0 and time.monotonic() - begin < 2, "an idle daemon does not stop within two seconds")


if __name__ == "__main__":
    sys.exit(main())
