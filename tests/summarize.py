"""Adds up ctest's JUnit reports: says where the time went, names what failed and what was skipped, and ends with "N passed, N failed, N skipped".

usage: summarize.py REPORT.xml...      exit status 0 only if something passed and nothing failed

BUILD.again.xml is the second attempt at tests that failed in BUILD.xml; what passes there is counted as passed and named, unless a sanitizer had something to say
in the first. Of each test that failed at all, the lines of its output that say why are repeated at the end.
A case that one program skips and another test runs, as the RDMA cases on emulated hosts, is not skipped.
"""

import re
import sys
import xml.etree.ElementTree

AGAIN = ".again"
SLOWEST = 25  # tests that the table of times lists
# A GoogleTest program passes as a whole although cases in it skipped themselves; its output names them at the end.
SKIPPED_CASE = re.compile(r"^\[  SKIPPED \] (\w[\w./]*)$", re.MULTILINE)
# What says best why a test failed, in the words of GoogleTest, Python and the sanitizers.
REASON = re.compile(r"^(?:\[  FAILED  \] .*|.*: Failure|\w*(?:Error|Exception): .*|tensorlane: error: .*|.*(?:ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|: runtime error: ).*)$", re.MULTILINE)
REASONS = 12  # lines of a test's output that the summary repeats
SANITIZER = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|: runtime error: ")
RUN_CASE = re.compile(r"^\[       OK \] (\w[\w./]*) \(\d+ ms\)$", re.MULTILINE)


def outcome(case):
    """("passed" | "failed" | "skipped", reason) of one ctest test. One that could not be started has failed."""
    status = case.get("status")
    if status == "run":
        return "passed", ""
    skipped = case.find("skipped")
    reason = skipped.get("message", "") if skipped is not None else ""
    if status == "disabled":
        return "skipped", "disabled"
    if status == "notrun" and reason.startswith(("SKIP_RETURN_CODE", "SKIP_REGULAR_EXPRESSION")):
        return "skipped", reason
    failure = case.find("failure")
    return "failed", reason or (failure.get("message", "") if failure is not None else "")


def output(case):
    return case.findtext("system-out") or ""


def why(case):
    """The lines of its output that say best why a test failed."""
    return [match.group(0)[:300] for match in REASON.finditer(output(case))][:REASONS]


def read(reports):
    """{"BUILD: test": [case of each attempt]} of a list of (build's name, XML text)."""
    cases = {}
    for build, text in sorted(reports, key=lambda report: report[0].endswith(AGAIN)):
        for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
            cases.setdefault(f"{build.removesuffix(AGAIN)}: {case.get('name')}", []).append(case)
    return cases


def times(cases):
    """Lines of a table: what each build's tests took, one after the other, and the slowest of all. A test that ran twice counts twice."""
    seconds = {name: sum(float(case.get("time") or 0) for case in attempts) for name, attempts in cases.items()}
    builds = {}
    for name, took in seconds.items():
        build = name.split(":")[0]
        builds[build] = builds.get(build, 0) + took
    slowest = sorted(seconds, key=seconds.get, reverse=True)[:SLOWEST]
    return [f"{took:6.0f} s of tests: {build}" for build, took in builds.items()] + [f"{seconds[name]:6.0f} s: {name}" for name in slowest]


def summarize(cases):
    """{"passed" | "failed" | "skipped" | "passed at the second attempt" | "because": [line]} of what read() returns."""
    ran = {case for attempts in cases.values() for case in RUN_CASE.findall(output(attempts[-1]))}
    lines = {"skipped": [], "passed at the second attempt": [], "failed": [], "because": [], "passed": []}
    for name, attempts in cases.items():
        failed = [case for case in attempts if outcome(case)[0] == "failed"]
        reported = [case for case in failed if SANITIZER.search(output(case))]
        kind, reason = outcome((reported or attempts[-1:])[0])
        line = f"{name} ({reason})" if reason else name
        lines[kind].append(line)
        if kind == "passed" and len(attempts) > 1:
            lines["passed at the second attempt"].append(line)
        lines["because"] += [f"  {name}: {reason}" for case in failed[:1] for reason in why(case)]
        for skipped in sorted(set(SKIPPED_CASE.findall(output(attempts[-1]))) - ran):
            lines["skipped"].append(f"{name}: {skipped}")
    return lines


def main(paths):
    reports = []
    for path in paths:
        with open(path, encoding="utf-8", errors="replace") as file:
            reports.append((path.rsplit("/", 1)[-1].removesuffix(".xml"), file.read()))
    cases = read(reports)
    lines = summarize(cases)
    print("\n".join(times(cases)))
    for kind in ("skipped", "passed at the second attempt", "failed"):
        for line in lines[kind]:
            print(f"{kind}: {line}")
    print("".join(f"{line}\n" for line in lines["because"]), end="")
    if not lines["passed"] and not lines["failed"]:
        print("tensorlane: error: no test ran: the selection matches none: see ctest -N --test-dir build", file=sys.stderr)
    print(f"{len(lines['passed'])} passed, {len(lines['failed'])} failed, {len(lines['skipped'])} skipped")
    return 0 if lines["passed"] and not lines["failed"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
