"""The options of a PyTorch that is compiled with NCCL, in place of the stub's; the constructor, which needs a GPU, stays a stub. Run with such a PyTorch by
`tests/python/with_torch VERSION nccl`; skipped by name with one for CPUs."""

import pytest
import torch.distributed.distributed_c10d as c10d
from test_groups import BULK, FABRIC, IS_OLD, MIXED, SEPARATE, URGENT, has_separation, program, render

pytestmark = pytest.mark.skipif(not hasattr(c10d, "ProcessGroupNCCL"), reason="this PyTorch is compiled without NCCL")
new = pytest.mark.skipif(IS_OLD, reason="this PyTorch passes no traffic class on")
REAL = """
import torch.distributed.distributed_c10d as c10d
real = c10d.ProcessGroupNCCL.Options
nccl_stub.install(real)
import tensorlane.torch.nccl as nccl
nccl.enable(sys.argv[1])
"""


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return render(tmp_path_factory.mktemp("policy"), FABRIC % "true")


@new
def test_groups(policy):
    if not has_separation():
        pytest.skip("this PyTorch has no FSDPModule.set_separate_reduce_scatter_group()")
    found, _ = program(REAL + """
nccl_stub.start(8)
nccl_groups.mesh_3d()
print(json.dumps([nccl_stub.classes(), all(type(record.options) is real for record in nccl_stub.made), nccl.report().notes]))
""", policy)
    assert {name: found[0].get(name) for name in SEPARATE["mesh_3d"]} == SEPARATE["mesh_3d"] and found[1:] == [True, []]


@new
def test_groups_that_are_split(policy):
    found, _ = program(REAL + """
nccl_stub.start(8, bound=True)
nccl_groups.hsdp()
print(json.dumps([nccl_stub.classes(), [record.how for record in nccl_stub.made].count("split")]))
""", policy)
    assert found[0]["default_pg"] == MIXED and found[0]["mesh_dp_replicate"] == BULK and found[1] == 2


@new
def test_options_of_the_program(policy):
    found, _ = program(REAL + """
nccl_stub.start(4)
mine = real(is_high_priority_stream=True)
mine.config.min_ctas, mine.config.cga_cluster_size, mine._timeout = 4, 2, datetime.timedelta(seconds=77)
warnings.simplefilter("error")
dist.new_group([0, 1], pg_options=mine, group_desc="mesh_tp", timeout=mine._timeout)
seen = nccl_stub.made[-1].options
print(json.dumps([seen.config.traffic_class, mine.config.traffic_class, seen.config.min_ctas, seen.config.cga_cluster_size, seen.is_high_priority_stream, seen._timeout.seconds]))
""", policy)
    assert found == [URGENT, nccl_unset(), 4, 2, True, 77]


@pytest.mark.skipif(not IS_OLD, reason="this PyTorch passes traffic classes on")
def test_a_release_without_classes_gets_one_warning_and_stock_behaviour(policy):
    found, errors = program(REAL.replace("nccl.enable(sys.argv[1])", "helper = c10d._new_process_group_helper\nnccl.enable(sys.argv[1])") + """
nccl_stub.start(4)
dist.new_group([0, 1], group_desc="mesh_tp")
print(json.dumps([c10d._new_process_group_helper is helper, len(nccl_stub.made), nccl.report().notes]))
""", policy)
    assert found[:2] == [True, 2] and "has no traffic class among a group's options" in found[2][-1]
    assert errors.count("tensorlane: warning: groups of NCCL get no classes") == 1


def nccl_unset():
    return c10d.ProcessGroupNCCL.Options().config.traffic_class
