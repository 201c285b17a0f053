"""What is left of messages that are over, or have failed. A script, run by daemons/test_message_ends.py:

    message_ends.py anybody   rank 0 receives from any rank, and all others have left
    message_ends.py last      the last rank waits for rank 0, which has left
    message_ends.py refused   as many messages fail for want of memory as may be under way, and then one is sent
"""

import sys

import numpy
import tensorlane


def exchange(rank, size):
    peer = (rank + 1) % size
    send = tensorlane.send_async(numpy.full(1000, rank), peer, 1)
    got = numpy.zeros(1000, numpy.int64)
    source = tensorlane.recv_(got, (rank - 1) % size, 1)
    assert (got == source).all()
    tensorlane.synchronize(send)


def to_oneself(rank):
    send = tensorlane.send_async(numpy.ones(10), rank, 2)
    got = numpy.zeros(10)
    assert tensorlane.recv_(got, rank, 2) == rank and (got == 1).all()
    tensorlane.synchronize(send)


def receive_from(rank, source):
    try:
        tensorlane.recv_(numpy.zeros(5), source, 8)
    except tensorlane.AbortedError as error:
        print(f"rank {rank}: {error}", flush=True)
    else:
        raise AssertionError("a message of nobody came")


def anybody(rank, size):
    exchange(rank, size)
    if rank == 0:
        receive_from(rank, None)


def last(rank, size):
    exchange(rank, size)
    if rank == size - 1:
        receive_from(rank, 0)


def refused(rank, size):
    much = numpy.empty(1 << 31, numpy.uint8)
    for _ in range(1030):
        try:
            tensorlane.send_async(much, rank, 3)
        except tensorlane.ResourceExhaustedError as error:
            assert "memory" in str(error), error
        else:
            raise AssertionError("there is no memory for it")
    to_oneself(rank)
    print("rank 0: sends what there is memory for", flush=True)


if __name__ == "__main__":
    tensorlane.init()
    part = {"anybody": anybody, "last": last, "refused": refused}[sys.argv[1]]
    part(tensorlane.rank(), tensorlane.size())
    tensorlane.shutdown()
