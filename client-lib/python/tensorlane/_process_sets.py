"""Process sets: collectives among some of a job's ranks, as in Horovod. A set is a job of its own: the same daemons and secret, and a name made of the
parent job's, so that nothing about it is special to the daemons. Whoever uses the C library does the same with another tl_init()."""

import hashlib
import itertools
import numbers

import numpy

from . import _native, _reports
from .errors import Error, MismatchError, misuse

_HOST_BYTES = 255  # of a name in the fabric file
_LONGEST_LIST = 64  # characters of ranks in a job's name
_added = []  # this process's sets, in the order of add_process_set
_number = itertools.count(1)


class ProcessSet:
    """Some ranks of the job. Their collectives, with `process_set=` this one, wait for nobody else. To be given to add_process_set() first."""

    def __init__(self, ranks):
        whole = all(isinstance(rank, numbers.Integral) for rank in ranks)
        if not whole or not ranks or len(set(ranks)) < len(ranks):
            raise misuse(f"{ranks} are no ranks", "ProcessSet", "list each rank of the set once")
        self.ranks = sorted(int(rank) for rank in ranks)
        self._context = None

    def included(self):
        """Whether this process is one of them."""
        return _native.context().rank in self.ranks

    def size(self):
        return len(self.ranks)

    def rank(self):
        """Of this process, among them."""
        return self.context().rank

    def context(self):
        """The set's, on its members."""
        if self not in _added:
            raise misuse("the process set was not added, or was removed", str(self), "call add_process_set() on every rank")
        if self._context is None:
            raise misuse(f"rank {_native.context().rank} is not in the process set", str(self), "leave the call out on this rank")
        return self._context

    def root(self, rank):
        """The place in the set of a rank of the job."""
        if rank not in self.ranks:
            raise misuse(f"rank {rank} is not in the process set", "root_rank", f"use one of {self.ranks}: they count in the whole job")
        return self.ranks.index(rank)

    def __str__(self):
        return f"ProcessSet({self.ranks})"

    __repr__ = __str__


class _Everybody:
    """All ranks of the job."""

    @property
    def ranks(self):
        return list(range(self.size()))

    def included(self):
        return True

    def size(self):
        return self.context().size

    def rank(self):
        return self.context().rank

    def context(self):
        return _native.context()

    def root(self, rank):
        if not 0 <= rank < self.size():
            raise misuse(f"there is no rank {rank}", "root_rank", f"use 0 to {self.size() - 1}")
        return rank

    def __repr__(self):
        return "global_process_set"


global_process_set = _Everybody()


def of(process_set):
    """What `process_set=` means: None is everybody."""
    return global_process_set if process_set is None else process_set


def context(process_set):
    """The context of `process_set=`, on its members."""
    return of(process_set).context()


def add_process_set(process_set):
    """Makes a set usable, and returns it: a ProcessSet or a list of ranks. Collective: every rank of the job calls it, in the same order for the same sets,
    members or not. Raises MismatchError where they do not, on all ranks."""
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    job = _native.context()
    if not 0 <= process_set.ranks[0] <= process_set.ranks[-1] < job.size:
        raise misuse(f"the job has ranks 0 to {job.size - 1}", str(process_set), "list ranks of the job")
    if process_set in _added:
        raise misuse("the process set was added before", str(process_set), "use it, or make another one of the same ranks")
    number = next(_number)
    hosts = _hosts(job, process_set, number)
    _added.append(process_set)
    if not process_set.included():
        return process_set
    local = [rank for rank in process_set.ranks if hosts[rank] == hosts[job.rank]]
    listed = "-".join(map(str, process_set.ranks))
    if len(listed) > _LONGEST_LIST:
        listed = hashlib.sha256(listed.encode()).hexdigest()[:16]
    try:
        process_set._context = _native.join_beside(
            rank=process_set.ranks.index(job.rank), size=process_set.size(), local_rank=local.index(job.rank), local_size=len(local),
            suffix=f".set{number}.{listed}", leader=hosts[process_set.ranks[0]])
    except BaseException:
        _added.remove(process_set)
        raise
    return process_set


def remove_process_set(process_set):
    """Gives up a set; its optimizers apply their updates and end. Every rank calls it, with nothing of the set under way."""
    if process_set not in _added:
        raise misuse("the process set was not added, or was removed", str(process_set), "remove it once")
    for member in _reports.members():
        if member.process_set is process_set:
            member.leave()
    _added.remove(process_set)
    leaving, process_set._context = process_set._context, None
    if leaving is not None:
        leaving.finalize()


def leave():
    """The process leaves its job. Returns what went wrong."""
    global _number
    failed = []
    for process_set in reversed(list(_added)):
        try:
            remove_process_set(process_set)
        except Error as error:
            failed.append(error)
    _number = itertools.count(1)
    return failed


def _hosts(job, process_set, number):
    """The names of all ranks' hosts; they have agreed on the set by then."""
    digest = hashlib.sha256(str(process_set).encode()).digest()
    mine = numpy.zeros(len(digest) + _HOST_BYTES, "uint8")
    told = digest + job.host.encode()
    mine[: len(told)] = numpy.frombuffer(told, "uint8")
    everybodys = numpy.zeros((job.size, mine.size), "uint8")
    job.allgather(f"process_set.{number}", mine.ctypes.data, everybodys.ctypes.data, mine.size, _native.UINT8, 1.0, (mine, everybodys)).wait()
    differing = [rank for rank in range(job.size) if everybodys[rank, : len(digest)].tobytes() != digest]
    if differing:
        raise MismatchError(f"ranks {differing} add another process set than rank {job.rank}: {process_set}: add the same sets in the same order on all ranks")
    return [row[len(digest):].tobytes().rstrip(b"\0").decode() for row in everybodys]
