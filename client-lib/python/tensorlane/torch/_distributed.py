"""The methods that DistributedOptimizer() puts before those of the optimizer that it wraps."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch

from ..errors import misuse
from . import _touch

WAY_ON = "use or wrap the plain optimizer that it was made of, or a new one that has loaded its state_dict()"


class Distributed(torch.optim.Optimizer if TYPE_CHECKING else object):
    """Stands before the wrapped class in the method resolution order."""

    _way_on = WAY_ON  # after close()

    def step(self, closure: None = None) -> None:
        """Applies the averaged gradients; with overlap=True before each parameter is used next."""
        if closure is not None:
            raise misuse(
                "a closure is refused: it computes gradients inside step(), after they should have been sent",
                f"{type(self).__name__}.step(closure)", "compute the loss and call backward() before step()",
            )
        self._core.step(self)

    def synchronize(self) -> None:
        """Leaves the averages in p.grad; the next step() applies p.grad as it then is. Needed only where backward() was
        not called on this rank, or fewer times than backward_passes_per_step. Collective."""
        self._core.synchronize()

    def flush(self) -> None:
        """Applies every pending update now (overlap=True)."""
        self._core.flush()

    @contextlib.contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """For code written for Horovod: step() after synchronize() never synchronizes again anyway."""
        yield

    def zero_grad(self, set_to_none: bool = True) -> None:
        """As the wrapped optimizer's."""
        self._core.before_zero_grad(set_to_none)
        with _touch.of_this_thread().aside():
            super().zero_grad(set_to_none)

    @property
    def state(self) -> Any:
        """As the wrapped optimizer's, with nothing pending."""
        core = vars(self).get("_core")
        if core is not None and core.pending:
            core.flush_for_reading()
        return vars(self)["state"]

    @state.setter
    def state(self, value):
        vars(self)["state"] = value

    @property
    def _step_supports_amp_scaling(self):
        """Read by GradScaler.step() before it unscales gradients: they must be the averages."""
        self._core.before_scaled_step()
        return False

    def state_dict(self) -> dict[str, Any]:
        """As the wrapped optimizer's, when every pending update is applied."""
        self._core.flush()
        return super().state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As the wrapped optimizer's, when every pending update is applied."""
        self._core.flush()
        super().load_state_dict(state_dict)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the wrapped optimizer's. InvalidArgumentError for parameters that were not registered with the other
        ranks."""
        core = vars(self).get("_core")
        if core is not None:
            core.check_known(param_group)
        super().add_param_group(param_group)

    def __reduce_ex__(self, protocol):
        """A copy or a pickle is a plain optimizer of the wrapped class: wrap it again where it is used."""
        self._core.flush()
        return _plain, (self._core.wrapped, self.__getstate__())

    def tensorlane_status(self) -> dict[str, Any]:
        """What is in force, and why."""
        return self._core.report()

    def close(self) -> None:
        """Applies what is pending, takes all hooks off the model, and gives the registered tensors back. Collective:
        every rank calls it, after as many iterations, and closes several optimizers in one order. TimedOutError names
        the ranks that have not; calling it again goes on then. Afterwards state_dict() still works, and the plain
        optimizer that was wrapped has the state (momentum) and goes on without the other ranks."""
        self._core.close_and_unregister(misuse("it is closed", f"optimizer {type(self).__name__}", self._way_on))


def _plain(wrapped, state):
    optimizer = wrapped.__new__(wrapped)
    optimizer.__setstate__(state)
    return optimizer
