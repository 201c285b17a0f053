"""A receive from rank 0 takes what rank 0 has sent, and leaves what another rank sent before. A script of three ranks, run by backend/test_message_sources.py."""

import tensorlane.torch  # noqa: F401
import torch
import torch.distributed as dist

dist.init_process_group("tensorlane")
rank = dist.get_rank()
if rank == 2:
    dist.isend(torch.tensor([2.0]), 1)
dist.barrier()
if rank == 0:
    dist.send(torch.tensor([0.0]), 1)
elif rank == 1:
    for source in (0, 2):
        got = torch.full((1,), -1.0)
        dist.recv(got, source)
        assert got.item() == source, (source, got)
    print("both came from where they were asked for", flush=True)
dist.barrier()
dist.destroy_process_group()
