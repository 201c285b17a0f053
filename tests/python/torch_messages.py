"""Messages between two ranks on the backend of torch.distributed. A script of two or three ranks, run by backend/test_backend.py:

    torch_messages.py works      every length and dtype, tags out of order, many at once, objects
    torch_messages.py differs K  both ends disagree; K is dtype or count: both are told, and collectives go on
    torch_messages.py dies       the receiver dies
    torch_messages.py left       a message that nobody receives, and a group that is left
"""

import datetime
import os
import signal
import sys

import tensorlane.torch  # noqa: F401  registers the backend
import torch
import torch.distributed as dist

LENGTHS = (0, 1, 3, 10, 11, 16, 17, 100, 1000, 12345, 1 << 18, 3_000_001)


def values(source, destination, tag, count, dtype=torch.float32):
    return (torch.arange(count) * 7 + 1000 * source + 100 * destination + tag).to(dtype)


def around(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    for count in LENGTHS:
        for dtype in (torch.float32, torch.int64, torch.bool):
            got = torch.zeros(count, dtype=dtype)
            sent = values(rank, right, 0, count, dtype)
            works = dist.batch_isend_irecv([dist.P2POp(dist.isend, sent, right), dist.P2POp(dist.irecv, got, left)])
            sent.fill_(1)  # it was taken already
            for work in works:
                work.wait()
            assert torch.equal(got, values(left, rank, 0, count, dtype)), (count, dtype)


def tags(rank):
    """A receiver that wants the last one first; several of one tag come in their order."""
    if rank == 0:
        for turn in range(3):
            for tag in range(20):
                dist.isend(values(turn, 1, tag, 50 + tag), 1, tag=tag)
        got = torch.zeros(3)
        dist.recv(got, 1)
        assert got.tolist() == [1, 1, 1]
    elif rank == 1:
        for tag in reversed(range(20)):
            for turn in range(3):
                got = torch.zeros(50 + tag)
                dist.recv(got, 0, tag=tag)
                assert torch.equal(got, values(turn, 1, tag, 50 + tag)), (tag, turn)
        dist.send(torch.ones(3), 0)


def shapes(rank):
    columns = torch.arange(12.0).view(3, 4).t()
    if rank == 0:
        dist.send(columns, 1)
        dist.send_object_list([{"a": list(range(100))}, "x" * 5000], 1)
    elif rank == 1:
        got = torch.zeros(3, 4).t()
        dist.recv(got, 0)
        assert torch.equal(got, columns)
        objects = [None, None]
        dist.recv_object_list(objects, 0)
        assert objects == [{"a": list(range(100))}, "x" * 5000]


def many(rank):
    """More than travel at once; and collectives between them."""
    if rank == 0:
        works = [dist.isend(values(0, 1, 0, 100 + i % 7), 1) for i in range(500)]
    elif rank == 1:
        got = [torch.zeros(100 + i % 7) for i in range(500)]
        works = [dist.irecv(each, 0) for each in got]
    one = torch.ones(5)
    dist.all_reduce(one)
    assert one.tolist() == [dist.get_world_size()] * 5
    if rank < 2:
        for work in works:
            work.wait()
    if rank == 1:
        assert all(torch.equal(each, values(0, 1, 0, len(each))) for each in got)


def from_any(rank, size):
    if rank > 0:
        for turn in range(3):
            dist.send(torch.tensor([rank, turn]), 0, tag=8)
        return
    seen = []
    for _ in range(3 * (size - 1)):
        got = torch.zeros(2, dtype=torch.int64)
        source = dist.recv(got, tag=8)
        assert got[0] == source, (got, source)
        seen.append((source, int(got[1])))
    for peer in range(1, size):
        assert [turn for source, turn in seen if source == peer] == [0, 1, 2], seen


def works(rank, size):
    around(rank, size)
    from_any(rank, size)
    tags(rank)
    shapes(rank)
    many(rank)
    for call, text in (
        (lambda: dist.group.WORLD.send([torch.zeros(2)], rank, 0), "is this rank: send: copy the tensor"),
        (lambda: dist.group.WORLD.send([torch.zeros(2)], size, 0), f"rank {size} is no rank of the group: send"),
    ):
        try:
            call()
        except RuntimeError as error:
            assert text in str(error), error
        else:
            raise AssertionError(text)
    dist.destroy_process_group()


def differs(rank, size, kind):
    sent, wanted = (torch.zeros(1000), torch.zeros(1000, dtype=torch.int32)) if kind == "dtype" else (torch.zeros(1000), torch.zeros(30))
    try:
        if rank == 0:
            dist.send(sent, 1, tag=4)
        else:
            dist.recv(wanted, 0, tag=4)
    except dist.DistBackendError as error:
        wanted = "1000 elements of int32" if kind == "dtype" else "30 elements of float32"
        assert f"rank 0 sends 1000 elements of float32, rank 1 receives {wanted}: tag 4" in str(error), error
        print("was told", flush=True)
    one = torch.ones(5)
    dist.all_reduce(one)
    assert one.tolist() == [size] * 5
    dist.destroy_process_group()


def dies(rank, size):
    if rank == 1:
        dist.recv(torch.zeros(1), 0)
        os.kill(os.getpid(), signal.SIGKILL)
    dist.send(torch.zeros(1), 1)
    try:
        dist.send(torch.zeros(1 << 20), 1)
    except dist.DistBackendError as error:
        assert "rank 1" in str(error), error
        print("was told who died", flush=True)
    os._exit(1)


def left(rank, size):
    if rank == 0:
        work = dist.isend(torch.zeros(1 << 20), 1)
    dist.barrier()
    dist.destroy_process_group()
    if rank == 0:
        try:
            work.wait()
        except dist.DistBackendError as error:
            print(f"was told: {error}", flush=True)


def main():
    dist.init_process_group("tensorlane", timeout=datetime.timedelta(seconds=30))
    rank, size = dist.get_rank(), dist.get_world_size()
    {"works": works, "differs": differs, "dies": dies, "left": left}[sys.argv[1]](rank, size, *sys.argv[2:])
    print(f"{sys.argv[1]} is right", flush=True)


main()
