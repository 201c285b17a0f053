"""tensorlane: a priority transport for distributed training.

    import tensorlane
    tensorlane.init()
    total = tensorlane.allreduce(array, op=tensorlane.Sum)

Horovod's call names, on NumPy arrays and whatever has the buffer protocol or DLPack (CPU). For PyTorch see
`tensorlane.torch`.
"""

from __future__ import annotations

import atexit
import sys
from typing import Any

from . import _native, _process_sets, _reports
from ._calls import (
    Handle,
    allgather,
    allgather_async,
    allreduce,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall,
    alltoall_async,
    barrier,
    broadcast,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    gather,
    gather_async,
    poll,
    reduce,
    reduce_async,
    reducescatter,
    reducescatter_async,
    scatter_,
    scatter_async_,
    synchronize,
)
from ._messages import recv_, recv_async_, send, send_async
from ._constants import Average, Max, Min, Product, Sum
from ._process_sets import ProcessSet, add_process_set, global_process_set, remove_process_set
from ._store import KVStore
from .errors import (
    AbortedError,
    AlreadyExistsError,
    CorruptError,
    Error,
    InternalError,
    InvalidArgumentError,
    MismatchError,
    NotFoundError,
    PermissionDeniedError,
    ResourceExhaustedError,
    TimedOutError,
    UnavailableError,
    VersionMismatchError,
)

__version__ = "0.1.0"

_ENDS_OF_A_JOB = (AbortedError, UnavailableError)


def init(
    *,
    rank: int | None = None,
    size: int | None = None,
    local_rank: int | None = None,
    local_size: int | None = None,
    job: str | None = None,
    secret: str | None = None,
    leader: str | None = None,
    leader_port: int | None = None,
    socket: str | None = None,
    timeout: float | None = None,
) -> None:
    """Joins the job; returns when every rank has. What is None comes from torchrun's variables (RANK, WORLD_SIZE,
    LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID), for the ranks also from those of Open
    MPI's mpirun and of Slurm's srun (which do not set MASTER_ADDR, and beside which RANK or WORLD_SIZE alone is
    refused), and from TENSORLANE_JOB, TENSORLANE_JOB_SECRET or the contents of the file TENSORLANE_JOB_SECRET_FILE,
    TENSORLANE_SOCKET, TENSORLANE_TIMEOUT. A job that spans hosts needs a secret. A second call changes nothing.

    timeout: seconds that joining, registering, add_process_set(), close() and leaving wait for the other ranks; 60
    where nothing says otherwise. Operations wait without limit: synchronize() takes a time-out of its own, and the
    daemon's `late_error` ends a job whose ranks are late. Errors, as of all calls, are subclasses of tensorlane.Error
    (tensorlane.TimedOutError, ...; module tensorlane.errors)."""
    _native.init(rank, size, local_rank, local_size, job, secret, leader, leader_port, socket, timeout)


def shutdown() -> None:
    """Applies pending updates, waits until nothing of this rank is under way, and leaves the job."""
    if not _native.is_initialized():
        return
    failed = []
    for member in _reports.members():
        try:
            member.leave("this process has left its job", "call tensorlane.init() and wrap the optimizer again")
        except Error as error:
            failed.append(error)
    unanswered = _process_sets.unanswered()
    failed += _process_sets.leave()
    try:
        _native.shutdown()
    except TimedOutError as error:
        failed.append(error if unanswered is None else TimedOutError(unanswered))
    except Error as error:
        failed.append(error)
    if failed:
        raise failed[0]


def is_initialized() -> bool:
    """Whether this process is in a job."""
    return _native.is_initialized()


def rank() -> int:
    """The rank of this process in the job, from 0 to size() - 1."""
    return _native.context().rank


def size() -> int:
    """How many ranks the job has."""
    return _native.context().size


def local_rank() -> int:
    """The rank of this process among those on its host."""
    return _native.context().local_rank


def local_size() -> int:
    """How many ranks of the job are on this host."""
    return _native.context().local_size


def status() -> dict[str, Any]:
    """What is in force and why: {"daemon": the daemon's own status, "optimizers": one entry per DistributedOptimizer},
    and {"gpus": what the library uses GPUs for} where it does."""
    context = _native.context()
    found = {"daemon": context.daemon_status(), "optimizers": [member.report() for member in _reports.members()]}
    gpus = context.gpu_status()
    return {**found, "gpus": gpus} if gpus.get("devices") else found


def _ended_by_exception():
    """Where somebody types the commands, an exception ends none but its own."""
    interactive = hasattr(sys, "ps1") or sys.flags.interactive
    return not interactive and getattr(sys, "last_value", None) is not None


@atexit.register
def _leave_at_exit():
    """A program that ends well leaves its job well. One that ends by an exception does not: the others must hear of it.
    A forked child is in no job. The end of a job that the program has heard of before, and an error that it has had
    before, are no news."""
    if not _native.joined_here() or _ended_by_exception():
        return
    known = _native.raised()
    try:
        shutdown()
    except Error as error:
        ended = isinstance(error, _ENDS_OF_A_JOB) and any(
            status == end.status for status, _ in known for end in _ENDS_OF_A_JOB
        )
        if not ended and (error.status, str(error)) not in known:
            raise
