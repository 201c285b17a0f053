"""Makes the groups that training programs make, on a stub of NCCL, and prints which class each asks for.
main([POLICY, CASE...]), POLICY "off" for none: {case: {"classes": {group: traffic class}, "report": ..., "how": [...]}}"""

import json

import nccl_stub
import torch
import torch.distributed as distributed
from torch.distributed.device_mesh import init_device_mesh

WORLD = 8


def model():
    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))


def step(module):
    module(torch.ones(2, 8)).sum().backward()


def sharded(mesh):
    from torch.distributed.fsdp import fully_shard

    module = model()
    for layer in module:
        fully_shard(layer, mesh=mesh)
    fully_shard(module, mesh=mesh)
    step(module)


def ddp():
    torch.nn.parallel.DistributedDataParallel(model())(torch.ones(2, 8))  # not backward: the fake groups sum nothing


def fsdp2():
    sharded(None)


def fsdp2_named():
    sharded(init_device_mesh("cpu", (2, 4), mesh_dim_names=("pp", "fsdp"))["fsdp"])


def hsdp():
    sharded(init_device_mesh("cpu", (2, 4), mesh_dim_names=("dp_replicate", "dp_shard")))


def mesh_3d():
    mesh = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    mesh["dp", "tp"]._flatten("dp_tp")
    sharded(mesh["dp"])


def megatron():
    from megatron.core import parallel_state

    torch.cuda.is_available = lambda: False
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=2, pipeline_model_parallel_size=2, expert_model_parallel_size=2, create_gloo_process_groups=False)


CASES = {each.__name__: each for each in (ddp, fsdp2, fsdp2_named, hsdp, mesh_3d, megatron)}


def main(arguments):
    policy, *cases = arguments
    nccl_stub.install()
    if policy != "off":
        import tensorlane.torch.nccl as nccl

        nccl.enable(policy)
    printed = {}
    for case in cases:
        name, _, bound = case.partition(":")
        nccl_stub.made.clear()
        nccl_stub.start(WORLD, bound=bound == "bound")
        CASES[name]()
        printed[case] = {"classes": nccl_stub.classes(), "how": [record.how for record in nccl_stub.made]}
        if policy != "off":
            printed[case]["report"] = nccl.report().as_dict()
        distributed.destroy_process_group()
    print("\n" + json.dumps(printed))

