"""Runs the wrapped optimizer's own step(), on everything or on some parameters, with gradients that are not in p.grad.

Stepping one parameter at a time gives the same bits as stepping all of them when the optimizer treats every parameter
by itself. That is known for PROVEN, in torch's code for single tensors as in its foreach and fused code; for any other
class _trial.py finds out on clones.
"""

import contextlib
import copy

import torch

from . import _device

PROVEN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)


def snapshot(groups):
    """The hyperparameters of every group as they are now; later changes (a scheduler's, say) do not reach them."""
    return [{key: copy.deepcopy(value) for key, value in group.items() if key != "params"} for group in groups]


class Stepper:
    """`optimizer` may be of a subclass of `wrapped_class`; it is `wrapped_class.step` that runs."""

    def __init__(self, optimizer, wrapped_class):
        self._optimizer = optimizer
        step = wrapped_class.step
        # Optimizer.__init__ wraps the class's step() to profile it and to run the user's step hooks. Those belong to
        # the user's call of step(), not to our calls of the inside.
        self._step = step.__wrapped__ if getattr(step, "hooked", False) else step
        self.stepping = False

    @property
    def groups(self):
        return self._optimizer.param_groups

    def whole(self, gradients):
        """Steps all groups. `gradients` maps parameters to what replaces p.grad for the call; all others step with
        p.grad as it is."""
        parameters = (parameter for group in self.groups for parameter in group["params"])
        with self._inside(), _own_gradients(gradients), _plain_mode(parameters):
            self._step(self._optimizer)

    def some(self, updates):
        """Steps some parameters together: [(parameter, gradient, hyperparameters of its group, an element of
        snapshot())]."""
        optimizer, chosen = self._optimizer, {}
        for parameter, _, hyperparameters in updates:
            chosen.setdefault(id(hyperparameters), {**hyperparameters, "params": []})["params"].append(parameter)
        groups = optimizer.param_groups
        optimizer.param_groups = list(chosen.values())
        try:
            gradients = {parameter: gradient for parameter, gradient, _ in updates}
            with self._inside(), _own_gradients(gradients), _plain_mode(gradients):
                self._step(optimizer)
        finally:
            optimizer.param_groups = groups

    def shared_out(self, groups, gradients):
        """One step of the whole optimizer, in which other parameters stand for its own. `groups`: [(a group, what
        stands for its parameters)]; what the optimizer writes into a group, as a counter of its steps, is in that
        group afterwards. `gradients`: as of whole()."""
        optimizer = self._optimizer
        kept = optimizer.param_groups
        optimizer.param_groups = [
            {**without_parameters(group), "params": or_nothing(parameters, group)} for group, parameters in groups
        ]
        try:
            self.whole(gradients)
            for (group, _), stepped in zip(groups, optimizer.param_groups):
                group.update((key, value) for key, value in stepped.items() if key != "params")
        finally:
            optimizer.param_groups = kept

    @contextlib.contextmanager
    def _inside(self):
        self.stepping = True
        try:
            yield
        finally:
            self.stepping = False


@contextlib.contextmanager
def _own_gradients(gradients):
    local = [(parameter, parameter.grad) for parameter in gradients]
    try:
        for parameter, gradient in gradients.items():
            parameter.grad = gradient
        yield
    finally:
        for parameter, gradient in local:
            parameter.grad = gradient


@contextlib.contextmanager
def _plain_mode(parameters):
    """The modes under which a user calls step(); a forward pre-hook may run under autocast or inference mode."""
    devices = {parameter.device for parameter in parameters}
    with torch.inference_mode(False), torch.no_grad(), _device.without_autocast(devices):
        yield


def without_parameters(group):
    """Its values. They belong to the group."""
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def or_nothing(parameters, group):
    """These, or one of no elements and without a gradient for a group of which this rank has nothing: it counts its
    steps, too, and some optimizers pass over an empty group."""
    return parameters or [torch.nn.Parameter(torch.zeros(0)) for _ in group["params"][:1]]


def clone_with(optimizer, groups, state):
    """Another optimizer of the same class, not attached to anything of the first but its attributes."""
    clone = type(optimizer).__new__(type(optimizer))
    attributes = {key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups", "step")}
    clone.__setstate__({**copy.deepcopy(attributes), "param_groups": groups, "state": state})
    return clone


def default_state(optimizer, entries):
    """These entries in a dictionary of the kind that the optimizer has."""
    state = copy.copy(optimizer.state)
    state.clear()
    state.update(entries)
    return state
