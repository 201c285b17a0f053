"""data_protection of the fabric file, through real daemons: what goes over the wire can be read with none and authenticate, and not with encrypt; hosts that differ are named;
RDMA is refused beside it; and somebody on the path who changes a byte ends the job at every rank with an error that says so, or costs it a connection that is resumed."""

import os
import re
import select
import socket
import struct
import subprocess
import sys
import threading
import time

from daemons import BIN, BUILD, Daemons, expect, outputs, skip

MESSAGE = f"{BUILD}/tests/message"
# Of `message loop`: neighbours in every contribution and in none of the headers.
PATTERN = struct.pack("<8f", *range(300, 308))
ETH_P_IP = 0x0800


class Protected(Daemons):
    """Each host has a fabric file of its own: with the level `levels` names for it, and where h0 reaches h1 by another address."""

    def __init__(self, levels, settings=None, proxy=None):
        super().__init__(len(levels), settings={"fabric": "{host}.fabric.yaml", **(settings or {})})
        self.levels = levels
        self.proxy = proxy

    def write_fabric(self):
        super().write_fabric()
        with open(os.path.join(self.folder, "fabric.yaml")) as file:
            text = file.read()
        for name, level in zip(self.names, self.levels):
            own = text.replace(f"tcp: {self.address('h1')}", f"tcp: {self.proxy}") if self.proxy and name == "h0" else text
            with open(os.path.join(self.folder, name + ".fabric.yaml"), "w") as file:
                file.write(own + (f"data_protection: {level}\n" if level else ""))

    def loop(self, seconds, kilobytes=256):
        ranks = self.job("job", [MESSAGE, "loop", str(kilobytes << 10), str(seconds), "0.5"])
        for rank in ranks:
            expect(rank.stdout.readline() == "running\n", "the job did not start")
        return ranks


class Sniffer:
    """Everything that goes over loopback from or to these TCP ports."""

    def __init__(self, ports):
        self.ports = ports
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(ETH_P_IP))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.bind(("lo", ETH_P_IP))
        self.socket.settimeout(0.1)
        self.bytes = self.found = 0
        self.over = False
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *failure):
        self.over = True
        self.thread.join()
        self.socket.close()

    def run(self):
        while not self.over:
            try:
                packet = self.socket.recv(1 << 17)
            except socket.timeout:
                continue
            header = (packet[0] & 15) * 4
            if packet[9] != socket.IPPROTO_TCP or not any(port in self.ports for port in struct.unpack("!HH", packet[header:header + 4])):
                continue
            data = packet[header + (packet[header + 12] >> 4) * 4:]
            self.bytes += len(data)
            self.found += PATTERN in data


def reads_the_wire(level):
    with Protected([level, level]) as daemons, Sniffer(range(daemons.port + 10, daemons.port + 18)) as sniffer:
        for index, (text, code) in enumerate(outputs(daemons.loop(1), 30)):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
        status = daemons.status("h0")
        log = daemons.log("h0")
        named = subprocess.run([os.path.join(BIN, "tensorlane"), "status", "--socket", daemons.socket("h0")], capture_output=True, text=True, check=True).stdout
    expect(sniffer.bytes > 1 << 20, f"only {sniffer.bytes} bytes were seen on the data ports")
    expect((sniffer.found > 0) == (level != "encrypt"), f"{level or 'none'}: the contributions were found {sniffer.found} times")
    expect(status["lane"]["data_protection"] == (level or "none"), str(status["lane"]))
    expect(status["settings"]["values"]["fabric.yaml data_protection"] == (level or "none"), str(status["settings"]))
    expect((f"data_protection {level}" in named) == bool(level), named)
    carried = rf"its flows to 1 host go over tcp \({level}, (AES-256-GCM|ChaCha20-Poly1305)\)\n" if level else r"its flows to 1 host go over tcp\n"
    expect(re.search(carried, log), log)
    print(f"{level or 'none'}: of {sniffer.bytes} bytes on the data ports, {sniffer.found} packets show contributions", flush=True)


def differs():
    with Protected(["encrypt", "none"]) as daemons:
        for index, (text, code) in enumerate(outputs(daemons.job("job", [MESSAGE, "loop", "4096", "1", "0.5"]), 30)):
            expect(code == 1 and all(part in text for part in ("fabric.yaml data_protection", "encrypt", "none", "h1")), f"rank {index}: status {code}: {text}")
    print(f"hosts that differ: {text.strip()}", flush=True)


def refuses_rdma():
    with Protected(["encrypt"]) as daemons:
        fabric, config = (os.path.join(daemons.folder, file) for file in ("h0.fabric.yaml", "rdma.yaml"))
        with open(fabric) as file:
            text = re.sub(r"tcp: (\S+?)}", r"tcp: \1, rdma: \1}", file.read())
        with open(fabric, "w") as file:
            file.write(text)
        with open(config, "w") as file:
            file.write(f"fabric: h0.fabric.yaml\nhost: h0\nsecret_key_file: h0.secret\nsocket: {daemons.folder}/rdma.sock\ntransport: rdma\n")
        done = subprocess.run([os.path.join(BIN, "tensorlaned"), "--config", config, "--check-config"], capture_output=True, text=True)
    expect(done.returncode == 2 and "rdma.yaml:5" in done.stderr and "RDMA cannot protect data" in done.stderr, f"status {done.returncode}: {done.stderr}")
    print(done.stderr.strip(), flush=True)


class Path(threading.Thread):
    """Between h0 and h1: forwards the control port and the data ports, and changes a bit of what goes to h1's data ports now and then, when told to."""

    def __init__(self, address, target, ports, data_ports):
        super().__init__()
        self.target = target
        self.data_ports = data_ports
        self.changes = 0  # still to be made
        self.over = False
        self.listeners = {}
        for port in ports:
            listener = socket.create_server((address, port), backlog=64)
            self.listeners[listener] = port
        self.peers = {}  # either end of a connection -> the other one, and whether what comes may be changed

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *failure):
        self.over = True
        self.join()
        for end in [*self.listeners, *self.peers]:
            end.close()

    def run(self):
        while not self.over:
            for ready in select.select([*self.listeners, *self.peers], [], [], 0.05)[0]:
                if ready in self.listeners:
                    self.accept(ready)
                elif ready in self.peers:
                    self.forward(ready)

    def accept(self, listener):
        near, _ = listener.accept()
        port = self.listeners[listener]
        try:
            # From the address of h0, as if nobody was in between.
            far = socket.create_connection((self.target, port), timeout=5, source_address=("127.0.1.10", 0))
        except OSError:
            near.close()
            return
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.peers[near] = (far, port in self.data_ports)
        self.peers[far] = (near, False)

    def forward(self, end):
        to, may_change = self.peers[end]
        try:
            data = bytearray(end.recv(1 << 16))
            if may_change and self.changes > 0 and len(data) > 20000:
                data[10000] ^= 4
                self.changes -= 1
            if data:
                return to.sendall(data)
        except OSError:
            pass
        for gone in (end, to):
            del self.peers[gone]
            gone.close()


def tampered(level, settings):
    address, port = "127.0.1.99", None
    daemons = Protected([level, level], settings={"detection": "4 s", **settings}, proxy=address)
    port = daemons.port
    with Path(address, "127.0.1.11", [port, *range(port + 10, port + 13)], range(port + 10, port + 13)) as path, daemons:
        ranks = daemons.loop(60)
        resumes = settings.get("on_lost_flow") == "resume"
        for _ in range(3 if resumes else 1):
            before = daemons.status("h1")["lane"]["resumed_flows"]
            path.changes = 1
            deadline = time.monotonic() + 20
            while resumes and daemons.status("h1")["lane"]["resumed_flows"] == before:
                expect(time.monotonic() < deadline, "a changed byte has not cost a connection")
                time.sleep(0.05)
        if resumes:
            ranks[0].terminate()  # the loop's way to end well
        ended = outputs(ranks, 30)
        log = daemons.log("h1")
    for index, (text, code) in enumerate(ended):
        if resumes:
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
        else:
            expect(code == 1 and "does not authenticate: the path changed the data" in text, f"rank {index}: status {code}: {text}")
    expect("does not authenticate" in log, log)
    print(f"{level}, {settings or 'abort'}: " + ("every sum right, the flow was resumed" if resumes else ended[0][0].strip()), flush=True)


def main():
    try:
        Sniffer([]).socket.close()
    except PermissionError:
        skip("nobody may read from a network interface here: run as root")
    for level in (None, "authenticate", "encrypt"):
        reads_the_wire(level)
    differs()
    refuses_rdma()
    for level in ("authenticate", "encrypt"):
        tampered(level, {})
        tampered(level, {"on_lost_flow": "resume"})


if __name__ == "__main__":
    sys.exit(main())
