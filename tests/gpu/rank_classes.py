"""One of two ranks of a job that stays on NCCL: groups get the classes of a policy, sum, and NCCL's own log says with which class each communicator was made."""

import json
import os
import pathlib
import re

import torch
import torch.distributed as dist

import devices
from rank_peers import set_up_nccl

GROUPS = {"mesh_tp": "urgent", "fsdp_reduce_scatter": "bulk"}


def main():
    args = devices.arguments(__doc__, nccl={"metavar": "WAY", "required": True}, policy={"required": True}, log={"required": True}, store={"required": True})
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    set_up_nccl(args.nccl)
    log = pathlib.Path(f"{args.log}.{rank}")
    os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_SUBSYS="INIT,ENV,NET", NCCL_DEBUG_FILE=str(log))
    import tensorlane.torch.nccl as nccl

    nccl.enable(args.policy)
    device = devices.open_device(args.fake)
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", init_method=f"file://{args.store}", rank=rank, world_size=world)
    for name in GROUPS:
        group = dist.new_group(list(range(world)), group_desc=name)
        x = torch.full((1000,), rank + 1.0, device=device)
        dist.all_reduce(x, group=group)
        devices.synchronize(device)
        assert float(x.min()) == float(x.max()) == world * (world + 1) / 2, f"the sum of {name} is wrong"
    report = nccl.report()
    classes = {each["name"]: each["traffic_class"] for each in json.loads(pathlib.Path(args.policy).read_text())["classes"]}
    asked = {group.name: group.traffic_class for group in report.groups}
    assert {name: asked[name] for name in GROUPS} == {name: classes[cls] for name, cls in GROUPS.items()}, asked
    said = [int(value) for value in re.findall(r"[Tt]raffic ?[Cc]lass set to (\d+)", log.read_text(errors="replace"))]
    assert set(said) >= {classes[cls] for cls in GROUPS.values()}, f"NCCL says {said}, the report says {asked}"
    # Over sockets NCCL sets no class, and the report must say so of each group.
    assert all(group.effect.startswith("not in force: NCCL_NET in the environment: NET/Socket") for group in report.groups), str(report)
    devices.write(args.out, rank, {"nccl": torch.cuda.nccl.version(), "torch": torch.__version__, "asked": asked, "nccl_said": said, "report": str(report)})
    os._exit(0)  # the groups need no goodbye


if __name__ == "__main__":
    main()
