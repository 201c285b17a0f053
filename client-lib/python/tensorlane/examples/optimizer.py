"""Trains with tensorlane's optimizer, which averages gradients as they appear in the backward pass, the most urgent
first.

    tensorlane run -n 2 -- python -m tensorlane.examples.optimizer
    tensorlane run -n 2 -- python -m tensorlane.examples.optimizer --overlap

--overlap: backward() and step() return at once, and each parameter is updated when the next forward pass needs it. The
numbers are the same.
"""

import argparse
import sys

import torch

import tensorlane.torch as tl
from tensorlane.examples.digits import Digits, build_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overlap", action="store_true", help="let transfers overlap with the next forward pass")
    parser.add_argument("--iterations", type=int, default=100)
    args = parser.parse_args()
    tl.init()
    model = build_model(width=256, seed=tl.rank())
    tl.broadcast_parameters(model.state_dict(), root_rank=0)  # all begin with those of rank 0
    plain = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    optimizer = tl.DistributedOptimizer(plain, model.named_parameters(), overlap=args.overlap)
    digits = Digits(tl.rank(), tl.size())
    loss = digits.train(model, optimizer, args.iterations)
    mean = tl.allreduce(torch.tensor(loss)).item()
    print(f"rank {tl.rank()}: mean loss {mean:.6f}, accuracy {digits.accuracy(model):.3f}", flush=True)
    optimizer.close()  # every rank calls it
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
