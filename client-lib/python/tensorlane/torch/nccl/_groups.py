"""The hook: what makes groups in torch.distributed is wrapped, so that each group of NCCL asks for its class.

Wrapped are `_new_process_group_helper`, through which init_process_group, new_group, DeviceMesh and FSDP2 go, and every
binding of `split_group`. Nothing is wrapped before enable(). What goes wrong in here costs a group its class, and says
so once; it never fails the program, but for a class that NCCL would drop where the policy says `dropped: refuse`.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import os
import sys
import threading

import torch
import torch.distributed.distributed_c10d as c10d

from ...errors import InvalidArgumentError, misuse
from . import _fsdp
from ._policy import Policy
from ._preflight import Finding, preflight
from ._report import Group, Report

_HELPER = "_new_process_group_helper"
_NEEDED = {"group_size", "global_ranks_in_group", "backend", "group_desc", "timeout"}
_OPTIONS = ("backend_options", "pg_options")  # of newer and older releases
_OWN_OPTIONS_ONLY = ("nccl", "gloo", "mpi", "ucc", "fake", "tensorlane")  # backends that NCCL's options do not trouble
_UNNAMED = "undefined"  # what torch.distributed calls a group that a program gave no name

_lock = threading.Lock()
_hook = None  # while enabled
_wrapped = []  # (module, name, original) of what is wrapped
_warned = set()


def enable(policy: Policy) -> None:
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
            _warn(f"groups of NCCL get no classes: {lacking}")
        _hook = Hook(policy, findings, notes)
        if lacking is None:
            _wrap()
        if policy.separates:
            _fsdp.wrap(_separation)
        _say(findings)


def disable() -> None:
    """Groups that are made from now on are PyTorch's own. Those that are there keep their class."""
    global _hook
    with _lock:
        _hook = None
        for module, name, original in _wrapped:
            if getattr(getattr(module, name, None), "_tensorlane", None) is original:
                setattr(module, name, original)
        _wrapped.clear()
        _fsdp.unwrap()


def enabled() -> bool:
    return _hook is not None


def report() -> Report:
    """What became of each group of NCCL that lives, and why. InvalidArgumentError before enable()."""
    hook = _hook
    if hook is None:
        raise misuse("classes of NCCL are not enabled", "report", "call enable() first, or set TENSORLANE_NCCL_POLICY")
    return hook.report()


def _findings(policy, notes):
    try:
        return preflight(policy)
    except Exception as error:
        notes.append(f"the preflight did not run: {error}")
        return []


def _warn(text):
    """Once for each text."""
    if text not in _warned:
        _warned.add(text)
        print(f"tensorlane: warning: {text}", file=sys.stderr, flush=True)


def _say(findings):
    if os.environ.get("LOCAL_RANK", "0") == "0":
        for finding in findings:
            if finding.severity != "note":
                print(f"tensorlane: NCCL: {finding}", file=sys.stderr, flush=True)


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


# ---- what is wrapped ----


def _wrap():
    if not _wrapped:
        _put(_HELPER, _helper(getattr(c10d, _HELPER)))
        if hasattr(c10d, "split_group"):
            _put("split_group", _split(c10d.split_group))


def _put(name, wrapper):
    """Also where a module took the function by name: device_mesh, torch.distributed, and programs'."""
    original = wrapper._tensorlane
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, wrapper)
            _wrapped.append((module, name, original))


def _helper(original):
    signature = inspect.signature(original)
    options_name = next(each for each in _OPTIONS if each in signature.parameters)

    @functools.wraps(original)
    def new_process_group_helper(*args, **kwargs):
        hook = _hook
        plan = hook and hook.guarded(hook.plan_group, signature, options_name, args, kwargs)
        if plan is None:
            return original(*args, **kwargs)
        result = original(*plan.args, **plan.kwargs)
        hook.guarded(hook.made, plan, result[0])
        return result

    new_process_group_helper._tensorlane = original
    return new_process_group_helper


def _split(original):
    signature = inspect.signature(original)

    @functools.wraps(original)
    def split_group(*args, **kwargs):
        hook = _hook
        plan = hook and hook.guarded(hook.plan_split, signature, args, kwargs)
        if plan is None:
            return original(*args, **kwargs)
        result = original(*plan.args, **plan.kwargs)
        hook.guarded(hook.made, plan, result)
        return result

    split_group._tensorlane = original
    return split_group


def _separation(what):
    """Told by _fsdp of what it did."""
    hook = _hook
    if hook is not None:
        hook.notes.append(what)


@dataclasses.dataclass
class Plan:
    """A call that makes a group: with which arguments, and what is to be said of the group afterwards."""

    args: tuple
    kwargs: dict
    name: str
    rule: str = ""
    class_name: str = ""
    traffic_class: int | None = None
    why: str = ""
    dropped: str = ""  # why NCCL does not do it


class Refused(InvalidArgumentError):
    """The policy says `dropped: refuse`."""


class Hook:
    def __init__(self, policy: Policy, findings: list[Finding], notes: list[str]) -> None:
        self.policy, self.findings, self.notes = policy, findings, notes
        self._groups = {}  # the name that torch.distributed gives it: Group
        self._lock = threading.Lock()

    def guarded(self, call, *args):
        """None where it fails: the group is made as PyTorch makes it."""
        try:
            return call(*args)
        except Refused:
            raise
        except Exception as error:
            _warn(f"a group of NCCL gets no class: {type(error).__name__}: {error}")
            return None

    # ---- before a group is made ----

    def plan_group(self, signature, options_name, args, kwargs):
        """For _new_process_group_helper; None where NCCL has no part in the group."""
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        backends = _backends(given["backend"])
        if "nccl" not in backends or not hasattr(c10d, "ProcessGroupNCCL"):
            return None
        plan = self._plan(given.get("group_desc") or _UNNAMED)
        if _is_torchcomms():
            plan.dropped = "torchcomms makes the communicator, without these options"
        elif given[options_name] is None and not set(backends) <= set(_OWN_OPTIONS_ONLY):
            foreign = sorted(set(backends) - set(_OWN_OPTIONS_ONLY))
            plan.dropped = f"not set, because backend {foreign[0]} beside NCCL would be given NCCL's options"
        else:
            # With a bound device, NCCL splits the group from the default one.
            parent = _nccl_of(c10d._get_default_group()) if given["global_ranks_in_group"] and _is_bound() else None
            given[options_name] = self._options(plan, given[options_name], given["timeout"], parent)
        plan.args, plan.kwargs = call.args, call.kwargs
        return plan

    def plan_split(self, signature, args, kwargs):
        """For split_group; None where the parent is not NCCL's."""
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        given = call.arguments
        group = given["parent_pg"] or c10d._get_default_group()
        parent = _nccl_of(group)
        if parent is None:
            return None
        splits = parent.comm_split_count() if hasattr(parent, "comm_split_count") else 0
        plan = self._plan(given.get("group_desc") or f"{getattr(group, 'group_desc', _UNNAMED)}:split:{splits}")
        inherits = given["pg_options"] is None
        options = parent.options if inherits else given["pg_options"]
        given["pg_options"] = self._options(plan, options, None, parent, inherits)
        plan.args, plan.kwargs = call.args, call.kwargs
        return plan

    def _plan(self, name):
        decision = self.policy.decide(name)
        if decision.rule is None:
            return Plan((), {}, name, why="no rule fits")
        rule = f"{decision.rule.group} ({decision.rule.where})"
        why = f"rule {rule}"
        if decision.rule.class_name == "mixed":
            why += f" says mixed, which is {decision.chosen.name}"
        return Plan((), {}, name, rule, decision.chosen.name, decision.chosen.traffic_class, why)

    def _options(self, plan, options, timeout, parent, inherited=False):
        """Options that ask for the plan's class: new ones, or a copy of those that are given."""
        fresh = c10d.ProcessGroupNCCL.Options()
        unset = fresh.config.traffic_class
        if options is None:
            options = fresh
            options.is_high_priority_stream = False
            if timeout is not None:
                options._timeout = timeout
        else:
            own = options.config.traffic_class
            if own != unset and not inherited and self.policy.name_of(own) is None:
                plan.rule, plan.class_name, plan.traffic_class = "", "", own
                plan.why = "the program's own options say so"
                return options
            options = copy.deepcopy(options)
        options.config.traffic_class = unset if plan.traffic_class is None else plan.traffic_class
        if parent is not None:
            self._check_dropped(plan, parent, unset)
        return options

    def _check_dropped(self, plan, parent, unset):
        config = parent.options.config
        theirs = config.traffic_class
        wanted = unset if plan.traffic_class is None else plan.traffic_class
        if getattr(config, "split_share", 0) != 1 or theirs == wanted:
            return
        keeps = "none" if theirs == unset else self._words(theirs)
        plan.dropped = f"dropped: the parent's split_share is 1, so that this group keeps the parent's class ({keeps})"
        if self.policy.refuses:
            raise Refused(
                f"NCCL would drop the class '{plan.class_name}' of the group: {plan.name}: make its parent with "
                "config.split_share = 0, or give both the same class"
            )

    # ---- after it is made ----

    def made(self, plan, group):
        if group is None or group is c10d.GroupMember.NON_GROUP_MEMBER:
            return
        entry = Group(
            plan.name, str(group.group_name) if hasattr(group, "group_name") else "", group.size(), plan.rule,
            plan.class_name, plan.traffic_class, self._effect(plan), plan.why,
        )
        with self._lock:
            self._groups[entry.group_name] = entry
            if len(self._groups) % 256 == 0:
                self._forget()

    def _effect(self, plan):
        if plan.dropped:
            return plan.dropped
        for finding in self.findings:
            if finding.rule == "N4" or finding.severity == "error" and finding.rule != "N3":
                return f"not in force: {finding.place}: {finding.message}"
        if plan.traffic_class is None:
            return "NCCL sends it in its default class"
        return "NCCL sends it with " + self._words(plan.traffic_class)

    def _words(self, traffic_class):
        name = self.policy.name_of(traffic_class)
        return f"traffic class {traffic_class} (DSCP {traffic_class >> 2}{f', {name}' if name else ''})"

    def _forget(self):
        """Groups that are destroyed."""
        alive = set(map(str, c10d._world.pg_names.values()))
        self._groups = {name: group for name, group in self._groups.items() if name in alive}

    def report(self):
        with self._lock:
            self._forget()
            groups = list(self._groups.values())
        known = {group.group_name for group in groups}
        for group, name in list(c10d._world.pg_names.items()):
            if str(name) not in known and _nccl_of(group) is not None:
                groups.append(Group(
                    getattr(group, "group_desc", _UNNAMED), str(name), group.size(), "", "", None,
                    "what its own options say", "it was made before enable()",
                ))
        return Report(self.policy.source, groups, list(self.findings), list(self.notes))


def _backends(backend):
    """Names of the backends of a group."""
    config = c10d.BackendConfig(c10d.Backend(backend))
    return [str(each) for each in config.get_device_backend_map().values()]


def _is_torchcomms():
    return bool(getattr(c10d, "_use_torchcomms_enabled", bool)())


def _is_bound():
    return c10d.is_initialized() and getattr(c10d._get_default_group(), "bound_device_id", None) is not None


def _nccl_of(group):
    """The backend of NCCL in a group; None where it has none."""
    nccl = getattr(c10d, "ProcessGroupNCCL", None)
    if nccl is None:
        return None
    for device in getattr(group, "_device_types", ()) or (torch.device("cuda"),):
        try:
            backend = group._get_backend(device)
        except RuntimeError:
            continue
        backend = getattr(backend, "wrapped_pg", backend)
        if isinstance(backend, nccl):
            return backend
    return None
