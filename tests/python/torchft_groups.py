"""torchft's process groups on the backend. A script of any number of ranks, run by ecosystem/test_torchft.py:

    torchft_groups.py works      what a process group of torchft can do
    torchft_groups.py again      quorums of other sizes and orders of ranks, one after the other
    torchft_groups.py dies       the last rank dies; the others make a group without it
    torchft_groups.py aborts     rank 0 aborts while it waits for an operation
    torchft_groups.py late       the last rank does not come: to the group, to an operation
"""

import datetime
import os
import random
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from tensorlane.torch.torchft import ProcessGroupTensorlane
from torch.distributed import ReduceOp
from torch_backend import refused

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ADDRESS, PORT = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
SECONDS = datetime.timedelta(seconds=60)


def configure(group, quorum, ranks):
    """Where this rank is one of `ranks`: a group of them, in this order."""
    if RANK in ranks:
        group.configure(f"{ADDRESS}:{PORT}/quorum{quorum}", f"replica{RANK}", ranks.index(RANK), len(ranks), quorum, 0, 1, ranks)
        assert group.errored() is None and group.size() == len(ranks)


def total(group, number):
    tensor = torch.full((1000,), float(number))
    group.allreduce([tensor], ReduceOp.SUM).wait()
    assert (tensor == tensor[0]).all()
    return int(tensor[0])


def works(store):
    group = ProcessGroupTensorlane(SECONDS)
    configure(group, 1, list(range(SIZE)))
    assert group.getBackendName() == "torchft-tensorlane"
    assert total(group, RANK + 1) == SIZE * (SIZE + 1) // 2
    mine, everybody = torch.arange(4) + 10 * RANK, [torch.arange(4) + 10 * rank for rank in range(SIZE)]

    def same(outputs, expected):
        assert all(torch.equal(one, other) for one, other in zip(outputs, expected, strict=True)), (outputs, expected)

    outputs = [torch.empty(4, dtype=torch.int64) for _ in range(SIZE)]
    gathered = group.allgather([outputs], [mine], c10d.AllgatherOptions()).get_future().wait()
    same(outputs, everybody)
    same(gathered, everybody)
    one, two = torch.empty(SIZE * 4, dtype=torch.int64), torch.empty(SIZE * 4, dtype=torch.int64)
    group.allgather_into_tensor_coalesced([one, two], [mine, -mine], c10d.AllgatherOptions()).wait()
    same([one, two], [torch.cat(everybody), -torch.cat(everybody)])
    sums = [mine.clone(), 2 * mine]
    group.allreduce_coalesced(sums, c10d.AllreduceCoalescedOptions()).wait()
    same(sums, [sum(everybody), 2 * sum(everybody)])
    part = torch.empty(4, dtype=torch.int64)
    group.reduce_scatter([part], [[mine + rank for rank in range(SIZE)]], c10d.ReduceScatterOptions()).wait()
    same([part], [sum(everybody) + RANK * SIZE])
    parts = [torch.empty(4, dtype=torch.int64), torch.empty(1, dtype=torch.int64)]
    group.reduce_scatter_tensor_coalesced(parts, [mine.repeat(SIZE), torch.arange(SIZE)], c10d.ReduceScatterOptions()).wait()
    same(parts, [sum(everybody), torch.tensor([RANK * SIZE])])
    exchanged = torch.empty(SIZE, dtype=torch.int64)
    group.alltoall_base(exchanged, torch.arange(SIZE) + 100 * RANK, [1] * SIZE, [1] * SIZE, c10d.AllToAllOptions()).wait()
    same([exchanged], [torch.arange(SIZE) * 100 + RANK])
    for root in range(SIZE):
        tensor = mine.clone()
        group.broadcast_one(tensor, root).wait()
        same([tensor], [everybody[root]])
    group.barrier(c10d.BarrierOptions()).wait()
    got = torch.empty(4, dtype=torch.int64)
    sent = group.send([mine], (RANK + 1) % SIZE, 7)
    group.recv([got], (RANK - 1) % SIZE, 7).wait()
    sent.wait()
    same([got], [everybody[RANK - 1]])
    group.shutdown()
    assert group.errored() is None


def again(store):
    group, draw, threads = ProcessGroupTensorlane(SECONDS), random.Random(3), None
    for quorum in range(1, 25):
        ranks = draw.sample(range(SIZE), draw.randint(1, SIZE))
        configure(group, quorum, ranks)
        for turn in range(draw.randint(0, 3)):
            if RANK in ranks:
                assert total(group, RANK + turn) == sum(ranks) + turn * len(ranks)
        meet(store, quorum)
        if quorum == 8:
            threads = threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    now = threading.active_count(), len(os.listdir("/proc/self/task")), len(os.listdir("/proc/self/fd"))
    assert all(later <= earlier + 12 for later, earlier in zip(now, threads, strict=True)), (threads, now)


def meet(store, name):
    store.set(f"here/{name}/{RANK}", "")
    store.wait([f"here/{name}/{rank}" for rank in range(SIZE)], SECONDS)


def dies(store):
    group, last = ProcessGroupTensorlane(SECONDS), SIZE - 1
    configure(group, 1, list(range(SIZE)))
    assert total(group, 1) == SIZE
    if RANK == last:
        os.kill(os.getpid(), signal.SIGKILL)
    refused(lambda: [total(group, 1) for _ in range(10)], dist.DistBackendError, f"rank {last}")
    assert isinstance(group.errored(), dist.DistBackendError) and f"rank {last}" in str(group.errored()), group.errored()
    configure(group, 2, list(range(last)))
    assert total(group, RANK) == last * (last - 1) // 2
    print(f"rank {RANK}: goes on without rank {last}", flush=True)
    group.shutdown()
    store.set(f"over{RANK}", "")
    if RANK == 0:
        store.wait([f"over{rank}" for rank in range(last)], SECONDS)
    os._exit(1)


def aborts(store):
    group = ProcessGroupTensorlane(SECONDS)
    for quorum in range(1, 8, 2):
        configure(group, quorum, list(range(SIZE)))
        if RANK == 0:
            work = group.allreduce([torch.ones(5)], ReduceOp.SUM)
            threading.Timer(0.05, group.abort).start()
            refused(work.wait, dist.DistBackendError, "aborted its process group")
            assert "aborted" in str(group.errored())
            store.set(f"aborted{quorum}", "")
        else:
            store.wait([f"aborted{quorum}"], SECONDS)
            refused(lambda: [total(group, 1) for _ in range(10)], dist.DistBackendError, "rank 0")
            assert "rank 0" in str(group.errored()), group.errored()
        configure(group, quorum + 1, list(range(SIZE)))
        assert total(group, 1) == SIZE


def late(store):
    group = ProcessGroupTensorlane(datetime.timedelta(seconds=1))
    if RANK < SIZE - 1:
        refused(lambda: configure(group, 1, list(range(SIZE))), dist.DistBackendError, f"rank.s. {SIZE - 1} have not come: process group 'torchft.1', within 1.0* s")
    meet(store, "late")
    group.set_timeout(SECONDS)
    configure(group, 2, list(range(SIZE)))
    assert total(group, 1) == SIZE
    group.set_timeout(datetime.timedelta(seconds=1))
    if RANK < SIZE - 1:
        refused(lambda: total(group, 1), dist.DistBackendError, "Timed out: all_reduce.*within 1 s")
        assert "Timed out" in str(group.errored()), group.errored()
    meet(store, "timed out")
    group.set_timeout(SECONDS)
    configure(group, 3, list(range(SIZE)))
    assert total(group, 1) == SIZE


def main():
    torch.set_num_threads(1)
    store = dist.TCPStore(ADDRESS, PORT, is_master=RANK == 0, wait_for_workers=False)
    meet(store, "begun")
    {"works": works, "again": again, "dies": dies, "aborts": aborts, "late": late}[sys.argv[1]](store)
    meet(store, "over")
    print(f"rank {RANK}: {sys.argv[1]} is right", flush=True)
    if RANK == 0:
        time.sleep(0.5)  # the store is this rank's


if __name__ == "__main__":
    main()
