"""What every kind of DistributedOptimizer does with its registered parameters, from register() to the end: which they
are, what is said after a failure, and how they are given back."""

import torch

from .. import _reports
from ..errors import Error, InvalidArgumentError, TimedOutError, misuse

with_pending = set()  # keeps cores alive whose optimizer the user has dropped before its last updates were applied


class Lifetime:
    """The part of a core that its kinds have in common. They have `pending` (slots that wait for an update),
    `_sender` and `_by_parameter` after register(), and flush() and _stop_watching()."""

    again = "wrap again"  # where the parameters that are registered do not do any more

    def __init__(self, wrapped, process_set):
        self.wrapped = wrapped
        self.process_set = process_set
        self._failure = None
        self.replaced = False  # another optimizer has its parameters now
        self._unregisters = False  # it is closed, and its tensors have yet to be given back

    def check_known(self, param_group):
        """A group that was dropped may come back."""
        parameters = param_group.get("params", ())
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if any((p[1] if isinstance(p, tuple) else p) not in self._by_parameter for p in parameters):
            raise misuse(
                "the set of parameters is fixed when it is registered with the other ranks",
                f"{self.wrapped.__name__}.add_param_group", "add groups to the optimizer before DistributedOptimizer()",
            )
        param_group["params"] = parameters

    def close(self, reason):
        """Takes all hooks off; later calls fail with `reason`."""
        try:
            if self._failure is None:
                self.flush()
        finally:
            self._failure = reason
            self._stop_watching()
            self._sender.close()
            with_pending.discard(self)
            _reports.remove(self)

    def close_and_unregister(self, reason):
        """Collective. Not of an optimizer that has failed, with the job or by a mistake: then ranks may differ. After
        TimedOutError the next call goes on."""
        if not self._unregisters:
            sound = self._failure is None or self.replaced
            self.close(reason)
            self._unregisters = sound
        if not self._unregisters:
            return
        try:
            self._sender.unregister()
        except TimedOutError as error:
            raise TimedOutError(
                f"optimizer {self.wrapped.__name__} is not closed on all ranks: {error}, and call close() again"
            ) from None
        self._unregisters = False

    def leave(self, what, fix):
        """The process leaves its job, or the optimizer's process set: the buffers go away with it."""
        self.close(misuse(what, f"optimizer {self.wrapped.__name__}", fix))

    def shares(self, parameters):
        return any(slot.parameter in parameters for slot in self._sender.slots)

    def _is_up_to_date(self, slots, watch):
        """Nothing of these is pending any more."""
        for slot in slots:
            slot.update = slot.seal = None
            self.pending.discard(slot)
            for keys in slot.watched:
                watch.forget(keys)
            slot.watched = ()
        if not self.pending:
            with_pending.discard(self)

    def _set_trained(self, groups):
        """Groups may have been dropped, or have come back."""
        grouped = (self._by_parameter.get(parameter) for group in groups for parameter in group["params"])
        self._sender.set_trained({slot for slot in grouped if slot is not None})

    def _guarded_by_failure(self, call):
        """After the transport has failed there is no way to complete what is pending: every later call says so again.
        """
        try:
            return call()
        except Error as error:
            if not isinstance(error, InvalidArgumentError):
                self._failure = error
            raise

    def _check_alive(self):
        if self._failure is not None:
            raise self._failure

    def _check_registered(self, optimizer):
        for number, group in enumerate(optimizer.param_groups):
            for place, parameter in enumerate(group["params"]):
                if parameter.requires_grad and parameter not in self._by_parameter:
                    raise misuse(
                        "it was frozen when the optimizer was wrapped, so it is not registered",
                        f"parameter {place} of group {number}",
                        "make all parameters that will be trained require gradients before DistributedOptimizer(), or "
                        f"{self.again}",
                    )


def watch_slot(watch, core, slot, state):
    """Whatever touches the parameter or its state has the update applied first. `core` is weak; what is pending keeps
    it alive, unless the process has left its job: then what lies in the parameter's memory now is somebody else's."""

    def touched(_):
        alive = core()
        if slot.update is not None and alive is not None:
            alive.apply([slot])

    return [
        watch.add(slot.parameter, touched, aliases=True),
        *(watch.add(value, touched) for value in state.values() if isinstance(value, torch.Tensor)),
    ]
