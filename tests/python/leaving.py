"""Requests that are held when their context ends, and threads that are in calls when the job is left. A script of two ranks, run by daemons/test_daemons.py."""

import threading
import time

import numpy
import tensorlane as tl
from tensorlane import _native, errors
from unregister import refused

LEFT = "this process has left the job"


def ones(count=1000):
    return numpy.ones(count, numpy.float32)


def held_request_of_a_removed_set():
    process_set = tl.add_process_set(list(range(tl.size())))
    context = process_set.context()
    held = tl.allreduce_async(ones(), name="held", op=tl.Sum, process_set=process_set)
    group = context.register("registered", [_native.tensor_desc("registered.x", 1000, _native.FLOAT32)])
    numbers = context.post_many(group)
    context.wait_many(numbers)
    tl.remove_process_set(process_set)
    for _ in range(2):  # the set waited for it
        assert (held.synchronize() == tl.size()).all()
    refused(lambda: context.post_many(group), errors.AbortedError, LEFT)
    assert held._request not in _native._under_way


class Thread(threading.Thread):
    """Calls until it is told that the job was left."""

    def __init__(self, call):
        super().__init__(daemon=True)
        self.call, self.calls, self.ended_by = call, 0, None

    def run(self):
        try:
            while True:
                self.call()
                self.calls += 1
        except errors.Error as error:
            self.ended_by = error


def threads_in_calls():
    """The last call of each rank is met by none of the other one, which may have left."""
    calls = [lambda each=each: tl.allreduce(ones(each), name=f"thread{each}", op=tl.Sum) for each in (10, 1000, 300_000)]
    calls += [lambda: tl.allreduce_async(ones(), name="asynchronous").synchronize(), tl.status]
    threads = [Thread(call) for call in calls]
    for thread in threads:
        thread.start()
    while any(thread.calls < 20 and thread.ended_by is None for thread in threads):
        time.sleep(0.01)
    try:
        tl.shutdown()
    except errors.Error as error:
        print(f"leaving: {error}")
    for thread in threads:
        thread.join(30)
        assert thread.ended_by is not None, f"a thread still calls after {thread.calls} calls"


def main():
    tl.init(timeout=10)
    rank = tl.rank()
    for _ in range(3):
        held_request_of_a_removed_set()
    threads_in_calls()
    print(f"rank {rank}: no call has outlived its job")


if __name__ == "__main__":
    main()
