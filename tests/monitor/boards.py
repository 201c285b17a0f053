"""What the tests of the dashboards share: the committed files, their panels and expressions, and what Grafana would fill in for variables."""

import json
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDER = ROOT / "monitor" / "dashboards"
RECORDED = pathlib.Path(__file__).resolve().parent / "recorded"
NAMES = ("fleet", "fabric", "job", "host")
# What PromQL brings along, as far as the dashboards use it.
WORDS = {
    "sum", "count", "max", "min", "topk", "bottomk", "count_values", "rate", "increase", "changes", "histogram_quantile", "label_replace", "clamp_min", "vector",
    "time", "last_over_time", "by", "on", "and", "or", "unless", "group_left", "group_right", "bool",
}
# Names that Grafana fills in itself.
BUILT_IN = {"__rate_interval", "__range", "__interval", "__url_time_range", "__field", "__data"}


def load(name):
    return json.loads((FOLDER / f"{name}.json").read_text())


def panels(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def targets(board):
    """(panel, target) of every query."""
    return [(panel, target) for panel in panels(board) for target in panel["targets"]]


def variables(board):
    return {variable["name"]: variable for variable in board["templating"]["list"]}


def used_variables(text):
    """Names after "$" in a query or link. "$1" belongs to label_replace."""
    return {name for name in re.findall(r"\$\{?([A-Za-z_]\w*)", text)}


def fill(expr, choices):
    """The expression as Grafana sends it: `choices` by variable; a list is joined to a regular expression."""
    for name, value in {"__rate_interval": "1m", "__range": "60s", "__interval": "15s", **choices}.items():
        text = "(" + "|".join(map(re.escape, value)) + ")" if isinstance(value, list) else value
        expr = re.sub(r"\$(?:\{%s\}|%s\b)" % (name, name), lambda _: text.replace("\\", "\\\\"), expr)
    left = used_variables(expr)
    assert not left, f"nothing to fill in for {left}: {expr}"
    return expr


def _written_out(pattern):
    """The names that a regular expression of plain text with one choice stands for."""
    match = re.fullmatch(r"(\w*)\((\w+(?:\|\w+)*)\)(\w*)", pattern)
    return {match[1] + part + match[3] for part in match[2].split("|")} if match else {pattern}


def metrics(expr):
    """The names of metrics in an expression."""
    found = set()
    for pattern in re.findall(r'__name__=~"([^"]*)"', expr):
        found |= _written_out(pattern)
    text = re.sub(r'"(?:\\.|[^"\\])*"', "", expr)
    text = re.sub(r"\{[^{}]*\}|\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|on|group_left)\s*\([^()]*\)", "", text)
    return found | (set(re.findall(r"(?<![\w.])[A-Za-z_:][\w:]*", text)) - WORDS)


def daemon_metrics():
    """The names in daemon/telemetry/README.md. A histogram has three, and `up` is Prometheus's own."""
    listed = set(re.findall(r"^\| `(tensorlane_\w+)", (ROOT / "daemon" / "telemetry" / "README.md").read_text(), re.M))
    return listed | {f"{name}_{part}" for name in listed if name.endswith("_seconds") for part in ("bucket", "sum", "count")} | {"up"}


def recorded_metrics():
    return {name for path in RECORDED.glob("*.prom") for name in re.findall(r"^# TYPE (\S+)", path.read_text(), re.M)}


def needs_hardware(expr):
    """Whether a query can have an answer only where there are NICs with counters."""
    return any(name.startswith("node_") or name == "tensorlane_rdma_device_events_total" for name in metrics(expr))
