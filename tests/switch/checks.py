"""What tests of `tensorlane-switch` have in common: the command, which is their first argument, and their main()."""

import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

SWITCH = sys.argv[1]


def run(*arguments):
    return subprocess.run([SWITCH, *map(str, arguments)], capture_output=True, text=True, timeout=120)


def difference(fabric, running, *more):
    """What `diff` says: (device, what, running, wanted, class, ports) of each change."""
    done = run("diff", "--fabric", fabric, "--running", running, "--json", *more)
    assert done.returncode in (0, 1), done
    answer = json.loads(done.stdout)
    assert (done.returncode == 0) == (answer == {"changes": [], "unparsed": []}), done
    assert not answer["unparsed"], done
    return [(c["device"], c["what"], c["running"], c["wanted"], c["class"], tuple(c["ports"])) for c in answer["changes"]]


def render_time(fabric, nos, out):
    """The best of three, as this machine may be busy."""
    times = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = run("render", "--fabric", fabric, "--target", nos, "--out", out)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0 and "96 devices, 8192 ports" in done.stdout, done
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(times) < 2, (nos, times)
    return min(times)


def all_of(*checks):
    """Each in a new folder, with the time that it takes."""
    for check in checks:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            check(pathlib.Path(folder))
        print(f"{check.__name__}: {time.monotonic() - began:.1f} s")
