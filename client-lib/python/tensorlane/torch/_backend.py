"""tensorlane as a backend of torch.distributed: what init_process_group("tensorlane") and new_group() make.

The backend itself is C++ (client-lib/torch), one shared object for each minor version of torch.
"""

from __future__ import annotations

import atexit
import datetime
import os
import pathlib
import threading

import torch

from .. import _ended_by_exception, _native
from ..errors import UnavailableError, misuse

_lock = threading.Lock()
_loaded = False


def monitored_barrier(
    group: torch.distributed.ProcessGroup | None = None, timeout: datetime.timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    """torch.distributed.monitored_barrier(), which demands Gloo by name, for this backend: waits until every rank of
    the group has called it, through torch's store alone. Within `timeout` (seconds, or a timedelta; None: the group's)
    rank 0, and then the others, raise RuntimeError, which names the first rank that has not come, or all of them
    (wait_all_ranks)."""
    group = group or torch.distributed.group.WORLD
    if group is None:
        raise misuse("there is no process group", "monitored_barrier", "call init_process_group() first")
    backend = group._get_backend(torch.device("cpu"))
    if isinstance(timeout, (int, float)):
        timeout = datetime.timedelta(seconds=timeout)
    backend.monitored_barrier(*(() if timeout is None else (timeout,)), wait_all_ranks=wait_all_ranks)


def library_path() -> str:
    """TENSORLANE_TORCH_BACKEND, else the shared object inside the package for the torch that runs."""
    return os.environ.get("TENSORLANE_TORCH_BACKEND") or str(_inside() / f"_backend_{_minor()}.so")


def _inside():
    return pathlib.Path(__file__).resolve().parent


def _minor():
    return ".".join(torch.__version__.split("+")[0].split(".")[:2])


def _milliseconds(time):
    return max(1, int(time.total_seconds() * 1000))


def _load():
    """The operators of the shared object. UnavailableError when there is none for this torch."""
    global _loaded
    with _lock:
        if _loaded:
            return
        path = library_path()
        if not os.path.exists(path):
            there = sorted(each.stem.split("_")[-1] for each in _inside().glob("_backend_*.so"))
            raise UnavailableError(
                f"there is no backend for torch {_minor()}: {path} (there are: {', '.join(there) or 'none'}): "
                "install tensorlane where this torch is installed, by pip install --no-build-isolation, or use "
                "tensorlane.torch.ddp_comm_hook, which needs none"
            )
        try:
            torch.ops.load_library(path)
        except OSError as error:
            raise UnavailableError(
                f"the backend cannot be loaded: {path} ({error}): install tensorlane again where torch "
                f"{torch.__version__} is installed, by pip install --no-build-isolation"
            ) from error
        _native.library()
        torch.ops.tensorlane.load_library(_native.library_path())
        atexit.register(_leave_at_exit)
        _loaded = True


def _leave_at_exit():
    """A process that ends without destroy_process_group() leaves its jobs: else the others take it for dead. One that
    an exception ends does not finish what it has begun, and the others are to hear of it at once."""
    torch.ops.tensorlane.leave_all("an exception has ended this process" if _ended_by_exception() else "")


def create(options, backend_options):
    """The backend of a new group, as torch.distributed asks for it in each of the group's processes."""
    if backend_options is not None and type(backend_options).__name__ not in ("Options", "_Options"):
        raise misuse(
            f"pg_options are {type(backend_options).__name__}", "init_process_group, backend tensorlane",
            "leave them out: it has none",
        )
    rank, size = options.group_rank, options.group_size
    carrier = process_group(
        options.store, rank, size, options.timeout, str(options.group_id),
        list(options.global_ranks_in_group) or list(range(size)),
    )
    return carrier._get_backend(torch.device("cpu"))


def process_group(
    store: torch.distributed.Store, rank: int, size: int, timeout: datetime.timedelta, name: str, ranks: list[int]
) -> torch.distributed.ProcessGroup:
    """A process group of one backend, that of CPU tensors, which is not torch.distributed's. Blocks until all `size`
    ranks have called it with this store, at most `timeout`. `ranks`: how error messages call them."""
    _load()
    # In some releases of torch a process group has options of its own, and cannot be made without.
    options = getattr(torch.distributed.ProcessGroup, "Options", None)
    group = torch.distributed.ProcessGroup(store, rank, size, *([options("tensorlane")] if options else []))
    torch.ops.tensorlane.make_backend(group.boxed(), _milliseconds(timeout), name, ranks)
    return group


def set_timeout(group: torch.distributed.ProcessGroup, timeout: datetime.timedelta) -> None:
    """Of the operations of what process_group() has made that begin from now on."""
    torch.ops.tensorlane.set_timeout(group.boxed(), _milliseconds(timeout))


def failure(group: torch.distributed.ProcessGroup) -> str:
    """Why nothing can be started in what process_group() has made; empty while it can."""
    return torch.ops.tensorlane.failure(group.boxed())
