"""What became of each group."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import Any

from ._preflight import Finding


def say(text: str) -> None:
    """On standard error, where that can be written to: what cannot be said must not end a program."""
    try:
        if sys.stderr is not None:
            print(f"tensorlane: {text}", file=sys.stderr, flush=True)
    except Exception:
        pass


@dataclasses.dataclass(frozen=True)
class Group:
    name: str  # its description, by which rules choose: "mesh_tp"
    group_name: str  # what torch.distributed calls it
    size: int
    rule: str  # "mesh_tp* (fabric.yaml:12)"; empty: none fits
    class_name: str  # empty: none
    traffic_class: int | None  # what the communicator asks for; None: nothing
    effect: str  # what NCCL will do with it
    why: str

    def line(self) -> str:
        who = f"{self.name} ({self.group_name}, {self.size} ranks)"
        return f"{who}: {self.class_name or 'no class'}: {self.effect}; {self.why}"


@dataclasses.dataclass(frozen=True)
class Report:
    """str() is for people, json() for programs."""

    policy: str
    groups: list[Group]
    findings: list[Finding]  # of the preflight
    notes: list[str]  # rules that NCCL cannot follow, and what this PyTorch lacks

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=2)

    def __str__(self) -> str:
        lines = [f"classes of NCCL's groups, by {self.policy}"]
        lines += [f"  {group.line()}" for group in self.groups] or ["  no group of NCCL has been made yet"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines).encode(errors="replace").decode()  # of a policy that holds half a character, too
