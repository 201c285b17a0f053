"""Every array call, on every rank of a real job, results checked. A script, run by daemons/test_daemons.py."""

import array
import os
import sys
import time

import numpy
import tensorlane
import tensorlane.torch as tl
import torch
from unregister import plan


def expect(actual, wanted):
    numpy.testing.assert_array_equal(numpy.asarray(actual), numpy.asarray(wanted))


def refused(kind, fragment, call):
    try:
        call()
    except kind as error:
        assert fragment in str(error), str(error)
        assert str(error).count(": ") >= 2, f"not WHAT: WHERE: WHAT TO DO: {error}"
    else:
        raise AssertionError(f"{fragment!r} was expected")


def numpy_calls(rank, size):
    total = size * (size + 1) / 2
    for kind in ("float32", "float64", "float16"):
        mine = numpy.full((3, 5), rank + 1, kind)
        expect(tensorlane.allreduce(mine, name=f"sum.{kind}", op=tensorlane.Sum), numpy.full((3, 5), total, kind))
        expect(mine, numpy.full((3, 5), rank + 1, kind))
        expect(tensorlane.allreduce(mine, name=f"mean.{kind}"), numpy.full((3, 5), total / size, kind))
        expect(tensorlane.allreduce(mine, average=False, name=f"scaled.{kind}", prescale_factor=2.0, postscale_factor=4.0), numpy.full((3, 5), 8 * total, kind))
        assert tensorlane.allreduce_(mine, name=f"inplace.{kind}", op=tensorlane.Sum, prescale_factor=4.0, postscale_factor=0.125) is mine
        expect(mine, numpy.full((3, 5), total / 2, kind))
    root = size - 1
    mine = numpy.arange(4, dtype="float32") + 10 * rank
    expect(tensorlane.broadcast(mine, root, name="b"), numpy.arange(4) + 10 * root)
    expect(mine, numpy.arange(4) + 10 * rank)
    tensorlane.broadcast_(mine, root, name="b_")
    expect(mine, numpy.arange(4) + 10 * root)
    gathered = tensorlane.allgather(numpy.full((2, 3), rank, "float64"), name="g")
    expect(gathered, numpy.repeat(numpy.arange(size, dtype="float64"), 2)[:, None] * numpy.ones(3))
    buffer = array.array("d", [rank + 1.0] * 7)
    tensorlane.allreduce_(buffer, name="buffer", op=tensorlane.Sum)
    expect(buffer, [total] * 7)
    nan = tensorlane.allreduce(numpy.array([numpy.nan if rank == 0 else 1.0, 2.0]), name="nan", op=tensorlane.Sum)
    assert numpy.isnan(nan[0]) and nan[1] == 2 * size


def torch_calls(rank, size):
    total = size * (size + 1) / 2
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        mine = torch.full((2, 3), rank + 1.0, dtype=kind)
        expect(tl.allreduce(mine, op=tl.Sum).float(), torch.full((2, 3), total))
        expect(tl.allreduce_(mine, op=tl.Sum, prescale_factor=2.0, postscale_factor=0.5).float(), torch.full((2, 3), total))
        expect(tl.broadcast(torch.full((3,), float(rank), dtype=kind), 0).float(), torch.zeros(3))
        expect(tl.allgather(torch.full((1, 2), float(rank), dtype=kind)).float(), torch.arange(size)[:, None] * torch.ones(2))
    bits = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
    tensorlane.allreduce_(bits, name="bfloat16.dlpack", op=tensorlane.Sum)
    expect(bits.float(), torch.full((3,), total))


def reductions(rank, size):
    """Every reduction of every dtype, against torch on the same numbers; integers wrap around."""
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.int64, torch.uint8):
        all_ranks = torch.stack([torch.randint(-100, 100, (3, 41), generator=torch.Generator().manual_seed(r)) for r in range(size)]).to(kind)
        for op, wanted in ((tl.Min, all_ranks.amin(0)), (tl.Max, all_ranks.amax(0))):
            expect(tl.allreduce(all_ranks[rank], op=op).double(), wanted.double())
        factors = all_ranks.remainder(4) if kind.is_floating_point else all_ranks  # torch rounds, and overflows, at every step
        expect(tl.allreduce(factors[rank], op=tl.Product).double(), factors.prod(0, dtype=kind).double())
        if not kind.is_floating_point:
            expect(tl.allreduce(all_ranks[rank], op=tl.Sum), all_ranks.sum(0).to(kind))
            expect(tl.allgather(all_ranks[rank]), all_ranks.reshape(-1, 41))
            refused(tensorlane.InvalidArgumentError, "the average of integers", lambda: tl.allreduce(all_ranks[rank]))
    holes = numpy.array([1.0, 2.0, numpy.nan if rank == size - 1 else 3.0], "float32")
    expect(tensorlane.allreduce(holes, name="nan.min", op=tensorlane.Min), [1, 2, numpy.nan])
    expect(tensorlane.allreduce(holes, name="nan.max", op=tensorlane.Max), [1, 2, numpy.nan])


def scatters(rank, size):
    """Each rank gets its rows of what allreduce gives, also where ranks get none, and in every dtype and reduction."""
    for rows in (1, size, 2 * size + 1, 3000):
        share, left = divmod(rows, size)
        mine = slice(share * rank + min(rank, left), share * (rank + 1) + min(rank + 1, left))
        for kind in (numpy.float32, numpy.float16, numpy.int64, numpy.uint8):
            full = [numpy.random.default_rng(r).integers(0, 9, (rows, 7)).astype(kind) for r in range(size)]
            for op, wanted in ((tensorlane.Sum, sum(full[1:], full[0])), (tensorlane.Max, numpy.max(full, 0))):
                got = tensorlane.reducescatter(full[rank], name=f"{rows}.{kind.__name__}.{op}", op=op)
                assert got.dtype == kind and got.shape == wanted[mine].shape
                expect(got, wanted[mine])
        mean = tensorlane.reducescatter(numpy.full((rows,), rank + 1.0), name=f"mean.{rows}", prescale_factor=4.0, postscale_factor=0.5)
        expect(mean, numpy.full((rows,), size + 1.0)[mine])
        full = torch.arange(rows * 6, dtype=torch.bfloat16).reshape(rows, 2, 3).remainder(5) + rank
        expect(tl.reducescatter(full, op=tl.Min).float(), (full - rank)[mine].float())
        expect(tl.reducescatter(full.float(), postscale_factor=2.0), ((full.float() - rank) * 2 + size - 1)[mine])


def exchanges(rank, size):
    """Parts from rank to rank, and sums for one rank alone, in every dtype; on arrays and on tensors, with names and without."""
    root = size - 1
    for turn, kind in enumerate((numpy.float32, numpy.float16, numpy.int64, numpy.uint8)):
        every = [numpy.random.default_rng([r, turn]).integers(0, 9, (3 * size, 5)).astype(kind) for r in range(size)]
        for name in (None, f"parts.{turn}"):
            got = tensorlane.reduce(every[rank], root, name=name, op=tensorlane.Sum)
            assert (got is None) == (rank != root)
            got is None or expect(got, sum(every[1:], every[0]))
            got = tensorlane.gather(every[rank], root, name=name)
            assert (got is None) == (rank != root)
            got is None or expect(got, numpy.concatenate(every))
            part = numpy.zeros((3, 5), kind)
            assert tensorlane.scatter_(part, every[root] if rank == root else None, root, name=name) is part
            expect(part, every[root][3 * rank : 3 * rank + 3])
            wanted = numpy.concatenate([x[3 * rank : 3 * rank + 3] for x in every])
            expect(tensorlane.alltoall(every[rank], name=name), wanted)
            other = name and f"tensors.{turn}"
            tensor = torch.from_numpy(every[rank])
            expect(tl.alltoall(tensor, name=other), torch.from_numpy(wanted))
            got = tl.reduce(tensor, 0, name=other, op=tl.Max)
            got is None or expect(got, torch.from_numpy(numpy.max(every, 0)))
            got = tl.gather(tensor, 0, name=other)
            got is None or expect(got, torch.from_numpy(numpy.concatenate(every)))
            part = torch.zeros((3, 5), dtype=tensor.dtype)
            expect(tl.scatter_(part, tensor if rank == 0 else None, 0, name=other), torch.from_numpy(every[0][3 * rank : 3 * rank + 3]))
    leaf = torch.arange(2.0 * size).requires_grad_()
    (tl.alltoall(leaf, name="tied") * (rank + 1)).sum().backward()
    expect(leaf.grad, torch.arange(size).repeat_interleave(2) + 1.0)
    if size > 1:
        refused(tensorlane.InvalidArgumentError, "ranks do not divide", lambda: tl.alltoall(torch.ones(size + 1)))


def key_values(rank, size):
    """All keys are pushed before any is pulled, by every rank in an order of its own; pulls have one order."""
    shapes = {f"key.{i}": (1 + 40 * i * i, 3) for i in range(12)}
    keys = list(shapes)
    store, torch_store = tensorlane.KVStore(), tl.KVStore()
    for turn in range(3):
        numpy.random.default_rng([rank, turn]).shuffle(keys)
        for key in keys:
            mine = numpy.full(shapes[key], rank + turn, "float32")
            store.push(key, mine)
            mine[...] = -1  # it is ours again
            torch_store.push(f"torch.{key}", torch.full(shapes[key], rank + turn, dtype=torch.int32), op=tl.Max)
        for key in shapes:
            expect(store.pull(key, numpy.empty(shapes[key], "float32")), numpy.full(shapes[key], size * (size - 1) / 2 + size * turn))
            expect(torch_store.pull(f"torch.{key}", torch.empty(shapes[key], dtype=torch.int32)), torch.full(shapes[key], size - 1 + turn))
        outs = [numpy.empty(shapes[key], "float32") for key in keys]
        for key, got in zip(keys, store.pull(keys, outs)):  # in one call the order is each rank's own
            expect(got, numpy.full(shapes[key], size * (size - 1) / 2 + size * turn))
    again = numpy.empty(shapes["key.3"], "float32")
    expect(store.pull("key.3", again), numpy.full(shapes["key.3"], size * (size - 1) / 2 + size * 2))  # without a push since
    refused(tensorlane.InvalidArgumentError, "it was never pushed", lambda: store.pull("nothing", again))
    refused(tensorlane.InvalidArgumentError, "count was", lambda: store.pull("key.2", again))


def stale_values(rank, size):
    """A pull waits for no push that the bound allows to be late, and for every other."""
    store = tl.KVStore(staleness=2)
    out = torch.empty(1000)
    pushed = 0

    def push(until):
        nonlocal pushed
        while pushed < until:
            pushed += 1
            store.push("stale", torch.full((1000,), float(pushed)))

    push(3 if rank == 0 else 1)  # nobody else makes pushes 2 and 3 before the barrier
    store.pull("stale", out)
    assert size == 1 or (out == size).all()
    tl.barrier(60)
    for last in range(4, 30):
        push(last)
        store.pull("stale", out)
        seen = out[0].item() / size
        assert last - 2 <= seen <= last, (seen, last)
        expect(out, torch.full((1000,), seen * size))


def handles(rank, size):
    started = [tl.allreduce_async_(torch.full((1000,), rank + float(i)), name=f"many.{i}", op=tl.Sum, priority=i / 31) for i in range(32)]
    order = reversed(range(32)) if rank % 2 else range(32)
    for i in order:
        expect(tl.synchronize(started[i]), torch.full((1000,), size * (size - 1) / 2 + size * i))
    handle = tl.allreduce_async(torch.ones(5), name="polled")
    while not tl.poll(handle):
        pass
    expect(tl.synchronize(handle), torch.ones(5))
    for _ in range(3):  # a dropped handle must not free memory that is being written
        tl.allreduce_async(torch.ones(200_000), name=f"dropped.{_}")
    tl.barrier()


def unnamed(rank, size):
    """Calls without a name: more under way at once than there are names for, finished in any order, and more of one size than arenas have room for."""
    started = [tl.allreduce_async(torch.full((1000,), rank + float(i)), op=tl.Sum) for i in range(50)]
    started += [tl.broadcast_async(torch.full((500,), rank * 100.0 + i), 0) for i in range(20)]
    in_place = [torch.full((64,), rank + float(i)) for i in range(20)]
    changed = [tl.allreduce_async_(tensor, op=tl.Max) for tensor in in_place]
    order = list(range(50))
    if rank % 2:
        order.reverse()
    for i in order:
        expect(tl.synchronize(started[i]), torch.full((1000,), size * (size - 1) / 2 + size * i))
    for i, handle in enumerate(started[50:]):
        expect(tl.synchronize(handle), torch.full((500,), float(i)))
    for i, handle in enumerate(changed):
        assert tl.synchronize(handle) is in_place[i]
        expect(in_place[i], torch.full((64,), size - 1.0 + i))
    if rank == 0:  # nobody here waits for what the others wait for
        waiting = [tl.allreduce_async(torch.ones(77), op=tl.Sum) for _ in range(20)]
        time.sleep(1)
    else:
        waiting = [tl.allreduce_async(torch.ones(77), op=tl.Sum) for _ in range(20)]
        expect(tl.synchronize(waiting[-1]), torch.full((77,), float(size)))
    for handle in waiting:
        expect(tl.synchronize(handle), torch.full((77,), float(size)))
    large = torch.ones(4 << 20)
    for _ in range(70):  # 1.1 GiB: arena_limit of `tensorlane run` is 1 GiB
        assert tl.allreduce(large, op=tl.Sum)[-1] == size


def gradients(rank, size):
    """Those of the sum of all ranks' losses: against autograd in one process that has all ranks' tensors."""
    rows = 2 * size + 1
    weights = [torch.randn(size, rows, 3, generator=torch.Generator().manual_seed(r), dtype=torch.float64) for r in range(size)]
    starts = {shape: [torch.randn(shape, 3, generator=torch.Generator().manual_seed(10 + r), dtype=torch.float64) for r in range(size)] for shape in (rows, 2, 2 * size)}

    def loss(result, of_rank):
        return (result.sin() * weights[of_rank].reshape(-1, 3)[: result.shape[0]]).sum() + result.sum() ** 2

    def mine(table, of_rank):
        share, left = divmod(table.shape[0], size)
        return table[share * of_rank + min(of_rank, left):][: share + (of_rank < left)]

    root = size - 1
    cases = {
        "sum": (rows, lambda x: tl.allreduce(x, op=tl.Sum), lambda xs, r: sum(xs)),
        "mean": (rows, lambda x: tl.allreduce(x, name="mean.gradient", prescale_factor=3.0, postscale_factor=0.5), lambda xs, r: 1.5 * sum(xs) / size),
        "later": (rows, lambda x: tl.synchronize(tl.allreduce_async(x, op=tl.Sum)), lambda xs, r: sum(xs)),
        "broadcast": (rows, lambda x: tl.broadcast(x, root), lambda xs, r: xs[root]),
        "allgather": (2, tl.allgather, lambda xs, r: torch.cat(xs)),
        "scatter": (2 * size, lambda x: tl.reducescatter(x, op=tl.Sum, postscale_factor=2.0), lambda xs, r: 2 * mine(sum(xs), r)),
        "uneven scatter": (rows, lambda x: tl.reducescatter(x, name="uneven"), lambda xs, r: mine(sum(xs) / size, r)),
    }
    for name, (shape, collective, alone) in cases.items():
        x = starts[shape][rank].clone().requires_grad_()
        loss(collective(x * 2), rank).backward()
        xs = [start.clone().requires_grad_() for start in starts[shape]]
        sum(loss(alone([each * 2 for each in xs], r), r) for r in range(size)).backward()
        wanted = torch.zeros_like(x) if xs[rank].grad is None else xs[rank].grad
        numpy.testing.assert_allclose(x.grad.numpy(), wanted.numpy(), rtol=1e-12, err_msg=name)
    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        assert not tl.allreduce(x).requires_grad
    assert not tl.allreduce(x.detach()).requires_grad
    most = tl.allreduce(x, op=tl.Max)
    refused(tensorlane.InvalidArgumentError, "only sums and averages", lambda: most.sum().backward())
    refused(tensorlane.InvalidArgumentError, "autograd follows it", lambda: tl.allreduce_(x * 2))
    refused(tensorlane.InvalidArgumentError, "autograd follows it", lambda: tl.broadcast_(x * 2, 0))
    for store in (tl.KVStore(), tl.KVStore(staleness=1)):
        store.push(f"followed.{store._staleness}", torch.ones(3))
        refused(tensorlane.InvalidArgumentError, "autograd follows it", lambda: store.pull(f"followed.{store._staleness}", x * 2))
    squared = torch.full((3,), 2.0, requires_grad=True)
    saved = squared * squared
    tl.broadcast_(squared.detach(), 0, name="changes what is saved")
    refused(RuntimeError, "modified by an inplace operation", lambda: saved.sum().backward())


def forked():
    """The child of a fork ends without a word, and without saying goodbye in its parent's name."""
    out, into = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(into, 2)
        sys.exit(0)
    os.close(into)
    with os.fdopen(out) as pipe:
        assert pipe.read() == ""
    assert os.waitpid(child, 0)[1] == 0
    expect(tl.allreduce(torch.ones(3)), torch.ones(3))


def objects(rank, size):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 1)
    model[0].weight.data = model[0].weight.data.contiguous(memory_format=torch.channels_last)
    tl.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    for name, tensor in model.state_dict().items():
        assert (tensor == size).all(), name
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 0:
        model(torch.ones(1, 1, 5, 5)).sum().backward()
        optimizer.step()
    tl.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert len(optimizer.state_dict()["state"]) == 4
    other = torch.nn.Linear(3, 2).double()  # other sizes and another type under names that were used before
    tl.broadcast_parameters([("0.weight", other.weight), ("0.bias", other.bias)], root_rank=0)
    assert tl.broadcast_object({"rank": rank, "text": "x" * 10_000}, 0) == {"rank": 0, "text": "x" * 10_000}


def objects_of_all_sizes(rank, size):
    """They register tensors of a few sizes, and large ones travel in pieces."""
    tl.broadcast_object(None, size - 1, "sized")
    before = plan()["tensors"]
    for length in (1, 20_000, 100_000, 4 << 20, (9 << 20) + 1, *range(4_000_000, 4_100_000, 10_000)):
        data = bytes(range(251)) * (length // 251 + 1)
        assert tl.broadcast_object(data[:length] if rank == size - 1 else None, size - 1, "sized") == data[:length]
    assert plan()["tensors"] - before <= 4, (plan()["tensors"], before)


def bad_input(rank, size):
    refused(tensorlane.InvalidArgumentError, "no rank", lambda: tensorlane.broadcast(numpy.ones(3), size))
    tensorlane.allreduce(numpy.ones(3, "float32"), name="agreed")
    refused(tensorlane.Error, "agreed", lambda: tensorlane.allreduce(numpy.ones(4, "float32"), name="agreed"))
    if size > 1:
        refused(tensorlane.MismatchError, "differs", lambda: tensorlane.allreduce(numpy.ones(3 + rank, "float32"), name="differs"))
    tensorlane.barrier(30)


def main():
    tensorlane.init()
    rank, size = tensorlane.rank(), tensorlane.size()
    assert tensorlane.is_initialized() and 0 <= tensorlane.local_rank() < tensorlane.local_size() <= size
    numpy_calls(rank, size)
    torch_calls(rank, size)
    reductions(rank, size)
    scatters(rank, size)
    exchanges(rank, size)
    key_values(rank, size)
    stale_values(rank, size)
    handles(rank, size)
    unnamed(rank, size)
    gradients(rank, size)
    forked()
    objects(rank, size)
    objects_of_all_sizes(rank, size)
    bad_input(rank, size)
    status = tensorlane.status()
    assert status["daemon"] and status["optimizers"] == []
    tensorlane.shutdown()
    assert not tensorlane.is_initialized()
    print(f"rank {rank}: all array calls are right")


if __name__ == "__main__":
    main()
