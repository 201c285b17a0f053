r"""Trains with FSDP2, writes a checkpoint every few iterations by torch.distributed.checkpoint, each rank its share,
and goes on from the last one when torchrun starts the ranks again.

    tensorlane run -n 1 -- torchrun --standalone --nproc-per-node 4 --max-restarts 3 \
        -m tensorlane.examples.checkpoint --folder FOLDER

Kill a rank meanwhile: the others get an error that names it, torchrun starts all four again, and they come to the
numbers of an undisturbed run, bit for bit. Started once more with as many --iterations, it has nothing left to do.
"""

import argparse
import hashlib
import os
import pathlib
import sys

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_state_dict,
    set_state_dict,
)

from tensorlane.examples.digits import Digits
from tensorlane.examples.fsdp2 import build_sharded_model


class Checkpoints:
    """One folder for each, named by the iterations done."""

    def __init__(self, folder, model, optimizer):
        self.folder, self.model, self.optimizer = pathlib.Path(folder), model, optimizer

    def save(self, done):
        model, optimizer = get_state_dict(self.model, self.optimizer)
        dcp.save({"model": model, "optimizer": optimizer}, checkpoint_id=self.folder / str(done))

    def load_last(self):
        """The iterations done."""
        # Rank 0 looks, so that all take the same one. It is whole once it has .metadata, which is written last.
        done = [max((int(path.parent.name) for path in self.folder.glob("*/.metadata")), default=0)]
        torch.distributed.broadcast_object_list(done, src=0)
        if done[0] > 0:
            model, optimizer = get_state_dict(self.model, self.optimizer)
            dcp.load({"model": model, "optimizer": optimizer}, checkpoint_id=self.folder / str(done[0]))
            set_state_dict(self.model, self.optimizer, model_state_dict=model, optim_state_dict=optimizer)
        return done[0]


def digest(model):
    """Of the bits of all parameters. Collective."""
    whole = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    return hashlib.sha256(b"".join(value.numpy().tobytes() for value in whole.values())).hexdigest()[:16]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True, help="that all ranks see; for the checkpoints")
    parser.add_argument("--every", type=int, default=5, help="iterations from one checkpoint to the next")
    parser.add_argument("--iterations", type=int, default=40)
    args = parser.parse_args()
    torch.distributed.init_process_group("tensorlane")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = build_sharded_model(world, width=64)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    checkpoints, digits = Checkpoints(args.folder, model, optimizer), Digits(rank, world)
    first, loss = checkpoints.load_last(), float("nan")
    print(f"rank {rank} of {world}: process {os.getpid()} goes on after {first} iterations", flush=True)
    for number in range(first, args.iterations):
        loss = digits.step(number, model, optimizer)
        if (number + 1) % args.every == 0:
            checkpoints.save(number + 1)
    print(f"rank {rank}: {args.iterations} iterations, loss {loss:.6f}, parameters {digest(model)}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
