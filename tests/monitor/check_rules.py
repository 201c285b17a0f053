"""promtool finds nothing wrong with the rules and with the example configuration, and the cases of *.test.yaml hold. Every alert has a case that fires and one that
keeps silent on metrics that it looks at; every alert has a severity, words and a section of the runbook; every metric is one that somebody exports."""

import pathlib
import re
import shutil
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
ALERTS = SOURCE / "monitor" / "alerts"
FILES = [ALERTS / "tensorlane.rules.yaml", ALERTS / "tensorlane.alerts.yaml"]
CONFIG = SOURCE / "deploy" / "prometheus" / "prometheus.yaml"
SEVERITIES = {"critical", "warning", "info", "none"}
ALWAYS_FIRES = "Watchdog"
# Metrics, recording rules included: words that no bracket follows, outside of quoted text and lists of labels.
_QUOTED = re.compile(r"\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'")
_LISTS = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)|\{[^}]*\}|\[[^]]*\]")
_METRIC = re.compile(r"(?<![\w:.])([a-z_][\w:]*)(?!\s*\()(?![\w:])")
_WORDS = {"and", "or", "unless", "offset", "bool"}


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def metrics_of(expression):
    return set(_METRIC.findall(_LISTS.sub(" ", _QUOTED.sub(" ", expression)))) - _WORDS


def base(metric):
    """Of a part of a histogram, the histogram."""
    return re.sub(r"_(bucket|count|sum)$", "", metric)


def known_metrics(telemetry, alerts_readme):
    """Of the two tables; `[0-7]` in a name stands for eight of them."""
    names = {"up"} | set(re.findall(r"^\| `(tensorlane_\w+)", telemetry, re.M))
    for name in re.findall(r"^\| `(node_[^`]+)`", alerts_readme, re.M):
        names |= {name.replace("[0-7]", str(digit)) for digit in range(8)} if "[0-7]" in name else {name}
    return names


def reaches(expression, recorded, seen=()):
    """All metrics that an expression looks at, through recording rules too."""
    found = set()
    for metric in metrics_of(expression):
        if metric in recorded and metric not in seen:
            found |= reaches(recorded[metric], recorded, (*seen, metric))
        else:
            found.add(metric)
    return found


def findings(rules, tests, known, runbook):
    """Lines that say what is missing. rules: of all groups; tests: of all test files; known: metrics; runbook: text."""
    wrong = []
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    alerts = {rule["alert"]: rule for rule in rules if "alert" in rule}
    for name in recorded:
        if not re.fullmatch(r"[a-z_]+:[a-z_]+(_[a-z]+)*:[a-z0-9_]+", name):
            wrong.append(f"{name}: not named level:metric:operation")
    for rule in rules:
        what = rule.get("alert") or rule["record"]
        for metric in sorted(reaches(rule["expr"], recorded)):
            if metric not in known and base(metric) not in known:
                wrong.append(f"{what}: {metric} is no metric of daemon/telemetry/README.md or of monitor/alerts/README.md")
    for name, rule in alerts.items():
        words = rule.get("annotations", {})
        if rule.get("labels", {}).get("severity") not in SEVERITIES:
            wrong.append(f"{name}: has no severity")
        if "for" not in rule and name != ALWAYS_FIRES:
            wrong.append(f"{name}: has no `for`")
        wrong += [f"{name}: has no {word}" for word in ("summary", "description", "runbook_url") if not words.get(word)]
        if words.get("runbook_url") != f"monitor/alerts/README.md#{name.lower()}" or f"### {name}\n" not in runbook:
            wrong.append(f"{name}: has no section in the runbook")
        wrong += coverage(name, reaches(rule["expr"], recorded), tests)
    for name in re.findall(r"^### (\w+)$", runbook, re.M):
        if name not in alerts:
            wrong.append(f"{name}: is in the runbook and is no alert")
    return wrong


def coverage(name, metrics, tests):
    """A silent case without any series of the alert's metrics proves nothing, nor does one in a test of another alert."""
    fires = silent = False
    for test in tests:
        series = {re.match(r"[\w:]+", entry["series"])[0] for entry in test["input_series"]}
        for check in test.get("alert_rule_test", []):
            if check["alertname"] != name:
                continue
            if check.get("exp_alerts"):
                fires = True
            elif metrics & series:
                silent = True
    wrong = [] if fires else [f"{name}: no case in which it fires"]
    if not silent and name != ALWAYS_FIRES:
        wrong.append(f"{name}: no case in which it keeps silent")
    return wrong


def self_test():
    """The check finds what is planted, and nothing else."""
    good = {"alert": "A", "expr": 'rate(tensorlane_x_total{class="y"}[5m]) > 1 and on (host) level:metric:rate', "for": "1m", "labels": {"severity": "info"},
            "annotations": {"summary": "s", "description": "d", "runbook_url": "monitor/alerts/README.md#a"}}
    record = {"record": "level:metric:rate", "expr": "sum by (host) (rate(tensorlane_y_seconds_bucket[5m]))"}
    series = [{"series": "tensorlane_x_total{}", "values": "0"}]
    fires = {"alertname": "A", "exp_alerts": [{"exp_labels": {}}]}
    tests = [{"input_series": series, "alert_rule_test": [fires, {"alertname": "A"}]}]
    known, runbook = {"tensorlane_x_total", "tensorlane_y_seconds"}, "### A\n"
    plain = lambda rule=good, tests=tests, record=record, runbook=runbook: findings([rule, record], tests, known, runbook)  # noqa: E731
    assert plain() == [], plain()
    planted = {
        "unknown metric": plain({**good, "expr": "tensorlane_z > 1"}),
        "unknown metric in a recording rule": plain(record={**record, "expr": "node_z"}),
        "no severity": plain({**good, "labels": {}}),
        "no for": plain({k: v for k, v in good.items() if k != "for"}),
        "no description": plain({**good, "annotations": {**good["annotations"], "description": ""}}),
        "no section": plain(runbook=""),
        "a section too much": plain(runbook="### A\n### B\n"),
        "bad name": plain(record={**record, "record": "level_metric"}),
        "never fires": plain(tests=[{"input_series": series, "alert_rule_test": [{"alertname": "A"}]}]),
        "never silent": plain(tests=[{"input_series": series, "alert_rule_test": [fires]}]),
        "silent without its metric": plain(tests=[{"input_series": series, "alert_rule_test": [fires]},
                                                  {"input_series": [{"series": "up{}", "values": "1"}], "alert_rule_test": [{"alertname": "A"}]}]),
    }
    for what, found in planted.items():
        assert found, f"the check does not find: {what}"


def promtool(*arguments):
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, f"promtool {arguments[0]} {arguments[1]}: {done.stdout}{done.stderr}"


def main():
    if shutil.which("promtool") is None:
        skip("needs promtool, of the Debian package prometheus")
    try:
        import yaml
    except ImportError:
        skip("needs python3-yaml")
    self_test()
    read = lambda path: yaml.safe_load(path.read_text())  # noqa: E731
    cases = sorted(HERE.glob("*.test.yaml"))
    rules = [rule for path in FILES for group in read(path)["groups"] for rule in group["rules"]]
    tests = [test for path in cases for test in read(path)["tests"]]
    readme = (ALERTS / "README.md").read_text()
    known = known_metrics((SOURCE / "daemon" / "telemetry" / "README.md").read_text(), readme)
    # What always fires has no silent case; that it is not there when its file is not loaded needs none.
    wrong = findings(rules, tests, known, readme.partition("\n## Runbook\n")[2])
    print("\n".join(wrong) or f"good: {len(rules)} rules, {len(tests)} cases")
    promtool("check", "rules", *FILES)
    promtool("check", "config", CONFIG)
    promtool("test", "rules", *cases)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
