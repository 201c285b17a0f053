"""tensorlane.h by ctypes: the calls, and errors as exceptions.

ctypes releases the interpreter's lock during every call. Waiting is done in short pieces, so that Ctrl-C works.
"""

import collections
import contextlib
import ctypes
import gc
import hashlib
import json
import logging
import os
import pathlib
import threading
import time

from . import _reports, errors
from ._declarations import (  # noqa: F401  the package takes them from here
    ALLGATHER, ALLREDUCE, ALLTOALL, AVERAGE, BARRIER, BFLOAT16, BROADCAST, CONFIG_VERSION, DTYPE_NAMES, ELEMENT_BYTES,
    FLOAT16, FLOAT32, FLOAT64, GATHER, INT8, INT32, INT64, INTEGERS, MAX, MEMORY_CUDA, MEMORY_HOST, MIN, PRODUCT, PULL,
    PUSH, REDUCE, REDUCESCATTER, SCATTER, SIGNATURES, SUM, UINT8, Config, SetConfig, TensorDesc, options,
)
from ._gate import Gate, left
from ._gpu_memory import GpuMemory, calls_of
from ._registered import Group, Tensor
from ._unnamed import Unnamed

HOST = (MEMORY_HOST, None)  # where the memory of a call lies, and the stream that it is ordered by

_WAIT_PIECE_SECONDS = 0.1

_log = logging.getLogger("tensorlane")

_lock = threading.Lock()
_library = None
_context = None
_joined = None  # what init() was told of the job
_joined_by = None  # the process that called it
_raised = collections.deque(maxlen=64)  # (status, text) of the latest errors since init()


def library_path():
    """TENSORLANE_LIBRARY, else the library inside the package."""
    return os.environ.get("TENSORLANE_LIBRARY") or str(pathlib.Path(__file__).resolve().parent / "_libtensorlane.so")


def library():
    """The C library, loaded once."""
    global _library
    if _library is not None:
        return _library
    with _lock:
        if _library is None:
            path = library_path()
            try:
                loaded = ctypes.CDLL(path)
                for name, (arguments, result) in SIGNATURES.items():
                    function = getattr(loaded, name)
                    function.argtypes, function.restype = arguments, result
            except (OSError, AttributeError) as error:
                raise errors.UnavailableError(
                    f"the client library cannot be loaded: {path} ({error}): reinstall tensorlane, or set "
                    "TENSORLANE_LIBRARY to libtensorlane.so"
                ) from error
            _library = loaded
        return _library


def check(status, waited=None):
    """Raises for any status but TL_OK, with the library's text. `waited`: the whole wait, of a time-out in pieces."""
    if status != errors.OK:
        text = errors.within(library().tl_last_error().decode(errors="replace"), waited)
        _raised.append((status, text))
        raise errors.from_status(status, text)


class _Call:
    """A call that blocks for long, on a helper thread, so that Ctrl-C reaches the main thread meanwhile. It goes on
    then, and can be waited for again."""

    def __init__(self, call):
        self._call = call
        self._failed = None
        self._over = threading.Event()  # is_alive() of a thread is false for good once Ctrl-C has interrupted join()
        self._thread = threading.Thread(target=self._run, name="tensorlane", daemon=True)
        self._thread.start()

    def _run(self):
        try:
            self._call()
        except BaseException as error:
            self._failed = error
        finally:
            self._over.set()

    def wait(self):
        """Returns when it has returned; raises what it has raised."""
        while not self._over.wait(_WAIT_PIECE_SECONDS):
            pass
        if self._failed is not None:
            raise self._failed


def _interruptible(call):
    if threading.current_thread() is not threading.main_thread():
        return call()
    _Call(call).wait()


def tensor_desc(
    name, count, dtype, op=SUM, position=0, positions=0, memory=MEMORY_HOST, operation=ALLREDUCE, urgency=-1.0
):
    """A tensor of a group, without a buffer of its own."""
    return TensorDesc(
        ctypes.sizeof(TensorDesc), name.encode(), None, count, dtype, operation, op, 0, position, positions, urgency, 1,
        0, 0, memory, 0,
    )


class Context:
    """One rank of one job, or of one process set. Any thread."""

    def __init__(self, make, timeout, job=None):
        """`make` gets a place for the handle. `job`: of a process set, the job's context."""
        self._is_set = job is not None
        self._handle = ctypes.c_void_p()  # None once it has ended: the library says that a call needs a context
        self.gate = Gate()  # of calls that tl_finalize() does not end itself
        self._lock = threading.Lock()  # of what follows, where threads unregister
        self.unnamed = Unnamed()
        self._groups = []
        self.gpu_memory = job.gpu_memory if job else GpuMemory(self.gate, calls_of(self, library, check))
        self._late_buffers = []  # on GPUs, of groups whose registration may yet come to an end
        self._asked = None  # _Asked, while the other ranks have not all answered
        self._unregistered = []  # (tensor, address of its buffer), of which something may still refer to the buffer
        make(ctypes.byref(self._handle))
        self.rank = library().tl_rank(self._handle)
        self.size = library().tl_size(self._handle)
        self.local_rank = library().tl_local_rank(self._handle)
        self.local_size = library().tl_local_size(self._handle)
        self.timeout = timeout
        host = library().tl_host(self._handle)
        self.host = "" if host is None else host.decode()  # empty: alone, without a daemon

    def process_set(self, ranks, number, local_rank, local_size):
        """The context of a process set of the job (tl_process_set)."""
        numbers = (ctypes.c_int * len(ranks))(*ranks)
        config = SetConfig(ctypes.sizeof(SetConfig), numbers, len(ranks), number, local_rank, local_size)
        return Context(
            lambda place: check(library().tl_process_set(self._handle, ctypes.byref(config), place)), self.timeout, self
        )

    def finalize(self):
        """Leaves the job, or the process set. Calls of other threads end with an error before or now, and so does every
        request, which is of no use any more."""
        until = time.monotonic() + self.timeout
        for request in self.requests() if self._is_set else []:  # without which a set cannot be left
            with contextlib.suppress(errors.Error):  # its caller hears of it
                request.wait(max(until - time.monotonic(), 0))
        handle, self._handle = self._handle, None
        if not self.gate.close(self.timeout):
            raise errors.TimedOutError(
                f"a call of another thread has not returned within {self.timeout:g} s: tensorlane: this process stays "
                "in its job until it ends: let every call return before shutdown()"
            )
        status = library().tl_finalize(handle)
        if not (self._is_set and status == errors.InvalidArgumentError.status):  # else what is under way goes on
            for request in self.requests():
                request.abandon()
            self.gpu_memory.end(self.gate)
        check(status)

    def requests(self):
        return [each for each in _under_way.copy() if each.context is self]

    def daemon_status(self):
        text = ctypes.c_char_p()
        check(library().tl_daemon_status(self._handle, ctypes.byref(text)))
        return json.loads(text.value)

    def gpu_status(self):
        """What the library uses GPUs for."""
        text = ctypes.c_char_p()
        check(library().tl_gpu_status(self._handle, ctypes.byref(text)))
        return json.loads(text.value)

    def register(self, group, descs, on_gpus=None):
        """The Group of these tensors, in buffers of the context's, or of `on_gpus`: for each tensor None or a Buffer
        (torch/_device.py). Collective, and in the same order on all ranks. Registered tensors stay until unregister()
        or the context's end, so a group that is alike and that no rank uses any more is given out again, with its
        buffers, zeros in those of host memory, and the names of before. After TimedOutError another call like this one
        goes on, as long as the job lives."""
        on_gpus = on_gpus or [None] * len(descs)
        kind = tuple(
            (*(getattr(desc, field) for field, _ in TensorDesc._fields_ if field not in ("name", "buffer")),
             on_gpu and on_gpu.device)
            for desc, on_gpu in zip(descs, on_gpus)
        )
        idle = self._agree_on_idle_group(kind)
        if idle is not None:
            for tensor, desc in zip(idle, descs):
                tensor.clear(desc.count * ELEMENT_BYTES[desc.dtype])
            return idle
        with self._lock:
            self._free_unused()
        array = (TensorDesc * len(descs))(*descs)
        handles = (ctypes.c_void_p * len(descs))()
        memory = []
        try:
            for desc, on_gpu in zip(array, on_gpus):
                memory.append(None if on_gpu else self._allocate(desc.count * ELEMENT_BYTES[desc.dtype]))
                desc.buffer = on_gpu.allocate(self) if on_gpu else memory[-1]
            _interruptible(
                lambda: check(library().tl_register(self._handle, group.encode(), array, len(descs), handles))
            )
        except errors.TimedOutError:
            self._late_buffers += filter(None, on_gpus)
            raise  # the daemon may yet come to use the buffers
        except errors.Error:
            for address in filter(None, memory):
                self._free(address)
            raise
        made = Group(group, kind, map(Tensor, handles, [desc.buffer for desc in array], on_gpus), memory)
        self._groups.append(made)
        return made

    def unregister(self, group):
        """Gives the group's tensors and its names back, and each of its buffers when nothing refers to it any more.
        Collective. After any error and after Ctrl-C the group is not given out by register() any more; another call
        goes on."""
        if self._handle is None:
            return  # the context has given everything back
        with self._lock:
            if group.leaving is None:
                group.leaves = True
                group.leaving = _Call(lambda: check(library().tl_unregister(self._handle, group.name.encode())))
            leaving = group.leaving
        try:
            leaving.wait()
        except errors.Error:
            with self._lock:
                if group.leaving is leaving:
                    group.leaving = None
            raise
        if any(tensor.in_use() for tensor in group):
            gc.collect()  # models and their hooks refer to each other
        with self._lock:
            if group not in self._groups:
                return  # another thread has been here
            self._groups.remove(group)
            self._unregistered += [pair for pair in zip(group, group.memory) if pair[1] is not None]
            self._free_unused()

    def forget(self, call):
        """Gives back the tensor of an array call, "operation.name", of which nothing is under way. Collective."""
        _interruptible(lambda: check(library().tl_unregister(self._handle, call.encode())))

    def _allocate(self, size):
        memory = ctypes.c_void_p()
        check(library().tl_alloc(self._handle, size, ctypes.byref(memory)))
        return memory.value

    def _free(self, address):
        with self.gate:
            check(library().tl_free(self._handle, address))

    def _free_unused(self):
        idle = [pair for pair in self._unregistered if not pair[0].in_use()]
        self._unregistered = [pair for pair in self._unregistered if pair not in idle]
        for _, address in idle:
            self._free(address)
        self.gpu_memory.free_unused()

    def _idle_group(self, kind):
        alike = [group for group in self._groups if group.kind == kind and not group.leaves]
        if alike and not any(group.idle() for group in alike):
            gc.collect()  # models and their hooks refer to each other
        return next((group for group in alike if group.idle()), None)

    def _agree_on_idle_group(self, kind):
        """A group of this kind that no rank uses, the same one on all ranks, or None. After a time-out the next call
        goes on with the same question, to which the other ranks have yet to come."""
        while True:
            if self._asked is None:
                self._asked = _Asked(self, kind, self._idle_group(kind))
            asked = self._asked
            try:
                asked.request.wait(self.timeout)
            except errors.TimedOutError:
                raise errors.TimedOutError(
                    f"not all ranks register these tensors: within {self.timeout:g} s: let all ranks make the same "
                    "calls (DistributedOptimizer) in the same order, and call again, or raise TENSORLANE_TIMEOUT; "
                    "'tensorlane status' names who is late"
                ) from None
            except errors.Error:
                self._asked = None
                raise
            self._asked = None
            if asked.kind == kind:
                return asked.idle if asked.all_agree() else None

    # Operations of registered tensors, many with one call.

    def post_many(self, tensors, stream=None):
        """Starts the operations of several tensors of this context, all or none: of GPU memory when `stream` has done
        what it was given so far, of host memory now (None). Returns a request of each, as a number, for wait_many() or
        stream_wait()."""
        count = len(tensors)
        handles = (ctypes.c_void_p * count)(*[tensor.handle for tensor in tensors])
        requests = (ctypes.c_void_p * count)()
        with self.gate:
            if stream is None:
                check(library().tl_post_many(handles, count, requests))
            else:
                check(library().tl_post_on(handles, count, stream, requests))
        return requests[:]

    def stream_wait(self, requests, stream):
        """Lets `stream` wait for these requests of post_many(), in place of this thread. They are gone then. After an
        error those that are not gone are in the list."""
        count = len(requests)
        pending = (ctypes.c_void_p * count)(*requests)
        with self.gate:
            status = library().tl_stream_wait(pending, count, stream)
        requests[:] = [request for request in pending if request is not None]
        check(status)

    def wait_many(self, requests):
        """Returns when all of these requests of post_many() are done. Raises the first error. What Ctrl-C leaves under
        way is in the list afterwards."""
        if not requests:
            return
        count = len(requests)
        pending = (ctypes.c_void_p * count)(*requests)
        wait = library().tl_wait_many
        try:
            status = errors.TIMED_OUT
            while status == errors.TIMED_OUT:
                with self.gate:
                    status = wait(pending, count, _WAIT_PIECE_SECONDS)
        finally:
            requests[:] = [request for request in pending if request is not None]
        check(status)

    def is_done(self, request):
        """Whether this request of post_many() is done; it must not be used again then. Raises if it failed."""
        with self.gate:
            status = library().tl_test(request)
        if status == errors.IN_PROGRESS:
            return False
        check(status)
        return True

    # Array calls. Without a name they are told apart by their order, which is the same on all ranks.

    def allreduce(self, name, source, target, count, dtype, op, urgency, keep, place=HOST, queued=False):
        return self._start(
            library().tl_allreduce, name, (source, target, count, dtype, op), (count, dtype, op), urgency, keep, place,
            queued,
        )

    def broadcast(self, name, target, count, dtype, root, urgency, keep, place=HOST):
        return self._start(
            library().tl_broadcast, name, (target, count, dtype, root), (count, dtype, root), urgency, keep, place
        )

    def allgather(self, name, source, target, count, dtype, urgency, keep, place=HOST):
        return self._start(
            library().tl_allgather, name, (source, target, count, dtype), (count * self.size, dtype), urgency, keep,
            place,
        )

    def reducescatter(self, name, source, target, rows, row, dtype, op, urgency, keep, place=HOST):
        return self._start(
            library().tl_reducescatter, name, (source, target, rows, row, dtype, op), (rows * row, dtype, op, row),
            urgency, keep, place,
        )

    def reduce(self, name, source, target, count, dtype, op, root, urgency, keep, place=HOST):
        return self._start(
            library().tl_reduce, name, (source, target, count, dtype, op, root), (count, dtype, op, root), urgency,
            keep, place,
        )

    def gather(self, name, source, target, count, dtype, root, urgency, keep, place=HOST):
        return self._start(
            library().tl_gather, name, (source, target, count, dtype, root), (count * self.size, dtype, root), urgency,
            keep, place,
        )

    def scatter(self, name, source, target, count, dtype, root, urgency, keep, place=HOST):
        given, kind = (source, target, count, dtype, root), (count * self.size, dtype, root)
        return self._start(library().tl_scatter, name, given, kind, urgency, keep, place)

    def alltoall(self, name, source, target, count, dtype, urgency, keep, place=HOST, queued=False):
        given, kind = (source, target, count, dtype), (2 * count * self.size, dtype)
        return self._start(library().tl_alltoall, name, given, kind, urgency, keep, place, queued)

    def push(self, key, source, count, dtype, op, urgency, keep, place=HOST):
        return self._start(library().tl_push, key, (source, count, dtype, op), (count, dtype, op), urgency, keep, place)

    def pull(self, key, target, count, dtype, urgency, keep, place=HOST):
        return self._start(library().tl_pull, key, (target, count, dtype), (count, dtype), urgency, keep, place)

    def _start(self, call, name, arguments, kind, urgency, keep, place, queued=False):
        """`kind`: (count, dtype, ...), what all calls of a name have in common, together with the kind of memory.
        `queued`: the call waits for its turn while another one of its name is under way, as calls without a name do."""
        forget_dropped()
        memory, stream = place
        if name is None:
            queued = True
            name = self.unnamed.name(call.__name__, (*kind, memory))
        request = ctypes.c_void_p()
        said = options(urgency, queued, stream, memory)
        with self.gate:
            check(call(self._handle, name.encode(), *arguments, said, ctypes.byref(request)))
            return Request(self, request, keep)

    def barrier(self, timeout):
        _interruptible(lambda: check(library().tl_barrier(self._handle, timeout)))


class _Asked:
    """The question to all ranks whether they can give out the same group."""

    def __init__(self, context, kind, idle):
        self.kind = kind
        self.idle = idle
        word = hashlib.sha256(idle.name.encode()).digest() if idle is not None else bytes(32)
        self._mine = ctypes.create_string_buffer(word, 32)
        self._everybodys = ctypes.create_string_buffer(32 * context.size)
        self._expected = word * context.size
        buffers = ctypes.addressof(self._mine), ctypes.addressof(self._everybodys)
        self.request = context.allgather(
            "tensorlane.DistributedOptimizer", *buffers, 32, UINT8, 1.0, (self._mine, self._everybodys)
        )

    def all_agree(self):
        return self.idle is not None and self._everybodys.raw == self._expected


_under_way = set()  # requests whose memory must not be freed, even if the caller has dropped them
_dropped = collections.deque()  # those that nobody will wait for


def forget_dropped():
    """Gives up the memory of dropped requests that are done by now. Whether they have failed interests nobody."""
    for _ in range(len(_dropped)):
        try:
            request = _dropped.popleft()
            if not request.test():
                _dropped.append(request)
        except (IndexError, errors.Error):  # another thread does the same
            pass


class Request:
    """One operation under way. `keep` is whatever owns its memory. One thread at a time."""

    def __init__(self, context, handle, keep):
        self.context = context
        self._handle = handle
        self._keep = keep
        self._error = None
        _under_way.add(self)

    def test(self):
        """Whether it is done. Raises if it failed."""
        if self._handle is not None:
            with self.context.gate:
                self._finish(library().tl_test(self._handle))
        return self._done()

    def wait(self, timeout=None):
        """Returns when it is done. Raises if it failed, and TimedOutError after `timeout` seconds; the operation goes
        on then."""
        end = None if timeout is None else time.monotonic() + timeout
        while self._handle is not None:
            piece = _WAIT_PIECE_SECONDS if end is None else max(0.0, min(_WAIT_PIECE_SECONDS, end - time.monotonic()))
            with self.context.gate:
                status = library().tl_wait(self._handle, piece)
                if status != errors.TIMED_OUT:
                    self._finish(status)
                elif end is not None and time.monotonic() >= end:
                    check(status, timeout)
        self._done()

    def let_wait(self, stream):
        """Lets the GPU's stream wait for it, in place of this thread. Raises if it failed; what fails later is raised
        by the next call that starts an operation."""
        if self._handle is not None:
            pending = ctypes.c_void_p(self._handle.value)
            with self.context.gate:
                status = library().tl_stream_wait(ctypes.byref(pending), 1, stream)
            if pending:
                check(status)
            self._finish(status)
        self._done()

    def drop(self):
        """Nobody will wait for it. Any thread, at any time."""
        if self._handle is not None:
            _dropped.append(self)

    def abandon(self):
        """Its context is gone."""
        if self._handle is not None:
            self._error = left()
            self._forget()

    def _finish(self, status):
        if status == errors.IN_PROGRESS:
            return
        try:
            check(status)
        except errors.Error as error:
            self._error = error
        self._forget()

    def _forget(self):
        self._handle = self._keep = None
        _under_way.discard(self)

    def _done(self):
        if self._error is not None:
            raise self._error
        return self._handle is None


def _join(rank, size, local_rank, local_size, job, secret, leader, leader_port, socket, timeout):
    text = [None if value is None else str(value).encode() for value in (job, secret, leader, socket)]
    numbers = [-1 if value is None else value for value in (rank, size, local_rank, local_size)]
    said = -1.0 if timeout is None else timeout
    config = Config(
        ctypes.sizeof(Config), CONFIG_VERSION, *numbers, *text, said, -1 if leader_port is None else leader_port,
    )
    return Context(
        lambda place: _interruptible(lambda: check(library().tl_init(ctypes.byref(config), place))),
        said if said >= 0 else float(os.environ.get("TENSORLANE_TIMEOUT") or 60),
    )


def init(rank, size, local_rank, local_size, job, secret, leader, leader_port, socket, timeout):
    """Joins the job, once per process; later calls change nothing."""
    global _context, _joined, _joined_by
    if _context is None:
        _raised.clear()
        _context = _join(rank, size, local_rank, local_size, job, secret, leader, leader_port, socket, timeout)
        # As tl_init() finds the name (tensorlane.h).
        name = job or os.environ.get("TENSORLANE_JOB") or os.environ.get("TORCHELASTIC_RUN_ID") or "default"
        _joined = {"job": name, "leader_port": leader_port}
        _joined_by = os.getpid()
        if not _context.host:
            _log.warning(
                "rank 0 of 1 works alone, without a daemon (%s): start several ranks with 'tensorlane run', or with a "
                "launcher that sets RANK and WORLD_SIZE, and tensorlaned on their hosts",
                _context.daemon_status()["alone"],
            )


def shutdown():
    """Leaves the job."""
    global _context
    if _context is not None:
        leaving, _context = _context, None
        _reports.say_what_is_under_way(leaving)
        leaving.finalize()


def late_ranks(group):
    """The ranks of the job that have not come to `group`, an array call's, by the daemon's latest report of it; none
    before its first one (`late_after`)."""
    port = _joined["leader_port"] or int(os.environ.get("MASTER_PORT") or 0)
    jobs = [
        job for job in context().daemon_status()["jobs"] if (job["name"], job["leader_port"]) == (_joined["job"], port)
    ]
    names = (f"group '{group}'", f"tensor '{group}'")  # in its first call, and later
    reports = [report for job in jobs for report in job["late"] if report["what"] in names]
    latest = max((report["seconds"] for report in reports), default=0)
    return sorted(report["rank"] for report in reports if report["seconds"] == latest)


def raised():
    """The latest errors since init(), as (status, text)."""
    return list(_raised)


def joined_here():
    """Whether this process has joined the job, and not the one that forked it."""
    return _context is not None and _joined_by == os.getpid()


def is_initialized():
    return _context is not None


def context():
    if _context is None:
        raise errors.misuse("this process has joined no job", "tensorlane", "call tensorlane.init() first")
    return _context
