"""Runs the wrapped optimizer's own step(), on everything or on some parameters, with gradients that are not in p.grad.

Stepping one parameter at a time gives the same bits as stepping all of them when the optimizer treats every parameter
by itself. That is known for PROVEN, in torch's code for single tensors as in its foreach and fused code; for any other
class `check_separable` finds out on clones.
"""

import contextlib
import copy

import torch

from ..errors import misuse
from . import _device

PROVEN = (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad)

_TRIAL_STEPS = 3
_TRIAL_PARAMETERS_PER_GROUP = 4


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


def clone_with(optimizer, groups, state):
    """Another optimizer of the same class, not attached to anything of the first but its attributes."""
    clone = type(optimizer).__new__(type(optimizer))
    attributes = {key: value for key, value in vars(optimizer).items() if key not in ("state", "param_groups", "step")}
    clone.__setstate__({**copy.deepcopy(attributes), "param_groups": groups, "state": state})
    return clone


def check_separable(optimizer):
    """Raises unless stepping parameter by parameter, in another order, gives bit for bit what whole steps give, on
    clones of some parameters.

    Finds what couples parameters: a norm over all of them, a counter in the group, random numbers.
    """
    name = type(optimizer).__name__
    where = f"optimizer {name}"
    fix = "pass synchronous=True, which steps it as a whole"
    whole, separate = (_trial_clone(optimizer) for _ in range(2))
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        whole_stepper, separate_stepper = Stepper(whole, type(whole)), Stepper(separate, type(separate))
        for trial in range(_TRIAL_STEPS):
            whole_stepper.whole(_trial_gradients(whole, trial))
            gradients = _trial_gradients(separate, trial)
            hyperparameters = snapshot(separate.param_groups)
            for group, values in reversed(list(zip(separate.param_groups, hyperparameters))):
                for parameter in reversed(group["params"]):
                    separate_stepper.some([(parameter, gradients[parameter], values)])
        if not torch.equal(before, torch.get_rng_state()):
            raise misuse(
                "its step() draws random numbers, so the order of the updates would change the result", where, fix
            )
    for group, other in zip(whole.param_groups, separate.param_groups):
        for parameter, twin in zip(group["params"], other["params"]):
            if not _same_bits(parameter, twin):
                raise misuse("stepping its parameters one at a time does not give the bits of a whole step", where, fix)


def _trial_clone(optimizer):
    groups, state = [], {}
    for group in optimizer.param_groups:
        trained = sorted((p for p in group["params"] if p.requires_grad), key=lambda p: p.numel())
        chosen = trained[:_TRIAL_PARAMETERS_PER_GROUP]
        twins = []
        for parameter in chosen:
            twin = torch.nn.Parameter(parameter.detach().clone())
            if parameter in optimizer.state:
                state[twin] = copy.deepcopy(optimizer.state[parameter])
            twins.append(twin)
        if twins:
            # Never alone: what couples parameters must show.
            twins.append(torch.nn.Parameter(twins[0].detach() * 2 + 0.5))
        groups.append(
            {**{k: copy.deepcopy(v) for k, v in group.items() if k not in ("params", "param_names")}, "params": twins}
        )
    return clone_with(optimizer, groups, default_state(optimizer, state))


def default_state(optimizer, entries):
    """These entries in a dictionary of the kind that the optimizer has."""
    state = copy.copy(optimizer.state)
    state.clear()
    state.update(entries)
    return state


def _trial_gradients(optimizer, trial):
    generator = torch.Generator().manual_seed(trial)
    gradients = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = torch.randn(parameter.shape, generator=generator) * (10.0 ** (trial - 1))
            gradients[parameter] = values.to(parameter.device, parameter.dtype)
    return gradients


def _same_bits(left, right):
    left, right = (tensor.detach().contiguous().view(-1).view(torch.uint8) for tensor in (left, right))
    return left.equal(right)
