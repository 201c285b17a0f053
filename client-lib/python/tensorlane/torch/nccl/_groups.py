"""What makes groups in torch.distributed is wrapped, so that each group of NCCL asks for its class.

Wrapped are `_new_process_group_helper`, through which init_process_group, new_group, DeviceMesh and FSDP2 go, and every
binding of `split_group`. Nothing is wrapped before enable(). A fault in here costs a group its class, which is said
once; the program goes on. The one exception is a policy with `dropped: refuse`: it asks for an error.
"""

from __future__ import annotations

import functools
import inspect
import os
import sys
import threading
import types

import torch
import torch.distributed.distributed_c10d as c10d

from . import _fsdp
from ._hook import Hook, Records, warn
from ._policy import Policy
from ._preflight import preflight
from ._report import Report, say

_HELPER = "_new_process_group_helper"
_NEEDED = {"group_size", "global_ranks_in_group", "backend", "group_desc", "timeout"}
_OPTIONS = ("backend_options", "pg_options")  # of newer and older releases
# A rank among those of its host, by torchrun, Slurm, Open MPI and MPICH.
_LOCAL_RANKS = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_NO_CLASS = "a group of NCCL gets no class"

_lock = threading.RLock()
_records = Records()
_hook = None  # while enabled
_why_off = "enable() was not called, and TENSORLANE_NCCL_POLICY names no policy"
_wrapped = []  # (module, name, original, wrapper) of what is wrapped
_unsaid = []  # findings that are said when the first group is made


def enable(policy: Policy, when_used: bool = False) -> None:
    """`when_used`: what the preflight finds is said when a group of NCCL is made, if one is."""
    global _hook
    with _lock:
        notes = list(policy.not_enforceable)
        lacking = _lacking()
        if lacking is None and policy.separates:
            missing = _fsdp.lacking()
            if missing is not None:
                notes.append(f"separate_reduce_scatter is not enforceable here: {missing}")
                policy = policy.without_separation()
        findings = _findings(policy, notes)
        if lacking is not None:
            notes.append(lacking)
            warn(f"groups of NCCL get no classes: {lacking}")
        _unsaid[:] = findings or []
        if not when_used:
            _say()
        early = [group.name for group in _records.all() if group.why.startswith("it was made before")]
        if early:
            warn(f"{early[0]} and all other groups that were made before enable() keep the class that they have")
        if lacking is None:
            _wrap()
            if policy.separates:
                _fsdp.wrap(_separate)
            else:
                _fsdp.unwrap()
        _hook = Hook(policy, findings, notes, _records)


def disable() -> None:
    """Groups that are made from now on are PyTorch's own. Those that are there keep their class."""
    global _hook, _why_off
    with _lock:
        _hook, _why_off = None, "disable() was called"
        for module, name, original, wrapper in _wrapped:
            if vars(module).get(name) is wrapper:  # else somebody has wrapped it again, and ours does nothing more
                setattr(module, name, original)
        _wrapped.clear()
        _fsdp.unwrap()


def failed(why: str) -> None:
    """enable() was called by the environment, and failed."""
    global _why_off
    _why_off = why


def enabled() -> bool:
    return _hook is not None


def report() -> Report:
    """What became of each group of NCCL that lives, and why. Where classes are not enabled, it says why not."""
    hook = _hook
    if hook is None:
        return Report("no policy", _records.all(), [], [f"classes of NCCL are not enabled: {_why_off}"])
    return Report(hook.policy.source, _records.all(), list(hook.findings or ()), list(hook.notes))


def _findings(policy, notes):
    try:
        return preflight(policy)
    except Exception as error:
        notes.append(f"the preflight did not run: {error}")
        warn(notes[-1])
        return None


def _say():
    """What the preflight found: once for each host, where ranks can be told apart."""
    local = next((os.environ[name] for name in _LOCAL_RANKS if name in os.environ), "0")
    for finding in _unsaid:
        if local == "0" and finding.severity != "note":
            say(f"NCCL: {finding}")
    _unsaid.clear()


def _lacking():
    """Why the classes cannot be set in this PyTorch; None where they can. A PyTorch without NCCL is not asked for its
    options until a group of NCCL is made."""
    try:
        helper = inspect.unwrap(getattr(c10d, _HELPER))
        names = set(inspect.signature(helper).parameters)
    except (AttributeError, TypeError, ValueError):
        names = set()
    if not names >= _NEEDED or not any(each in names for each in _OPTIONS):
        return f"PyTorch {torch.__version__} makes its groups in another way than is known here"
    nccl = getattr(c10d, "ProcessGroupNCCL", None)
    if nccl is not None and not hasattr(getattr(nccl.Options(), "config", None), "traffic_class"):
        return f"PyTorch {torch.__version__} has no traffic class among a group's options (ProcessGroupNCCL.Options)"
    return None


def _wrap():
    if not _wrapped:
        _put(_HELPER, getattr(c10d, _HELPER), _helper(getattr(c10d, _HELPER)))
        if hasattr(c10d, "split_group"):
            _put("split_group", c10d.split_group, _split(c10d.split_group))


def _put(name, original, wrapper):
    """Also where a module took the function by name: device_mesh, torch.distributed, and programs'."""
    for module in list(sys.modules.values()):
        # Modules of other types may do anything when they are looked at, such as import themselves.
        if type(module) is types.ModuleType and vars(module).get(name) is original:
            setattr(module, name, wrapper)
            _wrapped.append((module, name, original, wrapper))


def _helper(original):
    signature = inspect.signature(original)
    options_name = next(each for each in _OPTIONS if each in signature.parameters)

    @functools.wraps(original)
    def new_process_group_helper(*args, **kwargs):
        hook = _hook
        plan = hook and hook.guarded(_NO_CLASS, hook.plan_group, signature, options_name, args, kwargs)
        if plan is None:
            return original(*args, **kwargs)
        result = original(*plan.args, **plan.kwargs)
        _finish(hook, plan, result[0])
        return result

    return new_process_group_helper


def _split(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def split_group(*args, **kwargs):
        hook = _hook
        plan = hook and hook.guarded(_NO_CLASS, hook.plan_split, signature, args, kwargs)
        if plan is None:
            return original(*args, **kwargs)
        if plan.lent is None:
            result = original(*plan.args, **plan.kwargs)
        else:
            config, during = plan.lent
            before, config.traffic_class = config.traffic_class, during
            try:
                result = original(*plan.args, **plan.kwargs)
            finally:
                config.traffic_class = before
        _finish(hook, plan, result)
        return result

    return split_group


def _finish(hook, plan, group):
    if _unsaid:
        _say()
    hook.guarded("a group of NCCL is missing from the report", hook.made, plan, group)


def _separate(root, shard_groups, separate):
    """For _fsdp, at the first forward of a model: calls `separate` where that is to be."""
    hook = _hook
    if hook is None:
        return
    try:
        if hook.separate(root, shard_groups):
            separate()
    except Exception as error:
        hook.note(f"the reduce-scatters of {type(root).__name__} share a group with its all-gathers: {error}")
