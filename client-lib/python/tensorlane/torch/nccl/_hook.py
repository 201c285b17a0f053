"""What the hook decides of each group, and what is known of each afterwards."""

from __future__ import annotations

import copy
import dataclasses
import os
import threading

import torch
import torch.distributed.distributed_c10d as c10d

from ...errors import InvalidArgumentError
from ._policy import Policy
from ._preflight import Finding, shares_with_parent
from ._report import Group, say

NCCL = ("nccl", "nccl2", "nccl-lazy", "nccl-legacy")  # backends that take ProcessGroupNCCL.Options
_UNTROUBLED = (*NCCL, "gloo", "mpi", "ucc", "tensorlane")  # backends that these options beside them do not trouble
UNNAMED = "undefined"  # what torch.distributed calls a group that a program gave no name

_MOST_WARNINGS = 100
_warned = set()


def warn(text: str) -> None:
    """Once for each text, and no more than _MOST_WARNINGS."""
    if text not in _warned and len(_warned) < _MOST_WARNINGS:
        _warned.add(text)
        say(f"warning: {text}")


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
    lent: tuple | None = None  # (the configuration of the parent, the class that it is to have during the call)


    def not_set(self, why):
        self.traffic_class, self.dropped = None, f"not set, because {why}"


class Refused(InvalidArgumentError):
    """The policy says `dropped: refuse`."""


class Records:
    """What was said of each group of NCCL, whichever policy held. Any thread."""

    def __init__(self):
        self._renew()
        os.register_at_fork(after_in_child=self._renew)
        self._groups = {}  # the name that torch.distributed gives it: Group

    def _renew(self):
        self._lock = threading.RLock()  # handlers of signals may ask for a report at any moment

    def add(self, group: Group) -> None:
        with self._lock:
            self._groups[group.group_name] = group
            if len(self._groups) % 256 == 0:
                self._forget()

    def find(self, group_name: str) -> Group | None:
        with self._lock:
            return self._groups.get(group_name)

    def all(self) -> list[Group]:
        """Of groups that live, and of those of NCCL that went by."""
        with self._lock:
            self._forget()
            groups = list(self._groups.values())
        known = {group.group_name for group in groups}
        return groups + [other for other in _others() if other.group_name not in known]

    def _forget(self):
        """Groups that are destroyed."""
        alive = set(map(str, list(c10d._world.pg_names.values())))
        self._groups = {name: group for name, group in self._groups.items() if name in alive}


def _others():
    for group, name in list(c10d._world.pg_names.items()):
        backend = nccl_of(group)
        if backend is None:
            continue
        asked = getattr(backend.options.config, "traffic_class", None)
        asked = None if asked == unset_class() else asked
        yield Group(
            getattr(group, "group_desc", UNNAMED), str(name), group.size(), "", "", asked,
            "what its own options say", "it was made before enable(), or in a way that is not wrapped",
        )


class Hook:
    """A policy in force. Nothing in here fails the program, but Refused."""

    def __init__(self, policy: Policy, findings: list[Finding] | None, notes: list[str], records: Records) -> None:
        """`findings` of the preflight; None: it did not run."""
        self.policy, self.findings, self.notes = policy, findings, notes
        self._shared = policy.without_separation()
        self._split_share = shares_with_parent(findings or [])
        self._records = records

    def guarded(self, what, call, *args):
        """None where it fails; `what` does not happen then."""
        try:
            return call(*args)
        except Refused:
            raise
        except Exception as error:
            warn(f"{what}: {type(error).__name__}: {error}")
            return None

    # ---- before a group is made ----

    def plan_group(self, signature, options_name, args, kwargs):
        """For _new_process_group_helper; None where NCCL has no part in the group."""
        given = _bound(signature, args, kwargs)
        backends = _backends(given["backend"])
        if not set(backends) & set(NCCL) or not hasattr(c10d, "ProcessGroupNCCL"):
            return None
        plan = self._plan(given.get("group_desc") or UNNAMED)
        plan.args, plan.kwargs = args, kwargs
        foreign = sorted(set(backends) - set(_UNTROUBLED))
        if _is_torchcomms() and not hasattr(c10d, "_pg_options_to_hints"):
            plan.not_set("torchcomms makes the communicator, without these options")
        elif given[options_name] is None and foreign:
            plan.not_set(f"backend {foreign[0]} beside NCCL would be given NCCL's options")
        else:
            # With a bound device, NCCL splits the group from the default one.
            parent = nccl_of(c10d._get_default_group()) if given["global_ranks_in_group"] and is_bound() else None
            options = self._options(plan, given[options_name], given["timeout"], parent)
            plan.args, plan.kwargs = _with(signature, args, kwargs, options_name, options)
        return plan

    def plan_split(self, signature, args, kwargs):
        """For split_group; None where the parent is not NCCL's."""
        given = _bound(signature, args, kwargs)
        group = given["parent_pg"] or c10d._get_default_group()
        parent = nccl_of(group)
        if parent is None:
            return None
        splits = parent.comm_split_count() if hasattr(parent, "comm_split_count") else 0
        plan = self._plan(given.get("group_desc") or f"{getattr(group, 'group_desc', UNNAMED)}:split:{splits}")
        plan.args, plan.kwargs = args, kwargs
        if given["pg_options"] is not None:
            options = self._options(plan, given["pg_options"], None, parent)
        elif set(_backends(c10d._world.pg_map[group][0])) <= set(NCCL):
            options = self._options(plan, parent.options, None, parent, inherited=True)
        else:
            # Each backend of the child gets a copy of the options that the parent's has: what is passed would go to
            # those beside NCCL's, too. The parent has its communicator already, which nothing changes any more.
            unset = unset_class()
            self._check_dropped(plan, parent, unset)
            plan.lent = parent.options.config, unset if plan.traffic_class is None else plan.traffic_class
            return plan
        plan.args, plan.kwargs = _with(signature, args, kwargs, "pg_options", options)
        return plan

    def _plan(self, name):
        # Reduce-scatters are not separated where a device is bound: see separate().
        decision = (self._shared if is_bound() else self.policy).decide(name)
        if decision.rule is None:
            return Plan((), {}, name, why="no rule fits")
        rule = f"{decision.rule.group} ({decision.rule.where})"
        why = f"rule {rule}"
        if decision.chosen is None:
            return Plan((), {}, name, rule, why=f"{why} says none")
        if decision.rule.class_name == "mixed":
            why += f" says mixed, which is {decision.chosen.name}"
        return Plan((), {}, name, rule, decision.chosen.name, decision.chosen.traffic_class, why)

    def _options(self, plan, options, timeout, parent, inherited=False):
        """Options that ask for the plan's class: new ones, or a copy of those that are given."""
        unset = unset_class()
        if options is None:
            options = c10d.ProcessGroupNCCL.Options()
            options.is_high_priority_stream = False
            if timeout is not None:
                options._timeout = timeout
        else:
            own = options.config.traffic_class
            if own != unset and not inherited and self.policy.name_of(own) is None:
                plan.rule, plan.class_name, plan.traffic_class = "", "", own
                plan.why = "the program's own options say so"
                return options
            given, options = options, copy.deepcopy(options)
            if type(options) is not type(given):  # a class of the program's own, which copies as another
                plan.not_set(f"options of the type {type(given).__name__} cannot be copied")
                return given
        options.config.traffic_class = unset if plan.traffic_class is None else plan.traffic_class
        if parent is not None:
            self._check_dropped(plan, parent, unset)
        return options

    def _check_dropped(self, plan, parent, unset):
        config = parent.options.config
        shares = self._split_share
        if shares is None:
            shares = getattr(config, "split_share", 0) == 1
        wanted = unset if plan.traffic_class is None else plan.traffic_class
        if not shares or config.traffic_class == wanted:
            return
        keeps = "none" if config.traffic_class == unset else self._words(config.traffic_class)
        reason = "NCCL_COMM_SPLIT_SHARE_RESOURCES is 1" if self._split_share else "the parent's split_share is 1"
        plan.dropped = f"dropped: {reason}, so that this group keeps the parent's class ({keeps})"
        if self.policy.refuses:
            fix = "unset it" if self._split_share else "make its parent with config.split_share = 0"
            raise Refused(
                f"NCCL would drop the class '{plan.class_name or 'none'}' of the group, because {reason}: {plan.name}: "
                f"{fix}, or give both the same class"
            )

    # ---- after it is made ----

    def made(self, plan, group):
        if group is None or group is c10d.GroupMember.NON_GROUP_MEMBER:
            return
        self._records.add(Group(
            plan.name, str(group.group_name), group.size(), plan.rule, plan.class_name, plan.traffic_class,
            self._effect(plan), plan.why,
        ))

    def _effect(self, plan):
        if plan.dropped:
            return plan.dropped
        if self.findings is None:
            return "it asks for this; whether NCCL sends it so was not checked"
        for finding in self.findings:
            if finding.rule == "N4" or finding.severity == "error" and finding.rule != "N3":
                return f"not in force: {finding.place}: {finding.message}"
        if plan.traffic_class is None:
            return "NCCL sends it in its default class, which is traffic class 0"
        return "NCCL sends it with " + self._words(plan.traffic_class)

    def _words(self, traffic_class):
        name = self.policy.name_of(traffic_class)
        return f"traffic class {traffic_class} (DSCP {traffic_class >> 2}{f', {name}' if name else ''})"

    # ---- FSDP2 ----

    def separate(self, root, shard_groups):
        """Whether the reduce-scatters of a model are to get a group of their own now. `shard_groups`: those that its
        all-gathers use, too."""
        model = type(root).__name__
        if is_bound():
            # NCCL would split the new group from the default one, and all ranks would have to be here at once: the
            # stages of a pipeline are not.
            self.note(
                f"the reduce-scatters of {model} share a group with its all-gathers, because a device is bound to "
                "the default group (init_process_group(device_id=...)): call set_separate_reduce_scatter_group() in "
                "the program, or bind none"
            )
            return False
        for group in shard_groups:
            record = self._records.find(str(group.group_name))
            if record is not None and record.class_name == self.policy.mixed.name:
                self.note(
                    f"the all-gathers of {model} stay in the group {record.name}, class {record.class_name}: a rule "
                    "for it makes them urgent, where nothing else uses it"
                )
        return True

    def note(self, text):
        if text not in self.notes:
            self.notes.append(text)


def unset_class():
    """What a group's options hold that ask for none; None where this PyTorch has no such option."""
    return getattr(c10d.ProcessGroupNCCL.Options().config, "traffic_class", None)


def _bound(signature, args, kwargs):
    """{parameter: argument} of a call, defaults included."""
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    return call.arguments


def _with(signature, args, kwargs, name, value):
    """The call with another argument, passed as it was, or by its name: others may have wrapped the function."""
    position = list(signature.parameters).index(name)
    if position < len(args):
        return (*args[:position], value, *args[position + 1:]), kwargs
    return args, {**kwargs, name: value}


def _backends(backend):
    """Names of the backends of a group."""
    config = c10d.BackendConfig(c10d.Backend(backend))
    return [str(each) for each in config.get_device_backend_map().values()]


def _is_torchcomms():
    return bool(getattr(c10d, "_use_torchcomms_enabled", bool)())


def is_bound():
    """Whether a device is bound to the default group: it has a communicator then, and others are split from it."""
    return c10d.is_initialized() and getattr(c10d._get_default_group(), "bound_device_id", None) is not None


def nccl_of(group):
    """The backend of NCCL in a group; None where it has none."""
    nccl = getattr(c10d, "ProcessGroupNCCL", None)
    if nccl is None:
        return None
    for device in getattr(group, "_device_types", ()) or (torch.device("cuda"),):
        try:
            backend = group._get_backend(device)
            backend = getattr(backend, "wrapped_pg", backend)
            if isinstance(backend.options, nccl.Options):
                return backend
        except Exception:  # of backends of anybody
            continue
    return None
