"""Classes for jobs that stay on NCCL (tensorlane.torch.nccl), on a stub of NCCL that records which options reach it."""

import json
import os
import pathlib
import re
import shutil
import subprocess

import pytest
import torch.distributed.distributed_c10d as c10d
from forking import forked, started

ROOT = pathlib.Path(__file__).resolve().parents[3]
BUILD = pathlib.Path(os.environ["TENSORLANE_BUILD"])
URGENT, MIXED, BULK = 174, 142, 110
IS_OLD = hasattr(c10d, "ProcessGroupNCCL") and not hasattr(c10d.ProcessGroupNCCL.Options().config, "traffic_class")
pytestmark = pytest.mark.skipif(IS_OLD, reason="this PyTorch passes no traffic class on: see test_real_options.py")
FABRIC = """hosts: [{name: h0, addresses: {tcp: 10.0.0.1}}]
classes:
  data: [{name: urgent, dscp: 43, pcp: 5}, {name: mixed, dscp: 35, pcp: 4}, {name: bulk, dscp: 27, pcp: 3}]
nccl:
  separate_reduce_scatter: %s
"""
CLEAN = {"NCCL_IB_SL": "4"}
HEAD = "import copy, datetime, json, sys, warnings\nimport torch, torch.distributed as dist\nimport nccl_stub, nccl_groups\n"
ON_A_HOST_WITH_RDMA = """
from tensorlane.torch.nccl import _groups, _preflight
_groups.preflight = lambda policy: [finding for finding in _preflight.preflight(policy) if finding.place != "/sys/class/infiniband"]
"""
MEGATRON = {
    "default_pg": MIXED, "DATA_PARALLEL_GROUP_WITH_CP": MIXED, "DATA_PARALLEL_GROUP": MIXED, "CONTEXT_PARALLEL_GROUP": URGENT, "MODEL_PARALLEL_GROUP": URGENT,
    "TENSOR_MODEL_PARALLEL_GROUP": URGENT, "PIPELINE_MODEL_PARALLEL_GROUP": URGENT, "EMBEDDING_GROUP": BULK, "POSITION_EMBEDDING_GROUP": BULK,
    "TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": URGENT, "TENSOR_AND_DATA_PARALLEL_GROUP": URGENT, "TENSOR_AND_CONTEXT_PARALLEL_GROUP": URGENT,
    "EXPERT_MODEL_PARALLEL_GROUP": URGENT, "EXPERT_TENSOR_PARALLEL_GROUP": URGENT, "EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": URGENT,
    "EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": URGENT, "EXPERT_DATA_PARALLEL_GROUP": MIXED, "INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": MIXED,
}
SHARED = {
    "ddp": {"default_pg": MIXED},
    "fsdp2": {"default_pg": MIXED},
    "fsdp2_named": {"default_pg": MIXED, "mesh_pp": URGENT, "mesh_fsdp": MIXED},
    "hsdp": {"default_pg": MIXED, "mesh_dp_replicate": BULK, "mesh_dp_shard": MIXED},
    "mesh_3d": {"default_pg": MIXED, "mesh_pp": URGENT, "mesh_dp": MIXED, "mesh_tp": URGENT, "mesh_dp_tp": MIXED},
}
SEPARATE = {
    "fsdp2": {"default_pg": MIXED, "fsdp_reduce_scatter": BULK},
    "hsdp": {"default_pg": MIXED, "mesh_dp_replicate": BULK, "mesh_dp_shard": URGENT, "fsdp_reduce_scatter": BULK},
    "mesh_3d": {"default_pg": MIXED, "mesh_pp": URGENT, "mesh_dp": URGENT, "mesh_tp": URGENT, "mesh_dp_tp": URGENT, "fsdp_reduce_scatter": BULK},
}


def render(folder, text, name="fabric"):
    """The policy of a fabric file."""
    fabric, policy = folder / f"{name}.yaml", folder / f"{name}.json"
    fabric.write_text(text)
    with policy.open("w") as file:
        subprocess.run([BUILD / "bin" / "tensorlane", "classes", "--for", "nccl", "--fabric", fabric, "--json"], stdout=file, check=True)
    return policy


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return render(tmp_path_factory.mktemp("policy"), FABRIC % "false")


@pytest.fixture(scope="module")
def separate(tmp_path_factory):
    return render(tmp_path_factory.mktemp("separate"), FABRIC % "true")


def groups(policy, *cases):
    return program("nccl_groups.main(sys.argv[1:])", policy, *cases)[0]


def program(text, *arguments, **variables):
    """What `text` prints last, as JSON, and all of its standard error."""
    return forked(HEAD + ON_A_HOST_WITH_RDMA + text, [*map(str, arguments)], {**CLEAN, **variables})


def has_separation():
    from torch.distributed.fsdp import FSDPModule

    return hasattr(FSDPModule, "set_separate_reduce_scatter_group")


# ---- which class each group gets ----


def test_groups_of_programs_get_the_classes_of_the_policy(policy):
    found = groups(policy, *SHARED)
    for case, expected in SHARED.items():
        assert {name: found[case]["classes"].get(name) for name in expected} == expected, case
    for group in found["mesh_3d"]["report"]["groups"]:
        assert group["traffic_class"] == found["mesh_3d"]["classes"][group["name"]] and group["effect"].startswith("NCCL sends it with traffic class"), group
    tp = next(group for group in found["mesh_3d"]["report"]["groups"] if group["name"] == "mesh_tp")
    assert (tp["size"], tp["class_name"], tp["rule"], tp["why"]) == (2, "urgent", "mesh_tp* (default)", "rule mesh_tp* (default)")
    assert found["mesh_3d"]["report"]["findings"] == [] and found["mesh_3d"]["report"]["notes"] == []


def test_reduce_scatters_of_fsdp2_get_a_group_and_class_of_their_own(policy, separate):
    found = groups(separate, *SEPARATE)
    if has_separation():
        for case, expected in SEPARATE.items():
            assert {name: found[case]["classes"].get(name) for name in expected} == expected, case
    else:  # said once, and the groups that carry both have the class for that
        for case, expected in SHARED.items():
            if case in found:
                assert {name: found[case]["classes"].get(name) for name in expected} == expected, case
        assert "set_separate_reduce_scatter_group" in found["fsdp2"]["report"]["notes"][0]
    assert all("fsdp_reduce_scatter" not in each["classes"] for each in groups(policy, "fsdp2").values())


def test_reduce_scatters_are_not_separated_where_a_device_is_bound(separate):
    if not has_separation():
        pytest.skip("this PyTorch has no FSDPModule.set_separate_reduce_scatter_group()")
    found = groups(separate, "hsdp:bound")["hsdp:bound"]
    assert {name: found["classes"].get(name) for name in SHARED["hsdp"]} == SHARED["hsdp"] and "fsdp_reduce_scatter" not in found["classes"]
    assert len(found["report"]["notes"]) == 1 and "share a group with its all-gathers, because a device is bound" in found["report"]["notes"][0]


def test_all_gathers_that_stay_in_a_mixed_group_are_reported(separate):
    if not has_separation():
        pytest.skip("this PyTorch has no FSDPModule.set_separate_reduce_scatter_group()")
    found = groups(separate, "fsdp2", "hsdp")
    assert [note for note in found["fsdp2"]["report"]["notes"] if "stay in the group default_pg, class mixed" in note] and found["fsdp2"]["report"]["notes"] == found["hsdp"]["report"]["notes"]


def test_groups_that_are_split_from_their_parent(policy):
    found = groups(policy, "hsdp:bound", "mesh_3d:bound")
    assert found["mesh_3d:bound"]["how"].count("split") >= 3
    for case in ("hsdp", "mesh_3d"):
        assert {name: found[f"{case}:bound"]["classes"].get(name) for name in SHARED[case]} == SHARED[case], case


def test_groups_of_megatron(policy):
    pytest.importorskip("megatron.core")
    classes = groups(policy, "megatron")["megatron"]["classes"]
    assert {name: classes.get(name) for name in MEGATRON} == MEGATRON


# ---- options that programs give ----

GIVEN = """
import tensorlane.torch.nccl as nccl
nccl_stub.install()
nccl.enable(sys.argv[1])
warnings.simplefilter("error")
nccl_stub.start(4)
def new(name, change=None, **more):
    options = None
    if change is not None:
        options = nccl_stub.Options()
        change(options)
    group = dist.new_group([0, 1], pg_options=options, group_desc=name, **more)
    return group._get_backend(torch.device("cpu")).options, options
"""


def test_options_of_the_program_are_copied_and_kept(policy):
    found, _ = program(GIVEN + """
def change(options):
    options.is_high_priority_stream, options.config.min_ctas, options._timeout = True, 7, datetime.timedelta(seconds=30)
seen, mine = new("mesh_tp", change, timeout=datetime.timedelta(seconds=30))
plain, _ = new("mesh_tp", timeout=datetime.timedelta(seconds=31))
print(json.dumps([seen.is_high_priority_stream, seen.config.min_ctas, seen.config.traffic_class, mine.config.traffic_class, seen._timeout.seconds, plain._timeout.seconds, plain.is_high_priority_stream]))
""", policy)
    assert found == [True, 7, URGENT, -(2**31), 30, 31, False]


def test_a_class_that_the_program_chose_is_kept_and_one_that_it_inherited_is_not(policy):
    found, _ = program(GIVEN + """
def own(options):
    options.config.traffic_class = 96
def inherited(options):
    options.config.traffic_class = 110
def control(options):
    options.config.traffic_class = 206
classes = [new("mesh_tp", change, timeout=nccl_stub.Options()._timeout)[0].config.traffic_class for change in (own, inherited, control)]
print(json.dumps([classes, [group.why for group in nccl.report().groups][-3:]]))
""", policy)
    assert found == [[96, URGENT, URGENT], ["the program's own options say so", *["rule mesh_tp* (default)"] * 2]]


def test_names_are_compared_with_their_case(policy):
    found, _ = program(GIVEN + 'print(json.dumps(new("MESH_TP")[0].config.traffic_class))', policy)
    assert found == MIXED


def test_a_group_of_no_class_gets_none_though_its_parent_has_one(tmp_path):
    policy = render(tmp_path, FABRIC % "false" + "  groups: [{group: default_pg, class: urgent}, {group: 'mesh_*', class: bulk, operation: allgather}, {group: 'mesh_*', class: none}]\n")
    found, _ = program(GIVEN.replace("start(4)", "start(4, bound=True)") + """
from torch.distributed.device_mesh import init_device_mesh
init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
report = nccl.report()
print(json.dumps([nccl_stub.classes(), report.notes, [[group.rule, group.effect] for group in report.groups]]))
""", policy)
    assert found[0] == {"default_pg": URGENT, "mesh_dp": -(2**31), "mesh_tp": -(2**31)}
    assert len(found[1]) == 1 and "fabric.yaml:6" in found[1][0] and "a rule by operation is not enforceable here" in found[1][0]
    assert [effect for _, effect in found[2][1:]] == ["NCCL sends it in its default class, which is traffic class 0"] * 2 and "mesh_* (" in found[2][1][0]


SPLIT_SHARE = GIVEN.replace("nccl_stub.start(4)", """
options = nccl_stub.Options()
options.config.split_share = 1
nccl_stub.start(4, bound=True, pg_options=options)
""").replace('warnings.simplefilter("error")', "") + """
def effect(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return nccl.report().groups[-1].effect
print(json.dumps([effect(lambda: dist.split_group(split_ranks=[[0, 1], [2, 3]], group_desc=name)) for name in ("mesh_tp", "other")] + [effect(lambda: new("mesh_tp"))]))
"""


@pytest.mark.parametrize("refuse", [False, True])
def test_a_class_that_split_share_would_drop(tmp_path, refuse):
    found, _ = program(SPLIT_SHARE, render(tmp_path, FABRIC % "false" + ("  dropped: refuse\n" if refuse else "")))
    if refuse:
        assert found[0].startswith("Refused: NCCL would drop the class 'urgent' of the group, because the parent's split_share is 1: mesh_tp: make its parent with config.split_share = 0") and found[2].startswith("Refused")
    else:
        assert found[0].startswith("dropped: the parent's split_share is 1, so that this group keeps the parent's class (traffic class 142 (DSCP 35, mixed))") and found[2].startswith("dropped")
    assert found[1] == "NCCL sends it with traffic class 142 (DSCP 35, mixed)"  # the parent's, too


def test_a_class_that_split_share_would_drop_for_none(tmp_path):
    found, _ = program(SPLIT_SHARE, render(tmp_path, FABRIC % "false" + "  groups: [{group: mesh_tp, class: urgent}, {group: '*', class: none}]\n"))
    assert "keeps the parent's class (none)" in found[0] and "keeps the parent's class (none)" in found[2]
    assert found[1] == "NCCL sends it in its default class, which is traffic class 0"


FOREIGN = GIVEN.replace("nccl_stub.start(4)", """
from torch.testing._internal.distributed.fake_pg import FakeStore
given = []
def create(options, backend_options):
    given.append(backend_options)
    return nccl_stub._backend("plugin", options.group_rank, options.group_size, nccl_stub.Options())
dist.Backend.register_backend("foreign", create, extended_api=True, devices=["meta"])
nccl_stub.start(4, backend="meta:foreign,cpu:nccl", **(dict(pg_options=nccl_stub.Options(), timeout=nccl_stub.Options()._timeout) if sys.argv[2] == "given" else {}))
""") + """
print(json.dumps([[each and each.config.traffic_class for each in given], nccl.report().groups[0].effect]))
"""


def test_backends_that_would_be_given_options_of_nccl_are_spared(policy):
    found, _ = program(FOREIGN, policy, "none")
    assert found == [[None], "not set, because backend foreign beside NCCL would be given NCCL's options"]
    found, _ = program(FOREIGN, policy, "given")  # the program's choice
    assert found == [[MIXED], "NCCL sends it with traffic class 142 (DSCP 35, mixed)"]


# ---- life of the hook ----


def test_disabled_it_is_pytorch_again(policy):
    found, _ = program("""
import torch.distributed.distributed_c10d as c10d, torch.distributed.device_mesh as mesh
before = [c10d._new_process_group_helper, c10d.split_group, dist.split_group, mesh.split_group]
from torch.distributed.fsdp._fully_shard._fsdp_state import FSDPState
lazy = FSDPState._lazy_init
import tensorlane.torch.nccl as nccl
nccl_stub.install()
nccl.enable(sys.argv[1]); nccl.enable(sys.argv[1])
during = [c10d._new_process_group_helper, c10d.split_group, dist.split_group, mesh.split_group]
wrapped = [a is not b for a, b in zip(before, during)] + [nccl.enabled()]
nccl.disable()
after = [c10d._new_process_group_helper, c10d.split_group, dist.split_group, mesh.split_group]
nccl_stub.start(4)
print(json.dumps([wrapped, before == after, FSDPState._lazy_init is lazy, nccl.enabled(), nccl_stub.classes()]))
""", policy)
    assert found == [[True] * 5, True, True, False, {"default_pg": -(2**31)}]


def test_a_program_that_took_split_group_by_name_before(policy):
    found, _ = program("""
import types
user = types.ModuleType("user"); sys.modules["user"] = user
exec("from torch.distributed import split_group", user.__dict__)
""" + GIVEN.replace("start(4)", "start(4, bound=True)") + """
user.split_group(split_ranks=[[0, 1], [2, 3]], group_desc="mesh_tp")
print(json.dumps(nccl_stub.classes()))
""", policy)
    assert found == {"default_pg": MIXED, "mesh_tp": URGENT}


def test_groups_that_are_gone_leave_nothing_behind(policy):
    found, _ = program(GIVEN + """
import gc, tracemalloc
timeout = nccl_stub.Options()._timeout
def round(count):
    for _ in range(count):
        dist.destroy_process_group(dist.new_group([0, 1], group_desc="mesh_tp"))
        nccl_stub.made.clear(); nccl_stub._of_backend.clear()
from tensorlane.torch.nccl import _groups
round(300)
held = len(_groups._records._groups)
round(1000)
print(json.dumps([held, len(_groups._records._groups), len(nccl.report().groups)]))
""", policy)
    assert found[0] <= 257 and found[1] <= 257 and found[2] <= 1, found


def test_groups_from_before_are_reported_as_such(policy):
    found, errors = program("""
import tensorlane.torch.nccl as nccl
nccl_stub.install()
nccl_stub.start(4)
nccl.enable(sys.argv[1]); nccl.enable(sys.argv[1])
print(json.dumps([[group.name, group.traffic_class, group.why] for group in nccl.report().groups]))
""", policy)
    assert found == [["default_pg", None, "it was made before enable(), or in a way that is not wrapped"]]
    assert errors.count("tensorlane: warning: default_pg and all other groups that were made before enable() keep the class that they have") == 1


def test_a_second_policy_keeps_what_is_known_of_groups(policy, separate):
    found, errors = program(GIVEN + """
new("mesh_tp", timeout=nccl_stub.Options()._timeout)
nccl.enable(sys.argv[2])
first = [[group.name, group.traffic_class, group.rule != ""] for group in nccl.report().groups]
nccl.disable()
print(json.dumps([first, [group.name for group in nccl.report().groups], nccl.report().notes]))
""", policy, separate)
    assert found == [[["default_pg", MIXED, True], ["mesh_tp", URGENT, True]], ["default_pg", "mesh_tp"], ["classes of NCCL are not enabled: disable() was called"]] and errors == ""


def test_the_report_of_what_is_not_enabled(tmp_path):
    found, _ = started(HEAD + """
nccl_stub.install()
nccl_stub.start(4)
import tensorlane.torch.nccl as nccl
print(json.dumps(str(nccl.report())))
""", {**CLEAN, "TENSORLANE_NCCL_POLICY": str(tmp_path / "nothing.json")})
    assert "classes of NCCL are not enabled: the policy cannot be read" in found and "default_pg" in found
    assert "enable() was not called" in started(HEAD + "import tensorlane.torch.nccl as nccl\nprint(json.dumps(str(nccl.report())))", CLEAN)[0]


@pytest.mark.parametrize("policy", [None, 5, b"", "", {}, "a\0b"])
def test_what_is_no_policy_at_all(policy):
    import tensorlane
    from tensorlane.torch.nccl._policy import Policy

    with pytest.raises(tensorlane.InvalidArgumentError, match="no policy|neither the JSON of a policy"):
        Policy.load(policy)


# ---- what PyTorch lacks ----


@pytest.mark.parametrize("lack, words", [
    ("nccl_stub.install(nccl_stub.OldOptions)", "has no traffic class among a group's options"),
    ("nccl_stub.install(); c10d._new_process_group_helper = lambda *args, **kwargs: 1 / 0; c10d._new_process_group_helper = (lambda helper: lambda *args, **kwargs: helper(*args, **kwargs))(helper)", "makes its groups in another way than is known here"),
])
def test_a_release_whose_insides_differ_gets_one_warning_and_stock_behaviour(policy, lack, words):
    found, errors = program("""
import torch.distributed.distributed_c10d as c10d
helper = c10d._new_process_group_helper
import tensorlane.torch.nccl as nccl
""" + lack + """
before = c10d._new_process_group_helper
nccl.enable(sys.argv[1]); nccl.enable(sys.argv[1])
nccl_stub.start(4)
print(json.dumps([c10d._new_process_group_helper is before, nccl.report().notes]))
""", policy)
    assert found[0] and len(found[1]) == 1 and words in found[1][0]
    assert errors.count("tensorlane: warning: groups of NCCL get no classes") == 1 and words in errors


def test_what_goes_wrong_in_the_hook_costs_a_class_and_not_the_program(policy):
    found, errors = program(GIVEN.replace('warnings.simplefilter("error")', "") + """
from tensorlane.torch.nccl import _policy
def decide(self, group):
    raise KeyError("planted")
_policy.Policy.decide = decide
for _ in range(3):
    options, _ = new("mesh_tp")
print(json.dumps(options.config.traffic_class))
""", policy)
    assert found == -(2**31) and errors.count("a group of NCCL gets no class: KeyError: 'planted'") == 1


# ---- the environment ----


def test_what_beats_the_classes_is_said_at_enable_and_of_each_group(policy):
    text = GIVEN + 'print(json.dumps([[str(each) for each in nccl.report().findings], nccl.report().groups[0].effect, str(nccl.report())]))'
    found, errors = program(text, policy, NCCL_IB_TC="106")
    assert len(found[0]) == 1 and found[0][0].startswith("error N1 NCCL_IB_TC in the environment: it beats the class of every communicator")
    assert found[1].startswith("not in force: NCCL_IB_TC in the environment: it beats") and "traffic class 106 (DSCP 26" in found[1]
    assert found[0][0] in found[2] and errors.count("tensorlane: NCCL: error N1") == 1
    found, errors = program(text, policy, NCCL_IB_TC="106", LOCAL_RANK="1")
    assert len(found[0]) == 1 and "N1" not in errors
    found, errors = program(text, policy)
    assert found[0] == [] and errors == ""


def test_what_was_not_checked_is_not_claimed(policy):
    found, errors = program("def broken(policy): raise OSError('planted')\n_groups.preflight = broken\n" + GIVEN + "print(json.dumps([nccl.report().groups[0].effect, nccl.report().notes]))", policy)
    assert found == ["it asks for this; whether NCCL sends it so was not checked", ["the preflight did not run: planted"]] and errors == "tensorlane: warning: the preflight did not run: planted\n"


def test_a_variable_that_makes_children_share_with_their_parent(policy):
    text = GIVEN.replace("start(4)", "start(4, bound=True)").replace('warnings.simplefilter("error")', "") + 'new("mesh_tp")\nprint(json.dumps([group.effect for group in nccl.report().groups]))'
    found, _ = program(text, policy, NCCL_COMM_SPLIT_SHARE_RESOURCES="1")
    assert found[0].startswith("NCCL sends it with traffic class 142") and found[1].startswith("dropped: NCCL_COMM_SPLIT_SHARE_RESOURCES is 1, so that this group keeps the parent's class")
    share = text.replace("nccl_stub.start(4, bound=True)", "options = nccl_stub.Options()\noptions.config.split_share = 1\nnccl_stub.start(4, bound=True, pg_options=options)")
    assert program(share, policy)[0][1].startswith("dropped: the parent's split_share is 1")
    assert program(share, policy, NCCL_COMM_SPLIT_SHARE_RESOURCES="0")[0][1].startswith("NCCL sends it with traffic class 174")


@pytest.mark.skipif(os.path.isdir("/sys/class/infiniband") and len(os.listdir("/sys/class/infiniband")) > 0, reason="this host has an RDMA device")
def test_a_host_without_rdma_device(policy):
    found, errors = program("_groups.preflight = _preflight.preflight\n" + GIVEN + "print(json.dumps(nccl.report().groups[0].effect))", policy)
    assert found == "not in force: /sys/class/infiniband: this host has no RDMA device: NCCL uses NET/Socket here, which sets no class on its connections" and errors == ""


def test_variables_are_overridden_where_the_plugin_has_a_policy(policy, tmp_path):
    text = GIVEN + "print(json.dumps([finding.rule for finding in nccl.report().findings]))"
    plugin = tmp_path / "libnccl-env-tensorlane.so"
    plugin.write_bytes(b"\x7fELF")
    variables = {"NCCL_IB_TC": "106", "NCCL_ENV_PLUGIN": str(plugin)}
    assert program(text, policy, **variables, TENSORLANE_NCCL_POLICY=str(policy))[0] == []
    assert program(text, policy, **variables, TENSORLANE_NCCL_POLICY=str(policy.with_suffix(".yaml")))[0] == ["N1"]
    assert program(text, policy, **variables)[0] == ["N1"]  # there is no policy that it could take
    of_host = "_preflight._HOSTS_POLICY = sys.argv[1]\n" + text
    for named in ({}, {"TENSORLANE_NCCL_POLICY": ""}, {"TENSORLANE_NCCL_POLICY": "/nowhere"}):
        assert program(of_host, policy, **variables, **named)[0] == []


def test_enabled_by_the_environment_alone(policy):
    text = HEAD + "nccl_stub.install()\nnccl_stub.start(4)\nprint(json.dumps(['tensorlane.torch.nccl' in sys.modules, nccl_stub.classes()]))"
    if "tensorlane_autoload" not in started(HEAD + "print(json.dumps([*sys.modules]))", CLEAN)[0]:
        pytest.skip("tensorlane is not installed here, so that PyTorch finds no entry point")
    assert started(text, {**CLEAN, "TENSORLANE_NCCL_POLICY": str(policy)})[0] == [True, {"default_pg": MIXED}]
    found, errors = started(text, {**CLEAN, "TENSORLANE_NCCL_POLICY": "/nowhere/policy.json"})
    assert found == [True, {"default_pg": -(2**31)}]
    assert errors.count("tensorlane: warning: groups of NCCL get no classes: the policy cannot be read") == 1 and "/nowhere/policy.json" in errors


# ---- policies that are none ----

BROKEN = {
    "empty": ("", "neither the JSON of a policy nor a fabric file"),
    "long": (" " * ((4 << 20) + 1), "the policy is longer than 4 MiB"),
    "list": ("[1, 2]", "neither the JSON of a policy nor a fabric file"),
    "deep": ("[" * 100000, "neither the JSON of a policy nor a fabric file"),
    "version": (lambda policy: policy.update(version=2), "version 2 for 'nccl', expected 1"),
    "stack": (lambda policy: policy.update({"for": "ucx"}), "for 'ucx', expected"),
    "class": (lambda policy: policy["rules"][0].update({"class": "fast"}), "a rule has the class 'fast'"),
    "number": (lambda policy: policy["classes"][0].update(traffic_class=300), "traffic class 300 of 'urgent', expected 0 to 255"),
    "text": (lambda policy: policy["classes"][0].update(traffic_class="174"), "traffic class '174' of 'urgent'"),
    "level": (lambda policy: policy["classes"][0].update(service_level=16), "service level 16 of 'urgent', expected 0 to 15"),
    "flag": (lambda policy: policy.update(separate_reduce_scatter=1), "expected true or false in place of 1"),
    "missing": (lambda policy: policy.pop("rules"), "KeyError: 'rules'"),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_policies_that_are_none(policy, tmp_path, monkeypatch, kind):
    import tensorlane
    from tensorlane.torch.nccl._policy import Policy

    monkeypatch.setenv("PATH", f"{BUILD / 'bin'}:{os.environ['PATH']}")
    change, words = BROKEN[kind]
    path = tmp_path / "policy.json"
    if callable(change):
        text = json.loads(policy.read_text())
        change(text)
        change = json.dumps(text)
    path.write_text(change)
    with pytest.raises(tensorlane.InvalidArgumentError, match=re.escape(words)) as caught:
        Policy.load(path)
    assert str(path) in str(caught.value)


def test_the_highest_numbers_of_a_policy(policy):
    from tensorlane.torch.nccl._policy import Policy

    text = json.loads(policy.read_text())
    text["classes"][0].update(traffic_class=255, service_level=15)
    assert Policy.load(text).decide("mesh_tp").chosen.traffic_class == 255


def test_a_policy_that_is_no_file_does_not_make_the_program_wait(tmp_path):
    import tensorlane
    from tensorlane.torch.nccl._policy import Policy

    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path, tmp_path / "nothing", "/dev/zero"):
        with pytest.raises(tensorlane.InvalidArgumentError, match="the policy cannot be read"):
            Policy.load(path)


def test_a_fabric_file_is_read_by_the_command(tmp_path, monkeypatch):
    import tensorlane
    from tensorlane.torch.nccl._policy import Policy

    fabric = tmp_path / "fabric.yaml"
    fabric.write_text(FABRIC % "false")
    monkeypatch.setenv("PATH", f"{BUILD / 'bin'}:{os.environ['PATH']}")
    assert Policy.load(fabric).decide("mesh_tp").chosen.traffic_class == URGENT
    fabric.write_text(FABRIC % "perhaps")
    with pytest.raises(tensorlane.InvalidArgumentError, match="separate_reduce_scatter"):
        Policy.load(fabric)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(tensorlane.InvalidArgumentError, match="no command `tensorlane`"):
        Policy.load(fabric)


# ---- the C interface ----


def test_the_subject_of_the_preflight_is_what_a_compiler_reads(tmp_path):
    from tensorlane.torch.nccl._preflight import Subject

    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        pytest.skip("no C compiler")
    fields = [name for name, _ in Subject._fields_]
    prints = "".join(f'printf("%zu ", offsetof(tl_nccl_subject_t, {name}));' for name in fields)
    (tmp_path / "layout.c").write_text(f'#include <stdio.h>\n#include <tensorlane/nccl.h>\nint main(void) {{ {prints} printf("%zu", sizeof(tl_nccl_subject_t)); return 0; }}\n')
    subprocess.run([compiler, f"-I{ROOT / 'client-lib' / 'include'}", tmp_path / "layout.c", "-o", tmp_path / "layout"], check=True)
    import ctypes

    seen = subprocess.run([tmp_path / "layout"], capture_output=True, text=True, check=True).stdout.split()
    assert [*map(int, seen)] == [*(getattr(Subject, name).offset for name in fields), ctypes.sizeof(Subject)]
