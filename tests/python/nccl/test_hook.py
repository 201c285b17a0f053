"""What seldom happens to the hook of tensorlane.torch.nccl: parents and names that a program chose, groups that are none of its business, a second policy, and
a PyTorch or a preflight that fails."""

import pytest
from test_groups import BULK, FABRIC, GIVEN, IS_OLD, MIXED, SHARED, URGENT, has_separation, policy, program, render, separate  # noqa: F401 (fixtures)

pytestmark = pytest.mark.skipif(IS_OLD, reason="this PyTorch passes no traffic class on: see test_real_options.py")
FSDP = "import tensorlane.torch.nccl as nccl\nfrom tensorlane.torch.nccl import _fsdp\nnccl_stub.install()\n"


def test_a_class_that_the_program_chose_for_a_parent_is_not_that_of_its_children(policy):
    found, _ = program(GIVEN.replace('warnings.simplefilter("error")', "").replace("nccl_stub.start(4)", """
options = nccl_stub.Options()
options.config.traffic_class = 96
nccl_stub.start(4, bound=True, pg_options=options)
""") + """
dist.split_group(split_ranks=[[0, 1], [2, 3]], group_desc="mesh_tp")
print(json.dumps(nccl_stub.classes()))
""", policy)
    assert found == {"default_pg": 96, "mesh_tp": URGENT}


def test_the_parent_that_is_named_is_the_one_that_is_split(policy):
    found, _ = program(GIVEN.replace("start(4)", "start(4, bound=True)") + """
warnings.simplefilter("default")
options = nccl_stub.Options()
options.config.min_ctas = 7
parent = dist.new_group([0, 1, 2], pg_options=options, timeout=options._timeout)
nccl_stub.made[-1].options.split_from = None  # the stub of a backend cannot be copied
dist.split_group(parent_pg=parent, split_ranks=[[0, 1], [2]], group_desc="mesh_tp")
print(json.dumps([nccl_stub.made[-1].options.config.min_ctas, nccl_stub.made[-1].traffic_class]))
""", policy)
    assert found == [7, URGENT]


def test_groups_that_the_program_gave_no_name(tmp_path):
    """Rules see the name that PyTorch gives them."""
    policy = render(tmp_path, FABRIC % "false" + "  groups: [{group: undefined, class: urgent}, {group: 'default_pg:split:*', class: bulk}, {group: '*', class: mixed}]\n")
    found, _ = program(GIVEN.replace("start(4)", "start(4, bound=True)") + """
dist.new_group([0, 1, 2])
made = nccl_stub.made[-1].traffic_class
dist.split_group(split_ranks=[[0, 1], [2, 3]])
print(json.dumps([made, nccl_stub.made[-1].traffic_class, [group.name for group in nccl.report().groups]]))
""", policy)
    assert found[:2] == [URGENT, BULK] and found[2][:2] == ["default_pg", "undefined"] and found[2][2].startswith("default_pg:split:")


def test_groups_that_have_nothing_of_nccl_or_of_this_rank(policy):
    """They are not reported, and nothing is said of them."""
    found, errors = program(GIVEN + """
fake = dist.new_group([0, 1], backend="fake", group_desc="mesh_tp")
dist.new_group([1, 2], group_desc="mesh_tp")
try:
    dist.split_group(parent_pg=fake, split_ranks=[[0], [1]], group_desc="mesh_tp")
except Exception:
    pass  # PyTorch's own word on it
print(json.dumps([group.name for group in nccl.report().groups]))
""", policy)
    assert found == ["default_pg"] and errors == ""


def test_torchcomms_takes_no_options(policy):
    found, _ = program(GIVEN + """
from tensorlane.torch.nccl import _hook
plan_group, seen = _hook.Hook.plan_group, []
def plan(self, *arguments):
    seen.append(plan_group(self, *arguments))
    return seen[-1]
_hook.Hook.plan_group = plan
c10d, backends = dist.distributed_c10d, _hook._backends
def from_here_on(backend):
    c10d._use_torchcomms_enabled = lambda: True
    return backends(backend)
_hook._backends = from_here_on
try:
    new("mesh_tp")
except Exception:
    pass  # it is not installed
print(json.dumps([hasattr(c10d, "_pg_options_to_hints"), seen[0].dropped, seen[0].traffic_class]))
""", policy)
    assert found in ([False, "not set, because torchcomms makes the communicator, without these options", None], [True, "", URGENT])


def test_what_others_have_wrapped_since_stays(policy):
    found, _ = program("""
import torch.distributed.distributed_c10d as c10d
import tensorlane.torch.nccl as nccl
nccl_stub.install()
nccl.enable(sys.argv[1])
ours = c10d.split_group
theirs = c10d.split_group = lambda *args, **kwargs: ours(*args, **kwargs)
nccl.disable()
print(json.dumps([c10d.split_group is theirs, dist.split_group is ours]))
""", policy)
    assert found == [True, False]


def test_a_second_policy_replaces_the_first(policy, tmp_path):
    other = render(tmp_path, FABRIC % "false" + "  groups: [{group: '*', class: bulk}]\n")
    found, _ = program(GIVEN + """
nccl.enable(sys.argv[2])
print(json.dumps([new("mesh_tp")[0].config.traffic_class, nccl.report().policy, str(nccl.report()).splitlines()[0]]))
""", policy, other)
    assert found == [BULK, str(other), f"classes of NCCL's groups, by {other}"]


def test_reduce_scatters_that_this_pytorch_cannot_separate(separate):
    found, _ = program(FSDP + """
_fsdp.lacking = lambda: "planted"
nccl.enable(sys.argv[1])
nccl_stub.start(8)
nccl_groups.mesh_3d()
print(json.dumps([nccl_stub.classes(), nccl.report().notes]))
""", separate)
    assert {name: found[0].get(name) for name in SHARED["mesh_3d"]} == SHARED["mesh_3d"]
    assert found[1] == ["separate_reduce_scatter is not enforceable here: planted"]


@pytest.mark.parametrize("fails", [False, True])
def test_reduce_scatters_are_separated_once_at_the_root(separate, fails):
    if not has_separation():
        pytest.skip("this PyTorch has no FSDPModule.set_separate_reduce_scatter_group()")
    found, _ = program(FSDP + """
from torch.distributed.fsdp import FSDPModule
method, called = FSDPModule.set_separate_reduce_scatter_group, []
def separate(self, *arguments):
    called.append(type(self).__name__)
    if sys.argv[2] == "True":
        raise RuntimeError("planted")
    return method(self, *arguments)
FSDPModule.set_separate_reduce_scatter_group = separate
step = nccl_groups.step
nccl_groups.step = lambda module: (step(module), step(module))
nccl.enable(sys.argv[1])
nccl_stub.start(8)
nccl_groups.fsdp2()
print(json.dumps([called, nccl.report().notes]))
""", separate, fails)
    assert found[0] == ["FSDPSequential"]
    assert found[1][0].startswith("the all-gathers of FSDPSequential stay in the group default_pg, class mixed")
    assert found[1][1:] == (["the reduce-scatters of FSDPSequential share a group with its all-gathers: planted"] if fails else [])


def test_a_preflight_that_fails_is_noted(policy):
    found, _ = program("""
def preflight(policy):
    raise OSError("planted")
_groups.preflight = preflight
""" + GIVEN + "print(json.dumps([nccl_stub.classes(), nccl.report().notes]))", policy)
    assert found == [{"default_pg": MIXED}, ["the preflight did not run: planted"]]


def test_findings_are_of_this_policy_and_the_worst_is_first(policy, tmp_path):
    text = GIVEN + "print(json.dumps([[[each.rule, each.fix] for each in nccl.report().findings], nccl.report().groups[0].effect]))"
    found, _ = program(text, policy, NCCL_IB_SL="", NCCL_COMM_SPLIT_SHARE_RESOURCES="1")
    assert found[0] == [["N3", "0, or take it out"], ["N2", "NCCL_IB_SL=4"]]
    assert found[1].startswith("NCCL sends it with traffic class 142")  # N3 is of groups that are split
    assert program(text, policy, NCCL_IB_FIFO_TC="206")[0][0] == []  # control's
    (tmp_path / ".nccl.conf").write_text("NCCL_IB_TC=106\n")
    for version, ruled in (((2, 28, 9), []), ((2, 32, 3), [["N1", "take it out: classes come from the policy"]])):  # the older one does not ask this variable
        assert program(f"torch.cuda.nccl.version = lambda: {version}\n" + text, policy, HOME=str(tmp_path))[0][0] == ruled
    found, _ = program("torch.cuda.nccl.version = lambda: (2, 26, 5)\n" + GIVEN + "print(json.dumps([each.message for each in nccl.report().findings]))", policy)
    assert found[0].startswith("NCCL 2.26.5 knows no traffic class")
