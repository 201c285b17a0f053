"""The buckets of torch's DistributedDataParallel (DDP), summed by tensorlane.

DDP calls the hook when all gradients of a bucket are there, in an order that is the same on all ranks, and waits for
the futures when the backward pass is over. Nothing waits for a bucket before that: a future is completed by the call of
a later bucket, if the sum is done by then, else at the end of the pass, just before DDP waits for it. There an error of
tensorlane is raised as it is, where DDP would make a RuntimeError of it.

A bucket has no identity: DDP makes other ones after the first iteration, and wrappers of the hook give it other
buffers. What ranks match is the size and type of its buffer, and its place among those that are alike.
"""

# No `from __future__ import annotations`: DDP compares the annotations of a hook with its classes.

import collections
import weakref
from typing import TYPE_CHECKING, Optional

import torch

from .. import _process_sets
from .._process_sets import AnyProcessSet, ProcessSet
from .._unnamed import most_names
from ..errors import MismatchError, misuse
from . import _calls, _device

if TYPE_CHECKING or torch.distributed.is_available():
    from torch.distributed import GradBucket
else:
    GradBucket = object  # this PyTorch has no DistributedDataParallel

_WHERE = "ddp_comm_hook"
_KEPT_CALLS = 1000
_buckets = weakref.WeakKeyDictionary()  # by context


def ddp_comm_hook(state: Optional[AnyProcessSet], bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Averages the gradients of DistributedDataParallel over the ranks:

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, tensorlane.torch.ddp_comm_hook)

    Divides them by the number of ranks, as torch's own hook does, and starts their sum, in the memory of the bucket.
    All buckets have the same urgency. The future is completed by the end of the backward pass, and has the averages.
    Every rank has the rank in the job that it has in torch's default process group, and calls backward() of its models
    in the same order.

    state: None, or a process set with the ranks of the process_group that DDP was given. One thread at a time calls the
    hook for a job or a process set.

    Errors, which backward() raises: InvalidArgumentError where this process has joined no job, is not in the process
    set, or the gradients are sparse or of a type that tensorlane does not sum; MismatchError where rank and world size
    are not those of torch's process group; and whatever ends the job."""
    process_set = _process_set(state)
    context = process_set.context()
    _check_world()
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        shapes = ", ".join(str(tuple(parameter.shape)) for parameter in bucket.parameters())
        raise misuse(
            "gradients are sparse, and only dense ones can be summed", f"{_WHERE}, parameters of shape {shapes}",
            "build the layer with sparse=False",
        )
    buffer.div_(context.size)
    return _buckets.setdefault(context, _Buckets()).start(buffer, process_set, bucket.is_last())


def _process_set(state):
    if state is None or isinstance(state, (ProcessSet, type(_process_sets.global_process_set))):
        return _process_sets.of(state)
    raise misuse(
        f"its state is a {type(state).__name__}", _WHERE,
        "register it with None, or with a ProcessSet that has the ranks of DDP's process_group",
    )


def _check_world():
    """Of the whole job, so that the ranks of a process set are torch's, too."""
    if not torch.distributed.is_initialized():
        return
    job = _process_sets.context(None)
    mine = job.rank, job.size
    torchs = torch.distributed.get_rank(), torch.distributed.get_world_size()
    if mine != torchs:
        raise MismatchError(
            f"this process is rank {mine[0]} of {mine[1]} in tensorlane's job, and rank {torchs[0]} of {torchs[1]} in "
            f"torch's process group: {_WHERE}: start both with the same RANK and WORLD_SIZE, or give init() and "
            "init_process_group() the same rank and size"
        )


class _Empty:
    """In the place of a handle, for a bucket of no elements."""

    def __init__(self, buffer):
        self._buffer = buffer

    def poll(self):
        return True

    def synchronize(self):
        return self._buffer


class _Buckets:
    """Those of a job or of a process set, in the order of the calls."""

    def __init__(self):
        self._names = _Names()
        self._under_way = collections.deque()  # (handle, future)

    def start(self, buffer, process_set, last):
        """The future of the sum of `buffer`. `last`: of DDP's buckets in this backward pass."""
        device = _device.gpu(buffer, _WHERE)
        future = torch.futures.Future(devices=None if device is None else [device])
        while self._under_way and self._of_oldest(lambda handle: handle.poll()):
            self._complete_oldest()
        self._under_way.append((self._sum(buffer, process_set), future))
        if torch._C._current_autograd_node() is None:
            # No gradient is being computed, and DDP waits as soon as it has called the hook for all buckets: the first
            # iteration with static_graph=True, and join().
            self._complete(future)
        elif last:
            # DDP has yet to ask for its own call at the end of this pass: calls are made in the order of asking.
            torch.autograd.Variable._execution_engine.queue_callback(lambda: self._complete(future))
        return future

    def _sum(self, buffer, process_set):
        """The handle."""
        if buffer.numel() == 0:
            return _Empty(buffer)
        self._forget_old(process_set.context())
        return _calls.start_sum(buffer, self._names.next(*_calls.kind(buffer, _WHERE)), _WHERE, process_set)

    def _complete(self, future):
        """Waits for this one, and all before it."""
        while not future.done():
            self._complete_oldest()

    def _complete_oldest(self):
        result = self._of_oldest(lambda handle: handle.synchronize())
        _, future = self._under_way.popleft()
        future.set_result(result)

    def _of_oldest(self, call):
        """What the call of the oldest handle returns. Where it raises, no bucket is under way any more."""
        handle, _ = self._under_way[0]
        try:
            return call(handle)
        except Exception as error:
            failed = list(self._under_way)
            self._under_way.clear()
            for _, future in failed:
                future.set_exception(error)
            raise

    def _forget_old(self, context):
        """Gives back the tensors of buckets that have not come for long, on all ranks at the same call."""
        for name in self._names.old():
            while self._under_way:
                self._complete_oldest()
            _calls.give_back(context, f"allreduce.{name}")


class _Names:
    """A name is a tensor that all ranks register. Buckets that are alike share a few of them, in turns, which depend on
    the order of the calls alone; a call whose turn has come waits for the one that had the name before. Names that the
    last calls did not use are given back, so that a program may make any number of models."""

    def __init__(self):
        self._calls = 0
        self._kinds = collections.OrderedDict()  # the longest unused first: [calls, the number of the last one, names]

    def next(self, count, dtype, memory):
        """The name of the next bucket of so many elements of a tl_dtype_t, in a tl_memory_t."""
        self._calls += 1
        kind = count, dtype, memory
        known = self._kinds.setdefault(kind, [0, 0, []])
        self._kinds.move_to_end(kind)
        turn, _, names = known
        known[:2] = turn + 1, self._calls
        most = most_names(count, dtype)
        if len(names) < most:
            names.append(f"ddp.{count}.{dtype}.{memory}.{turn}")
        return names[turn % most]

    def old(self):
        """Names that the last calls did not use; they are forgotten."""
        found = []
        while self._kinds:
            kind, (_, last, names) = next(iter(self._kinds.items()))
            if self._calls - last < _KEPT_CALLS:
                break
            del self._kinds[kind]
            found += names
        return found
