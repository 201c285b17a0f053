"""The policy: which class a group of ranks gets. `tensorlane classes --for nccl --json` writes it."""

from __future__ import annotations

import dataclasses
import fnmatch
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from typing import Any

from ...errors import misuse

VERSION = 1
_MIXED, _NONE = "mixed", "none"
_MOST_BYTES = 4 << 20
_RENDER_SECONDS = 10


@dataclasses.dataclass(frozen=True)
class TrafficClass:
    name: str
    traffic_class: int  # DSCP * 4 + 2
    service_level: int


@dataclasses.dataclass(frozen=True)
class Rule:
    group: str  # a pattern of file names
    class_name: str
    where: str  # "fabric.yaml:12", "default"


@dataclasses.dataclass(frozen=True)
class Decision:
    """What the policy says of a group. `rule` is None where none fits, `chosen` where it is to ask for nothing."""

    rule: Rule | None
    chosen: TrafficClass | None


class Policy:
    """`source` is what messages call it. `separates` is whether it asks for a group of their own for the
    reduce-scatters of FSDP2, `refuses` whether a class that NCCL would drop is an error."""

    def __init__(self, source: str, text: Mapping[str, Any]) -> None:
        self.source = source
        try:
            self._read(text)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise misuse(
                f"this is neither the JSON of a policy nor a fabric file ({type(error).__name__}: {error})", source,
                "write it by `tensorlane classes --for nccl --fabric FILE --json --out POLICY`",
            ) from None

    def _read(self, text):
        if text["version"] != VERSION or text["for"] != "nccl":
            raise ValueError(f"version {text['version']!r} for {text['for']!r}, expected {VERSION} for 'nccl'")
        self.classes = {each["name"]: _class(each) for each in text["classes"]}
        self.control = _class(text["control"])
        self.mixed = self.classes[text["mixed"]]
        self.separates = _flag(text["separate_reduce_scatter"])
        self.refuses = {"report": False, "refuse": True}[text["dropped"]]
        self.process = dict(text["process"])
        self.rules = [self._rule(each, each["class"]) for each in text["rules"]]
        # Where the reduce-scatters of FSDP2 cannot be separated.
        self._shared = [self._rule(each, each.get("shared", each["class"])) for each in text["rules"]]
        self.not_enforceable = [
            f"{each['where']}: group '{each['group']}', class {each['class']}: {each['why']}"
            for each in text["not_enforceable"]
        ]

    def _rule(self, rule, class_name):
        if class_name not in (_MIXED, _NONE, *self.classes):
            raise ValueError(f"a rule has the class {class_name!r}, which is none of the policy")
        return Rule(str(rule["group"]), class_name, str(rule["where"]))

    @classmethod
    def load(cls, policy: str | os.PathLike[str] | Mapping[str, Any]) -> Policy:
        """InvalidArgumentError for what is none."""
        if isinstance(policy, Mapping):
            return cls("the policy", policy)
        path = os.fspath(policy) if isinstance(policy, os.PathLike) else policy
        if not isinstance(path, str) or not path or "\0" in path:
            raise misuse(f"{policy!r} is no policy", "enable", "name a file, or pass what such a file holds")
        text = _read_file(path)
        parsed = _parse(text)
        if parsed is None and re.search(rb"^(hosts|switches|links):", text, re.M):
            parsed = _render(path)
        return cls(path, {} if parsed is None else parsed)

    @classmethod
    def load_json(cls, path: str) -> Policy:
        """No fabric file."""
        return cls(path, _parse(_read_file(path)) or {})

    def without_separation(self) -> Policy:
        """The same, for a PyTorch that cannot separate reduce-scatters."""
        other = object.__new__(Policy)
        other.__dict__.update(self.__dict__, rules=self._shared, separates=False)
        return other

    def decide(self, group: str) -> Decision:
        for rule in self.rules:
            if fnmatch.fnmatchcase(group, rule.group):
                chosen = {_MIXED: self.mixed, _NONE: None, **self.classes}[rule.class_name]
                return Decision(rule, chosen)
        return Decision(None, None)

    def name_of(self, traffic_class: int) -> str | None:
        """The class of the fabric that has it."""
        for each in (*self.classes.values(), self.control):
            if each.traffic_class == traffic_class:
                return each.name
        return None


def _class(text):
    traffic_class, service_level = text["traffic_class"], text["service_level"]
    if type(traffic_class) is not int or not 0 <= traffic_class <= 255:
        raise ValueError(f"traffic class {traffic_class!r} of {text['name']!r}, expected 0 to 255")
    if type(service_level) is not int or not 0 <= service_level <= 15:
        raise ValueError(f"service level {service_level!r} of {text['name']!r}, expected 0 to 15")
    return TrafficClass(str(text["name"]), traffic_class, service_level)


def _flag(value):
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false in place of {value!r}")
    return value


def _read_file(path):
    try:
        if pathlib.Path(path).exists() and not pathlib.Path(path).is_file():  # a FIFO would make us wait
            raise OSError("it is no plain file")
        if os.stat(path).st_mode & 0o002:
            raise OSError("everybody may write it")
        with open(path, "rb") as file:
            text = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise misuse(
            f"the policy cannot be read ({error})", path,
            "name a file that `tensorlane classes --for nccl --json` has written",
        ) from None
    if len(text) > _MOST_BYTES:
        raise misuse("the policy is longer than 4 MiB", path, "name a file that `tensorlane classes` has written")
    return text


def _parse(text):
    """A mapping, or None for what is no JSON."""
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return parsed if isinstance(parsed, Mapping) else {}


def _render(path):
    """The policy of a fabric file, by the command, which knows how to read one."""
    # No folder that depends on where the program was started.
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    command = shutil.which("tensorlane", path=os.pathsep.join(folders)) if folders else None
    if command is None:
        raise misuse(
            "this is not the JSON of a policy, and there is no command `tensorlane` to make one of a fabric file", path,
            f"on a host that has it: tensorlane classes --for nccl --fabric {path} --json",
        )
    call = [command, "classes", "--for", "nccl", "--json", "--fabric", path]
    try:
        done = subprocess.run(
            call, capture_output=True, text=True, timeout=_RENDER_SECONDS, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise misuse(f"the command failed ({error})", " ".join(call), "run it by hand") from None
    if done.returncode != 0:
        raise misuse(
            "this is neither the JSON of a policy nor a fabric file", path,
            done.stderr.strip().removeprefix("tensorlane: error: ") or "run " + " ".join(call),
        )
    return json.loads(done.stdout)
