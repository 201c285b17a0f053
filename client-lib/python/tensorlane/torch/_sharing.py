"""What DistributedOptimizer() is told of sharing out an optimizer (sharded=True)."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ..errors import misuse
from ._shards import ELEMENT, PARAMETER

# They treat every element by itself, and keep nothing in their groups.
ELEMENTWISE = tuple(
    getattr(torch.optim, name)
    for name in (
        "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "NAdam", "RAdam", "Adamax", "Adadelta", "Rprop", "ASGD",
    )
)


class Sharing(NamedTuple):
    """How a sharded optimizer shares out."""

    by: str  # what is never cut: ELEMENT or PARAMETER
    wire: torch.dtype | None  # the type that gradients travel in; None: their own
    max_norm: float | None


def sharing(optimizer, sharded, shard, max_norm, wire_dtype):
    """The Sharing of an optimizer; None unless it is `sharded`. InvalidArgumentError for arguments that are none, and
    where it is not known whether elements may be cut and the program does not say so."""
    where = "DistributedOptimizer"
    given = {"shard": shard, "max_norm": max_norm, "wire_dtype": wire_dtype}
    for name, value in given.items():
        if value is not None and not sharded:
            raise misuse(f"{name}={value} needs sharded=True", where, "pass both, or neither")
    if not sharded:
        return None
    if shard not in (None, ELEMENT, PARAMETER):
        raise misuse(f"shard={shard!r}", where, "use 'element' or 'parameter'")
    if max_norm is not None and not max_norm > 0:
        raise misuse(f"max_norm={max_norm}", where, "give a norm above 0, or leave it out")
    if wire_dtype not in (None, torch.bfloat16, torch.float16, torch.float32):
        raise misuse(f"gradients cannot travel as {wire_dtype}", where, "use torch.bfloat16, or leave it out")
    if shard is None and type(optimizer) not in ELEMENTWISE:
        raise misuse(
            "it is not known whether its step() treats every element by itself",
            f"optimizer {type(optimizer).__name__}",
            "pass shard='element' if it does, or shard='parameter' if it needs whole parameters, as LAMB, Muon and "
            "Adafactor do",
        )
    return Sharing(shard or ELEMENT, wire_dtype, max_norm)
