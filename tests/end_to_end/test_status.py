"""`tensorlane status` at times when there is much or little to say: while a job waits for its ranks, it names them; and where the status is longer than a packet
of the session's socket, it comes whole, to the command and to programs."""

import json
import os
import signal
import subprocess
import sys

from daemons import BIN, BUILD, Daemons, PYTHON, expect, outputs

MESSAGE = f"{BUILD}/tests/message"
PACKET = 64 * 1024
GROUPS = 120

# Each group of the backend of torch.distributed is a job of its own.
MANY_GROUPS = f"""
import json, subprocess, tensorlane as tl, tensorlane.torch, torch, torch.distributed as dist
dist.init_process_group("tensorlane")
groups = [dist.new_group([0, 1]) for _ in range({GROUPS})]
x = torch.full((8,), dist.get_rank() + 1.0)
dist.all_reduce(x, group=groups[-1])
assert (x == 3).all(), x
tl.init()
status = tl.status()["daemon"]
assert len(status["jobs"]) == {GROUPS} + 2, len(status["jobs"])
told = subprocess.run([{os.path.join(BIN, "tensorlane")!r}, "status", "--json"], capture_output=True, text=True, check=True).stdout
assert len(json.loads(told)["jobs"]) == {GROUPS} + 2, told
tl.barrier()
tl.shutdown()
dist.destroy_process_group()
print(len(json.dumps(status, separators=(",", ":"))))
"""


def status_text(daemons, host):
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--socket", daemons.socket(host)], capture_output=True, text=True, timeout=20)
    expect(done.returncode == 0, f"the status of {host} ends with {done.returncode}: {done.stderr}")
    return done.stdout


def check_gathering(daemons):
    """Both ends of a job that waits say for whom; and it is none the worse."""
    waiting = [daemons.rank("waits", rank, 4, host, [MESSAGE, "sum", "4096", "3", "0.5"], local_rank=rank % 2, local_world=2)
               for rank, host in ((0, "h0"), (2, "h1"))]
    try:
        for host, awaited in (("h0", "waiting for ranks 1, 3"), ("h1", "waiting for the leader h0")):
            for _ in range(100):
                text = status_text(daemons, host)
                if awaited in text:
                    break
            expect(f"job 'waits' of user {os.geteuid()}: gathering" in text and awaited in text, f"{host} does not say for whom the job waits: {text}")
    finally:
        late = [daemons.rank("waits", rank, 4, host, [MESSAGE, "sum", "4096", "3", "0.5"], local_rank=1, local_world=2) for rank, host in ((1, "h0"), (3, "h1"))]
    for text, code in outputs(waiting + late, 30):
        expect(code == 0, f"a rank ended with status {code}: {text}")


def check_urgencies(daemons):
    """The leader says how urgent calls are whose programs do not say it, and by which rule."""
    program = """
import numpy, tensorlane as tl
tl.init()
tl.allgather(numpy.ones(4), name="parameters"), tl.allgather(numpy.ones(4), name="said", priority=0.2)
found = [c for c in tl.status()["daemon"]["lane"]["urgency_choices"] if c["job"] == "urgencies"]
assert found == ([{"job": "urgencies", "job_id": found[0]["job_id"], "rule": "default", "operation": "allgather", "urgency": found[0]["urgency"], "tensors": 1, "last": "allgather.parameters"}]
                 if tl.rank() == 0 else []), found
tl.barrier()
tl.shutdown()
"""
    for _ in range(2):  # the second is not told what was chosen for the first
        ranks = daemons.job("urgencies", [PYTHON, "-c", program], env={"TENSORLANE_LIBRARY": os.path.join(BUILD, "lib", "libtensorlane.so")})
        for text, code in outputs(ranks, 60):
            expect(code == 0, f"a rank ended with status {code}: {text}")


def check_messages(daemons):
    """A send or receive that is not over is counted, and its age is told."""
    program = f"""
import numpy, subprocess, tensorlane as tl, time
tl.init()
def lane():
    return tl.status()["daemon"]["lane"]
def until(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, lane()
        time.sleep(0.05)
if tl.rank() == 0:
    waits = tl.recv_async_(numpy.zeros(3), 1)
    until(lambda: lane()["open_messages"] == 1 and lane()["oldest_message_s"] > 0.5)
    text = subprocess.run([{os.path.join(BIN, "tensorlane")!r}, "status"], capture_output=True, text=True, check=True).stdout
    assert "messages: 1 not over, the oldest for " in text, text
tl.barrier()
if tl.rank() == 1:
    tl.send(numpy.ones(3), 0)
else:
    tl.synchronize(waits)
    until(lambda: lane()["open_messages"] == 0 and lane()["oldest_message_s"] == 0)
tl.shutdown()
"""
    for text, code in outputs(daemons.job("messages", [PYTHON, "-c", program], env={"TENSORLANE_LIBRARY": os.path.join(BUILD, "lib", "libtensorlane.so")}), 60):
        expect(code == 0, f"a rank ended with status {code}: {text}")


def check_pages(daemons):
    ranks = daemons.job("groups", [PYTHON, "-c", MANY_GROUPS], env={"TENSORLANE_LIBRARY": os.path.join(BUILD, "lib", "libtensorlane.so")})
    for text, code in outputs(ranks, 120):
        expect(code == 0, f"a rank with {GROUPS} groups ended with status {code}: {text}")
        expect(int(text.split()[-1]) > PACKET, f"the status has only {text} bytes: the test wants more than a packet")


def check_user_outside(daemons):
    """A user whom the socket's folder keeps out hears that, and not that no daemon is there."""
    if os.geteuid() != 0:
        return
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--socket", daemons.socket("h0")], capture_output=True, text=True, timeout=20,
                          user=3001, group=3001, extra_groups=[])
    expect(done.returncode == 1 and "the daemon's socket cannot be opened: Permission denied" in done.stderr, f"{done.returncode}: {done.stderr}")


def ask(daemons, host, other):
    """What `tensorlane status --host` ends with, and the status or the error."""
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", daemons.socket(host), "--host", other], capture_output=True, text=True, timeout=30)
    return json.loads(done.stdout) if done.returncode == 0 else done.stderr


def check_other_hosts(daemons):
    """Through one daemon others answer: of the jobs that both have; a host that does not is named, and why."""
    ranks = daemons.job("shown", [MESSAGE, "sum", "4096", "4000", "0.5"], hosts=["h0", "h1"])
    for _ in range(200):
        shown = ask(daemons, "h0", "h1")
        if shown["jobs"] and shown["lane"]["flows"]:
            break
    expect(shown["host"] == "h1" and [j["name"] for j in shown["jobs"]] == ["shown"] and shown["lane"]["flows"], f"h0 does not see the job on h1: {shown}")
    stranger = ask(daemons, "h2", "h1")
    expect(not stranger["jobs"] and not stranger["lane"]["flows"] and len(stranger["jobs_of_others"]) == 1, f"h2 sees a job in which it has no part: {stranger}")
    for text, code in outputs(ranks, 60):
        expect(code == 0, f"a rank ended with status {code}: {text}")
    expect("the fabric file has no host" in ask(daemons, "h0", "nosuch"), "a host that is not there is asked")
    expect(ask(daemons, "h0", "h2")["host"] == "h2", "h2 does not answer")
    os.kill(daemons.pid("h2"), signal.SIGSTOP)
    try:
        silent = ask(daemons, "h0", "h2")
        expect("h2: see whether" in silent and ("its daemon has not answered in 3 s" in silent or "its daemon could not be reached in 3 s" in silent), silent)
    finally:
        os.kill(daemons.pid("h2"), signal.SIGCONT)
    daemons.children["h2"].kill()
    daemons.children["h2"].wait()
    gone = ask(daemons, "h0", "h2")
    expect("its daemon could not be reached in 3 s: h2" in gone, gone)


def main():
    with Daemons(3) as daemons:
        check_other_hosts(daemons)
    with Daemons(2) as daemons:
        check_gathering(daemons)
        check_urgencies(daemons)
        check_messages(daemons)
        check_pages(daemons)
        check_user_outside(daemons)
        whole = status_text(daemons, "h0")
        expect(json.dumps(whole), "no status")
    print(f"waiting ranks are named, hosts answer through each other, and a status of {GROUPS} groups comes whole")


if __name__ == "__main__":
    sys.exit(main())
