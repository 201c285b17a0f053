"""PyTorch's tests, as a copy in which conditions that name Gloo let tensorlane in."""

import importlib.util
import pathlib
import re
import sys

import torch

# (pattern, replacement, why)
RULES = [
    (r'BACKEND != "gloo"', 'BACKEND not in ("gloo", "tensorlane")', "tests for Gloo alone run here, too"),
    (r'BACKEND == "gloo"', 'BACKEND in ("gloo", "tensorlane")', "what is expected of Gloo is expected here, too"),
    (r'@require_backend_is_available\(\{"gloo"\}\)', '@require_backend_is_available({"gloo", "tensorlane"})', "tests for Gloo alone run here, too"),
    (r"^    dist\.Backend\.GLOO,$", '    dist.Backend.GLOO,\n    "tensorlane",', "operations are seen by torch's profiler"),
    (r"\bdist\.monitored_barrier\(", "monitored_barrier(", "torch's own demands Gloo by name; tensorlane.torch has one for its backend"),
]
PRELUDE = '''
def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
    group = group or dist.group.WORLD
    if dist.get_backend(group) != "tensorlane":
        return dist.monitored_barrier(group, timeout, wait_all_ranks)
    import tensorlane.torch

    return tensorlane.torch.monitored_barrier(group, timeout, wait_all_ranks)


'''
BEFORE = "class DistributedTest:"


def rewritten(text):
    """(the text, [why: how many places])"""
    counts = []
    for pattern, replacement, why in RULES:
        text, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
        counts.append({"pattern": pattern, "replacement": replacement, "why": why, "places": count})
    return text.replace(BEFORE, PRELUDE.lstrip() + BEFORE, 1), counts


def load(folder):
    """(the module, what was rewritten). `folder`: where the copy goes."""
    original = pathlib.Path(torch.__file__).parent / "testing/_internal/distributed/distributed_test.py"
    text, counts = rewritten(original.read_text())
    copy = pathlib.Path(folder) / "distributed_test_copy.py"
    copy.write_text(text)
    spec = importlib.util.spec_from_file_location(copy.stem, copy)
    module = importlib.util.module_from_spec(spec)
    sys.modules[copy.stem] = module
    spec.loader.exec_module(module)
    return module, counts
