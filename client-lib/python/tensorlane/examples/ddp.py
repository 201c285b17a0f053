"""Trains with PyTorch's DistributedDataParallel on scikit-learn's handwritten digits, with tensorlane as the backend of
torch.distributed: one word of the program.

    tensorlane run -n 2 -- python -m tensorlane.examples.ddp
    tensorlane run -n 2 -- python -m tensorlane.examples.ddp --hook

--hook leaves the process group to Gloo, and lets tensorlane average the gradients by DDP's communication hook. --gloo
takes Gloo for everything. Two ranks come to the same numbers in all three ways.
"""

import argparse
import sys

import torch
from torch.nn.parallel import DistributedDataParallel

import tensorlane.torch as tl
from tensorlane.examples.digits import Digits, build_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hook", action="store_true", help="tensorlane in the communication hook only")
    parser.add_argument("--gloo", action="store_true", help="without tensorlane")
    parser.add_argument("--iterations", type=int, default=100)
    args = parser.parse_args()
    torch.distributed.init_process_group("gloo" if args.gloo or args.hook else "tensorlane")
    rank, world = torch.distributed.get_rank(), torch.distributed.get_world_size()
    model = DistributedDataParallel(build_model(width=256, seed=1))
    if args.hook:
        tl.init()
        model.register_comm_hook(None, tl.ddp_comm_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    digits = Digits(rank, world)
    loss = digits.train(model, optimizer, args.iterations)
    print(f"rank {rank}: loss {loss:.6f}, accuracy {digits.accuracy(model.module):.3f}", flush=True)
    if args.hook:
        tl.shutdown()
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
