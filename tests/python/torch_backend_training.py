"""Training on the backend, beside the same over Gloo. A script of any number of ranks, run by backend/test_backend.py:

    torch_backend_training.py ddp        DistributedDataParallel
    torch_backend_training.py fsdp       FSDP2 (fully_shard)
    torch_backend_training.py dtensor    DTensor: two layers, sharded by columns and by rows

The losses of 50 steps are those over Gloo within 1e-6, and those of a second run bit for bit.
"""

import os
import sys

import registered  # noqa: F401
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # where it was before it was public
    from torch.distributed._composable.fsdp import fully_shard

STEPS = 50


def build():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))


def wrap(what, model):
    if what == "ddp":
        return DistributedDataParallel(model, bucket_cap_mb=0.01)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    if what == "fsdp":
        for layer in model:
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)
    return parallelize_module(model, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})


def losses(what):
    model = wrap(what, build())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    found = []
    for step in range(STEPS):
        # Layers that are cut over the ranks see the same batch on all of them.
        generator = torch.Generator().manual_seed(step * 100 + (0 if what == "dtensor" else dist.get_rank()))
        x = torch.randn(8, 16, generator=generator)
        loss = (model(x) - x[:, :4].cos()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        if what != "dtensor":  # torch does not clip where only some parameters are cut
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        found.append(loss.detach().clone())
    return torch.stack(found)


def over(store, backend, what):
    """All groups have one store: rank 0 would end that of the last group while the others already ask it for the next one's."""
    own = dist.PrefixStore(backend, store)
    dist.init_process_group(backend, store=own, rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    try:
        return losses(what)
    finally:
        dist.barrier()
        dist.destroy_process_group()


def main():
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    what = sys.argv[1]
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=os.environ["RANK"] == "0")
    ours, again, gloos = (over(store, backend, what) for backend in ("tensorlane", "cpu:tensorlane", "gloo"))
    assert torch.equal(ours, again), (ours - again).abs().max()
    assert torch.allclose(ours, gloos, rtol=0, atol=1e-6), (ours - gloos).abs().max()
    assert ours[-1] < 0.8 * ours[0], ours
    print(f"{what}: losses as over Gloo, largest difference {(ours - gloos).abs().max():.2g}", flush=True)


if __name__ == "__main__":
    main()
