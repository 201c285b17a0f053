"""Daemons that look at their marks in a routed lab: a switch that rewrites the DSCP of one class towards one host is noticed by the hosts beyond, in that class, for that
host alone, and no longer when it has ended."""

import json
import os
import subprocess

from daemons import BIN, Daemons, Lab, expect, require_namespaces, wait_for
from lab_faults import rewrite
from lab_harness import URGENT

HOSTS = 3
CONFIG = """
hosts:
  - {name: h0, addresses: {tcp: 10.77.0.1}}
  - {name: h1, addresses: {tcp: 10.77.0.2}}
  - {name: h2, addresses: {tcp: 10.77.0.3}}
switches: [{name: leaf0}, {name: leaf1}]
links:
  - {from: h0, to: leaf0, speed: 100 Mbit/s}
  - {from: h1, to: leaf0, speed: 100 Mbit/s}
  - {from: h2, to: leaf1, speed: 100 Mbit/s}
  - {from: leaf0, to: leaf1, speed: 100 Mbit/s}
"""


def changed(daemons, host):
    done = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--json", "--socket", daemons.socket(host)], capture_output=True, text=True, timeout=20)
    return json.loads(done.stdout)["marks"]["changed"]


def expect_soon(daemons, expected):
    def seen():
        return {name: changed(daemons, name) for name in daemons.names}
    wait_for(lambda: seen() == expected, lambda: f"{seen()} instead of {expected}")


def main():
    require_namespaces()
    with Lab(config=CONFIG, routed=True) as lab, Daemons(HOSTS, lab=lab, settings={"probe_marks": "1 s"}) as daemons:
        nothing = {name: [] for name in daemons.names}
        expect_soon(daemons, nothing)
        to_h2 = [{"peer": "h2", "rail": 0, "class": "urgent", "arrived_dscp": 10}]
        with rewrite(lab, "leaf1", URGENT, 10, leaving="h2"):
            expect_soon(daemons, {"h0": to_h2, "h1": to_h2, "h2": []})
            expect("DSCP 43 of class urgent arrives at host h2 as 10" in daemons.log("h0"), daemons.log("h0"))
        expect_soon(daemons, nothing)


if __name__ == "__main__":
    main()
