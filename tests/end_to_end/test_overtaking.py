"""What a daemon's own bulk may cost an urgent slice (law 8): behind 680 queued bulk slices it puts its first byte on the wire within

    (bulk window + one operation) / rate of the port + 100 microseconds, at the 99th percentile

of the moment when a rank submits it, measured by a capture behind the port's queue. Receivers have granted it by then, so that is when it is eligible, and the figure has
everything in it: the ring, the daemon's wake-up, what it is doing just then, and the bulk that it has let into the port before. Nothing but the daemon's window bounds the
latter here: the port is FIFO, where a strict one would let urgent packets pass whatever the daemon puts in front of them; it has room for much more than the window; and TCP
does not hold bulk back in the daemon's place, as it would with a congestion window that stops growing when the delay does (CUBIC), or by its limit on what one socket has in
its port's queue (it follows the pacing rate, which is raised tenfold).

On a busy machine a thread that is runnable waits for a core. How long, at the same percentile, is measured in the same process meanwhile, and allowed on top, since a
submission passes one such hand-over; both are printed, and whether the bound holds without."""

import re
import subprocess
import sys
import tempfile
import time

from daemons import BUILD, Daemons, Lab, expect, require_namespaces

OVERTAKE = f"{BUILD}/tests/overtake"
RATE = 500e6
HOSTS = 3
WINDOW = 256 << 10
OPERATION = 256 << 10
SLICES, QUEUED = 1000, 680  # of OPERATION bytes each
URGENT = 64 << 10
COUNT, ROUNDS = 80, 3
ALLOWED = 100e-6

CLASSES = (
    "{data: [{name: urgent, dscp: 43, pcp: 5, rank: 0}, {name: bulk, dscp: 27, pcp: 3, rank: 1, window: 256 KiB}], control: {dscp: 51, pcp: 6}}"
)
FABRIC = f"""classes: {CLASSES}
hosts: [{{name: h0, addresses: {{tcp: 10.77.0.1}}}}, {{name: h1, addresses: {{tcp: 10.77.0.2}}}}, {{name: h2, addresses: {{tcp: 10.77.0.3}}}}]
switches: [{{name: s0}}]
links:
- {{from: h0, to: s0, speed: 500 Mbit/s, buffer: 16 MiB}}
- {{from: h1, to: s0, speed: 500 Mbit/s}}
- {{from: h2, to: s0, speed: 500 Mbit/s}}
"""
KERNEL = ["net.ipv4.tcp_congestion_control=reno", "net.ipv4.tcp_pacing_ca_ratio=1000", "net.ipv4.tcp_pacing_ss_ratio=1000"]


def percentile(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


class Capture:
    """Times, in nanoseconds, at which packets of one DSCP with data leave a host's port: taken where the driver gets them, behind the port's queues."""

    def __init__(self, lab, host, dscp):
        self.file = tempfile.TemporaryFile("w+")
        command = lab.command(host, "tcpdump", "-i", "eth0", "-Q", "out", "-nn", "-tt", "--time-stamp-precision=nano", "-s", "96", "--immediate-mode", "-l",
                              f"tcp and ip[1] & 0xfc == {dscp << 2} and greater 200")
        self.child = subprocess.Popen(command, stdout=self.file, stderr=subprocess.PIPE, text=True)
        self.child.stderr.readline()
        expect(self.child.poll() is None, "tcpdump does not run")
        time.sleep(0.3)

    def times(self):
        time.sleep(0.5)
        self.child.terminate()
        self.child.wait(timeout=10)
        self.file.seek(0)
        return [int(sec) * 10**9 + int(ns) for sec, ns in re.findall(r"^(\d+)\.(\d{9}) IP", self.file.read(), re.MULTILINE)]


def first_bytes(lab, daemons, job):
    """Seconds from each submission to the first byte of it on the wire; and how late threads wake meanwhile (99th percentile)."""
    capture = Capture(lab, "h0", 43)
    before = daemons.status("h0")["transports"]["tcp"]["bytes_sent"]
    ranks = daemons.job(job, [OVERTAKE, str(SLICES * OPERATION), str(URGENT), str(COUNT)])
    posts, noise = [], None
    for line in ranks[0].stdout:
        word, value = line.split()
        if word == "noise":
            noise = int(value) * 1e-9
            break
        expect(word == "post", f"the sender failed: {line}")
        posts.append(int(value))
    expect(noise is not None and len(posts) == COUNT, f"the sender ended after {len(posts)} of {COUNT} submissions")
    # Every slice goes to every other host. All that was sent counts as bulk, so what is left is at least this.
    left = SLICES * (HOSTS - 1) - (daemons.status("h0")["transports"]["tcp"]["bytes_sent"] - before) / OPERATION
    expect(left >= QUEUED * (HOSTS - 1), f"at the end only {left:.0f} bulk slices were still queued, for {HOSTS - 1} hosts: the test's sizes do not fit this port's rate")
    for rank in ranks:
        rank.kill()
        rank.wait()
    packets = capture.times()
    delays, next_packet = [], 0
    for i, post in enumerate(posts):
        while next_packet < len(packets) and packets[next_packet] < post:
            next_packet += 1
        expect(next_packet < len(packets) and (i + 1 == len(posts) or packets[next_packet] < posts[i + 1]), "the capture misses a message")
        delays.append((packets[next_packet] - post) * 1e-9)
    return delays, noise


def main():
    require_namespaces()
    settings = {"pattern": "parameter_server", "slice_elements": OPERATION // 4}
    with Lab(policy="fifo", config=FABRIC) as lab, Daemons(HOSTS, lab=lab, settings=settings, classes=CLASSES) as daemons:
        lab.run("h0", "sysctl", "-q", "-w", *KERNEL)
        delays, noises = [], []
        for i in range(ROUNDS):
            more, noise = first_bytes(lab, daemons, f"fifo{i}")
            delays += more
            noises.append(noise)
        lab.policy("strict")
        strict, _ = first_bytes(lab, daemons, "strict")
    formula = (WINDOW + OPERATION) * 8 / RATE
    noise = max(noises)
    for name, values in (("FIFO", delays), ("strict", strict)):
        print(f"{name}: first byte after {percentile(values, 0.5) * 1e3:.2f} ms (median), {percentile(values, 0.99) * 1e3:.2f} ms (99th percentile of {len(values)}), "
              f"{max(values) * 1e3:.2f} ms (all)")
    print(f"allowed: (window + operation) / rate = {formula * 1e3:.2f} ms, and {ALLOWED * 1e6:.0f} us, and {noise * 1e6:.0f} us that threads of this machine wake late")
    measured = max(percentile(delays, 0.99), percentile(strict, 0.99))
    print(f"without the noise: {'within' if measured <= formula + ALLOWED else 'NOT within'} the bound")
    expect(percentile(delays, 0.5) > WINDOW * 8 / RATE / 8, "no bulk stands before the urgent slice: the test does not measure what it means to")
    expect(measured <= formula + ALLOWED + noise, f"the first byte of an urgent slice takes {measured * 1e3:.2f} ms behind bulk")


if __name__ == "__main__":
    sys.exit(main())
