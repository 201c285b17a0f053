"""`tensorlane verify --load` between daemons of a routed lab, with nothing else installed: strict ports pass in every class, and one port that serves in the order of arrival is
named. The daemons' own data ports take the bursts."""

import json
import os
import signal
import subprocess
import time

from daemons import BIN, Daemons, Lab, expect, require_namespaces

HOSTS = 3
CONFIG = """
hosts:
  - {name: h0, addresses: {tcp: 10.77.0.1}}
  - {name: h1, addresses: {tcp: 10.77.0.2}}
  - {name: h2, addresses: {tcp: 10.77.0.3}}
switches: [{name: leaf0, nos: linux}, {name: leaf1, nos: linux}]
links:
  - {from: h0, to: leaf0, speed: 200 Mbit/s}
  - {from: h1, to: leaf0, speed: 200 Mbit/s}
  - {from: h2, to: leaf1, speed: 200 Mbit/s}
  - {from: leaf0, to: leaf1, speed: 200 Mbit/s}
"""


def command_of(lab, daemons):
    return [os.path.join(BIN, "tensorlane"), "verify", "--fabric", lab.about["fabric_file"], "--socket", daemons.socket("h0"), "--load", "--family", "4",
               "--classes", "urgent,bulk", "--json"]


def check_interrupted(lab, daemons):
    """Who is interrupted ends its sessions: nobody has to wait until they end by themselves."""
    def probes():
        return [subprocess.run(["pgrep", "-P", str(daemons.pid(host))], capture_output=True, text=True).stdout for host in daemons.names]
    child = subprocess.Popen(command_of(lab, daemons), stdout=subprocess.DEVNULL)
    while not all(probes()):
        expect(child.poll() is None, "it has ended before it was interrupted")
        time.sleep(0.02)
    child.send_signal(signal.SIGINT)
    expect(child.wait(timeout=20) == -signal.SIGINT, f"exit status {child.returncode}")
    deadline = time.monotonic() + 20  # what is under way is ended first
    while any(probes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    expect(not any(probes()), f"programs of an interrupted session: {probes()}")


def verify(lab, daemons, status):
    done = subprocess.run(command_of(lab, daemons), capture_output=True, text=True, timeout=120)
    expect(done.returncode == status, f"exit status {done.returncode}: {done.stderr} {done.stdout}")
    return json.loads(done.stdout)


def main():
    require_namespaces()
    with Lab(config=CONFIG, routed=True, tag="v") as lab, Daemons(HOSTS, lab=lab, settings={"probe_marks": "off"}, port=7100) as daemons:
        check_interrupted(lab, daemons)
        report = verify(lab, daemons, status=0)
        marks = 2 * len(("urgent", "bulk")) * 8  # of two other hosts, from eight source ports each
        expect(all(daemons.status(f"h{i}")["probes_answered"] > marks for i in range(HOSTS)), "a daemon has handed no burst over")
        tested = {(v["node"], v["peer"]): v["outcome"] for v in report["overtaking"]}
        expect(tested[("leaf0", "leaf1")] == "passed" and set(tested.values()) == {"passed"}, report["overtaking"])
        lab.policy("fifo", "leaf0:leaf1")
        report = verify(lab, daemons, status=1)
        tested = {(v["node"], v["peer"]): v["outcome"] for v in report["overtaking"]}
        expect(tested[("leaf0", "leaf1")] == "failed", report["overtaking"])
        expect([(f["place"]["node"], f["place"]["peer"]) for f in report["findings"]] == [("leaf0", "leaf1")], report["findings"])


if __name__ == "__main__":
    main()
