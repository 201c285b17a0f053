"""What tests/run says at its end, of reports as ctest writes them."""

import pathlib
import subprocess
import sys
import tempfile

SUMMARIZE = pathlib.Path(__file__).resolve().parent / "summarize.py"
OUTSIDE = """[       OK ] Suite.Tcp (3 ms)
[  SKIPPED ] Suite.Rdma/pair (0 ms)
[  SKIPPED ] 2 tests, listed below:
[  SKIPPED ] Suite.Rdma/pair
[  SKIPPED ] Suite.Cable
"""


def case(name, status="run", seconds=1, output="", message=""):
    child = f'<skipped message="{message}"/>' if status in ("notrun", "disabled") else f'<failure message="{message}"/>' if status == "fail" else ""
    return f'<testcase name="{name}" status="{status}" time="{seconds}">{child}<system-out>{output}</system-out></testcase>'


def said(**reports):
    with tempfile.TemporaryDirectory() as folder:
        paths = []
        for name, cases in reports.items():
            paths.append(pathlib.Path(folder, name.replace("_again", ".again") + ".xml"))
            paths[-1].write_text(f"<testsuite>{''.join(cases)}</testsuite>")
        done = subprocess.run([sys.executable, SUMMARIZE, *paths], capture_output=True, text=True)
        return done.returncode, done.stdout.splitlines()


def test(name, seen, expected):
    assert seen == expected, f"{name}: {seen}, not {expected}"


conformance = case("conformance", output=OUTSIDE)
status, lines = said(release=[conformance, case("unit", seconds=90), case("lab", "notrun", message="SKIP_RETURN_CODE=77")])
test("skipped", [line for line in lines if "skipped" in line], [
    "skipped: release: conformance: Suite.Cable", "skipped: release: conformance: Suite.Rdma/pair", "skipped: release: lab (SKIP_RETURN_CODE=77)", "2 passed, 0 failed, 3 skipped"])
test("times", lines[:3], ["    92 s of tests: release", "    90 s: release: unit", "     1 s: release: conformance"])
test("status", status, 0)

bed = case("bed", output="[       OK ] Suite.Rdma/pair (12 ms)\n")
test("a case that ran elsewhere", said(release=[conformance], measuring=[bed])[1][-2:], ["skipped: release: conformance: Suite.Cable", "2 passed, 0 failed, 1 skipped"])

status, lines = said(release=[case("bad", "fail", message="Failed"), case("lame", "fail")], release_again=[case("lame", seconds=5)])
test("second attempt", lines[-3:], ["passed at the second attempt: release: lame", "failed: release: bad (Failed)", "1 passed, 1 failed, 0 skipped"])
test("status", status, 1)

poisoned = case("race", "fail", output="noise\nWARNING: ThreadSanitizer: data race (pid=7)\nmore")
status, lines = said(tsan=[poisoned], tsan_again=[case("race")])
test("what a sanitizer reports once is no bad luck", lines[-3:], ["failed: tsan: race", "  tsan: race: WARNING: ThreadSanitizer: data race (pid=7)", "0 passed, 1 failed, 0 skipped"])
test("status", status, 1)

reasons = "ok\n/tests/a_test.cc:12: Failure\nValue of: x\n[  FAILED  ] Suite.Case (3 ms)\nAssertionError: rank 0 ended with status 1"
lines = said(release=[case("bad", "fail", output=reasons)])[1]
test("why", lines[-4:-1], ["  release: bad: /tests/a_test.cc:12: Failure", "  release: bad: [  FAILED  ] Suite.Case (3 ms)", "  release: bad: AssertionError: rank 0 ended with status 1"])
test("nothing", said(release=[])[0], 1)
