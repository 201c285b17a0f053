"""Process sets in a real job of four ranks, results checked. A script, run by daemons/test_daemons.py."""

import json
import os
import random
import resource
import sys
import time

import numpy
import tensorlane
import tensorlane.torch as tl
import torch
from array_calls import expect, refused
from tensorlane import _native

SIZE = 4


def collectives(rank):
    """Two sets that share rank 2, and the whole job between them."""
    sets = [tensorlane.add_process_set([2, 0]), tensorlane.add_process_set(tensorlane.ProcessSet([1, 2, 3]))]
    for process_set, ranks in zip(sets, ([0, 2], [1, 2, 3])):
        assert process_set.ranks == ranks and process_set.size() == len(ranks) and process_set.included() == (rank in ranks)
    # Members of both start both, and nobody waits for who is in neither.
    handles = []
    for process_set in sets:
        if process_set.included():
            handles.append((process_set, tensorlane.allreduce_async(numpy.full(1000, 10.0**rank, "float32"), op=tensorlane.Sum, process_set=process_set)))
    everybody = tensorlane.allreduce(numpy.full(7, rank, "int64"), op=tensorlane.Sum, process_set=tensorlane.global_process_set)
    expect(everybody, [6] * 7)
    for process_set, handle in handles:
        expect(handle.synchronize(), numpy.full(1000, sum(10.0**r for r in process_set.ranks)))
    for process_set in sets:
        if not process_set.included():
            refused(tensorlane.InvalidArgumentError, f"rank {rank} is not in the process set", lambda: tensorlane.allreduce(numpy.ones(3), process_set=process_set))  # noqa: B023
            continue
        ranks, place = process_set.ranks, process_set.ranks.index(rank)
        assert process_set.rank() == place
        expect(tensorlane.allreduce(numpy.full(3, float(rank)), name="mean", process_set=process_set), [sum(ranks) / len(ranks)] * 3)
        expect(tensorlane.broadcast(numpy.array([rank, 5], "int32"), 2, process_set=process_set), [2, 5])
        expect(tensorlane.allgather(numpy.array([rank]), process_set=process_set), ranks)
        mine = tensorlane.reducescatter(numpy.arange(len(ranks) * 2.0), op=tensorlane.Sum, process_set=process_set)
        expect(mine, numpy.arange(2 * place, 2 * place + 2) * len(ranks))
        expect(tl.allreduce_(torch.full((5,), rank + 0.0), op=tl.Max, process_set=process_set), [max(ranks)] * 5)
        expect(tl.allgather(torch.full((1, 2), float(rank)), process_set=process_set)[:, 0], ranks)
        assert tl.broadcast_object({"from": rank}, 2, process_set=process_set) == {"from": 2}
        tensorlane.barrier(30, process_set=process_set)
        refused(tensorlane.InvalidArgumentError, "is not in the process set", lambda: tensorlane.broadcast(numpy.ones(3), (set(range(SIZE)) - set(ranks)).pop(), process_set=process_set))  # noqa: B023
    return sets


def training(rank, sets):
    """One model for each set, trained by its ranks; every one ends like a training on the mean of the members' data. Returns their optimizers, or None."""
    optimizers = []
    for process_set in sets:
        if not process_set.included():
            optimizers.append(None)
            continue
        model = torch.nn.Linear(3, 2)
        tl.broadcast_parameters(model.state_dict(), process_set.ranks[0], process_set=process_set)
        reference = torch.nn.Linear(3, 2)
        reference.load_state_dict(model.state_dict())
        optimizer = tl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model.named_parameters(), process_set=process_set)
        plain = torch.optim.SGD(reference.parameters(), lr=0.5)
        for step in range(3):
            data = {r: torch.full((1, 3), float(r + step)) for r in process_set.ranks}
            optimizer.zero_grad()
            model(data[rank]).sum().backward()
            optimizer.step()
            plain.zero_grad()
            sum(reference(x).sum() for x in data.values()).div(len(data)).backward()
            plain.step()
        optimizer.flush()
        for ours, theirs in zip(model.parameters(), reference.parameters()):
            torch.testing.assert_close(ours, theirs)
        optimizers.append(optimizer)
    return optimizers


def stores(rank, sets):
    """Keys of one name in stores of both sets and of the job hold what the ranks of each push."""
    of_job = tensorlane.KVStore()
    of_job.push("key", numpy.full(50, 10.0**rank))
    for process_set in sets:
        if not process_set.included():
            for store in (tensorlane.KVStore, tl.KVStore):
                refused(tensorlane.InvalidArgumentError, f"rank {rank} is not in the process set", lambda: store(process_set=process_set))  # noqa: B023
            continue
        total = sum(10.0**r for r in process_set.ranks)
        synchronous, stale = tensorlane.KVStore(process_set=process_set), tl.KVStore(1, process_set=process_set)
        synchronous.push("key", numpy.full(50, 10.0**rank))
        stale.push("key", torch.full((7,), 10.0**rank))
        expect(synchronous.pull("key", numpy.empty(50)), numpy.full(50, total))
        expect(stale.pull("key", torch.empty(7)), torch.full((7,), total))
    expect(of_job.pull("key", numpy.empty(50)), numpy.full(50, 1111.0))


def removal(rank, sets, optimizers):
    gone = sets.pop(0)
    tensorlane.remove_process_set(gone)
    if optimizers[0] is not None:
        refused(tensorlane.InvalidArgumentError, "ProcessSet([0, 2]) was removed: optimizer SGD: add a set of these ranks again", optimizers[0].step)
    refused(tensorlane.InvalidArgumentError, "was removed", lambda: tensorlane.allreduce(numpy.ones(2), process_set=gone))
    refused(tensorlane.InvalidArgumentError, "was removed", lambda: tensorlane.remove_process_set(gone))
    again, twin = tensorlane.add_process_set([0, 2]), tensorlane.add_process_set([0, 2])
    if again.included():
        handles = [tensorlane.allreduce_async(numpy.full(2, value), name="x", op=tensorlane.Sum, process_set=s) for s, value in ((again, 1.0), (twin, 5.0))]
        expect(handles[1].synchronize(), [10, 10])
        expect(handles[0].synchronize(), [2, 2])
    alone = tensorlane.add_process_set([3])
    if alone.included():
        expect(tensorlane.allreduce(numpy.full(2, 7.0), process_set=alone), [7, 7])


def late(rank):
    """A rank that does not come is named, and the others go on waiting when they call again; the job goes on."""
    if rank != 3:
        _native.context().timeout, usual = 4, _native.context().timeout
        for _ in range(2):
            refused(tensorlane.TimedOutError, "rank 3 has not called add_process_set() within 4 s: ProcessSet([0, 1]): let all ranks", lambda: tensorlane.add_process_set([0, 1]))
        _native.context().timeout = usual
    tensorlane.barrier()
    late = tensorlane.add_process_set([0, 1])
    if late.included():
        expect(tensorlane.allreduce(numpy.ones(2), op=tensorlane.Sum, process_set=late), [2, 2])


def another(rank):
    """After a time-out the others turn to another set, which they add when rank 3 has answered the first question."""
    if rank != 3:
        _native.context().timeout, usual = 2, _native.context().timeout
        refused(tensorlane.TimedOutError, "not called add_process_set()", lambda: tensorlane.add_process_set([0, 1]))
        _native.context().timeout = usual
    tensorlane.barrier()
    if rank == 3:
        tensorlane.add_process_set([0, 1])
    group = tensorlane.add_process_set([0, 2])
    if group.included():
        expect(tensorlane.allreduce(numpy.ones(2), op=tensorlane.Sum, process_set=group), [2, 2])


def local_ranks(rank):
    here = tensorlane.local_size()
    for ranks in (numpy.array([0, 2, 3]), range(1, 4, 2)):
        group = tensorlane.add_process_set(ranks)
        if rank in ranks:
            local = [r for r in ranks if r // here == rank // here]
            found = group.context()
            assert (found.local_rank, found.local_size) == (local.index(rank), len(local))


def messages(rank, sets):
    """A message of a set is received in it, whatever else has its tag and its ranks."""
    everybody = numpy.full(3, 100.0 + rank)
    twin = tensorlane.add_process_set([1, 2, 3])
    if rank == 1:
        handles = [
            tensorlane.send_async(everybody, 3, 7),
            tensorlane.send_async(numpy.full(3, 1.0), 3, 7, process_set=twin),
            tensorlane.send_async(numpy.full(3, 2.0), 3, 7, process_set=sets[-1]),
        ]
        for handle in handles:
            handle.synchronize()
    if rank == 3:
        into = numpy.empty(3)
        assert tensorlane.recv_(into, None, 7, process_set=sets[-1]) == 1  # ranks are those of the job
        expect(into, [2] * 3)
        assert tensorlane.recv_(into, None, 7, process_set=twin) == 1
        expect(into, [1] * 3)
        assert tensorlane.recv_(into, 1, 7) == 1
        expect(into, [101] * 3)
    tensorlane.remove_process_set(twin)


def removed_by_one(rank):
    """A rank that goes on to use a set that another one has left is told who that is, as is everybody: the job is over."""
    one_goes = tensorlane.add_process_set([1, 3])
    if one_goes.included():
        expect(tensorlane.allreduce(numpy.ones(2), op=tensorlane.Sum, name="x", process_set=one_goes), [2, 2])
    tensorlane.barrier()
    if rank == 3:
        tensorlane.remove_process_set(one_goes)
    elif rank == 1:
        refused(tensorlane.AbortedError, "rank 3 on host", lambda: tensorlane.allreduce(numpy.ones(2), op=tensorlane.Sum, name="x", process_set=one_goes))
    refused(tensorlane.AbortedError, "has left its process set", lambda: tensorlane.allreduce(numpy.ones(2), op=tensorlane.Sum, name="y"))
    refused(tensorlane.AbortedError, "has left its process set", tensorlane.shutdown)
    print(f"rank {rank}: knows who has left the set")


def taken():
    """What a leak would make more of, in this process."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def daemon_status():
    return _native.context().daemon_status()


def many(rank, live, turns):
    """So many sets at once, each of which works; and so many one after the other, without growth."""
    draw = random.Random(7)
    sets = []
    for _ in range(live):
        ranks = sorted(draw.sample(range(SIZE), draw.randint(1, SIZE)))
        sets.append(tensorlane.add_process_set(ranks))
    draw.shuffle(sets)
    flows = json.dumps(daemon_status()["jobs"]).count('"job"')
    for process_set in sets:
        if process_set.included():
            expect(tensorlane.allreduce(numpy.full(5, 1.0 + rank), op=tensorlane.Sum, name="x", process_set=process_set), [sum(1 + r for r in process_set.ranks)] * 5)
    assert len([job for job in daemon_status()["jobs"] if job["state"] == "running"]) == 1, flows
    for process_set in sets:
        tensorlane.remove_process_set(process_set)
    before = None
    for turn in range(turns):
        process_set = tensorlane.add_process_set(sorted(draw.sample(range(SIZE), 2)))
        if process_set.included():
            expect(tensorlane.allreduce(numpy.full(5, 1.0 + rank), op=tensorlane.Sum, process_set=process_set), [sum(1 + r for r in process_set.ranks)] * 5)
        tensorlane.remove_process_set(process_set)
        if turn == turns // 4:
            before = taken()
    tensorlane.barrier()
    until = time.monotonic() + 10
    while (after := taken())[1] > before[1] and time.monotonic() < until:
        time.sleep(0.05)  # a helper thread that has done its call is still ending
    grown = [b - a for a, b in zip(before, after)]
    assert grown[0] <= 0 and grown[1] <= 0 and grown[2] <= 8, (before, after)
    job = next(job for job in daemon_status()["jobs"] if job["state"] == "running")
    print(f"rank {rank}: {live} sets at once and {turns} one after the other, {job['plan']['tensors']} tensors are left")


def bad_sets(rank):
    for ranks in ([], [1, 1], ["a"]):
        refused(tensorlane.InvalidArgumentError, "are no ranks", lambda: tensorlane.add_process_set(ranks))  # noqa: B023
    refused(tensorlane.InvalidArgumentError, "0 is no list of ranks", lambda: tensorlane.add_process_set(0))
    refused(tensorlane.InvalidArgumentError, "[0, 1] is no process set", lambda: tensorlane.allreduce(numpy.ones(2), process_set=[0, 1]))
    refused(tensorlane.InvalidArgumentError, "the job has ranks 0 to 3", lambda: tensorlane.add_process_set([0, 4]))
    refused(tensorlane.InvalidArgumentError, "was not added", lambda: tensorlane.allreduce(numpy.ones(2), process_set=tensorlane.ProcessSet([rank])))
    other = [0, 1] if rank == 3 else [0, 2]
    refused(tensorlane.MismatchError, "add another process set than", lambda: tensorlane.add_process_set(other))


def main():
    tensorlane.init()
    rank = tensorlane.rank()
    assert tensorlane.size() == SIZE
    if len(sys.argv) == 1:
        bad_sets(rank)
    if sys.argv[1:2] == ["removed"]:
        return removed_by_one(rank)
    if sys.argv[1:2] == ["many"]:
        many(rank, int(sys.argv[2]), int(sys.argv[3]))
        return tensorlane.shutdown()
    sets = collectives(rank)
    messages(rank, sets)
    optimizers = training(rank, sets)
    stores(rank, sets)
    removal(rank, sets, optimizers)
    local_ranks(rank)
    late(rank)
    another(rank)
    tensorlane.shutdown()
    print(f"rank {rank}: all process sets are right")


if __name__ == "__main__":
    main()
