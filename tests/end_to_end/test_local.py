"""Daemons of one machine, which the fabric file gives a common `local` address, move a job's tensors through shared memory where that is faster; one with another
address is reached over TCP. The sums are the same to the bit, and so they are where threads beside the lane add."""

import socket
import sys

from daemons import BUILD, Daemons, expect, first_port, outputs

MESSAGE = f"{BUILD}/tests/message"


def chosen(daemons, name):
    """Peer -> the transport that flows from `name` to it take."""
    return {path["peer"]: [c["transport"] for c in path["candidates"] if c["chosen"]] for path in daemons.status(name)["lane"]["paths"]}


def sums(machines, settings=None):
    """The hash that every rank prints, and what h0 and h1 chose."""
    with Daemons(3, machines=machines, settings=settings) as daemons:
        ranks = daemons.job("sum", [MESSAGE, "sum", str(1 << 20), "20", "0.5"])
        printed = outputs(ranks, 30)
        for index, (text, code) in enumerate(printed):
            expect(code == 0, f"rank {index} ended with status {code}: {text}")
        hashes = {text.split()[-1] for text, _ in printed}
        expect(len(hashes) == 1, f"the ranks have different sums: {hashes}")
        return hashes.pop(), {**chosen(daemons, "h0"), **{f"h1 {peer}": how for peer, how in chosen(daemons, "h1").items()}}


def squat():
    """Takes every name that an abstract socket for these flows ever had: anybody can."""
    taken = []
    for host in range(3):
        for port in range(first_port() + 10, first_port() + 20):
            taken.append(socket.socket(socket.AF_UNIX))
            taken[-1].bind(f"\0tensorlane/127.0.1.{10 + host}:{port}")
    return taken


def main():
    over_tcp, _ = sums(None)
    by_workers, _ = sums(None, {"workers": "2"})
    expect(by_workers == over_tcp, "other sums by workers than by the lane")
    squatters = squat()
    together, ways = sums(["m", "m", "other"])
    expect(together == over_tcp, "other sums through shared memory than over TCP")
    expect(ways["h1"] == ["local"], f"h0 and h1 share a machine: {ways}")
    expect(ways.get("h2", ["tcp"]) == ["tcp"] and ways.get("h1 h2", ["tcp"]) == ["tcp"], f"h2 is on another machine: {ways}")
    for squatter in squatters:
        squatter.close()
    print(f"the same sums over TCP, by workers and through shared memory; chosen: {ways}")


if __name__ == "__main__":
    sys.exit(main())
