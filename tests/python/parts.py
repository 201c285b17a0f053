"""All-to-all with parts of different sizes, results checked. A script, run by daemons/test_parts.py:

    parts.py works      arrays and tensors, with names and without, among a set, backward, many at once
    parts.py rows       ranks' rows have different sizes
    parts.py dies       a rank dies while the others wait for its parts
    parts.py full       a rank cannot start its parts
"""

import contextlib
import gc
import os
import random
import signal
import sys
import time
import weakref

import numpy
import tensorlane
import tensorlane.torch as tl
import torch
from tensorlane import _native, _parts

ROWS = (0, 1, 3, 40, 7000)


def splits_of(rank, size, turn):
    return random.Random(1000 * turn + rank).choices(ROWS, k=size)


def part(source, destination, rows, turn, dtype):
    return (numpy.arange(3 * rows).reshape(rows, 3) % 89 + 11 * source + 5 * destination + turn).astype(dtype)


def one(rank, ranks, turn, dtype, call, **options):
    """`ranks`: who takes part, this one included."""
    every = {source: splits_of(source, len(ranks), turn) for source in ranks}
    mine = [part(rank, to, rows, turn, dtype) for to, rows in zip(ranks, every[rank])]
    got, received = call(numpy.concatenate(mine), every[rank], **options)
    wanted = [part(source, rank, every[source][ranks.index(rank)], turn, dtype) for source in ranks]
    assert list(received) == [len(each) for each in wanted], (received, [len(each) for each in wanted])
    numpy.testing.assert_array_equal(numpy.asarray(got), numpy.concatenate(wanted))


def on_tensors(array, splits, **options):
    got, received = tl.alltoall(torch.from_numpy(array), torch.tensor(splits), **options)
    assert not received.is_floating_point()
    return got.numpy(), received.tolist()


def works(rank, size):
    everybody = list(range(size))
    for turn, dtype in enumerate(("float32", "float64", "float16", "int8", "int32", "int64", "uint8") * 3):
        for name in (None, f"parts.{turn}"):
            one(rank, everybody, turn, dtype, tensorlane.alltoall, name=name)
            one(rank, everybody, turn, dtype, on_tensors, name=name and "tensors." + name, priority=0.1)
    one(rank, everybody, 0, "float32", lambda array, splits: tensorlane.alltoall(array, numpy.array(splits)))
    nothing_to_send(rank, size)
    handles = [tensorlane.alltoall_async(numpy.full((size, 2), 10.0 * rank + turn), [1] * size) for turn in range(20)]
    for turn, handle in reversed(list(enumerate(handles))):
        got, received = tensorlane.synchronize(handle)
        assert tensorlane.poll(handle) and list(received) == [1] * size
        numpy.testing.assert_array_equal(got[:, 1], 10.0 * numpy.arange(size) + turn)
    some = everybody[-2:]
    few = tensorlane.add_process_set(some)
    if rank in some:
        for turn in range(5):
            one(rank, some, turn, "float32", tensorlane.alltoall, process_set=few)
    backward(rank, size)
    names_and_tags(rank, size)
    dropped(rank, size)
    if size > 2:
        slow(rank, size)
    refuses(rank, size)
    leftover(rank, size)
    print(f"rank {rank}: all parts are right", flush=True)


def nothing_to_send(rank, size):
    """An empty array of whatever kind still says which dtype it has."""
    for empty in (numpy.empty((0, 3), "float32"), torch.empty(0, 3), memoryview(numpy.empty((0, 3), "float32"))):
        mine = numpy.full((2 * size, 3), rank, "float32") if rank > 0 else empty
        got, received = tensorlane.alltoall(mine, [2 if rank > 0 else 0] * size)
        assert got.dtype == numpy.float32 and list(received) == [0] + [2] * (size - 1)
        numpy.testing.assert_array_equal(got[:, 2], numpy.arange(1, size).repeat(2))


def starts(rank, size, wait):
    """A handle of an exchange that each rank begins after wait() of its own, when all have said their splits."""
    start = _parts.Exchange.start

    def later(*arguments):
        wait()
        return start(*arguments)

    _parts.Exchange.start = later
    try:
        return tensorlane.alltoall_async(numpy.full((size, 2), float(rank)), [1] * size)
    finally:
        _parts.Exchange.start = start


def slow(rank, size):
    """The others begin one after the other: it is not done before the last, and one time-out is for all of it."""
    handle = starts(rank, size, lambda: time.sleep(rank))
    if rank == 0:
        try:
            got = tensorlane.synchronize(handle, timeout=size - 1.5)
        except tensorlane.TimedOutError as error:
            assert f"within {size - 1.5:g} s" in str(error), str(error)
            assert not tensorlane.poll(handle)
        else:
            raise AssertionError(f"done before the last rank began: {got}")
    got, _ = tensorlane.synchronize(handle)
    numpy.testing.assert_array_equal(got[:, 0], numpy.arange(size))


def dropped(rank, size):
    """What nobody waits for goes on in memory that is nobody else's meanwhile."""
    handles = [starts(rank, size, tensorlane.barrier if rank else lambda: None)]
    if rank == 0:
        memory = weakref.ref(handles[0]._handle._result)
        handles.clear()
        gc.collect()
        assert memory() is not None, "the others have not sent yet"
        tensorlane.barrier()
    for handle in handles:
        tensorlane.synchronize(handle)
    tensorlane.barrier()


def names_and_tags(rank, size):
    """A name is one all-to-all's with splits, and another one's without; no message of the program has a tag of parts."""
    for _ in range(2):
        even = tensorlane.alltoall(numpy.arange(2.0 * size), name="both")
        numpy.testing.assert_array_equal(even.reshape(size, 2)[:, 0], [2.0 * rank] * size)
        got, _ = tensorlane.alltoall(numpy.full(size, 1.0 * rank), [1] * size, name="both")
        numpy.testing.assert_array_equal(got, numpy.arange(size))
    for tag in (_parts.TAG, "a", 1.0):
        try:
            tensorlane.send_async(numpy.zeros(1), rank, tag)
        except tensorlane.InvalidArgumentError as error:
            assert f"tag is {tag}" in str(error), error
        else:
            raise AssertionError(f"a message has tag {tag!r}")


def backward(rank, size):
    """The gradient of each row is what the rank that got it has made of it."""
    splits = splits_of(rank, size, 77)
    leaf = torch.ones(sum(splits), 2, requires_grad=True)
    got, received = tl.alltoall(leaf, splits)
    assert got.requires_grad and not received.requires_grad
    (got * (rank + 1)).sum().backward()
    expected = torch.tensor([float(to + 1) for to, rows in enumerate(splits) for _ in range(rows)])
    torch.testing.assert_close(leaf.grad, expected[:, None].expand(-1, 2), rtol=0, atol=0)


def refuses(rank, size):
    """One rank after the other gives splits that are none; it and the others get an error, and stay in step."""
    for wrong, (splits, text) in enumerate((
        ([1] * (size + 1), f"splits has {size + 1} entries for {size} ranks"),
        ([4] + [0] * (size - 1), "do not share out its 3 rows"),
        ([4] + [-1] * (size - 1), "do not share out its"),
        ([1.5] * size, "is not a list of integers"),
        (7, "is not a list of integers"),
    )):
        wrong %= size
        for call, ones in ((tensorlane.alltoall, numpy.ones), (tl.alltoall, torch.ones)):
            try:
                call(ones(3), splits if rank == wrong else [3] + [0] * (size - 1))
            except tensorlane.InvalidArgumentError as error:
                assert rank == wrong and text in str(error), str(error)
            except tensorlane.MismatchError as error:
                assert rank != wrong and f"rank {wrong} has given splits that are none" in str(error), str(error)
            else:
                raise AssertionError(f"not refused: {splits}")
    one(rank, list(range(size)), 5, "float32", tensorlane.alltoall)


def leftover(rank, size):
    """What is left of an exchange that not all have started meets nothing of a later one."""
    exchange = _parts.Exchange(_native.context(), [1] * size, size, None, "left over")
    if rank > 0:
        old, got = numpy.full(size, -1.0), numpy.zeros(size)
        handle = exchange.start(old.ctypes.data, got.ctypes.data, _native.FLOAT64, 1, 0.5, (old, got))
    one(rank, list(range(size)), 6, "float32", tensorlane.alltoall)
    one(rank, list(range(size)), 7, "float32", tensorlane.alltoall)
    if rank == 0:  # at last
        old, got = numpy.full(size, -1.0), numpy.zeros(size)
        handle = exchange.start(old.ctypes.data, got.ctypes.data, _native.FLOAT64, 1, 0.5, (old, got))
    handle.wait(10)
    numpy.testing.assert_array_equal(got, numpy.full(size, -1.0))


def full(rank, size):
    """A rank has no place left for its parts: the job is over, for the others too."""
    if rank == 0:
        kept = [tensorlane.recv_async_(numpy.zeros(1), 1, 9) for _ in range(1024)]
    try:
        tensorlane.alltoall(numpy.ones((size, 2)), [1] * size)
    except tensorlane.ResourceExhaustedError as error:
        print(f"rank {rank}: {error}", flush=True)
        with contextlib.suppress(tensorlane.Error):
            tensorlane.shutdown()
        del kept
        time.sleep(1)  # the others hear of it, and are not stopped by `tensorlane run`
    except tensorlane.UnavailableError as error:
        print(f"rank {rank}: was told: {error}", flush=True)
    sys.exit(1)


def rows(rank, size):
    """The message that differs is an error at both ends; the job goes on."""
    try:
        tensorlane.alltoall(numpy.ones((size, 2 + rank // (size - 1))), [1] * size)
    except tensorlane.MismatchError as error:
        print(f"rank {rank}: {error}", flush=True)
    numpy.testing.assert_array_equal(tensorlane.allreduce(numpy.ones(3), op=tensorlane.Sum), numpy.full(3, size))


def dies(rank, size):
    """After it has said its splits, and before it has sent its parts."""
    try:
        tensorlane.synchronize(starts(rank, size, lambda: rank == 1 and os.kill(os.getpid(), signal.SIGKILL)))
    except (tensorlane.AbortedError, tensorlane.UnavailableError) as error:
        print(f"rank {rank}: was told: {error}", flush=True)


if __name__ == "__main__":
    tensorlane.init()
    {"works": works, "rows": rows, "dies": dies, "full": full}[sys.argv[1]](tensorlane.rank(), tensorlane.size())
    tensorlane.shutdown()
