"""A process group is made so many times in the same processes, as by programs that survive the failure of a rank. It ends in peace, or is aborted while an
operation is under way that one rank never calls. A script of four ranks, run by backend/test_backend.py:

    torch_backend_again.py TIMES        more than 15, after which it looks for the first time

Afterwards every process, the daemons' too, has as many threads, descriptors, mappings and bytes of shared memory as after the first groups.
"""

import datetime
import os
import socket
import struct
import sys
import threading
import time
import types

import torch
import torch.distributed as dist
from tensorlane.torch._backend import create
from torch_backend import refused

WARM = 15
KINDS = ("peace", "all abort", "one aborts", "a thread waits", "backend only")
RESIDENT_KIB = 8192  # that the allocator of a process may keep, more than before


def daemon_pid():
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as session:
        session.connect(os.environ["TENSORLANE_SOCKET"])
        return struct.unpack("3i", session.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]


def used(pid):
    """What a leak would make more of."""
    with open(f"/proc/{pid}/status") as file:
        status = dict(line.split(":", 1) for line in file)
    with open(f"/proc/{pid}/maps") as file:
        mappings = [line.split(maxsplit=5) for line in file]
    shared = [[int(end, 16) for end in mapping[0].split("-")] for mapping in mappings if "s" in mapping[1]]
    exactly = {
        "threads": int(status["Threads"]), "descriptors": len(os.listdir(f"/proc/{pid}/fd")), "shared mappings": len(shared),
        "shared bytes": sum(end - begin for begin, end in shared), "files in /dev/shm": sum("tensorlane" in name for name in os.listdir("/dev/shm")),
    }
    return exactly, int(status["VmRSS"].split()[0])


def settled(pid, seconds=1):
    """When nothing has changed for so long: threads end, and the daemon gives back what a job had, after the group has been left."""
    found, since, end = used(pid), time.monotonic(), time.monotonic() + 20
    while time.monotonic() - since < seconds and time.monotonic() < end:
        time.sleep(0.05)
        now = used(pid)
        if now[0] != found[0]:
            since = time.monotonic()
        found = now
    return found


class Rounds:
    def __init__(self):
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=self.rank == 0)

    def meet(self, where):
        """All ranks, without the group."""
        self.store.set(f"{where}/{self.rank}", "")
        self.store.wait([f"{where}/{rank}" for rank in range(self.size)], datetime.timedelta(seconds=60))

    def check_sums(self, group, number):
        """Of sizes that differ from round to round."""
        everybody = float(sum(rank + number for rank in range(self.size)))
        for count in (1, 1000 + number, 1 << 18):
            tensor = torch.full((count,), float(self.rank + number))
            group.allreduce([tensor]).wait()
            assert (tensor == everybody).all(), (number, count, tensor)
        gathered = torch.zeros(3 * self.size)
        group._allgather_base(gathered, torch.full((3,), float(self.rank + number))).wait()
        assert torch.equal(gathered, torch.arange(float(number), number + self.size).repeat_interleave(3)), (number, gathered)

    def abort(self, kind, number, group, abort):
        """The rank `absent` does not call what the others wait for."""
        absent = number % self.size
        pending = torch.ones(1 << 16)
        work = group.allreduce([pending]) if self.rank != absent else None
        self.meet(f"pending{number}")
        waits = []
        if kind == "a thread waits" and work is not None:
            said = waits.append
            thread = threading.Thread(target=lambda: said(refused(work.wait, dist.DistBackendError, "aborted|without goodbye")))
            thread.start()
        begin = time.monotonic()
        if kind == "one aborts" and work is not None:  # the others hear of it by an error
            refused(work.wait, dist.DistBackendError, f"rank {absent} .*without goodbye")
        abort()
        if kind == "a thread waits" and work is not None:
            thread.join()
            assert waits
        elif work is not None:
            refused(work.wait, dist.DistBackendError, "this process has aborted its process group|without goodbye")
        assert time.monotonic() - begin < 8, (kind, number, time.monotonic() - begin)

    def round(self, number):
        kind = KINDS[number % len(KINDS)]
        if kind == "backend only":  # no more of torch.distributed than this, in a store of its own
            options = types.SimpleNamespace(
                group_rank=self.rank, group_size=self.size, store=dist.PrefixStore(f"round{number}", self.store), timeout=datetime.timedelta(seconds=30),
                group_id=f"round{number}", global_ranks_in_group=list(range(self.size)),
            )
            backend = create(options, None)
            self.check_sums(backend, number)
            self.abort(kind, number, backend, backend.abort)
            return
        dist.init_process_group("tensorlane", store=self.store, rank=self.rank, world_size=self.size)
        pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        group, mine = dist.group.WORLD, pairs[self.rank // 2]
        self.check_sums(group, number)
        tensor = torch.ones(10)
        dist.all_reduce(tensor, group=mine)
        assert (tensor == 2).all()
        if kind == "peace":
            dist.destroy_process_group()
        else:
            self.abort(kind, number, group, dist.distributed_c10d._abort_process_group)


def main():
    torch.set_num_threads(1)
    rounds = Rounds()
    watched = {"this process": os.getpid(), "the daemon": daemon_pid()}
    early, times = {}, int(sys.argv[1])
    for number in range(times):
        rounds.round(number)
        if number + 1 in (WARM, times):
            rounds.meet(f"quiet{number}")
            found = {who: settled(pid) for who, pid in watched.items()}
            rounds.meet(f"looked{number}")
            if number + 1 == WARM:
                early = found
    for who, (exactly, resident) in found.items():
        was, was_resident = early[who]
        assert all(exactly[what] <= was[what] for what in was), (who, was, exactly)
        assert resident <= was_resident + RESIDENT_KIB, (who, was_resident, resident)
        print(f"rank {rounds.rank}: {who}: {exactly}, {was_resident} and then {resident} KiB", flush=True)
    print(f"rank {rounds.rank}: nothing is left of {times} groups", flush=True)
    rounds.store.set(f"end/{rounds.rank}", "")
    if rounds.rank == 0:  # the store ends with it
        rounds.store.wait([f"end/{rank}" for rank in range(rounds.size)])


if __name__ == "__main__":
    main()
