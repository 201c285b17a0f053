"""Tensors that are registered, used, unregistered and registered anew, in another shape. A script of two ranks or more, run by daemons/test_daemons.py.

    unregister.py            everything that goes on after an error
    unregister.py dies       the last rank dies while the others unregister
"""

import os
import random
import signal
import sys
import threading
import time

import numpy
import tensorlane as tl
from tensorlane import _native, errors

DTYPES = {_native.FLOAT32: numpy.float32, _native.FLOAT16: numpy.float16, _native.INT64: numpy.int64, _native.UINT8: numpy.uint8}


def address_of(handle):
    """Of a tensor's buffer, None once it was unregistered."""
    return _native.library().tl_tensor_buffer(handle)


class Registered:
    """A group of the C interface, as it is: without the reuse of the Python package."""

    def __init__(self, name, tensors):
        """`tensors`: [(name, count, dtype)]"""
        self.name = name
        self.context = _native.context()
        descs = (_native.TensorDesc * len(tensors))(*[_native.tensor_desc(*tensor) for tensor in tensors])
        handles = (_native.ctypes.c_void_p * len(tensors))()
        _native.check(_native.library().tl_register(self.context._handle, name.encode(), descs, len(tensors), handles))
        self.tensors = [_native.Tensor(handle, address_of(handle)) for handle in handles]
        self.kinds = [(count, DTYPES[dtype]) for _, count, dtype in tensors]

    def views(self):
        return [
            numpy.frombuffer((_native.ctypes.c_char * (count * numpy.dtype(kind).itemsize)).from_address(address_of(tensor.handle)), kind)
            for tensor, (count, kind) in zip(self.tensors, self.kinds)
        ]

    def post(self):
        for view in self.views():
            view[:] = tl.rank() + 1
        return self.context.post_many(self.tensors)

    def sum(self):
        self.context.wait_many(self.post())
        total = tl.size() * (tl.size() + 1) // 2
        for view in self.views():
            assert (view == total).all(), (self.name, view[view != total][:4], total)

    def unregister(self):
        _native.check(_native.library().tl_unregister(self.context._handle, self.name.encode()))


def refused(call, error, *texts):
    try:
        call()
    except error as raised:
        assert all(text in str(raised) for text in texts), (str(raised), texts)
        return
    raise AssertionError(f"no {error.__name__}: {texts}")


def plan():
    return next(job for job in _native.context().daemon_status()["jobs"] if job["plan"])["plan"]


def until(condition):
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError(plan())


def many_large_ones(turns):
    """Of 16 MiB, and each a little shorter than the one before, where there is room for four."""
    for turn in range(turns):
        group = Registered("large", [("large.x", (4 << 20) - turn, _native.FLOAT32)])
        if turn % 10 == 0:
            group.sum()
        group.unregister()


def unlike_ones(turns):
    """Several groups at a time, of all kinds, that come and go in an order of their own; what stays goes on."""
    draw = random.Random(7)
    live = {}
    for turn in range(turns):
        name = f"group{draw.randrange(5)}"
        if name in live:
            live.pop(name).unregister()
        else:
            tensors = [(f"{name}.{i}", draw.choice([1, 7, 1000, 70_000, 300_000]), draw.choice(list(DTYPES))) for i in range(draw.randint(1, 6))]
            live[name] = Registered(name, tensors)
        for group in live.values():
            group.sum()
    for group in live.values():
        group.unregister()


def under_way():
    group = Registered("busy", [("busy.x", 1000, _native.FLOAT32)])
    requests = group.post()
    refused(group.unregister, errors.InvalidArgumentError, "group 'busy' cannot be unregistered", "an operation on tensor 'busy.x' is under way")
    group.context.wait_many(requests)
    group.unregister()
    assert address_of(group.tensors[0].handle) is None
    refused(lambda: group.context.post_many(group.tensors), errors.InvalidArgumentError, "tensor 'busy.x' cannot be used", "it was unregistered")
    refused(group.unregister, errors.Error, "there is no group 'busy'")


def unlike_calls():
    """Only the first rank unregisters one group, and the others another one: who is missed is named, and nothing is lost."""
    first, second = Registered("first", [("first.x", 100, _native.FLOAT32)]), Registered("second", [("second.x", 50, _native.FLOAT32)])
    if tl.rank() == 0:
        refused(first.unregister, errors.TimedOutError, "rank", "not unregistered after", "group 'first'")
    else:
        refused(second.unregister, errors.TimedOutError, "rank 0 on host", "has not unregistered", "group 'second'")
    first.sum()
    second.sum()
    # In different orders.
    threads = [threading.Thread(target=group.unregister) for group in ((first, second) if tl.rank() == 0 else (second, first))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def array_calls():
    """A name of array calls can be given another shape."""
    for count in (1000, 20, 3000):
        assert (tl.allreduce(numpy.full(count, tl.rank() + 1.0, numpy.float32), name="named", op=tl.Sum) == tl.size() * (tl.size() + 1) / 2).all()
        _native.check(_native.library().tl_unregister(_native.context()._handle, b"allreduce.named"))


class Set:
    """Sums of a process set all the while."""

    def __init__(self):
        self.set = tl.add_process_set(list(range(tl.size())))
        self.stop = numpy.zeros(1, numpy.float32)
        self.sums, self.wrong = 0, None
        self.thread = threading.Thread(target=self.run, daemon=True)  # keeps no process that has failed
        self.thread.start()

    def run(self):
        try:
            while True:
                result = tl.allreduce(numpy.append(numpy.ones(999, numpy.float32), self.stop), name="other", op=tl.Sum, process_set=self.set)
                assert (result[:999] == tl.size()).all()
                if result[999] > 0:
                    return
                self.sums += 1
        except Exception as error:
            self.wrong = error

    def end(self):
        self.stop[0] = 1
        self.thread.join()
        tl.remove_process_set(self.set)
        assert self.wrong is None and self.sums > 0, (self.wrong, self.sums)


def dies():
    group = Registered("g", [("x", 1000, _native.FLOAT32)])
    group.sum()
    if tl.rank() == tl.size() - 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    refused(group.unregister, errors.Error, f"rank {tl.size() - 1}")
    print(f"rank {tl.rank()}: was told who died")


def main():
    tl.init(timeout=10)  # which unlike_calls() waits for
    if sys.argv[1:] == ["dies"]:
        return dies()
    tl.barrier()  # has a tensor of its own, and so has the agreement on a process set
    tl.remove_process_set(tl.add_process_set(list(range(tl.size()))))
    before = plan()["tensors"]
    other = Set()
    many_large_ones(200)
    unlike_ones(40)
    under_way()
    array_calls()
    unlike_calls()
    other.end()
    until(lambda: plan()["tensors"] == before)  # nobody waits for the set's tensors to go
    rank = tl.rank()
    tl.shutdown()
    print(f"rank {rank}: everything was given back")


if __name__ == "__main__":
    main()
