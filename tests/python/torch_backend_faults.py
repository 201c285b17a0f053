"""The backend of torch.distributed where something beside it goes wrong. A script of two ranks, run by backend/test_faults.py:

    torch_backend_faults.py kept       a time-out gives up an operation of which the library still has the memory
    torch_backend_faults.py refuses    the library of one rank refuses a call, and has no thread for a callback
    torch_backend_faults.py leaves     a group is left while an operation begins
    torch_backend_faults.py left       a rank leaves groups in which the other waits for it
    torch_backend_faults.py hangs      torch's store hangs when the other rank has died
    torch_backend_faults.py forks      a forked child has its parent's group
    torch_backend_faults.py barrier    a rank gives up a monitored barrier before the other comes
    torch_backend_faults.py dropped    a group is dropped, and then the program ends
    torch_backend_faults.py raises     an exception ends a rank, on which its group waits
    torch_backend_faults.py threads    no thread can be started (one rank, as a user who is not root)
"""

import ctypes
import datetime
import gc
import os
import re
import resource
import signal
import sys
import threading
import time
import types
import weakref

import numpy
import torch
import torch.distributed as dist
from tensorlane.torch._backend import create
from torch_backend import refused

CPU = torch.device("cpu")


def altered():
    return ctypes.CDLL(os.environ["TENSORLANE_LIBRARY"])


def until(condition, what, seconds=10):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.02)


def kept(store):
    """Both where a thread waits for the operation, and where nobody does."""
    for number, waits in enumerate((True, False)):
        group = dist.new_group(timeout=datetime.timedelta(seconds=1))
        if dist.get_rank() == 0:
            altered().altered_hold_aborts(1)
            memory = numpy.ones(4, dtype=numpy.float32)
            there, output = weakref.ref(memory), torch.zeros(8)
            work = dist.all_gather_into_tensor(output, torch.from_numpy(memory), group=group, async_op=True)
            refused(work.wait if waits else work.get_future().wait, RuntimeError, "Timed out: all_gather_into_tensor")
            del memory, work
            gc.collect()
            assert there() is not None, "the library may still read it"
            altered().altered_hold_aborts(0)
            group._get_backend(CPU).abort()
            until(lambda: there() is None, "the memory is kept for good")
            store.set(f"kept{number}", "")
        store.wait([f"kept{number}"])


def refuses(store):
    rank = dist.get_rank()
    tensor = torch.ones(4)
    if rank == 0:
        altered().altered_refuse_callbacks(3)
    (result,) = dist.all_reduce(tensor, async_op=True).get_future().wait()
    assert (result == 2).all()
    group = dist.new_group()
    if rank == 0:  # until the group has been left there is no thread
        altered().altered_refuse_callbacks(1 << 30)
        work = dist.all_reduce(tensor, group=group, async_op=True)
        group._get_backend(CPU).shutdown()
        refused(work.wait, dist.DistBackendError, "this process has left its process group")
        altered().altered_refuse_callbacks(0)
        altered().altered_refuse_calls(1)
        for _ in range(2):  # nothing can be started any more
            refused(lambda: dist.all_reduce(tensor), dist.DistBackendError, "this rank does not do it: .*torch.* do without")
        dist.destroy_process_group()
        store.wait(["told"], datetime.timedelta(seconds=15))
    else:
        refused(lambda: dist.all_reduce(tensor), dist.DistBackendError, "rank 0 .* without goodbye")
        store.set("told", "")


def leaves(store):
    group = dist.new_group()
    if dist.get_rank() == 0:
        torch.ops.load_library(os.environ["SLOW_WORKS"])
        torch.ops.slow_works.begin()
        said = []

        def exchange():
            work = dist.all_to_all_single(torch.zeros(3), torch.zeros(3), [1, 2], [1, 2], group=group, async_op=True)
            said.append(refused(work.wait, dist.DistBackendError, "was destroyed"))

        thread = threading.Thread(target=exchange)
        thread.start()
        time.sleep(0.3)
        group._get_backend(CPU).shutdown()
        assert not said, "it had begun before the group was left"
        thread.join()
        assert said
    del group
    gc.collect()


def left(store):
    """Who waits is told soon, in words of torch.distributed: nothing was registered by this program, and it has no job."""
    rank = dist.get_rank()
    waits = [
        ("all_reduce of 4 Float .sum.", "make the same calls", lambda group: dist.all_reduce(torch.ones(4), group=group)),
        ("recv of 4 Float from rank 1, tag 0", "send and receive all messages", lambda group: dist.recv(torch.ones(4), 1, group=group)),
        ("recv of 4 Float from any rank, tag 7", "send and receive all messages", lambda group: dist.recv(torch.ones(4), group=group, tag=7)),
    ]
    for number, (what, how, call) in enumerate(waits):
        group = dist.new_group()
        dist.barrier(group=group)
        if rank == 1:
            time.sleep(0.2)  # the other waits by then, or nearly
            group._get_backend(CPU).shutdown()
            store.wait([f"told{number}"])
            continue
        begin = time.monotonic()
        text = refused(lambda: call(group), dist.DistBackendError, f"^{what}: (rank 1 on host h1 has|all other ranks have) left process group '.*' of 2 ranks: let every rank {how}")
        assert time.monotonic() - begin < 4, f"{time.monotonic() - begin} s"
        assert not re.search("regist|tensor|job", text), text
        store.set(f"told{number}", "")


class Hanging(dist.Store):
    """Another store, until it hangs."""

    def __init__(self, store):
        super().__init__()
        self.store, self.hangs, self.asked = store, False, 0

    def _use(self, name, *arguments):
        self.asked += self.hangs
        while self.hangs:
            time.sleep(0.1)
        return getattr(self.store, name)(*arguments)

    def set(self, key, value):
        return self._use("set", key, value)

    def get(self, key):
        return self._use("get", key)

    def check(self, keys):
        return self._use("check", keys)

    def add(self, key, amount):
        return self._use("add", key, amount)

    def delete_key(self, key):
        return self._use("delete_key", key)

    deleteKey = delete_key  # as a store calls the one that it is a prefix of


def hangs(rank, size):
    inner = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=rank == 0)
    store = Hanging(inner)
    dist.init_process_group("tensorlane", store=store, rank=rank, world_size=size)
    dist.all_reduce(torch.ones(4))
    if rank == 1:
        inner.wait(["begun"])
        os._exit(0)
    futures = [dist.all_reduce(torch.ones(5), async_op=True).get_future() for _ in range(3)]
    store.hangs = True
    begin = time.monotonic()
    inner.set("begun", "")
    for future in futures:
        refused(future.wait, RuntimeError, "without goodbye")
    assert store.asked == 1, "more than one thread waits for it"
    dist.destroy_process_group()
    assert time.monotonic() - begin < 15
    print("rank 0: hangs is right", flush=True)
    os._exit(0)  # one thread waits for the store


def forks(store):
    def in_child():
        begin = time.monotonic()
        for call in (lambda: dist.all_reduce(torch.ones(4)), under_way.wait, under_way.is_completed, dist.barrier):
            refused(call, dist.DistBackendError, "a forked child cannot use its parent's process group: '.*': make a group in the child")
        refused(lambda: dist.all_reduce_coalesced([torch.ones(4)]), dist.DistBackendError, "a forked child")
        dist.destroy_process_group()
        assert time.monotonic() - begin < 5
        sys.exit(7)  # through all that runs at the end of a program

    rank = dist.get_rank()
    dist.all_reduce(torch.ones(4))
    under_way = dist.all_reduce(torch.ones(6), async_op=True) if rank == 0 else None
    if rank == 0:
        child = os.fork()
        if child == 0:
            in_child()
        ended = []
        until(lambda: ended.append(os.waitpid(child, os.WNOHANG)) or ended[-1][0], "the child hangs", 30)
        assert os.waitstatus_to_exitcode(ended[-1][1]) == 7, ended[-1]
        numbers = torch.utils.data.DataLoader(range(8), num_workers=2, multiprocessing_context="fork")
        assert sum(int(number) for number in numbers) == 28
        store.set("forked", "")
    store.wait(["forked"])
    if rank == 0:
        under_way.wait()
    else:
        dist.all_reduce(torch.ones(6))
    dist.all_reduce(torch.ones(4))


def barrier(store):
    import tensorlane.torch as tl

    rank = dist.get_rank()
    group = dist.new_group()
    if rank == 1:
        refused(lambda: tl.monitored_barrier(group, 0.2), RuntimeError, "from rank 0: Rank 0 failed to pass")
        store.set("gave up", "")
        store.wait(["passed by"])
        refused(lambda: tl.monitored_barrier(group, 10), RuntimeError, "from rank 0: Rank 1 failed to pass")
    else:
        store.wait(["gave up"])
        refused(lambda: tl.monitored_barrier(group, 0.2), RuntimeError, "Rank 1 failed to pass monitoredBarrier in 200 ms")
        store.set("passed by", "")
    tl.monitored_barrier(group, 20)  # both are at one barrier again
    if rank == 1:
        refused(lambda: tl.monitored_barrier(group, 0.2), RuntimeError, "Rank 0 failed to pass")
        store.set("gave up again", "")
    else:
        store.wait(["gave up again"])
    tl.monitored_barrier(group, 20)  # which rank 1 gave up and has come to again


def dropped(store):
    """A thread leaves a group that nobody holds any more; the program does not end before it has."""
    options = types.SimpleNamespace(
        group_rank=dist.get_rank(), group_size=2, store=dist.PrefixStore("dropped", store), timeout=datetime.timedelta(seconds=30), group_id="dropped",
        global_ranks_in_group=[0, 1],
    )
    backend, tensor = create(options, None), torch.ones(4)
    if dist.get_rank() == 0:
        backend.allreduce([tensor])
        store.set("begun", "")
    else:
        store.wait(["begun"])
        time.sleep(1)
        backend.allreduce([tensor]).wait()
        assert (tensor == 2).all()


def raises(store):
    """The daemons would wait for late_after, 10 s, for a rank that leaves in peace."""
    if dist.get_rank() == 1:
        pending = dist.isend(torch.ones(8), 0)  # its end does not wait for that either
        raise ValueError(f"this ends rank 1, and {pending}")
    begin = time.monotonic()
    refused(lambda: dist.all_reduce(torch.ones(4)), dist.DistBackendError, "rank 1 .*without goodbye")
    assert time.monotonic() - begin < 5


def threads():
    """With one rank, so that only the backend needs some."""
    dist.init_process_group("tensorlane", store=dist.HashStore(), rank=0, world_size=1)
    tensor = torch.ones(3).to_sparse()
    os.setuid(65534)
    _, most = resource.getrlimit(resource.RLIMIT_NPROC)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, most))
    for _ in range(2):
        refused(lambda: dist.all_reduce(tensor), dist.DistBackendError, "cannot start a thread: process group '.*', Resource temporarily unavailable: raise ulimit -u")
    resource.setrlimit(resource.RLIMIT_NPROC, (most, most))
    dist.all_reduce(tensor)
    dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    signal.alarm(45)  # a child that is forked has none
    what = sys.argv[1]
    if what == "threads":
        threads()
    elif what == "hangs":
        hangs(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))
    else:
        dist.init_process_group("tensorlane")
        globals()[what](dist.distributed_c10d._get_default_store())
        if what not in ("refuses", "dropped", "raises"):
            dist.barrier()
        if dist.is_initialized() and what != "dropped":
            dist.destroy_process_group()
    print(f"rank {os.environ.get('RANK', 0)}: {what} is right", flush=True)


if __name__ == "__main__":
    main()
