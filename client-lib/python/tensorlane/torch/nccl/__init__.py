"""Classes for jobs that stay on NCCL: each group's communicator asks for the traffic class that a policy names for it.

    import tensorlane.torch.nccl
    tensorlane.torch.nccl.enable("/etc/tensorlane/nccl-policy.json")
    torch.distributed.init_process_group("nccl")
    ...
    print(tensorlane.torch.nccl.report())

or, without a change of the program, TENSORLANE_NCCL_POLICY=/etc/tensorlane/nccl-policy.json. No daemon is needed, and
no byte of a collective passes this package: it sets `config.traffic_class` of ProcessGroupNCCL's options while a group
is made, and nothing afterwards. `tensorlane classes --for nccl --json` writes the policy from the fabric file;
docs/nccl.md tells the whole way.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ._groups import disable, enabled, failed, report
from ._groups import enable as _enable
from ._policy import Policy
from ._report import Report

__all__ = ["Report", "disable", "enable", "enabled", "report"]


def enable(policy: str | os.PathLike[str] | Mapping[str, Any]) -> None:
    """From now on, groups of NCCL get the classes of the policy: a file that `tensorlane classes --for nccl --json`
    has written, what such a file holds, or a fabric file, which the command `tensorlane` then has to be there for.
    Call it before init_process_group(), alike on all ranks. A second call replaces the policy for groups that are made
    after it.

    Raises tensorlane.InvalidArgumentError for a policy that cannot be used. What is wrong with how this host has NCCL
    set up is said on standard error, by local rank 0 where a launcher says which that is, and in report(). A PyTorch
    that cannot do it gets one warning, and nothing is changed."""
    _enable(Policy.load(policy))


def enable_from_environment() -> None:
    """enable() with the policy that TENSORLANE_NCCL_POLICY names; nothing without it. What is wrong with the host is
    said when a group of NCCL is made: most processes that import PyTorch make none."""
    path = os.environ.get("TENSORLANE_NCCL_POLICY")
    if not path:
        return
    try:
        _enable(Policy.load(path), when_used=True)
    except Exception as error:
        failed(str(error))
        raise
