"""torch.distributed on the backend, beside Gloo in the same process. A script of any number of ranks, run by backend/test_backend.py:

    torch_backend.py works       every operation, dtype and shape of memory, futures, groups
    torch_backend.py refusals    what is refused, by its text
    torch_backend.py differs K   the ranks call different operations: K is count, dtype, operation, root or order
    torch_backend.py dies        the last rank dies while the others wait
    torch_backend.py late        the last rank does not come in time
    torch_backend.py alone       a group of one rank, without a daemon
"""

import datetime
import os
import re
import signal
import sys
import threading
import time

import registered  # noqa: F401
import torch
import torch.distributed as dist
from torch.distributed import ReduceOp

OPS = {"sum": ReduceOp.SUM, "product": ReduceOp.PRODUCT, "min": ReduceOp.MIN, "max": ReduceOp.MAX}
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8, torch.uint8, torch.int32, torch.int64]
MOVED = [*DTYPES, torch.bool, torch.int16, torch.complex64, torch.float8_e5m2]


def values(rank, shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    numbers = torch.randint(0, 2 if dtype == torch.bool else 4, shape, generator=generator)
    return numbers.to(dtype)


def everybodys(shape, dtype, seed=0):
    return [values(rank, shape, dtype, seed) for rank in range(dist.get_world_size())]


def same(one, other, what=""):
    one, other = ([t.view(torch.uint8) if t.dtype == torch.float8_e5m2 else t for t in each] for each in (one, other))
    for a, b in zip(one, other, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), (what, a, b)


def refused(call, error, *texts):
    try:
        call()
    except error as raised:
        for text in texts:
            assert re.search(text, str(raised)), (text, str(raised))
        return str(raised)
    raise AssertionError(f"no {error}: {texts}")


def reductions():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in DTYPES:
        for name, op in OPS.items():
            mine, theirs = values(rank, (5, 3), dtype), values(rank, (5, 3), dtype)
            dist.all_reduce(mine, op)
            dist.all_reduce(theirs, op, group=GLOO)
            same([mine], [theirs], (dtype, name))
            everybody = torch.stack(everybodys((size, 3), dtype))
            expected = {"sum": everybody.sum, "product": everybody.prod, "min": everybody.amin, "max": everybody.amax}[name](0).to(dtype)
            part = torch.empty(3, dtype=dtype)
            dist.reduce_scatter_tensor(part, values(rank, (size, 3), dtype), op)
            same([part], [expected[rank]], (dtype, name))
            for root in range(size):
                kept = values(rank, (size, 3), dtype)
                dist.reduce(kept, root, op)
                same([kept], [expected if rank == root else values(rank, (size, 3), dtype)], (dtype, name))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        mean = values(rank, (7,), dtype)
        dist.all_reduce(mean, ReduceOp.AVG)
        same([mean], [torch.stack(everybodys((7,), dtype)).float().mean(0).to(dtype)] if dtype != torch.float64 else [torch.stack(everybodys((7,), dtype)).mean(0)])
    for op, function in ((ReduceOp.SUM, torch.Tensor.any), (ReduceOp.MAX, torch.Tensor.any), (ReduceOp.PRODUCT, torch.Tensor.all), (ReduceOp.MIN, torch.Tensor.all)):
        flags = values(rank, (9,), torch.bool)
        dist.all_reduce(flags, op)
        same([flags], [function(torch.stack(everybodys((9,), torch.bool)), 0)], op)
    for op in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR):
        mine, theirs = values(rank, (9,), torch.int32), values(rank, (9,), torch.int32)
        dist.all_reduce(mine, op)
        dist.all_reduce(theirs, op, group=GLOO)
        same([mine], [theirs], op)
    numbers = torch.complex(values(rank, (4,), torch.float32), values(rank, (4,), torch.float32, 1))
    dist.all_reduce(numbers)
    same([numbers], [torch.complex(sum(everybodys((4,), torch.float32)), sum(everybodys((4,), torch.float32, 1)))])


def sparse():
    """Each rank has its own entries, and the last one none."""
    rank, size = dist.get_rank(), dist.get_world_size()
    for shape in ((9,), (9, 2)):
        parts = []
        for each in range(size):
            count = each + 1 if each < size - 1 else 0
            parts.append(torch.sparse_coo_tensor(torch.arange(count)[None] * 2 % 9, torch.full((count, *shape[1:]), each + 1.0), shape))
        mine = parts[rank].clone()
        dist.all_reduce(mine)
        same([mine.to_dense()], [sum(each.to_dense() for each in parts)])


def movements():
    rank, size = dist.get_rank(), dist.get_world_size()
    for dtype in MOVED:
        everybody = everybodys((4, 3), dtype)
        for root in range(size):
            tensor = values(rank, (4, 3), dtype)
            dist.broadcast(tensor, root)
            same([tensor], [everybody[root]], dtype)
            gathered = [torch.empty(4, 3, dtype=dtype) for _ in range(size)] if rank == root else None
            dist.gather(everybody[rank], gathered, root)
            if rank == root:
                same(gathered, everybody, dtype)
            part = torch.empty(4, 3, dtype=dtype)
            dist.scatter(part, everybody if rank == root else None, root)
            same([part], [everybody[rank]], dtype)
        gathered = [torch.empty(4, 3, dtype=dtype) for _ in range(size)]
        dist.all_gather(gathered, everybody[rank])
        same(gathered, everybody, dtype)
        flat = torch.empty(4 * size, 3, dtype=dtype)
        dist.all_gather_into_tensor(flat, everybody[rank])
        same(flat.chunk(size), everybody, dtype)
        received = [torch.empty(2, dtype=dtype) for _ in range(size)]
        dist.all_to_all(received, [values(rank, (2,), dtype, to) for to in range(size)])
        same(received, [values(source, (2,), dtype, rank) for source in range(size)], dtype)


def uneven():
    """Sizes that differ between the ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    gathered = [torch.empty(each) for each in range(size)]
    dist.all_gather(gathered, values(rank, (rank,), torch.float32))
    same(gathered, [values(each, (each,), torch.float32) for each in range(size)])
    part = torch.empty(rank + 1)
    dist.reduce_scatter(part, [torch.full((each + 1,), float(rank + each)) for each in range(size)])
    same([part], [torch.full((rank + 1,), float(sum(range(size)) + size * rank))])
    sends = [(rank + to) % 3 for to in range(size)]
    expects = [(source + rank) % 3 for source in range(size)]
    results = []
    for group in (None, GLOO):
        results.append(torch.zeros(sum(expects), 2))
        dist.all_to_all_single(results[-1], values(rank, (sum(sends), 2), torch.float32), expects, sends, group=group)
    same(results[:1], results[1:])
    results = [torch.zeros(each) for each in expects]
    dist.all_to_all(results, [torch.full((each,), float(10 * rank + to)) for to, each in enumerate(sends)])
    same(results, [torch.full((each,), float(10 * source + rank)) for source, each in enumerate(expects)])
    for dtype in (torch.complex64, torch.int16, torch.bool, torch.bfloat16):  # each with units of its own
        got = torch.zeros(sum(expects), 2, dtype=dtype)
        dist.all_to_all_single(got, torch.full((sum(sends), 2), rank + 1).to(dtype), expects, sends)
        same([got], [torch.cat([torch.full((each, 2), source + 1).to(dtype) for source, each in enumerate(expects)])])
    in_one_memory(rank, size)


def in_one_memory(rank, size):
    """Input and output are the same memory, with torch's knowledge and without, or not contiguous."""
    wanted = torch.arange(size).repeat_interleave(1000) * 10.0 + rank
    for shape in ("same", "unknown to torch", "a column"):
        values = torch.arange(size).repeat_interleave(1000) + 10.0 * rank
        memory = values.numpy()
        source = values if shape == "same" else torch.from_numpy(memory)
        if shape == "a column":
            source, values = (torch.stack([values, values], 1)[:, 0] for _ in range(2))
        dist.all_to_all_single(values, source)
        same([values], [wanted])


def coalesced():
    rank, size = dist.get_rank(), dist.get_world_size()
    shapes = [(3,), (2, 2), (0,), (5,)]
    tensors = [values(rank, shape, torch.float32) for shape in shapes]
    dist.all_reduce_coalesced(tensors)
    same(tensors, [sum(everybodys(shape, torch.float32)) for shape in shapes])
    outputs = [[torch.empty(shape) for shape in shapes] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [values(rank, shape, torch.float32) for shape in shapes])
    for source, each in enumerate(outputs):
        same(each, [values(source, shape, torch.float32) for shape in shapes])
    backend = dist.group.WORLD._get_backend(torch.device("cpu"))
    assert not backend.supports_splitting and backend.name() == "tensorlane"
    group = dist.group.WORLD
    wholes = [torch.empty(size * 2), torch.empty(size, 3)]
    group.allgather_into_tensor_coalesced(wholes, [values(rank, (2,), torch.float32), values(rank, (1, 3), torch.float32)]).wait()
    same([wholes[0].view(size, 2), wholes[1]], [torch.stack(everybodys((2,), torch.float32)), torch.cat(everybodys((1, 3), torch.float32))])
    parts = [torch.empty(2), torch.empty(1, 3)]
    group.reduce_scatter_tensor_coalesced(parts, [values(rank, (2 * size,), torch.float32), values(rank, (size, 3), torch.float32)]).wait()
    same(parts, [sum(everybodys((2 * size,), torch.float32)).view(size, 2)[rank], sum(everybodys((size, 3), torch.float32))[rank : rank + 1]])


def memory():
    """Tensors that are not contiguous, or have no elements, and large ones."""
    rank, size = dist.get_rank(), dist.get_world_size()
    tensor = values(rank, (4, 6), torch.float32).t()
    dist.all_reduce(tensor)
    same([tensor], [sum(everybodys((4, 6), torch.float32)).t()])
    tensor = torch.zeros(6, 4)[:, ::2]
    if rank == 0:
        tensor.fill_(3)
    dist.broadcast(tensor, 0)
    assert (tensor == 3).all()
    output = torch.zeros(size * 2, 8)[:, ::2]
    dist.all_gather_into_tensor(output, values(rank, (4, 2), torch.float32).t())
    same([output], [torch.cat([each.t() for each in everybodys((4, 2), torch.float32)])])
    part = torch.zeros(4, 2).t()
    dist.reduce_scatter_tensor(part, values(rank, (2 * size, 4), torch.float32))
    same([part], [sum(everybodys((2 * size, 4), torch.float32))[2 * rank : 2 * rank + 2]])
    chunks = list(torch.zeros(size * 4).chunk(size))
    dist.all_gather(chunks, values(rank, (4,), torch.float32))
    same(chunks, everybodys((4,), torch.float32))
    own = torch.zeros(size * 3)  # the input is a part of the output
    own[3 * rank : 3 * rank + 3] = rank
    dist.all_gather_into_tensor(own, own[3 * rank : 3 * rank + 3])
    same([own], [torch.arange(size).float().repeat_interleave(3)])
    for none in (torch.zeros(0), torch.zeros(3, 0)):
        dist.all_reduce(none)
        dist.broadcast(none, 0)
        dist.all_gather([torch.zeros_like(none) for _ in range(size)], none)
        dist.reduce_scatter_tensor(torch.zeros(0), torch.zeros(0))
        dist.all_to_all_single(torch.zeros(0), torch.zeros(0))
        dist.reduce(none, 0)
        dist.gather(none, [torch.zeros_like(none) for _ in range(size)] if rank == 0 else None, 0)
        dist.scatter(torch.zeros_like(none), [none] * size if rank == 0 else None, 0)
    transposed = values(rank, (4, 6), torch.float32).t()
    dist.reduce(transposed, size - 1)
    same([transposed], [sum(everybodys((4, 6), torch.float32)).t() if rank == size - 1 else values(rank, (4, 6), torch.float32).t()])
    gathered = [torch.zeros(8, 3)[::2] for _ in range(size)] if rank == 0 else None
    dist.gather(values(rank, (3, 4), torch.float32).t(), gathered, 0)
    if rank == 0:
        same(gathered, [each.t() for each in everybodys((3, 4), torch.float32)])
    part = torch.zeros(8, 3)[::2]
    dist.scatter(part, [each.t() for each in everybodys((3, 4), torch.float32)] if rank == 0 else None, 0)
    same([part], [values(rank, (3, 4), torch.float32).t()])
    large = torch.full((3_000_001,), float(rank))
    dist.all_reduce(large)
    assert (large == sum(range(size))).all()


def asynchronous():
    rank, size = dist.get_rank(), dist.get_world_size()
    total = float(sum(range(size)))
    works = [dist.all_reduce(torch.full((100,), float(rank)), async_op=True) for _ in range(50)]  # more than there are names
    results = [work.result()[0] for work in works if work.wait()]
    assert all((each == total).all() for each in results) and all(work.is_completed() for work in works)
    tensor, seen = torch.full((10,), float(rank)), []
    future = dist.all_reduce(tensor, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2)
    doubled.add_done_callback(lambda done: seen.append(threading.current_thread().name))
    assert (doubled.wait() == 2 * total).all() and (future.wait()[0] == total).all()

    def calls_again(done):
        other = torch.ones(3)
        dist.all_reduce(other)
        return other

    def awaits_another(done):
        return dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()[0]

    for then in (calls_again, awaits_another):
        if rank == size - 1:
            time.sleep(0.2)  # the others' futures have their callback before they are done
        chained = dist.all_reduce(torch.ones(2), async_op=True).get_future().then(then)
        assert (chained.wait() == size).all()
    group = dist.new_group()
    if rank == size - 1:
        time.sleep(0.2)
    dist.all_reduce(torch.ones(2), group=group, async_op=True).get_future().then(lambda done: dist.destroy_process_group(group)).wait()
    forgotten = torch.full((1000,), float(rank))
    dist.all_reduce(forgotten, async_op=True)  # nobody waits for it
    dist.barrier()
    end = time.monotonic() + 5
    while not (forgotten == total).all():
        assert time.monotonic() < end
    work, waited = dist.barrier(async_op=True), []
    threads = [threading.Thread(target=lambda: waited.append(work.wait())) for _ in range(4)]
    for each in [*threads]:
        each.start()
    for each in threads:
        each.join()
    assert waited == [True] * 4


def groups():
    rank, size = dist.get_rank(), dist.get_world_size()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank, "text": "x" * 100 * rank})
    assert [each["rank"] for each in objects] == list(range(size))
    listed = [f"from {rank}", rank]
    dist.broadcast_object_list(listed, src=size - 1)
    assert listed == [f"from {size - 1}", size - 1]
    pairs = [dist.new_group([each, (each + 1) % size]) for each in range(size)] if size > 2 else []
    for number, group in enumerate(pairs):
        members = [number, (number + 1) % size]
        if rank in members:
            tensor = torch.full((3,), float(rank))
            dist.all_reduce(tensor, group=group)
            assert (tensor == sum(members)).all()
    alone = [dist.new_group([each]) for each in range(size)][rank]
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=alone)
    assert (tensor == 1).all()
    for each in [*pairs, alone]:
        dist.destroy_process_group(each)
    with_cuda = dist.new_group(backend="cpu:tensorlane,cuda:tensorlane")
    assert with_cuda._get_backend(torch.device("cpu")).name() == "tensorlane"
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=with_cuda)
    assert (tensor == size).all()
    import tensorlane.torch as tl

    for _ in range(3):
        tl.monitored_barrier(timeout=20)
    tl.monitored_barrier(with_cuda, 20, wait_all_ranks=True)


def kinds():
    """Any number of shapes: what was not used for long is given back."""
    for count in range(1, 400):
        tensor = torch.ones(count)
        dist.all_reduce(tensor)
        assert (tensor == dist.get_world_size()).all()
    size, rank = dist.get_world_size(), dist.get_rank()
    for count in range(1, 300):  # of operations in several steps, two under way
        received = [torch.zeros(count * size) for _ in range(2)]
        works = [dist.all_to_all_single(each, torch.full((count * size,), float(rank)), async_op=True) for each in received]
        for work, each in zip(works, received, strict=True):
            work.wait()
            assert torch.equal(each, torch.arange(float(size)).repeat_interleave(count))


def works():
    for each in (reductions, sparse, movements, uneven, coalesced, memory, asynchronous, groups, kinds):
        begin = time.monotonic()
        each()
        if os.environ.get("VERBOSE"):
            print(each.__name__, round(time.monotonic() - begin, 2), flush=True)


def refusals():
    rank, size = dist.get_rank(), dist.get_world_size()
    plain = torch.zeros(4)
    on_meta = torch.zeros(4, device="meta")
    cases = [
        (lambda: BACKEND.allreduce([on_meta]), r'a tensor is on meta: all_reduce: give tensors in CPU memory, or call init_process_group."cpu:tensorlane,cuda:nccl"'),
        (lambda: BACKEND.broadcast([torch.zeros(2, dtype=torch.complex64).conj()]), "a tensor is conjugated or negated only when it is read: broadcast: give what resolve_conj"),
        (lambda: dist.all_reduce(torch.zeros(4, dtype=torch.int16)), "Short cannot be reduced: all_reduce: convert to float32"),
        (lambda: dist.all_reduce(torch.zeros(4, dtype=torch.int32), ReduceOp.AVG), "integers have no average: all_reduce: convert"),
        (lambda: dist.all_reduce(torch.zeros(4, dtype=torch.bool), ReduceOp.AVG), "booleans have no average: all_reduce"),
        (lambda: dist.all_reduce(plain, ReduceOp.BXOR), "Float has no bitwise xor: all_reduce: use integers"),
        (lambda: GROUP.allreduce([plain, plain.clone()]).wait(), "2 tensors were given: all_reduce: give one"),
        (lambda: dist.all_reduce(torch.zeros(1).expand(4)), "elements of an output tensor share memory: all_reduce: .*clone"),
        (lambda: GROUP.allgather([[plain] * size], [plain]).wait(), "output tensors overlap in memory: all_gather: give tensors that share none"),
        (lambda: GROUP.allgather([[plain]], [plain]).wait(), f"the output list has 1 tensors: all_gather: give one for each of {size} ranks"),
        (lambda: GROUP._allgather_base(torch.zeros(3), plain).wait(), f"the output has 3 elements, the input 4: all_gather_into_tensor: .* {size} times"),
        (lambda: GROUP._allgather_base(torch.zeros(4 * size, dtype=torch.int32), plain).wait(), "tensors have dtypes Float and Int: all_gather_into_tensor"),
        (lambda: GROUP._reduce_scatter_base(torch.zeros(3), plain).wait(), "the input has 4 elements, the output 3: reduce_scatter_tensor"),
        (lambda: dist.all_to_all_single(torch.zeros(4), plain, [4] + [0] * (size - 1), [3] + [0] * (size - 1)), "input split sizes add up to 3 of 4 rows: all_to_all_single"),
        (lambda: dist.all_to_all_single(torch.zeros(4), plain, [4], [4]), f"1 input split sizes were given: all_to_all_single: give one for each of {size} ranks"),
        (lambda: dist.all_reduce(torch.sparse_coo_tensor([[0]], [1.0], (4,)), ReduceOp.MAX), "sparse tensors have no max here: all_reduce of sparse tensors: use sum"),
        (lambda: BACKEND.broadcast([torch.sparse_coo_tensor([[0]], [1.0], (4,))]), "a tensor has layout Sparse: broadcast: give a dense tensor"),
        (lambda: dist.new_group(pg_options=[3]), r"pg_options are list: init_process_group, backend tensorlane: leave them out"),
    ]
    for call, text in cases:
        refused(call, (RuntimeError, ValueError, NotImplementedError), text)
    if size > 1:
        # Split sizes that do not fit: both ranks and both values.
        splits = [2] * size
        wrong = [2] * (size - 1) + [3] if rank == 0 else splits
        refused(
            lambda: dist.all_to_all_single(torch.zeros(2 * size), torch.zeros(sum(wrong)), splits, wrong), dist.DistBackendError,
            f"ranks disagree about split sizes: all_to_all_single Float: rank 0 sends 3 elements to rank {size - 1}, which expects 2: let output",
        )


def differs(kind):
    """Every rank is told, in a few seconds, which two ranks differ and in what."""
    rank = dist.get_rank()
    first = rank == 0
    dist.all_reduce(torch.ones(2))
    begin = time.monotonic()
    calls = {
        "count": lambda: dist.all_reduce(torch.ones(3 if first else 4)),
        "dtype": lambda: dist.all_reduce(torch.ones(3, dtype=torch.float32 if first else torch.float64)),
        "operation": lambda: dist.all_reduce(torch.ones(3)) if first else dist.broadcast(torch.ones(3), 0),
        "root": lambda: dist.broadcast(torch.ones(3), 0 if first else 1),
        "known": lambda: dist.all_reduce(torch.ones(2 if first else 5)),
        "order": lambda: [work.wait() for work in [dist.all_reduce(torch.ones(count), async_op=True) for count in ((6, 7) if first else (7, 6))]],
    }
    values = {"count": "3.*4|4.*3", "dtype": "float32.*float64|float64.*float32", "operation": "all_reduce of 3.*broadcast of 3|broadcast of 3.*all_reduce of 3",
              "root": "root.*0.*1|root.*1.*0", "known": "of 2 .*of 5 |of 5 .*of 2 ", "order": "6.*7|7.*6"}
    text = refused(calls[kind], dist.DistBackendError, r"rank 0\b.*rank 1\b|rank 1\b.*rank 0\b", values[kind])
    assert time.monotonic() - begin < 12, time.monotonic() - begin
    assert not re.search("regist|tensor|job", text), text  # words of the daemon's
    refused(lambda: dist.all_reduce(torch.ones(1)), dist.DistBackendError, ".")
    print(f"rank {rank}: was told: {text}", flush=True)


def dies():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    for _ in range(3):
        dist.all_reduce(torch.ones(1000))
    if rank == last:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    text = refused(lambda: [dist.all_reduce(torch.ones(1000)) for _ in range(10)], dist.DistBackendError, f"rank {last}")
    refused(lambda: dist.all_reduce(torch.ones(1000)), dist.DistBackendError, f"rank {last}")
    assert time.monotonic() - begin < 8
    print(f"rank {rank}: was told who died: {text}", flush=True)
    os._exit(1)  # torch's store is rank 0's


def late():
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    import tensorlane.torch as tl

    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    store = dist.distributed_c10d._get_default_store()
    if rank == last:
        store.wait([f"told{each}" for each in range(last)])
        refused(lambda: dist.all_reduce(torch.ones(5), group=group), dist.DistBackendError, "Timed out")  # comes too late
    else:
        refused(lambda: tl.monitored_barrier(group, 1), RuntimeError, f"Rank {last} failed to pass monitoredBarrier in 1000 ms .*: process group '.*': look at what")
        work = dist.all_reduce(torch.ones(5), group=group, async_op=True)
        refused(lambda: work.wait(datetime.timedelta(milliseconds=100)), dist.DistBackendError, "all_reduce of 5 Float .sum. is not done: within 100 ms: wait again")
        refused(work.get_future().wait, RuntimeError, "Timed out: all_reduce of 5 Float .sum. .operation 1 of process group", f"within 2 s: rank.s. {last} did not call it")
        refused(lambda: dist.all_reduce(torch.ones(5), group=group), dist.DistBackendError, "Timed out")
        print(f"rank {rank}: was told who is late", flush=True)
        store.set(f"told{rank}", "")


def alone():
    """Nothing is joined: there may be no daemon."""
    os.environ["TENSORLANE_SOCKET"] = "/nowhere"
    dist.init_process_group("tensorlane", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.arange(4.0)
    dist.all_reduce(tensor)
    dist.broadcast(tensor, 0)
    gathered = [torch.zeros(4)]
    dist.all_gather(gathered, tensor)
    other = torch.zeros(4)
    dist.reduce_scatter_tensor(other, tensor)
    third = torch.zeros(4)
    dist.all_to_all_single(third, tensor)
    dist.reduce(third, 0)
    dist.gather(tensor, gathered, 0)
    dist.scatter(other, [tensor], 0)
    objects = [None]
    dist.all_gather_object(objects, "x")
    for each in (tensor, gathered[0], other, third):
        assert torch.equal(each, torch.arange(4.0)), each
    assert objects == ["x"]
    dist.barrier()
    dist.destroy_process_group()


def main():
    global BACKEND, GLOO, GROUP
    torch.set_num_threads(1)
    what, arguments = sys.argv[1], sys.argv[2:]
    if what == "alone":
        alone()
    else:
        dist.init_process_group("tensorlane")
        GROUP, GLOO = dist.group.WORLD, dist.new_group(backend="gloo")
        BACKEND = GROUP._get_backend(torch.device("cpu"))
        globals()[what](*arguments)
        if what != "differs":
            dist.barrier(group=GLOO)
        dist.destroy_process_group()
    print(f"rank {os.environ.get('RANK', 0)}: {what} is right", flush=True)


if __name__ == "__main__":
    main()
