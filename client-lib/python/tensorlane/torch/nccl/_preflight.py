"""What is wrong with how this process finds NCCL set up: common/nccl, by the C library."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import torch

from ... import _native
from ...errors import InvalidArgumentError
from ._policy import Policy

_HOSTS_POLICY = "/etc/tensorlane/nccl-policy.json"  # the env plugin takes it before any other
_SPLIT_SHARE = "NCCL_COMM_SPLIT_SHARE_RESOURCES"
SEVERITIES = ("error", "warning", "note")


@dataclasses.dataclass(frozen=True)
class Finding:
    rule: str  # "N1" to "N8"
    severity: str  # "error": the classes do not act
    place: str
    message: str
    fix: str

    def __str__(self) -> str:
        return f"{self.severity} {self.rule} {self.place}: {self.message}; {self.fix}"


class _Class(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("traffic_class", ctypes.c_uint), ("service_level", ctypes.c_uint)]


class Subject(ctypes.Structure):
    """tl_nccl_subject_t of tensorlane/nccl.h."""

    _fields_ = [
        ("size", ctypes.c_size_t),
        ("classes", ctypes.POINTER(_Class)),
        ("class_count", ctypes.c_size_t),
        ("overridden", ctypes.POINTER(ctypes.c_char_p)),
        ("values", ctypes.POINTER(ctypes.c_char_p)),
        ("overridden_count", ctypes.c_size_t),
        ("service_level", ctypes.c_int),
        ("version", ctypes.c_int),
    ]


_FUNCTION = ctypes.CFUNCTYPE(
    None, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_void_p
)


def nccl_version() -> int:
    """NCCL_VERSION_CODE of the NCCL of this PyTorch; 0 where it has none."""
    try:
        major, minor, patch = torch.cuda.nccl.version()[:3]
        return major * 10000 + minor * 100 + patch
    except Exception:
        return 0


def _overridden():
    """What the env plugin, where NCCL loads it, says of variables: by the file that it takes itself."""
    path = _HOSTS_POLICY if os.path.exists(_HOSTS_POLICY) else os.environ.get("TENSORLANE_NCCL_POLICY")
    try:
        return Policy.load_json(path).process if path else {}
    except InvalidArgumentError:
        return {}


def _texts(values):
    return (ctypes.c_char_p * len(values))(*(None if value is None else str(value).encode() for value in values))


def shares_with_parent(findings: list[Finding]) -> bool | None:
    """What the variable says of the connections of a communicator that is split from another, which it says whatever
    the program does. None: nothing."""
    if any(finding.rule == "N3" and _SPLIT_SHARE in finding.place for finding in findings):
        return True
    return False if os.environ.get(_SPLIT_SHARE) == "0" or _overridden_split() else None


def _overridden_split():
    return "tensorlane" in os.environ.get("NCCL_ENV_PLUGIN", "") and _overridden().get(_SPLIT_SHARE) == "0"


def preflight(policy: Policy) -> list[Finding]:
    """Errors of a library that cannot be loaded are raised as everywhere."""
    call = _native.library().tl_nccl_preflight
    call.argtypes = [ctypes.POINTER(Subject), _FUNCTION, ctypes.c_void_p]
    call.restype = ctypes.c_int
    findings = []

    def found(rule, severity, place, message, fix, _):
        words = (text.decode(errors="replace") for text in (place, message, fix))
        findings.append(Finding(rule.decode(), SEVERITIES[severity], *words))

    classes = [*policy.classes.values(), policy.control]
    overridden = _overridden()
    level = policy.process.get("NCCL_IB_SL")
    subject = Subject(
        ctypes.sizeof(Subject),
        (_Class * len(classes))(*(_Class(c.name.encode(), c.traffic_class, c.service_level) for c in classes)),
        len(classes), _texts(overridden.keys()), _texts(overridden.values()), len(overridden),
        int(level) if str(level).isdigit() else -1, nccl_version(),
    )
    _native.check(call(ctypes.byref(subject), _FUNCTION(found), None))
    return sorted(findings, key=lambda each: SEVERITIES.index(each.severity))
