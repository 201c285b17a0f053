"""Process sets: collectives among some of a job's ranks, as in Horovod. A set shares the session, connections and life
of its job (tl_process_set() of the C library)."""

from __future__ import annotations

import hashlib
import itertools
import numbers
import warnings
from collections.abc import Sequence
from typing import Union

import numpy

from . import _native, _reports
from .errors import Error, MismatchError, TimedOutError, misuse

_HOST_BYTES = 255  # of a name in the fabric file
_QUESTION = "process_set"  # name of the allgather by which ranks agree, one set after the other
_added = []  # this process's sets, in the order of add_process_set
_number = itertools.count(1)
_asked = None  # _Asked, while the other ranks have not all called add_process_set()


class ProcessSet:
    """Some ranks of the job. Their collectives, with `process_set=` this one, wait for nobody else. To be given to
    add_process_set() first."""

    ranks: list[int]  # in ascending order

    def __init__(self, ranks: Sequence[int]) -> None:
        try:
            listed = list(ranks)
        except TypeError:
            raise misuse(f"{ranks!r} is no list of ranks", "ProcessSet", "list the ranks of the set") from None
        whole = all(isinstance(rank, numbers.Integral) for rank in listed)
        if not whole or not listed or len(set(listed)) < len(listed):
            raise misuse(f"{ranks} are no ranks", "ProcessSet", "list each rank of the set once, as an integer")
        self.ranks = sorted(int(rank) for rank in listed)
        self._context = None

    def included(self) -> bool:
        """Whether this process is one of them."""
        return _native.context().rank in self.ranks

    def size(self) -> int:
        """How many ranks the set has."""
        return len(self.ranks)

    def rank(self) -> int:
        """The rank of this process in the set, counted from 0 among its members."""
        return self.context().rank

    def context(self) -> _native.Context:
        """The context of the set's collectives. InvalidArgumentError on a rank that is not a member, and while the set
        is not added."""
        if self not in _added:
            raise misuse(
                "the process set was not added, or was removed", str(self), "call add_process_set() on every rank"
            )
        if self._context is None:
            raise misuse(
                f"rank {_native.context().rank} is not in the process set", str(self), "leave the call out on this rank"
            )
        return self._context

    def root(self, rank: int, argument: str = "root_rank") -> int:
        """The place in the set of a rank of the job, which the caller's `argument` names."""
        if rank not in self.ranks:
            raise misuse(
                f"rank {rank} is not in the process set", argument,
                f"use one of {self.ranks}: they count in the whole job",
            )
        return self.ranks.index(rank)

    def __str__(self) -> str:
        return f"ProcessSet({self.ranks})"

    __repr__ = __str__


class _Everybody:
    """All ranks of the job, with the methods of a ProcessSet."""

    @property
    def ranks(self) -> list[int]:
        """All ranks, in ascending order."""
        return list(range(self.size()))

    def included(self) -> bool:
        """Whether this process is one of them, which it is."""
        return True

    def size(self) -> int:
        """How many ranks the job has."""
        return self.context().size

    def rank(self) -> int:
        """The rank of this process in the job."""
        return self.context().rank

    def context(self) -> _native.Context:
        """The job's own context."""
        return _native.context()

    def root(self, rank: int, argument: str = "root_rank") -> int:
        """The rank itself. InvalidArgumentError where the job has no such rank."""
        if not 0 <= rank < self.size():
            raise misuse(f"there is no rank {rank}", argument, f"use 0 to {self.size() - 1}")
        return rank

    def __repr__(self) -> str:
        return "global_process_set"


AnyProcessSet = Union[ProcessSet, _Everybody]
global_process_set = _Everybody()


def of(process_set: AnyProcessSet | None) -> AnyProcessSet:
    """What `process_set=` means: None is everybody."""
    if process_set is None:
        return global_process_set
    if not isinstance(process_set, (ProcessSet, _Everybody)):
        raise misuse(f"{process_set!r} is no process set", "process_set", "pass what add_process_set() returns")
    return process_set


def context(process_set: AnyProcessSet | None) -> _native.Context:
    """The context of `process_set=`, on its members."""
    return of(process_set).context()


def add_process_set(process_set: ProcessSet | Sequence[int]) -> ProcessSet:
    """Makes a set usable, and returns it: a ProcessSet or a list of ranks. Collective: every rank of the job calls it,
    in the same order for the same sets, members or not.

    Errors: MismatchError on all ranks where they add different sets; TimedOutError where a rank does not call it within
    TENSORLANE_TIMEOUT (init(timeout=)): it names the set, and the ranks if the daemon knows by then (after
    `late_after`). The job goes on, and another call with the same ranks goes on waiting."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    job = _native.context()
    if not 0 <= process_set.ranks[0] <= process_set.ranks[-1] < job.size:
        raise misuse(f"the job has ranks 0 to {job.size - 1}", str(process_set), "list ranks of the job")
    if process_set in _added:
        raise misuse(
            "the process set was added before", str(process_set), "use it, or make another one of the same ranks"
        )
    number, hosts = _agree(job, process_set)
    _added.append(process_set)
    if not process_set.included():
        return process_set
    local = [rank for rank in process_set.ranks if hosts[rank] == hosts[job.rank]]
    try:
        process_set._context = job.process_set(process_set.ranks, number, local.index(job.rank), len(local))
    except BaseException:
        _added.remove(process_set)
        raise
    return process_set


def remove_process_set(process_set: ProcessSet) -> None:
    """Gives up a set; its optimizers apply their updates and end. Every member calls it, with nothing of the set under
    way; elsewhere it only forgets the set. It does not wait for the others; but a member that goes on to use the set
    waits for this rank in vain: the job ends with an AbortedError, which names this rank.

    Whatever it raises, the set is removed. Updates that cannot be applied any more are a warning: the parameters are as
    they were before them."""
    if process_set not in _added:
        raise misuse("the process set was not added, or was removed", str(process_set), "remove it once")
    for member in _reports.members():
        if member.process_set is process_set:
            try:
                member.leave(
                    f"{process_set} was removed", "add a set of these ranks again, and wrap the plain optimizer for it"
                )
            except Exception as error:
                warnings.warn(
                    f"{process_set} is removed without the last updates of its optimizer: {error}", RuntimeWarning,
                    stacklevel=2,
                )
    _added.remove(process_set)
    leaving, process_set._context = process_set._context, None
    if leaving is not None:
        leaving.finalize()


def unanswered():
    """What is said where the job is left in vain waiting for the ranks that have not called add_process_set(); None
    while nobody waits."""
    if _asked is None:
        return None
    try:
        late = _asked.late()
    except Error:  # the job is over, which leaving it will say
        late = "some ranks have"
    return (
        f"this rank has left its job, though {late} not called add_process_set(): {_asked.process_set}: let all ranks "
        "add the same sets in the same order, members or not"
    )


def leave():
    """The process leaves its job. Returns what went wrong."""
    global _number, _asked
    failed = []
    for process_set in reversed(list(_added)):
        try:
            remove_process_set(process_set)
        except Error as error:
            failed.append(error)
    _number, _asked = itertools.count(1), None
    return failed


def _agree(job, process_set):
    """(number of the set, the names of all ranks' hosts), when all ranks have agreed on the set. After a time-out the
    next call goes on with the same question, to which the others have yet to come."""
    global _asked
    while True:
        if _asked is None:
            _asked = _Asked(job, process_set)
        asked = _asked
        try:
            asked.request.wait(job.timeout)
        except TimedOutError:
            raise TimedOutError(
                f"{asked.late()} not called add_process_set() within {job.timeout:g} s: {asked.process_set}: let all "
                "ranks add the same sets in the same order, members or not, and call again, or raise TENSORLANE_TIMEOUT"
            ) from None
        except Error:
            _asked = None
            raise
        _asked = None
        asked.check(job)
        if asked.process_set.ranks == process_set.ranks:
            return asked.number, asked.hosts()


class _Asked:
    """The question to all ranks whether they add the same set."""

    def __init__(self, job, process_set):
        self.process_set = process_set
        self.number = next(_number)
        self._digest = hashlib.sha256(str(process_set).encode()).digest()
        mine = numpy.zeros(len(self._digest) + _HOST_BYTES, "uint8")
        answer = self._digest + job.host.encode()
        mine[: len(answer)] = numpy.frombuffer(answer, "uint8")
        self._everybodys = numpy.zeros((job.size, mine.size), "uint8")
        self.request = job.allgather(
            _QUESTION, mine.ctypes.data, self._everybodys.ctypes.data, mine.size, _native.UINT8, 1.0,
            (mine, self._everybodys),
        )

    def late(self):
        """Who has not answered, as far as the daemon knows."""
        late = _native.late_ranks(f"allgather.{_QUESTION}")
        if not late:
            return "some ranks ('tensorlane status' names who is late) have"
        return f"rank {late[0]} has" if len(late) == 1 else f"ranks {late} have"

    def check(self, job):
        differing = [
            rank for rank in range(job.size) if self._everybodys[rank, : len(self._digest)].tobytes() != self._digest
        ]
        if differing:
            raise MismatchError(
                f"ranks {differing} add another process set than rank {job.rank}: {self.process_set}: add the same "
                "sets in the same order on all ranks"
            )

    def hosts(self):
        return [row[len(self._digest) :].tobytes().rstrip(b"\0").decode() for row in self._everybodys]
