"""Whether an optimizer of a class that is not known can be stepped in parts: tried on clones of some of its parameters.

What couples parameters shows there: a norm over all of them, a counter of steps where each part makes a step of its
own, random numbers.
"""

import copy
import math
from typing import NamedTuple

import torch

from ..errors import misuse
from . import _shard_state
from ._stepper import Stepper, clone_with, default_state, or_nothing, snapshot, without_parameters

_TRIAL_STEPS = 3
_TRIAL_PARAMETERS_PER_GROUP = 4
_RATE = 0.01  # where the optimizer has none yet
_ROUNDING = 0.01  # of how far a tensor moves: vectors and the elements left over may be rounded in different ways


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


class _Piece(NamedTuple):
    """What one rank has of a parameter: as a Segment of _shards.py."""

    begin: int
    count: int
    parameter: torch.nn.Parameter


def check_shareable(optimizer, by_element):
    """Raises unless two ranks, each of which steps its share of clones of some parameters, come to what one step of all
    of them gives: bit for bit where whole parameters are shared out. `by_element`: each rank has a half of every
    parameter.

    A counter in the group, or of the optimizer's own, is no obstacle: each rank steps once in an iteration."""
    where = f"optimizer {type(optimizer).__name__}"
    whole = _trial_clone(optimizer)
    begun = {p: p.detach().clone() for group in whole.param_groups for p in group["params"]}
    ranks = [_rank_of(whole, rank, by_element) for rank in range(2)]
    with torch.random.fork_rng(devices=[]):
        before = torch.get_rng_state()
        for trial in range(_TRIAL_STEPS):
            gradients = _trial_gradients(whole, trial)
            Stepper(whole, type(whole)).whole({p: gradient.clone() for p, gradient in gradients.items()})
            for clone, pieces in ranks:
                mine = {piece.parameter: _shard_state.part_of(gradients[p], piece, p).clone() for p, piece in pieces}
                Stepper(clone, type(clone)).whole(mine)
        if not torch.equal(before, torch.get_rng_state()):
            raise misuse(
                "its step() draws random numbers, and ranks that draw the same ones use them for different parameters",
                where, "leave out sharded=True",
            )
    for clone, pieces in ranks:
        _check_groups(whole, clone, where)
        for parameter, piece in pieces:
            _check_piece(whole, clone, parameter, piece, None if by_element else 0.0, begun[parameter], where)


def _rank_of(whole, rank, by_element):
    """(a clone that has the share of one rank of two, [(parameter, its piece)])."""
    groups, state, pieces = [], {k: copy.deepcopy(v) for k, v in whole.state.items() if not _is_tensor(k)}, []
    for group in whole.param_groups:
        mine = []
        for place, parameter in enumerate(group["params"]):
            count = parameter.numel()
            half = -(-count // 2)
            begin, end = (rank * half, min((rank + 1) * half, count)) if by_element else (0, count)
            if begin >= end or (not by_element and place % 2 != rank):
                continue
            shape = torch.zeros(end - begin) if by_element else parameter
            piece = _Piece(begin, end - begin, torch.nn.Parameter(_shard_state.part_of(
                parameter, _Piece(begin, end - begin, shape), parameter
            ).clone()))
            if parameter in whole.state:
                state[piece.parameter] = _shard_state.parts_of(whole.state[parameter], piece, parameter)
            mine.append(piece.parameter)
            pieces.append((parameter, piece))
        groups.append({**copy.deepcopy(without_parameters(group)), "params": or_nothing(mine, group)})
    return clone_with(whole, groups, default_state(whole, state)), pieces


def _check_groups(whole, clone, where):
    for group, other in zip(whole.param_groups, clone.param_groups):
        for key, value in group.items():
            if key != "params" and not _equal(value, other.get(key)):
                raise misuse(
                    f"what its step() writes into group['{key}'] depends on all parameters, and each rank has a share "
                    "of them alone", where, "leave out sharded=True",
                )


def _check_piece(whole, clone, parameter, piece, exactly, begun, where):
    """`exactly`: 0.0 where the bits must be the same; None where they may be rounded in another way."""
    compared = [(parameter, piece.parameter, begun)]
    mine = clone.state.get(piece.parameter, {})
    for key, value in whole.state.get(parameter, {}).items():
        other = mine.get(key)
        if _is_tensor(value) and _is_tensor(other) and key != "step" and value.shape == parameter.shape:
            if other.shape == piece.parameter.shape:
                compared.append((value, other, torch.zeros_like(value)))
    for value, other, before in compared:
        expected = _shard_state.part_of(value, piece, parameter)
        if exactly is not None:
            same = _same_bits(expected, other)
        else:
            moved, size = (float(each.detach().double().abs().max()) for each in (value - before, value))
            most = _ROUNDING * moved + 4 * _epsilon(value) * size
            same = bool(((expected - other).detach().double().abs() <= most).all()) or not math.isfinite(moved)
        if not same:
            raise _coupled(exactly is None, where)


def _coupled(by_element, where):
    if by_element:
        return misuse(
            "its step() does not treat every element by itself", where,
            "pass shard='parameter' if it needs whole parameters, or leave out sharded=True",
        )
    return misuse(
        "its step() does not treat every parameter by itself, and each rank has some of them alone", where,
        "turn off what it computes over all of them (a norm to clip by: max_norm= takes its place), or leave out "
        "sharded=True",
    )


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _epsilon(tensor):
    return torch.finfo(tensor.dtype).eps if tensor.is_floating_point() else 0.0


def _equal(left, right):
    if _is_tensor(left) or _is_tensor(right):
        return _is_tensor(left) and _is_tensor(right) and left.equal(right)
    if isinstance(left, float) and left != left:
        return isinstance(right, float) and right != right
    try:
        return bool(left == right)
    except (RuntimeError, ValueError):  # containers of tensors or arrays
        return True


def _trial_clone(optimizer):
    groups, state = [], {key: copy.deepcopy(value) for key, value in optimizer.state.items() if not _is_tensor(key)}
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
        values = copy.deepcopy(without_parameters(group))
        if isinstance(values.get("lr"), (int, float)) and values["lr"] == 0:
            values["lr"] = _RATE  # a warm-up begins with none, by which nothing would show
        groups.append({**values, "params": twins})
    return clone_with(optimizer, groups, default_state(optimizer, state))


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
