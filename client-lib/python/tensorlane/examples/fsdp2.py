"""Trains with PyTorch's FSDP2, which shares out parameters, gradients and the optimizer's state over the ranks, with
tensorlane as the backend of torch.distributed.

    tensorlane run -n 2 -- python -m tensorlane.examples.fsdp2

--gloo takes Gloo in its place: two ranks come to the same numbers.
"""

import argparse
import sys

import torch

from tensorlane.examples.digits import Digits, build_model

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # where it was before it was public
    from torch.distributed._composable.fsdp import fully_shard


def build_sharded_model(world, width=256):
    """The model of all examples. Each layer's parameters are gathered when the layer is next."""
    model = build_model(width, seed=1)
    mesh = torch.distributed.init_device_mesh("cpu", (world,))
    for layer in model:
        if list(layer.parameters()):
            fully_shard(layer, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gloo", action="store_true", help="without tensorlane")
    parser.add_argument("--iterations", type=int, default=100)
    args = parser.parse_args()
    torch.distributed.init_process_group("gloo" if args.gloo else "tensorlane")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = build_sharded_model(world)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    digits = Digits(rank, world)
    loss = digits.train(model, optimizer, args.iterations)
    kept = sum(parameter.to_local().numel() for parameter in model.parameters())
    print(f"rank {rank}: {kept} parameters here, loss {loss:.6f}, accuracy {digits.accuracy(model):.3f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
