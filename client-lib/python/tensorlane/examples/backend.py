"""Trains with PyTorch's DistributedDataParallel, or FSDP2, on scikit-learn's handwritten digits, with tensorlane as the
backend of torch.distributed: one word of the program.

    tensorlane run -n 2 -- python -m tensorlane.examples.backend [--fsdp]

--gloo takes Gloo in its place: two ranks come to the same numbers.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tensorlane.examples.digits import build_model, load_digits

try:
    from torch.distributed.fsdp import fully_shard
except ImportError:  # where it was before it was public
    from torch.distributed._composable.fsdp import fully_shard


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gloo", action="store_true", help="without tensorlane")
    parser.add_argument("--fsdp", action="store_true", help="FSDP2 in place of DistributedDataParallel")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="images per rank and iteration")
    args = parser.parse_args()
    torch.distributed.init_process_group("gloo" if args.gloo else "tensorlane")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = build_model(width=256, seed=1)
    if args.fsdp:
        mesh = torch.distributed.init_device_mesh("cpu", (world,))
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    images, labels, test_images, test_labels = load_digits()
    order = torch.Generator().manual_seed(1)
    for _ in range(args.iterations):
        chosen = torch.randint(len(labels), (args.batch * world,), generator=order)[rank::world]
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"rank {rank}: loss {loss.item():.6f}, accuracy {right:.3f}", flush=True)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
