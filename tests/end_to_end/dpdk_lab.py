"""What the tests of daemons that drive a port themselves share: how jobs run over it, and what its packets are on the wire."""

import os
import subprocess
import time

from daemons import BUILD, expect, outputs

MESSAGE = os.path.join(BUILD, "tests", "message")
PORT = 7109  # where the daemons receive


def chosen(daemons, host):
    """By peer, over what its flows go."""
    return {path["peer"]: next(c["transport"] for c in path["candidates"] if c["chosen"]) for path in daemons.status(host)["lane"]["paths"]}


def lines_of(ranks, timeout):
    """What each rank printed; all have ended well."""
    texts = []
    for index, (text, status) in enumerate(outputs(ranks, timeout)):
        expect(status == 0, f"rank {index} ended with status {status}: {text}")
        texts.append(text)
    return texts


def start_loop(daemons, job, size, seconds, urgency="0.9", hosts=None):
    """Sums, each checked, until a time or SIGTERM at one rank; they run when this comes back."""
    ranks = daemons.job(job, [MESSAGE, "loop", str(size), str(seconds), urgency], hosts=hosts)
    for rank in ranks:
        line = rank.stdout.readline()
        expect(line == "running\n", f"the job did not start: {line}{rank.stdout.read() if rank.poll() is not None else ''}")
    return ranks


class Capture:
    """with Capture(lab, node, device, "udp port 7109", "in", "-e") as capture: what passes the device of a node; then capture.lines."""

    def __init__(self, lab, node, device, what, direction, *options):
        self.command = lab.command(node, "tcpdump", "-i", device, "-Q", direction, "-nn", "-tt", "-v", "-s", "96", "-l", "-B", "16384", *options, what)

    def __enter__(self):
        self.child = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.child.stderr.readline()
        expect("listening" in line or "tcpdump" in line, line)
        time.sleep(0.3)
        return self

    def __exit__(self, *failure):
        time.sleep(0.3)
        self.child.terminate()
        self.lines, self.said = self.child.communicate(timeout=20)
