"""tensorlane as a process group of torchft (torchft.process_group), which its Manager makes anew, with other ranks,
whenever replicas die or come:

    from tensorlane.torch.torchft import ProcessGroupTensorlane

    manager = torchft.Manager(pg=ProcessGroupTensorlane(), ...)

Needs torchft, which nothing else of this package imports.
"""

from __future__ import annotations

from datetime import timedelta

import torch
from torchft.process_group import ProcessGroupWrapper

from . import _backend


class ProcessGroupTensorlane(ProcessGroupWrapper):
    """Stands where ProcessGroupGloo does. Of CPU tensors. Threads: abort() may come while another thread waits for an
    operation, which then fails."""

    def __init__(self, timeout: timedelta = timedelta(seconds=60)) -> None:
        """`timeout`: of operations, and of configure(), which waits for all ranks."""
        super().__init__(timeout)
        self._error: Exception | None = None

    def getBackendName(self) -> str:
        return "torchft-tensorlane"

    def _create_pg(self, store, rank, world_size):
        self._error = None
        name, ranks = f"torchft.{self._quorum_id or 0}", list(self._global_ranks or range(world_size))
        return _backend.process_group(store, rank, world_size, self._timeout, name, ranks)

    def set_timeout(self, timeout: timedelta) -> None:
        super().set_timeout(timeout)
        if self._pg is not None:
            _backend.set_timeout(self._pg, timeout)

    def errored(self) -> Exception | None:
        """Why the process group is over, until configure() has made another one: a rank has died or was late, ranks
        have called different operations, abort()."""
        group = self._pg
        failure = "" if group is None else _backend.failure(group)
        return _aborted(failure) if failure else self._error

    def abort(self, errored: bool = True) -> None:
        """What is under way fails, on the other ranks, too."""
        if errored:
            self._error = _aborted("by this process")
        group, self._pg = self._pg, None
        if group is not None:
            torch.ops.tensorlane.abort(group.boxed())

    def shutdown(self) -> None:
        """Leaves in peace: what is under way may end within 5 s."""
        group, self._pg = self._pg, None
        if group is not None:
            torch.ops.tensorlane.leave(group.boxed())


def _aborted(why):
    return torch.distributed.DistBackendError(f"the process group of torchft was aborted: {why}: configure it anew")
