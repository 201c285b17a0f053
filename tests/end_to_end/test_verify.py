"""`tensorlane verify` by daemons on loopback: they answer each other's probes on their data ports, in every class; whoever has no token learns nothing, a job keeps
probes away, a host that is silent is named while the others are tested, and a fabric file other than the daemons' does not pass."""

import json
import os
import signal
import socket
import struct
import subprocess
import time

from daemons import BIN, BUILD, Daemons, expect, outputs

MESSAGE = f"{BUILD}/tests/message"


def verify(daemons, *options, status=0, fabric="fabric.yaml"):
    command = [os.path.join(BIN, "tensorlane"), "verify", "--fabric", os.path.join(daemons.folder, fabric), "--socket", daemons.socket("h0"), "--json", *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    expect(status is None or done.returncode == status, f"exit status {done.returncode}: {done.stderr} {done.stdout}")
    return json.loads(done.stdout) if done.stdout else done.stderr


def answered(daemons, host):
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", daemons.socket(host)], capture_output=True, text=True, timeout=20)
    return json.loads(done.stdout)["probes_answered"]


def check_all(daemons):
    before = answered(daemons, "h1")
    report = verify(daemons)
    expect(len(report["marks"]) == 6 * 3, report["marks"])
    expect(all(v["dscp"] == "passed" for v in report["marks"]) and not report["findings"], report)
    expect(all(host["outcome"] == "passed" for host in report["hosts"]), report["hosts"])
    expect(report["seconds"] < 20, report["seconds"])
    expect(answered(daemons, "h1") == before + 2 * 3 * 8, "h1's listeners have not answered each probe of h0 and h2")


def marks(daemons, host):
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", daemons.socket(host)], capture_output=True, text=True, timeout=20)
    return json.loads(done.stdout)["marks"]


def check_marks(daemons):
    """Every daemon probes the others in turn, without being asked."""
    deadline = time.monotonic() + 15
    while time.monotonic() < deadline:
        seen = [marks(daemons, host) for host in daemons.names]
        if all(counts["kept"] >= 2 for one in seen for counts in one["classes"].values()):
            break
        time.sleep(0.2)
    for one in seen:
        expect(set(one["classes"]) == {"control", "urgent", "bulk"} and one["every_s"] == 1, one)
        expect(all(counts["kept"] >= 2 and counts["changed"] == counts["not_known"] == 0 for counts in one["classes"].values()), one)
        expect(one["changed"] == [], one)


def check_other_file(daemons):
    """Classes of the file that are not those in force, although probes with its marks arrive as they were sent."""
    with open(os.path.join(daemons.folder, "fabric.yaml")) as file:
        text = file.read()
    with open(os.path.join(daemons.folder, "other.yaml"), "w") as file:
        file.write(text.replace("classes: greenfield", "classes: brownfield"))
    report = verify(daemons, fabric="other.yaml", status=1)
    expect(all(v["dscp"] == "passed" for v in report["marks"]), report["marks"])
    for host in report["hosts"]:
        expect(host["outcome"] == "failed" and "its daemon gives class bulk DSCP 27, the file 26" in host["text"], host)


def check_stranger(daemons):
    """A probe with a token that nobody has told the daemon is closed without a byte."""
    before = answered(daemons, "h1")
    hello = struct.pack("<IHBB16sQ", 0x50534C54, 1, 0, 0, os.urandom(16), 1)
    for words in (hello, hello[:20]):
        with socket.create_connection((daemons.address("h1"), daemons.port + 11), timeout=10) as connection:
            connection.sendall(words)
            connection.shutdown(socket.SHUT_WR)
            expect(connection.recv(100) == b"", "a stranger's probe is answered")
    expect(answered(daemons, "h1") == before, "a stranger's probe counts as answered")


def check_job(daemons):
    """Probes keep away from a job, unless they are told not to; the job is none the worse."""
    ranks = daemons.job("busy", [MESSAGE, "sum", "4096", "6000", "0.5"], hosts=["h0", "h1"])
    for _ in range(100):
        said = str(verify(daemons, "--classes", "urgent", status=None))
        if "h0, h1: a job runs on this host" in said:
            break
    expect("h0, h1: a job runs on this host" in said and said.count("a job runs") == 1, said)
    report = verify(daemons, "--classes", "urgent", "--beside-jobs")
    expect(all(v["dscp"] == "passed" for v in report["marks"]), report["marks"])
    for text, code in outputs(ranks, 60):
        expect(code == 0, f"a rank ended with status {code}: {text}")


def check_silent(daemons):
    os.kill(daemons.pid("h2"), signal.SIGSTOP)
    try:
        report = verify(daemons, "--classes", "urgent", "--patience", "3", "--beside-jobs", status=1)
    finally:
        os.kill(daemons.pid("h2"), signal.SIGCONT)
    expect([host["name"] for host in report["hosts"] if host["outcome"] == "untested"] == ["h2"], report["hosts"])
    expect(len(report["marks"]) == 2 and all(v["dscp"] == "passed" for v in report["marks"]), report["marks"])


def main():
    with Daemons(3, settings={"probe_marks": "1 s"}) as daemons:
        check_marks(daemons)
    with Daemons(3, settings={"probe_marks": "off"}) as daemons:
        check_all(daemons)
        check_other_file(daemons)
        check_stranger(daemons)
        check_job(daemons)
        check_silent(daemons)


if __name__ == "__main__":
    main()
