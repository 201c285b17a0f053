"""What attack found: the hook must not hurt a program, whatever standard error, other packages, signals and files do."""

import os
import subprocess
import sys

import pytest
from forking import environment
from test_groups import CLEAN, GIVEN, IS_OLD, MIXED, URGENT, policy, program  # noqa: F401 (fixture)

pytestmark = pytest.mark.skipif(IS_OLD, reason="this PyTorch passes no traffic class on: see test_real_options.py")


@pytest.mark.parametrize("broken", ["sys.stderr = open('/dev/full', 'w')", "sys.stderr.close()", "sys.stderr = None"])
def test_a_standard_error_that_cannot_be_written(policy, broken):
    found, _ = program(broken + "\n" + GIVEN + """
from tensorlane.torch.nccl import _hook
_hook.Hook._plan = lambda self, name: 1 / 0
new("mesh_tp")
print(json.dumps(len(nccl_stub.made)))
""", policy, NCCL_IB_TC="106")
    assert found == 2


def test_an_import_with_a_full_standard_error():
    variables = environment({**CLEAN, "TENSORLANE_NCCL_POLICY": "/nowhere.json"})
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", "import torch, tensorlane_autoload; tensorlane_autoload.register(); print(1)"], env=variables, stderr=full, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == 0 and done.stdout == "1\n"


OTHERS = """
import functools
import torch.distributed.distributed_c10d as c10d
seen = []
def wrap():
    original = c10d._new_process_group_helper
    @functools.wraps(original)
    def others(*args, **kwargs):
        seen.append([len(args), "backend" in kwargs, "group_desc" in kwargs])
        return original(*args, **kwargs)
    c10d._new_process_group_helper = others
    return others
"""


def test_packages_that_wrapped_before_see_arguments_as_they_were_passed(policy):
    plain, _ = program(OTHERS + "nccl_stub.install()\nwrap()\nnccl_stub.start(4)\nprint(json.dumps(seen))")
    hooked, _ = program(OTHERS + "wrap()\n" + GIVEN + "print(json.dumps(seen))", policy)
    assert hooked == plain and len(plain) == 1


def test_packages_that_wrapped_after_stay(policy):
    found, _ = program(OTHERS + """
import tensorlane.torch.nccl as nccl
nccl_stub.install()
nccl.enable(sys.argv[1])
others = wrap()
nccl.disable()
nccl_stub.start(4)
print(json.dumps([c10d._new_process_group_helper is others, len(seen), nccl_stub.classes()]))
""", policy)
    assert found == [True, 1, {"default_pg": -(2**31)}]


def test_backends_beside_nccl_get_no_options_of_nccl_when_a_group_is_split(policy):
    found, _ = program(GIVEN.replace("nccl_stub.start(4)", """
dist.Backend.register_backend("other", lambda options, given: nccl_stub._backend("plugin", options.group_rank, options.group_size, None), extended_api=True, devices=["meta"])
nccl_stub.start(4, bound=True, backend="meta:other,cpu:nccl,cuda:nccl")
passed, split = [], dist.ProcessGroup.split_group
def see(parent, ranks, timeout=None, opts=None, **others):
    passed.append([opts is None, nccl_stub._of_backend[id(parent._get_backend(torch.device("cpu")))][1].config.traffic_class])
    return split(parent, ranks, timeout, opts or copy.deepcopy(nccl_stub.made[1].options), **others)
dist.ProcessGroup.split_group = see
""") + """
dist.split_group(split_ranks=[[0, 1], [2, 3]], group_desc="mesh_tp")
print(json.dumps([passed, nccl_stub.classes()["mesh_tp"], nccl_stub.classes()["default_pg"]]))
""", policy)
    assert found[0][0][1] == URGENT and found[1:] == [URGENT, -(2**31)]  # the parent lends its options for the call, and has its class back


def test_reports_from_a_signal_handler_and_in_a_forked_child(policy):
    found, _ = program(GIVEN + """
import os, signal, threading, time
signal.signal(signal.SIGALRM, lambda *_: nccl.report())
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
until = time.monotonic() + 1.5
while time.monotonic() < until:
    nccl.report()
signal.setitimer(signal.ITIMER_REAL, 0)
done = False
def report():
    while not done:
        nccl.report()
thread = threading.Thread(target=report)
thread.start()
ends = []
for _ in range(20):
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        nccl.report()
        os._exit(0)
    ends.append(os.waitpid(child, 0)[1])
done = True
thread.join()
print(json.dumps(ends))
""", policy)
    assert found == [0] * 20


def test_modules_of_other_types_are_left_alone(policy):
    found, _ = program("""
import types
class Lazy(types.ModuleType):
    @property
    def __dict__(self):
        touched.append(1)
        raise SystemExit(3)
touched = []
sys.modules["lazy"] = Lazy("lazy")
""" + GIVEN + "print(json.dumps([touched, nccl_stub.classes()]))", policy)
    assert found == [[], {"default_pg": MIXED}]


def test_a_command_beside_the_program_is_not_run(policy, tmp_path, monkeypatch):
    import tensorlane
    from tensorlane.torch.nccl._policy import Policy

    (tmp_path / "tensorlane").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (tmp_path / "tensorlane").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    for text in ("hosts: [", "{torn"):
        (tmp_path / "policy").write_text(text)
        for folders in ("", ":", ".:", "/nowhere:"):
            monkeypatch.setenv("PATH", folders)
            with pytest.raises(tensorlane.InvalidArgumentError):
                Policy.load(tmp_path / "policy")
    # Only what looks like a fabric file is given to the command at all.
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(tensorlane.InvalidArgumentError, match="neither the JSON of a policy nor a fabric file"):
        Policy.load(tmp_path / "policy")
    assert not os.path.exists(tmp_path / "ran")


def test_a_policy_that_everybody_may_write(policy, tmp_path):
    import tensorlane
    from tensorlane.torch.nccl._policy import Policy

    (tmp_path / "policy").write_bytes(policy.read_bytes())
    (tmp_path / "policy").chmod(0o666)
    with pytest.raises(tensorlane.InvalidArgumentError, match="everybody may write it"):
        Policy.load(tmp_path / "policy")


def test_options_of_a_class_of_the_programs_own_are_left_alone(policy):
    found, _ = program(GIVEN + """
class Own(nccl_stub.Options):
    def __deepcopy__(self, memo):
        return nccl_stub.Options()
options = Own()
group = dist.new_group([0, 1], pg_options=options, group_desc="mesh_tp", timeout=options._timeout)
seen = nccl_stub.made[-1]
print(json.dumps([seen.options is options, seen.traffic_class, nccl.report().groups[-1].effect, nccl.report().groups[-1].traffic_class]))
""", policy)
    assert found == [True, -(2**31), "not set, because options of the type Own cannot be copied", None]
