"""usage: lab_carrier.py DEVICE MILLISECONDS [PERCENT], in the namespace of a routed lab's switch or host. Until standard input ends, what the other end of a cable sends arrives so much
later: tc takes it to a tap, this process holds it, and tc gives it back to the device as if it had arrived then. Both ways are told apart by the sender's hardware address,
which nobody looks at: as sent it begins with 02, and here it gets 06. With PERCENT only so many of the frames, at random, come later, and the others overtake them; of
these a few are chosen again when they come back, and their addresses stay."""

import collections
import fcntl
import os
import select
import struct
import subprocess
import sys
import time

TUNSETIFF, IFF_TAP, IFF_NO_PI = 0x400454CA, 0x0002, 0x1000
SENDER = 6  # where its address begins in a frame


def make_tap(device):
    """Its file and name. It has the device's address, so that the kernel takes what comes back for a frame to this node."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    asked = struct.pack("16sH22x", b"late%d", IFF_TAP | IFF_NO_PI)
    name = fcntl.ioctl(tap, TUNSETIFF, asked)[:16].rstrip(b"\0").decode()
    with open(f"/sys/class/net/{device}/address") as file:
        address = file.read().strip()
    subprocess.run(["ip", "link", "set", name, "address", address, "txqueuelen", "10000", "up"], check=True)
    return tap, name


def tc(*words):
    subprocess.run(["tc", *words], check=True)


def take(device, tap_name, percent):
    """Takes frames that come to the device to the tap; the command that ends it."""
    if percent is None:
        tc("qdisc", "add", "dev", device, "clsact")
        tc("filter", "add", "dev", device, "ingress", "protocol", "all", "u32", "match", "u16", "0x0200", "0xff00", "at", "-8",
           "action", "mirred", "egress", "redirect", "dev", tap_name)
        return ["tc", "qdisc", "del", "dev", device, "clsact"]
    table = f"netdev late{os.getpid()}"
    chance = f"numgen random mod 10000 < {round(percent * 100)}"
    subprocess.run(["nft", f"table {table} {{ chain late {{ type filter hook ingress device {device} priority 1; {chance} fwd to {tap_name}; }}; }}"], check=True)
    return ["nft", f"delete table {table}"]


def carry(tap, delay, mark):
    held = collections.deque()  # (when to give it back, frame)
    while True:
        left = held[0][0] - time.monotonic() if held else None
        ready, _, _ = select.select([tap, sys.stdin], [], [], left if left is None else max(left, 0))
        if sys.stdin in ready:
            return
        now = time.monotonic()
        try:
            while tap in ready:
                frame = bytearray(os.read(tap, 65535))
                if mark:
                    frame[SENDER] = 0x06
                held.append((now + delay, frame))
        except BlockingIOError:
            pass
        while held and held[0][0] <= now:
            os.write(tap, held.popleft()[1])


def main():
    device, delay, percent = sys.argv[1], float(sys.argv[2]) / 1e3, float(sys.argv[3]) if len(sys.argv) > 3 else None
    tap, name = make_tap(device)
    tc("qdisc", "add", "dev", name, "clsact")
    tc("filter", "add", "dev", name, "ingress", "protocol", "all", "u32", "match", "u32", "0", "0", "action", "mirred", "ingress", "redirect", "dev", device)
    end = take(device, name, percent)
    print("ready", flush=True)
    carry(tap, delay, percent is None)
    subprocess.run(end, check=True)


if __name__ == "__main__":
    main()
