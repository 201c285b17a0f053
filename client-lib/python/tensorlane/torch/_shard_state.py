"""The state of an optimizer whose parameters are shared out over the ranks, as dictionaries: of one rank, and whole.

A *whole* one is what the plain optimizer's state_dict() is. A rank's one has "tensorlane_shard" beside "state" and
"param_groups": who it is of, and for each parameter that the rank has a segment of where that begins, how many elements
it has and the parameter's shape. Its state is of these elements, in the order of memory. State that is of no parameter
is the same on all ranks.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import misuse
from ._shards import PARAMETER

SHARD = "tensorlane_shard"
_WHERE = "DistributedOptimizer.load_state_dict"


def numbered(groups):
    """[(number in a state dictionary, parameter)]."""
    return list(enumerate(parameter for group in groups for parameter in group["params"]))


def of_rank(groups, packed_groups, segments, state, about, frozen):
    """This rank's dictionary. `segments`: by parameter; `state`: of the inner optimizer, by segment.parameter; `about`:
    rank, world and what is never cut; `frozen`: the state of parameters that are not shared out, which is whole."""
    found, places = {key: value for key, value in state.items() if not _is_tensor(key)}, {}
    for number, parameter in numbered(groups):
        if parameter in frozen:
            found[number] = dict(frozen[parameter])
        segment = segments.get(parameter)
        if segment is None:
            continue
        places[number] = (segment.begin, segment.count, tuple(parameter.shape), _strides(parameter))
        if segment.parameter in state:
            found[number] = dict(state[segment.parameter])
    return {"state": found, "param_groups": packed_groups, SHARD: {**about, "places": places}}


def merge_state_dicts(state_dicts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The whole state of a sharded optimizer, as its plain optimizer's state_dict(), out of those of all ranks: what
    state_dict() gave on each of them, after the same iteration. Not collective: for files. InvalidArgumentError where
    one is missing or is none."""
    by_rank = {each.get(SHARD, {}).get("rank"): each for each in state_dicts}
    world = next(iter(by_rank.values()))[SHARD]["world"] if by_rank and None not in by_rank else 0
    if sorted(rank for rank in by_rank if rank is not None) != list(range(world)) or not world:
        raise misuse(
            f"these are of ranks {sorted(str(rank) for rank in by_rank)} of {world}", "merge_state_dicts",
            "give it the state_dict() of the sharded optimizer on every rank",
        )
    by = by_rank[0][SHARD]["by"]
    whole: dict[Any, Any] = {}
    parts: dict[int, list[Any]] = {}
    for rank in range(world):
        places = by_rank[rank][SHARD]["places"]
        for number, values in by_rank[rank]["state"].items():
            if number in places:
                parts.setdefault(number, []).append((places[number], values))
            else:
                whole.setdefault(number, copy.deepcopy(values))
    whole.update((number, _joined(of_ranks, by)) for number, of_ranks in parts.items())
    of_parameters = {number: whole.pop(number) for number in sorted(key for key in whole if isinstance(key, int))}
    return {"state": {**of_parameters, **whole}, "param_groups": copy.deepcopy(by_rank[0]["param_groups"])}


def _joined(of_ranks, by):
    """A value of the state of one parameter, or all of them as a dictionary. `of_ranks`: [(place, value)] of those that
    have a segment of it."""
    first = of_ranks[0][1]
    if isinstance(first, dict):
        keys = dict.fromkeys(key for _, values in of_ranks for key in values)
        return {key: _joined([(place, v[key]) for place, v in of_ranks if key in v], _by_key(key, by)) for key in keys}
    if type(first) in (list, tuple):
        return type(first)(
            _joined([(place, values[i]) for place, values in of_ranks if i < len(values)], by)
            for i in range(len(first))
        )
    if by == PARAMETER or not all(_is_cut(value, place[1]) for place, value in of_ranks):
        return first.clone() if _is_tensor(first) else copy.deepcopy(first)
    _, _, shape, strides = of_ranks[0][0]
    whole = torch.zeros(shape, dtype=first.dtype, device=first.device).as_strided(shape, strides)
    for (begin, count, _, _), value in of_ranks:
        flat_of(whole, strides)[begin : begin + count] = value
    return whole


def _by_key(key, by):
    """A count of steps is never cut."""
    return PARAMETER if key == "step" else by


def split(state_dict, groups, segments, about, shared):
    """({segment.parameter: its state, and what is of no parameter}, {parameter: the state} of those that are not in
    `shared`) of a whole dictionary, or of this rank's own. Copies, in the types that a plain optimizer would load."""
    mine = state_dict.get(SHARD)
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    known, frozen = set(numbers), {}
    result = {key: copy.deepcopy(value) for key, value in state_dict["state"].items() if key not in known}
    for number, (_, parameter) in zip(numbers, numbered(groups)):
        segment, values = segments.get(parameter), state_dict["state"].get(number)
        if mine is not None and segment is not None:
            _check_own(mine, about, number, segment, parameter)
        if values is not None and parameter not in shared:
            frozen[parameter] = copy.deepcopy(values)
        if segment is not None and values is not None:
            result[segment.parameter] = _changed(None, values, lambda key, value: _as_loaded(
                key, _own(key, value, segment, parameter, mine is None), parameter
            ))
    return result, frozen


def of_plain(optimizer, segments, shared):
    """As split(), of the optimizer that is wrapped, in its own types."""
    result, frozen = {}, {}
    for parameter, values in optimizer.state.items():
        if not _is_tensor(parameter):
            result[parameter] = copy.deepcopy(values)
        elif parameter not in shared:
            frozen[parameter] = copy.deepcopy(values)
        elif parameter in segments:
            segment = segments[parameter]
            result[segment.parameter] = parts_of(values, segment, parameter)
    return result, frozen


def flat_of(tensor, strides):
    """Its elements in the order of memory; a view where its strides are these."""
    if tensor.stride() != tuple(strides):
        tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def part_of(tensor, segment, parameter):
    """The segment's elements of a tensor of the parameter's shape, in the segment's own; a view where the tensor has
    the strides of the parameter."""
    mine = flat_of(tensor.detach(), _strides(parameter))[segment.begin : segment.begin + segment.count]
    return mine.as_strided(segment.parameter.shape, segment.parameter.stride(), mine.storage_offset())


def parts_of(values, segment, parameter):
    """The segment's part of the state of a parameter. A copy, of the same types."""
    return _changed(None, values, lambda key, value: _own(key, value, segment, parameter, True))


def _changed(key, value, change):
    """A copy of a value, with change(key, tensor) in the place of its tensors."""
    if _is_tensor(value):
        return change(key, value)
    if isinstance(value, dict):
        return {inner: _changed(inner, each, change) for inner, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_changed(key, each, change) for each in value)
    return copy.deepcopy(value)


def _own(key, value, segment, parameter, whole):
    """A copy of this segment's part of a tensor."""
    if whole and key != "step" and value.shape == parameter.shape:
        value = part_of(value, segment, parameter)
    return value.clone()


def _as_loaded(key, value, parameter):
    """In the type that torch.optim.Optimizer.load_state_dict() gives it."""
    if key != "step" and value.is_floating_point() and parameter.is_floating_point():
        return value.to(parameter.dtype)
    return value


def _is_cut(value, count):
    """Whether the value has an element for each of the segment's."""
    return _is_tensor(value) and tuple(value.shape) == (count,)


def _is_tensor(value):
    return isinstance(value, torch.Tensor)


def _strides(parameter):
    return tuple(torch.empty_like(parameter, device="meta").stride())


def _check_own(mine, about, number, segment, parameter):
    theirs = {key: mine[key] for key in about}
    place = (segment.begin, segment.count, tuple(parameter.shape), _strides(parameter))
    if theirs != about or tuple(mine["places"].get(number, ())) != place:
        raise misuse(
            f"it is the state of rank {mine['rank']} of {mine['world']}, shared out by {mine['by']}, and this is rank "
            f"{about['rank']} of {about['world']}, by {about['by']}", _WHERE,
            "load what full_state_dict() gave, or merge_state_dicts() of those of all ranks",
        )
