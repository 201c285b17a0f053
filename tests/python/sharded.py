"""DistributedOptimizer(sharded=True) in a real job. A script, run by daemons/test_sharded.py:

    tensorlane run -n 4 -- python tests/python/sharded.py

A small GPT is trained with shares of the state on each rank: repeated runs give the same bits, on all ranks; with two ranks those of DistributedDataParallel
over Gloo; on any number the numbers of one process with the whole batch. The state goes on in a plain optimizer, and in another sharded one.
"""

import os
import sys

import tensorlane
import tensorlane.torch as tl
import torch
import torch.nn.functional as F
from tensorlane.torch import _broadcast
from torch import nn
from unregister import plan

STEPS = 6
WORDS, LENGTH, BATCH = 32, 12, 8


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(self.before(x)).chunk(3, -1))
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Gpt(nn.Module):
    """The weight of its head is that of its embedding."""

    def __init__(self, width=32, blocks=2, heads=4, words=WORDS, length=LENGTH):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(blocks)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x):
        return self.head(self.norm(self.blocks(self.words(x) + self.places.weight[: x.shape[1]])))


def made():
    torch.manual_seed(5)
    return Gpt()


def batch(step, rank, size):
    text = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=torch.Generator().manual_seed(step))
    mine = text[rank::size]
    return mine[:, :-1].contiguous(), mine[:, 1:].contiguous()


def train(model, optimizer, steps, rank, size, each=lambda: None):
    """The losses."""
    losses = []
    for step in steps:
        optimizer.zero_grad()
        x, y = batch(step, rank, size)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        loss.backward()
        each()
        optimizer.step()
        losses.append(loss.item())
    return losses


def adamw(model):
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    # Without a larger eps, elements whose gradient is only rounding (the bias of keys) would move by it.
    return torch.optim.AdamW([{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=0.01, eps=1e-4)


def sgd(model):
    """Unlike AdamW, it shows how large gradients are."""
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def sharded(model, make=adamw, **options):
    return tl.DistributedOptimizer(make(model), model.named_parameters(), sharded=True, **options)


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def difference(left, right):
    return (left - right).abs().max().item()


def run(rank, size, steps=range(STEPS), **options):
    model = made()
    optimizer = sharded(model, **options)
    losses = train(model, optimizer, steps, rank, size)
    result = flat(model)
    optimizer.close()
    return result, losses


def check_numbers(rank, size):
    mine, losses = run(rank, size)
    gathered = tl.allgather(mine, name="numbers").view(size, -1)
    assert all(torch.equal(each, mine) for each in gathered), "ranks differ"
    again, _ = run(rank, size)
    assert torch.equal(again, mine), "a repeated run differs"
    alone = made()
    train(alone, adamw(alone), range(STEPS), 0, 1)
    assert difference(mine, flat(alone)) < 1e-5, difference(mine, flat(alone))
    assert difference(mine, flat(made())) > 0.01, "nothing was trained"
    if size == 2:
        model = made()
        ddp = nn.parallel.DistributedDataParallel(model)
        theirs = train(ddp, adamw(model), range(STEPS), rank, size)
        assert torch.equal(mine, flat(model)) and losses == theirs, "DistributedDataParallel over Gloo has other bits"


def check_clipping(rank, size):
    mine, _ = run(rank, size, make=sgd, max_norm=0.5)
    alone = made()
    train(alone, sgd(alone), range(STEPS), 0, 1, lambda: nn.utils.clip_grad_norm_(alone.parameters(), 0.5))
    unclipped, _ = run(rank, size, make=sgd)
    assert difference(mine, flat(alone)) < 1e-5 < 1e-3 < difference(mine, unclipped)
    half, _ = run(rank, size, make=sgd, max_norm=0.5, wire_dtype=torch.bfloat16)
    assert 0 < difference(half, mine) < 0.05


def check_state(rank, size):
    model = made()
    optimizer = sharded(model)
    train(model, optimizer, range(3), rank, size)
    elements = sum(p.numel() for p in model.parameters())
    status = optimizer.tensorlane_status()
    kept = sum(v.numel() for values in vars(optimizer._core._inner)["state"].values() for k, v in values.items() if k == "exp_avg")
    assert kept == status["elements"] <= -(-elements // size) + status["buckets"], (kept, elements, status)
    whole, parameters = optimizer.full_state_dict(), flat(model)
    assert tl.broadcast_object(whole["state"][0]["exp_avg"], 0, "state").equal(whole["state"][0]["exp_avg"])
    train(model, optimizer, range(3, STEPS), rank, size)
    expected = flat(model)
    optimizer.close()
    model = made()
    nn.utils.vector_to_parameters(parameters, model.parameters())
    plain = adamw(model)
    plain.load_state_dict(whole)
    optimizer = tl.DistributedOptimizer(plain, model.named_parameters(), sharded=True)
    train(model, optimizer, range(3, STEPS), rank, size)
    assert torch.equal(flat(model), expected), "training does not go on as it would have"
    optimizer.close()


def check_gathering(rank, size):
    """The whole state travels through one carrier, in pieces where it does not fit, and the carrier is given back."""
    model = made()
    optimizer = sharded(model)
    train(model, optimizer, range(2), rank, size)
    before = plan()["tensors"]
    whole = optimizer.full_state_dict()
    kept, _broadcast._MOST_BYTES = _broadcast._MOST_BYTES, 1
    in_pieces = optimizer.full_state_dict()
    _broadcast._MOST_BYTES = kept
    assert plan()["tensors"] == before, (plan()["tensors"], before)
    for number, values in whole["state"].items():
        assert all(torch.equal(value, in_pieces["state"][number][key]) for key, value in values.items())
    optimizer.close()


def check_mistakes(rank, size):
    """Ranks that do different things hear of it, all of them."""
    model = made()
    optimizer = sharded(model)
    train(model, optimizer, range(2), rank, size)
    try:
        if rank == 1:
            optimizer.full_state_dict()
        train(model, optimizer, range(2, 4), rank, size)
        raise AssertionError("a mistake was not noticed")
    except tensorlane.MismatchError as error:
        assert "full_state_dict()" in str(error) or "zero_grad()" in str(error), error


def check_death(rank, size):
    """The last rank dies between two iterations: the others hear of it, and keep whole parameters to save."""
    model = made()
    optimizer = sharded(model, max_norm=1.0)
    train(model, optimizer, range(3), rank, size)
    if rank == size - 1:
        os._exit(1)
    try:
        train(model, optimizer, range(3, 1000), rank, size)
    except tensorlane.Error as error:
        assert f"rank {size - 1} " in str(error), error
    optimizer.close()
    try:
        tl.shutdown()
    except tensorlane.Error:
        pass
    assert flat(model).isfinite().all() and model(batch(0, rank, size)[0]).isfinite().all()
    print(f"rank {rank}: was told who died", flush=True)


def main():
    torch.set_num_threads(1)
    tl.init()
    rank, size = tl.rank(), tl.size()
    if sys.argv[1:] == ["dies"]:
        return check_death(rank, size)
    if size == 2:
        torch.distributed.init_process_group("gloo")
    check_numbers(rank, size)
    check_clipping(rank, size)
    check_state(rank, size)
    check_gathering(rank, size)
    if size > 1:
        check_mistakes(rank, size)
    print(f"rank {rank}: sharded training is right", flush=True)
    if size == 2:
        torch.distributed.destroy_process_group()
    if size == 1:
        tl.shutdown()
    else:
        os._exit(0)  # a job with a mistake does not end in peace


if __name__ == "__main__":
    sys.exit(main())
