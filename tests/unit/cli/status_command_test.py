#!/usr/bin/env python3
"""`tensorlane status` as people read it, of a host that drives ports itself: what is not 0 of drops and packets, and why a rail has no such port only where somebody wants one.

usage: status_command_test.py TENSORLANE"""

import json
import os
import subprocess
import sys
import tempfile

from fake_daemon import FakeDaemon

TENSORLANE = sys.argv[1]
WHY = "daemon.yaml says `transport: tcp`"


def port(**changes):
    return {"device": "0000:3b:00.0", "mac": "02:00:00:00:00:01", "link_up": True, "link_bits_per_second": 100_000_000_000, "link_changes": 1,
            "queues": [{"class": "control", "sent_packets": 11, "sent_bytes": 12, "full": 0}, {"class": "urgent", "sent_packets": 21, "sent_bytes": 22, "full": 23, "refused": 24}],
            "received_packets": 31, "received_bytes": 32, "drops": {"ip_checksum": 0, "foreign_mac": 41, "unasked": 42}, "neighbour_questions": 51, "neighbour_answers": 52,
            "no_memory": 0, "polled_seconds": 9.0, "busy_seconds": 4.0, "busy_share": 0.125, "datagrams": {"lost": 61, "resent": 0, "marked": 62}, **changes}


def rail(**changes):
    return {"lane": 0, "address": "10.0.0.1", "transport": "dpdk, tcp", "device": "eth0", "why_no_rdma": "", "why_no_dpdk": "", "names_dpdk": True, "port": port(), "classes": [], **changes}


def text(*rails):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "socket")
        status = json.dumps({"host": "h0", "version": "1", "pid": 1, "uptime_s": 1, "lane": {"transport": "auto", "pattern": "ring", "lanes": 1, "rails": rails}})
        with FakeDaemon(path, status=lambda: status, ask=lambda question: None):
            done = subprocess.run([TENSORLANE, "status", "--socket", path], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done
        return done.stdout


def main():
    shown = text(rail())
    for line in ("    port 0000:3b:00.0 02:00:00:00:00:01: link up, 100000 Mbit/s, polling was 12.5 % busy in the last second", "      class control    sent 11 packets, 12 bytes; its queue was full 0 times",
                 "      class urgent     sent 21 packets, 22 bytes; its queue was full 23 times; the device refused 24 packets", "      received 31 packets, 32 bytes; neighbours: asked 51 times, answered 52",
                 "      dropped: foreign_mac 41, unasked 42", "      packets of flows: lost 61, marked 62"):
        assert line in shown.splitlines(), (line, shown)
    assert "no packet buffer" not in shown and "no dpdk" not in shown, shown
    quiet = text(rail(port=port(link_up=False, link_bits_per_second=0, no_memory=7, drops={"unasked": 0}, datagrams={"lost": 0})))
    assert "link down, polling" in quiet and "no packet buffer was free 7 times" in quiet and "dropped" not in quiet and "packets of flows" not in quiet, quiet
    assert f", no dpdk: {WHY}" in text(rail(port=None, why_no_dpdk=WHY))
    assert "no dpdk" not in text(rail(port=None, why_no_dpdk=WHY, names_dpdk=False)), "nobody asked for it"


main()
