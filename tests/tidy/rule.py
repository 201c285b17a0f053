"""What a rule of tests/tidy consists of."""

import dataclasses
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class Rule:
    name: str
    says: str  # the rule in a sentence
    check: Callable  # Tree -> list of "FILE:LINE: what is wrong"
    bad: list  # planted violations: each {path: text} of a small tree
    good: list  # small trees that keep the rule
