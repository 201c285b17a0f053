"""The state of an optimizer whose parameters are shared out over the ranks, as dictionaries: of one rank, and whole.

A *whole* one is what the plain optimizer's state_dict() is. A rank's one has "tensorlane_shard" beside "state" and
"param_groups": who it is of, and for each parameter that the rank has a segment of where that begins, how many elements
it has and the parameter's shape. Its state is of these elements, in the order of memory.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch

from ..errors import misuse

SHARD = "tensorlane_shard"
_WHERE = "DistributedOptimizer.load_state_dict"


def numbered(groups):
    """[(number in a state dictionary, parameter)]."""
    return list(enumerate(parameter for group in groups for parameter in group["params"]))


def of_rank(groups, packed_groups, segments, state, about, frozen):
    """This rank's dictionary. `segments`: by parameter; `state`: of the inner optimizer, by segment.parameter; `about`:
    rank, world and what is never cut; `frozen`: the state of parameters that are not shared out, which is whole."""
    found, places = {}, {}
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
    whole: dict[int, dict[str, Any]] = {}
    for rank in range(world):
        places = by_rank[rank][SHARD]["places"]
        for number, values in by_rank[rank]["state"].items():
            if number not in places:
                whole.setdefault(number, copy.deepcopy(values))
                continue
            begin, count, shape, strides = places[number]
            into = whole.setdefault(number, {})
            for key, value in values.items():
                if not _is_cut(key, value, count):
                    into.setdefault(key, value.clone() if isinstance(value, torch.Tensor) else copy.deepcopy(value))
                    continue
                if key not in into:
                    into[key] = torch.zeros(shape, dtype=value.dtype).as_strided(shape, strides)
                flat_of(into[key], strides)[begin : begin + count] = value
    return {"state": dict(sorted(whole.items())), "param_groups": copy.deepcopy(by_rank[0]["param_groups"])}


def split(state_dict, groups, segments, about, shared):
    """({segment.parameter: its state}, {parameter: the state} of those that are not in `shared`) of a whole dictionary,
    or of this rank's own. Copies."""
    mine = state_dict.get(SHARD)
    result, frozen = {}, {}
    numbers = [number for group in state_dict["param_groups"] for number in group["params"]]
    for number, (_, parameter) in zip(numbers, numbered(groups)):
        segment, values = segments.get(parameter), state_dict["state"].get(number)
        if mine is not None and segment is not None:
            _check_own(mine, about, number, segment, parameter)
        if values is not None and parameter not in shared:
            frozen[parameter] = copy.deepcopy(values)
        if segment is not None and values is not None:
            result[segment.parameter] = _parts(values, segment, parameter, mine is None)
    return result, frozen


def of_plain(optimizer, segments, shared):
    """As split(), of the optimizer that is wrapped."""
    result, frozen = {}, {}
    for parameter, values in optimizer.state.items():
        if parameter not in shared:
            frozen[parameter] = copy.deepcopy(values)
        elif parameter in segments:
            segment = segments[parameter]
            result[segment.parameter] = _parts(values, segment, parameter, True)
    return result, frozen


def flat_of(tensor, strides):
    """Its elements in the order of memory; a view where its strides are these."""
    if tensor.stride() != tuple(strides):
        tensor = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype).copy_(tensor)
    return tensor.as_strided((tensor.numel(),), (1,))


def _parts(values, segment, parameter, whole):
    return {key: _own(key, value, segment, parameter, whole) for key, value in values.items()}


def _own(key, value, segment, parameter, whole):
    """This segment's part of a value."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    if whole and key != "step" and value.shape == parameter.shape:
        mine = flat_of(value.detach(), _strides(parameter))[segment.begin : segment.begin + segment.count]
        value = mine.as_strided(segment.parameter.shape, segment.parameter.stride(), mine.storage_offset())
    if key != "step" and value.is_floating_point() and parameter.is_floating_point():
        value = value.to(parameter.dtype)
    return value.clone()


def _is_cut(key, value, count):
    """Whether the value has an element for each of the segment's, and is no state of a whole parameter."""
    return isinstance(value, torch.Tensor) and key != "step" and tuple(value.shape) == (count,)


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
