"""The reduce-scatters of FSDP2 in a group of their own, so that the all-gathers that computation waits for can have
another class: what FSDPModule.set_separate_reduce_scatter_group() does, called for the program at the root's first
forward, when all modules are known and before any collective."""

from __future__ import annotations

import functools
import importlib

_METHOD = "set_separate_reduce_scatter_group"

_wrapped = None  # (original, wrapper)


def _parts():
    state = importlib.import_module("torch.distributed.fsdp._fully_shard._fsdp_state")
    module = importlib.import_module("torch.distributed.fsdp")
    return state.FSDPState, module.FSDPModule


def lacking() -> str | None:
    """What this PyTorch lacks for it; None where it has all."""
    try:
        state, module = _parts()
    except (ImportError, AttributeError):
        return "this PyTorch has no FSDP2"
    if not hasattr(module, _METHOD):
        return f"this PyTorch has no FSDPModule.{_METHOD}()"
    if not hasattr(state, "_lazy_init"):
        return "this PyTorch initializes FSDP2 in another way than is known here"
    return None


def wrap(decide) -> None:
    """`decide(root, shard_groups, separate)` is called at the first forward of each model whose gradients are
    reduce-scattered, and calls separate() where these are to get a group of their own."""
    global _wrapped
    if _wrapped is not None:
        return
    state, _ = _parts()
    original = state._lazy_init

    @functools.wraps(original)
    def lazy_init(self):
        if self._is_root is None:
            for root in getattr(self, "_modules", ()):
                groups = _shard_groups(root)
                if groups:
                    decide(root, groups, getattr(root, _METHOD))
        return original(self)

    state._lazy_init = lazy_init
    _wrapped = original, lazy_init


def unwrap() -> None:
    """Where somebody has wrapped it again, ours stays, and `decide` has to do nothing."""
    global _wrapped
    if _wrapped is not None and _parts()[0]._lazy_init is _wrapped[1]:
        _parts()[0]._lazy_init = _wrapped[0]
    _wrapped = None


def _shard_groups(root):
    """Of all modules of a model; empty where it is only replicated, or of another kind."""
    _, module_class = _parts()
    groups = []
    for module in root.modules():
        if not isinstance(module, module_class):
            continue
        state = module._get_fsdp_state()
        for each in getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]:
            group = getattr(getattr(each, "mesh_info", None), "shard_process_group", None)
            if group is not None and group not in groups:
                groups.append(group)
    return groups
