"""What is wrong with how this process finds NCCL set up: common/nccl, by the C library."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import torch

from ... import _native
from ...errors import InvalidArgumentError
from ._policy import Policy

_DEFAULT = "/etc/tensorlane/nccl-policy.json"
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
    """What the env plugin, where NCCL loads it, takes out of users' hands: by the file that it reads itself."""
    try:
        return list(Policy.load_json(os.environ.get("TENSORLANE_NCCL_POLICY") or _DEFAULT).process)
    except InvalidArgumentError:
        return []


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
    names = [name.encode() for name in _overridden()]
    level = policy.process.get("NCCL_IB_SL")
    subject = Subject(
        ctypes.sizeof(Subject),
        (_Class * len(classes))(*(_Class(c.name.encode(), c.traffic_class, c.service_level) for c in classes)),
        len(classes), (ctypes.c_char_p * len(names))(*names), len(names),
        int(level) if str(level).isdigit() else -1, nccl_version(),
    )
    _native.check(call(ctypes.byref(subject), _FUNCTION(found), None))
    return sorted(findings, key=lambda each: SEVERITIES.index(each.severity))
