"""Bad input through the real daemon and the real client library: each gets its error at the party that can act on it, the daemon lives, and other jobs do not notice."""

import os
import re
import socket
import subprocess
import sys
import time

from daemons import BIN, BUILD, PYTHON, Daemons, expect, outputs, skip

MESSAGE = f"{BUILD}/tests/message"
CLIENT = """
import sys, numpy, tensorlane as tl
try:
    tl.init()
    {body}
    tl.shutdown()
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
    sys.exit(1)
"""


def check_config(daemons, change, pattern, status=2, begins="tensorlane: error: "):
    """`tensorlaned --check-config` on a changed copy of h0's files ends with `status` and one line that matches."""
    for name in ("h0.yaml", "fabric.yaml"):
        with open(os.path.join(daemons.folder, name)) as file:
            text = file.read()
        with open(os.path.join(daemons.folder, "bad-" + name), "w") as file:
            file.write(change(name, text.replace("fabric: fabric.yaml", "fabric: bad-fabric.yaml")))
    done = subprocess.run([f"{BIN}/tensorlaned", "--check-config", "--config", os.path.join(daemons.folder, "bad-h0.yaml")], capture_output=True, text=True)
    expect(done.returncode == status, f"exit status {done.returncode}: {done.stderr}")
    lines = done.stderr.splitlines()
    expect(len(lines) == 1 and lines[0].startswith(begins) and re.search(pattern, lines[0]), f"{done.stderr!r} does not match {pattern!r}")


def configuration(daemons):
    check_config(daemons, lambda name, text: text + ("detectoin: 1 s\n" if name == "h0.yaml" else ""),
                 r"unknown key 'detectoin' in the daemon's configuration: .*bad-h0\.yaml:\d+: .*did you mean 'detection'\?")
    check_config(daemons, lambda name, text: text.replace("127.0.1.10", "no-such-host.invalid"), r"no-such-host\.invalid.*bad-fabric\.yaml:\d+: ")
    # Another host's name is needed when a job needs the host; this one need not wait for it.
    check_config(daemons, lambda name, text: text.replace("127.0.1.11", "no-such-host.invalid").replace("timeline: /dev/full\n", ""),
                 r"no-such-host\.invalid.*bad-fabric\.yaml:\d+: ", status=0, begins="warning: ")
    check_config(daemons, lambda name, text: text, r"it is no regular file: /dev/full", status=1)
    check_config(daemons, lambda name, text: text.replace("name: h1", "name: h0"), r"'h0'.*bad-fabric\.yaml:\d+: .*line \d+")
    check_config(daemons, lambda name, text: text.replace("host: h0", "host: h7"), r"h7.*bad-h0\.yaml:\d+: expected a host of .*h0, h1")


def port_in_use(daemons):
    path = os.path.join(daemons.folder, "second.yaml")
    with open(os.path.join(daemons.folder, "h0.yaml")) as file, open(path, "w") as second:
        second.write(file.read().replace("h0.sock", "second.sock"))
    done = subprocess.run([f"{BIN}/tensorlaned", "--config", path], capture_output=True, text=True, timeout=20)
    expect(done.returncode == 1, f"exit status {done.returncode}: {done.stderr}")
    expect(re.search(r"tensorlane: error: .*(in use|127\.0\.1\.10:\d+)", done.stderr), done.stderr)


def client(daemons, body, pattern, hosts=("h0",), env=None, status=1, **options):
    """One rank per host runs `body` with the Python package; the first one's output matches."""
    env = {"TENSORLANE_TIMEOUT": "5", **(env or {})}
    ranks = daemons.job("bad", [PYTHON, "-c", CLIENT.format(body=body)], hosts=list(hosts), env=env, **options)
    results = outputs(ranks, 40)
    for text, code in results:
        expect(code == status, f"exit status {code}: {text}")
        expect(re.search(pattern, text), f"{text!r} does not match {pattern!r}")


def clients(daemons):
    client(daemons, "pass", r"TENSORLANE_JOB_SECRET", hosts=("h0", "h1"), env={"TENSORLANE_JOB_SECRET": ""})
    client(daemons, "tl.allreduce(numpy.zeros(0, dtype=numpy.float32), name='none')", r"0 elements|zero elements|no elements")
    client(daemons, "tl.allreduce(numpy.lib.stride_tricks.as_strided(numpy.zeros(1, numpy.float32), (2**33,), (0,)), name='huge')", r"contiguous|8589934592")
    client(daemons, "x = tl.allreduce(numpy.array([numpy.nan, 1, numpy.inf], numpy.float32), name='nan', op=tl.Sum); "
                    "assert numpy.isnan(x[0]) and x[1] == 2 and numpy.isinf(x[2]), x", r"^$", hosts=("h0", "h1"), status=0)


def ranks_that_differ(daemons):
    body = "tl.allreduce(numpy.zeros(4 + 2 * tl.rank(), dtype=numpy.float32), name='w')"
    client(daemons, body, r"allreduce\.w.*rank 0.*float32\[4\].*rank 1.*float32\[6\]", hosts=("h0", "h1"))


def wrong_user(daemons):
    if os.geteuid() != 0:
        return
    os.chmod(daemons.folder, 0o755)
    child = daemons.rank("user", 0, 1, "h0", [MESSAGE, "loop", "64", "0", "1"], preexec_fn=lambda: os.setuid(65534))
    text, status = outputs([child], 20)[0]
    expect(status == 1 and re.search(r"tensorlane: error: .*65534", text), f"{status} {text!r}")


def silent_crowd(daemons):
    """Ten thousand connections to the data and control ports that say nothing."""
    crowd = []
    for i in range(10000):
        s = socket.socket()
        s.setblocking(False)
        s.connect_ex((daemons.address("h0"), daemons.port + (0 if i % 2 else 11)))
        crowd.append(s)
    works(daemons, "beside-crowd")
    for s in crowd:
        s.close()


def works(daemons, name):
    results = outputs(daemons.job(name, [MESSAGE, "loop", "65536", "0.1", "0.5"]), 30)
    expect(all(status == 0 for _, status in results), f"the job '{name}' failed: {results}")


def plan_hashes(daemons):
    """Of the jobs that run: waits for the first to have a plan."""
    for _ in range(100):
        hashes = [job["plan"]["hash"] for job in daemons.status("h0")["jobs"] if job.get("plan")]
        if hashes:
            return hashes
        time.sleep(0.1)
    return []


def logged(daemons, hashes):
    """Whether the log has them, which it says once a plan is in force."""
    for _ in range(50):
        if all(f"hash {value}" in daemons.log("h0") for value in hashes):
            return True
        time.sleep(0.1)
    return False


def main():
    if not os.path.exists(PYTHON):
        skip(f"no {PYTHON}: run deploy/install-deps python")
    with Daemons(2, settings={"detection": "2 s", "timeline": "/dev/full", "join_timeout": "5 s"}) as daemons:
        expect("it is no regular file: /dev/full" in daemons.log("h0"), "the daemon does not say that the timeline cannot be written")
        bystander = daemons.job("bystander", [MESSAGE, "loop", "4096", "45", "1"], stdin=subprocess.DEVNULL)
        works(daemons, "before")
        hashes = plan_hashes(daemons)
        expect(hashes and logged(daemons, hashes), f"the log has another form of {hashes}")
        for part in (configuration, port_in_use, clients, ranks_that_differ, wrong_user, silent_crowd):
            part(daemons)
            works(daemons, f"after-{part.__name__}")
            print(f"{part.__name__}: every error is as it must be", flush=True)
        expect(all(rank.poll() is None for rank in bystander), "another job has noticed")
        daemons.children["h0"].terminate()
        daemons.children["h0"].wait(20)
        expect(os.geteuid() != 0 or re.search(r"since the start [1-9]\d* processes of this host were refused", daemons.log("h0")), "no count of who was refused")


if __name__ == "__main__":
    sys.exit(main())
