"""Trains a small GPT on its own source text, with an optimizer whose state is shared out over the ranks, gradients that
are clipped, and checkpoints.

    tensorlane run -n 2 -- python -m tensorlane.examples.sharded --iterations 60 --save gpt.pt
    tensorlane run -n 4 -- python -m tensorlane.examples.sharded --iterations 60 --resume gpt.pt

The second command goes on where the first one has ended, on another number of ranks.
"""

import argparse
import pathlib
import sys

import torch
import torch.nn.functional as F
from torch import nn

import tensorlane.torch as tl

LENGTH = 32


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, heads, batch_first=True)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        y = self.attention_norm(x)
        x = x + self.attention(y, y, y, attn_mask=mask, is_causal=True, need_weights=False)[0]
        return x + self.layers(self.norm(x))


class Gpt(nn.Module):
    """Of bytes. Head and embedding have one weight."""

    def __init__(self, width=64, blocks=2, heads=4):
        super().__init__()
        self.bytes = nn.Embedding(256, width)
        self.places = nn.Embedding(LENGTH, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 256, bias=False)
        self.head.weight = self.bytes.weight

    def forward(self, text):
        places = torch.arange(text.shape[1])
        return self.head(self.norm(self.blocks(self.bytes(text) + self.places(places))))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="pieces of text in an iteration, on all ranks together")
    parser.add_argument("--save", metavar="FILE", help="rank 0 writes model and optimizer there when all is done")
    parser.add_argument("--resume", metavar="FILE", help="go on with what --save has written")
    args = parser.parse_args()
    tl.init()
    torch.manual_seed(1)
    model = Gpt()
    plain = torch.optim.AdamW(model.parameters(), lr=3e-3)
    first = 0
    if args.resume:
        saved = torch.load(args.resume)
        model.load_state_dict(saved["model"])
        plain.load_state_dict(saved["optimizer"])
        first = saved["iterations"]
    tl.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = tl.DistributedOptimizer(plain, model.named_parameters(), sharded=True, max_norm=1.0)
    del plain  # the state that it has loaded is shared out now

    text = torch.frombuffer(bytearray(pathlib.Path(__file__).read_bytes()), dtype=torch.uint8).long()
    for iteration in range(first, first + args.iterations):
        order = torch.Generator().manual_seed(iteration)
        begins = torch.randint(len(text) - LENGTH, (args.batch,), generator=order)[tl.rank() :: tl.size()]
        pieces = torch.stack([text[begin : begin + LENGTH + 1] for begin in begins.tolist()])
        optimizer.zero_grad()
        loss = F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    mean = tl.allreduce(loss.detach(), name="loss").item()
    kept = sum(v.numel() for values in optimizer.state.values() for v in values.values() if v.ndim)
    print(f"rank {tl.rank()}: iteration {iteration + 1}, loss {mean:.3f}, {kept} numbers of state", flush=True)
    state = optimizer.full_state_dict()  # every rank calls it
    if args.save and tl.rank() == 0:
        torch.save({"model": model.state_dict(), "optimizer": state, "iterations": iteration + 1}, args.save)
    optimizer.close()
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
