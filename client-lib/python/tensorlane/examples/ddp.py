"""Trains with PyTorch's DistributedDataParallel, whose gradients tensorlane averages, on scikit-learn's handwritten
digits.

    tensorlane run -n 2 -- python -m tensorlane.examples.ddp

--gloo leaves the hook out: then the process group averages them, and two ranks come to the same numbers.
"""

import argparse
import sys

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import tensorlane.torch as tl
from tensorlane.examples.digits import build_model, load_digits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gloo", action="store_true", help="without tensorlane")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="images per rank and iteration")
    args = parser.parse_args()
    torch.distributed.init_process_group("gloo")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = DistributedDataParallel(build_model(width=256, seed=1))
    if not args.gloo:
        tl.init()
        model.register_comm_hook(None, tl.ddp_comm_hook)
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
        right = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
    print(f"rank {rank}: loss {loss.item():.6f}, accuracy {right:.3f}", flush=True)
    tl.shutdown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
