"""A rank that others wait for, and that leaves or does not come: every other rank is told which one it is, also where its host is told nothing because it
only sends."""

import sys

from daemons import BUILD, Daemons, expect

MESSAGE = f"{BUILD}/tests/message"
LATE_ERROR = 2.0
SETTINGS = {"late_after": "500 ms", "late_error": f"{LATE_ERROR} s"}
# One slice: one host waits for all others.
SMALL, LARGE = 4096, 8 << 20


def start(daemons, job, commands):
    """One rank of each command, on hosts of their own."""
    return [daemons.rank(job, rank, len(commands), host, [MESSAGE, *command]) for rank, (host, command) in enumerate(zip(daemons.names, commands, strict=False))]


def expect_error(ranks, absent, error):
    for rank, child in enumerate(ranks):
        if rank == absent:
            continue
        text, _ = child.communicate(timeout=20)
        expect(child.returncode == 1 and f"tensorlane: error: rank {absent} on host h{absent} {error}" in text,
               f"rank {rank} ended with status {child.returncode}: {text}")


def does_not_come(daemons, hosts, absent, size):
    job = f"does-not-come-{hosts}-{absent}-{size}"
    ranks = start(daemons, job, [["pause", str(size), "60" if rank == absent else "0", "0.5"] for rank in range(hosts)])
    expect_error(ranks, absent, "has not submitted for ")
    for host in daemons.names[:hosts]:
        expect(f"job '{job}': rank {absent} on host h{absent} is late with tensor 'pause'" in daemons.log(host), f"{host} has not warned of it: {daemons.log(host)}")
    ranks[absent].kill()


def leaves(daemons, hosts, absent, size):
    ranks = start(daemons, f"leaves-{hosts}-{absent}-{size}", [["sum", str(size), "3" if rank == absent else "4", "0.5"] for rank in range(hosts)])
    text, _ = ranks[absent].communicate(timeout=20)
    expect(ranks[absent].returncode == 0, f"who leaves ended with status {ranks[absent].returncode}: {text}")
    expect_error(ranks, absent, "has left the job")


def main():
    with Daemons(3, settings=SETTINGS) as daemons:
        for case in (does_not_come, leaves):
            for hosts in (2, 3):
                for absent in range(hosts):
                    for size in (SMALL, LARGE):
                        case(daemons, hosts, absent, size)
            print(f"{case.__name__}: named on every host", flush=True)


if __name__ == "__main__":
    sys.exit(main())
