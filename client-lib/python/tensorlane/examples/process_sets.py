"""Trains in two dimensions: ranks of a row share out the units of the model's hidden layer (model parallelism), those
of a column have the same units and average their gradients (data parallelism). Rows and columns are process sets.

    tensorlane run -n 4 -- python -m tensorlane.examples.process_sets --columns 2
    python -m tensorlane.examples.process_sets

The second command trains the whole model on the whole batch in one process, without a daemon, and comes to the same
loss but for rounding.
"""

import argparse
import sys

import torch
from torch import nn

import tensorlane.torch as tl
from tensorlane.examples.digits import Digits

UNITS = 256


class SharedOut(nn.Module):
    """Two linear layers. This rank has `share` of the units between them, and its row has all."""

    def __init__(self, share, row):
        super().__init__()
        torch.manual_seed(1)  # all ranks draw the whole model alike, and keep their part
        into, out = nn.Linear(64, UNITS), nn.Linear(UNITS, 10, bias=False)
        self.into_weight = nn.Parameter(into.weight[share].detach().clone())
        self.into_bias = nn.Parameter(into.bias[share].detach().clone())
        self.out_weight = nn.Parameter(out.weight[:, share].detach().clone())
        self.row = row

    def forward(self, images):
        hidden = nn.functional.linear(images.flatten(1), self.into_weight, self.into_bias).relu()
        part = nn.functional.linear(hidden, self.out_weight)
        return tl.allreduce(part, op=tl.Sum, process_set=self.row)  # gradients flow through it


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--columns", type=int, default=1, help="ranks that share out the model's units")
    parser.add_argument("--iterations", type=int, default=100)
    args = parser.parse_args()
    tl.init()
    width, height = args.columns, tl.size() // args.columns
    y, x = divmod(tl.rank(), width)
    # Every rank adds every set, in one order.
    rows = [tl.add_process_set([i * width + j for j in range(width)]) for i in range(height)]
    columns = [tl.add_process_set([i * width + j for i in range(height)]) for j in range(width)]
    model = SharedOut(slice(x * UNITS // width, (x + 1) * UNITS // width), rows[y])
    plain = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    optimizer = tl.DistributedOptimizer(plain, model.named_parameters(), process_set=columns[x])
    digits = Digits(y, height, batch=64 // height)  # a row has one batch
    for number in range(args.iterations):
        images, labels = digits.batch(number)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        (loss / width).backward()  # the gradient is that of the sum of the row's losses, which are all the same
        optimizer.step()
    mean = tl.allreduce(loss.detach()).item()
    accuracy = digits.accuracy(model)  # a row's ranks together
    print(f"rank {tl.rank()}: row {y}, column {x}, mean loss {mean:.6f}, accuracy {accuracy:.3f}", flush=True)
    optimizer.close()
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
