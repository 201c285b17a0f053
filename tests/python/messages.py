"""Messages between two ranks of a real job, results checked. A script, run by daemons/test_messages.py:

    messages.py works      every length and dtype, tags in any order, from any source, to oneself, floods, sets, disagreements, torch
    messages.py waits      nobody has registered anything, and the first call is a message from the highest rank to the lowest
    messages.py left       a rank leaves while another waits for its message
    messages.py dies       a rank dies while others wait for its message
    messages.py silent     each waits for a message of the other, which neither sends
"""

import ctypes
import os
import random
import signal
import sys
import time

import numpy
import tensorlane

LENGTHS = (0, 1, 3, 1000, 65536, 65537, 300_001, 3_000_001)
DTYPES = ("float32", "float64", "float16", "int8", "int32", "int64", "uint8")


def values(source, destination, tag, count, dtype="float32"):
    return (numpy.arange(count) % 101 + 7 * source + 3 * destination + tag % 13).astype(dtype)


def expect(actual, wanted):
    numpy.testing.assert_array_equal(actual, wanted)


def everybody(rank, size):
    """Everybody to everybody, oneself too, in an order that each draws for itself."""
    for count in LENGTHS:
        for dtype in DTYPES if count <= 1000 else ("float32", "float16"):
            got = {peer: numpy.zeros(count, dtype) for peer in range(size)}
            calls = [(peer, sends) for peer in range(size) for sends in (True, False)]
            random.Random(rank * 1000 + count).shuffle(calls)
            handles = []
            for peer, sends in calls:
                if sends:
                    mine = values(rank, peer, 5, count, dtype)
                    handles.append(tensorlane.send_async(mine, peer, 5, priority=random.random()))
                    mine[:] = 0  # it was taken already
                else:
                    handles.append((peer, tensorlane.recv_async_(got[peer], peer, 5)))
            for handle in handles:
                if isinstance(handle, tuple):
                    assert tensorlane.synchronize(handle[1]) == handle[0]
                else:
                    tensorlane.synchronize(handle)
            for peer, array in got.items():
                expect(array, values(peer, rank, 5, count, dtype))


def tags(rank, size):
    """The receiver wants the last tag first; several of one tag come in the order in which they were sent."""
    right, left = (rank + 1) % size, (rank - 1) % size
    numbers = [0, 1, 2**31, 2**32, 2**62, 2**63 - 1]
    sends = [tensorlane.send_async(values(rank, right, tag + turn, 40 + turn), right, tag) for turn in range(3) for tag in numbers]
    for tag in reversed(numbers):
        for turn in range(3):
            got = numpy.zeros(40 + turn, "float32")
            assert tensorlane.recv_(got, left, tag) == left
            expect(got, values(left, rank, tag + turn, 40 + turn))
    for send in sends:
        tensorlane.synchronize(send)


def from_any(rank, size):
    if rank == 0:
        seen = []
        for _ in range(3 * (size - 1)):
            got = numpy.zeros(2, "int64")
            source = tensorlane.recv_(got, None, 9)
            assert got[0] == source, (got, source)
            seen.append((source, got[1]))
        for peer in range(1, size):
            assert [turn for source, turn in seen if source == peer] == [0, 1, 2], seen
    else:
        for turn in range(3):
            tensorlane.send(numpy.array([rank, turn]), 0, 9)


def floods(rank, size):
    """What rank 0 may not have under way any more is refused to it, and nothing of what it has is lost."""
    count = 1024
    if rank == 0:
        sends = [tensorlane.send_async(values(0, 1, turn, 16), 1, 77) for turn in range(count)]
        try:
            tensorlane.send_async(values(0, 1, 0, 16), 1, 77)
        except tensorlane.ResourceExhaustedError as error:
            assert "wait for some of them" in str(error), error
        else:
            raise AssertionError("a message too many was taken")
        tensorlane.barrier()
        for send in sends:
            tensorlane.synchronize(send)
    else:
        tensorlane.barrier()
    if rank == 1:
        got = [numpy.zeros(16, "float32") for _ in range(count)]
        receives = [tensorlane.recv_async_(array, 0, 77) for array in got]
        for turn, receive in enumerate(receives):
            tensorlane.synchronize(receive)
            expect(got[turn], values(0, 1, turn, 16))


def disagreements(rank, size):
    """Both ends are told both values, and everything goes on."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for sent, wanted, texts in (
        (numpy.zeros(3, "float32"), numpy.zeros(4, "float32"), ("3 elements of float32", "4 elements of float32")),
        (numpy.zeros(2, "int32"), numpy.zeros(2, "float32"), ("2 elements of int32", "2 elements of float32")),
        (numpy.zeros(0, "int32"), numpy.zeros(2, "int32"), ("0 elements of int32", "2 elements of int32")),
        (numpy.zeros(500_000), numpy.zeros(500_001), ("500000 elements of float64", "500001 elements of float64")),
    ):
        for handle, source, destination in ((tensorlane.send_async(sent, right, 3), rank, right), (tensorlane.recv_async_(wanted, left, 3), left, rank)):
            try:
                tensorlane.synchronize(handle)
            except tensorlane.MismatchError as error:
                wanted_text = f"rank {source} sends {texts[0]}, rank {destination} receives {texts[1]}"
                assert wanted_text in str(error), (wanted_text, str(error))
            else:
                raise AssertionError("ends that disagree were not told")
    everybody_small(rank, size)


def everybody_small(rank, size):
    sends = [tensorlane.send_async(values(rank, peer, 1, 10), peer, 1) for peer in range(size)]
    for peer in range(size):
        got = numpy.zeros(10, "float32")
        tensorlane.recv_(got, peer, 1)
        expect(got, values(peer, rank, 1, 10))
    for send in sends:
        tensorlane.synchronize(send)


def refusals(rank, size):
    for kind, call in (
        (tensorlane.InvalidArgumentError, lambda: tensorlane.send(numpy.zeros(1), size)),
        (tensorlane.InvalidArgumentError, lambda: tensorlane.send(numpy.zeros(1), -1)),
        (tensorlane.InvalidArgumentError, lambda: tensorlane.recv_(numpy.zeros(1), size)),
        (tensorlane.InvalidArgumentError, lambda: tensorlane.send(numpy.zeros(1), 0, -1)),
        (tensorlane.InvalidArgumentError, lambda: tensorlane.send(numpy.zeros(1), 0, 2**64)),
        (tensorlane.InvalidArgumentError, lambda: tensorlane.send(numpy.zeros(1), 0, priority=2)),
    ):
        try:
            call()
        except kind as error:
            assert str(error).count(": ") >= 2, f"not WHAT: WHERE: WHAT TO DO: {error}"
        else:
            raise AssertionError("nonsense was taken")
    got = numpy.zeros(1)
    waiting = tensorlane.recv_async_(got, rank, 4321)
    try:
        tensorlane.synchronize(waiting, timeout=0.2)
    except tensorlane.TimedOutError as error:
        assert f"the message from rank {rank} with tag 4321 is not done: within 0.2 s" in str(error), error
    else:
        raise AssertionError("nothing came, and was received")
    for call in (lambda: tensorlane.recv_(numpy.zeros(1), rank, 4322, timeout=0.1), lambda: tensorlane.send(numpy.zeros(1), rank, 4323, timeout=0.1)):
        try:
            call()
        except tensorlane.TimedOutError as error:
            assert "within 0.1 s" in str(error), error
        else:
            raise AssertionError("what nobody answers was done")
    tensorlane.send(numpy.ones(1), rank, 4322)
    tensorlane.recv_(numpy.zeros(1), rank, 4323)
    tensorlane.send(numpy.ones(1), rank, 4321)
    assert tensorlane.synchronize(waiting) == rank and got[0] == 1


def memory(rank, size):
    """Shared memory is sent without a copy, and can be freed afterwards, as can what copies were made in."""
    context = tensorlane._native.context()
    right, left = (rank + 1) % size, (rank - 1) % size
    count = 100_000
    for turn in range(200):
        address = context._allocate(2 * count)
        array = numpy.frombuffer((ctypes.c_char * (2 * count)).from_address(address), "uint8")
        array[:count] = turn
        send = tensorlane.send_async(array[:count], right, 12)
        receive = tensorlane.recv_async_(array[count:], left, 12)
        tensorlane.synchronize(send)
        tensorlane.synchronize(receive)
        assert (array[count:] == turn).all()
        context._free(address)
        copied = numpy.zeros(count)
        send = tensorlane.send_async(numpy.full(count, float(turn)), right, 13)
        tensorlane.recv_(copied, left, 13)
        tensorlane.synchronize(send)
        assert (copied == turn).all()


def sets(rank, size):
    """Messages of a set are apart from those of the job, with the same tag."""
    members = list(range(1, size)) if size > 2 else [0, 1]
    group = tensorlane.add_process_set(members)
    if rank in members and len(members) > 1:
        at = members.index(rank)
        right, left = members[(at + 1) % len(members)], members[at - 1]
        in_set = tensorlane.send_async(values(rank, right, 1, 8), right, 2, process_set=group)
        in_job = tensorlane.send_async(values(rank, right, 2, 8), right, 2)
        got, other = numpy.zeros(8, "float32"), numpy.zeros(8, "float32")
        assert tensorlane.recv_(other, left, 2) == left
        assert tensorlane.recv_(got, None, 2, process_set=group) == left
        expect(got, values(left, rank, 1, 8))
        expect(other, values(left, rank, 2, 8))
        for handle in (in_set, in_job):
            tensorlane.synchronize(handle)
    tensorlane.remove_process_set(group)


def beside(rank, size):
    """Sums and messages at the same time."""
    right, left = (rank + 1) % size, (rank - 1) % size
    for turn in range(20):
        sums = tensorlane.allreduce_async(numpy.full(200_000, rank + turn, "float32"), name="beside", op=tensorlane.Sum)
        send = tensorlane.send_async(values(rank, right, turn, 100_000), right, 6)
        got = numpy.zeros(100_000, "float32")
        tensorlane.recv_(got, left, 6)
        expect(got, values(left, rank, turn, 100_000))
        tensorlane.synchronize(send)
        expect(tensorlane.synchronize(sums), numpy.full(200_000, sum(range(size)) + size * turn, "float32"))


def of_torch(rank, size):
    """Torch tensors, as torch has them: what autograd follows is not written behind its back."""
    import tensorlane.torch as tl
    import torch

    right, left = (rank + 1) % size, (rank - 1) % size
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        for count in (0, 7, 100_000):
            sent, got = torch.full((count,), rank + 1, dtype=dtype), torch.zeros(count, dtype=dtype)
            send = tl.send_async(sent, right, 11, priority=0.5)
            sent.zero_()  # it was taken already
            assert tl.recv_(got, left, 11, timeout=30) == left and (got == left + 1).all(), (dtype, count)
            tl.synchronize(send)
    weight = torch.nn.Parameter(torch.full((5, 3), float(rank)))
    version = weight._version
    receive = tl.recv_async_(weight, None, 12)
    tl.send(torch.full((5, 3), rank + 10.0, requires_grad=True), right, 12, timeout=30)
    assert tl.synchronize(receive) == left and (weight == left + 10).all() and weight._version > version
    for call, text in (
        (lambda: tl.recv_(weight * 2, left), "autograd follows it"),
        (lambda: tl.send(torch.ones(4, 4).t()[:, :2], right), "it is not contiguous"),
        (lambda: tl.send(torch.ones(2, device="meta"), right), "meta"),
        (lambda: tl.send(numpy.ones(2), right), "ndarray is not a torch.Tensor"),
        (lambda: tl.recv_(torch.ones(2), size), f"there is no rank {size}"),
    ):
        try:
            call()
        except tensorlane.InvalidArgumentError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)


def works(rank, size):
    everybody(rank, size)
    tags(rank, size)
    from_any(rank, size)
    disagreements(rank, size)
    refusals(rank, size)
    memory(rank, size)
    if size > 1:
        floods(rank, size)
        sets(rank, size)
    beside(rank, size)
    of_torch(rank, size)
    print(f"rank {rank}: all messages are right", flush=True)


def waits(rank, size):
    got = numpy.zeros(5, "float32")
    if rank == size - 1:
        tensorlane.send(values(rank, 0, 0, 5), 0)
    elif rank == 0:
        assert tensorlane.recv_(got, size - 1) == size - 1
        expect(got, values(size - 1, 0, 0, 5))
    print(f"rank {rank}: the first call was a message", flush=True)


def told(rank, call):
    began = time.monotonic()
    try:
        call()
    except (tensorlane.AbortedError, tensorlane.UnavailableError) as error:
        print(f"rank {rank}: was told after {time.monotonic() - began:.1f} s: {error}", flush=True)
    else:
        raise AssertionError("a message of nobody came")


def left(rank, size):
    everybody_small(rank, size)
    if rank == 1:
        return
    told(rank, lambda: tensorlane.recv_(numpy.zeros(5), 1, 8))


def dies(rank, size):
    everybody_small(rank, size)
    if rank == 1:
        time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGKILL)
    told(rank, lambda: tensorlane.recv_(numpy.zeros(5), 1, 8))


def silent(rank, size):
    try:
        tensorlane.recv_(numpy.zeros(1), (rank + 1) % size, timeout=2.5)
    except tensorlane.TimedOutError:
        sys.exit("nothing came")


if __name__ == "__main__":
    tensorlane.init(timeout=5 if sys.argv[1] == "silent" else None)  # which leaving waits for, where an operation is under way
    {"works": works, "waits": waits, "left": left, "dies": dies, "silent": silent}[sys.argv[1]](tensorlane.rank(), tensorlane.size())
    tensorlane.shutdown()
