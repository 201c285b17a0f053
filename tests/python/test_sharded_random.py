"""Random training programs: with sharded=True they give what one process with the batches of all ranks gives. TENSORLANE_OPTIMIZER_SEEDS=200 for more."""

import copy
import os
import random

import pytest
import torch
import torch.nn.functional as F
from models import OPTIMIZERS, Attention, Plain, Tied, data, same_bits
from sharded_helpers import difference, made, ranks, small_buckets, wrap  # noqa: F401
from tensorlane.torch import merge_state_dicts
from torch import nn

SEEDS = int(os.environ.get("TENSORLANE_OPTIMIZER_SEEDS", "25"))
ACTIONS = ["read", "evaluate", "scale", "freeze", "rate", "drop", "empty", "save", "again", "clip", "copy", "nothing", "nothing"]


class Program:
    """What a seed says, on one of `size` ranks; rank None: one process with the batches of all of them, and a plain optimizer."""

    def __init__(self, seed, rank, size, transport=None):
        self.draw = random.Random(seed)
        self.rank, self.size, self.transport = rank, size, transport
        self.passes = self.draw.choice([1, 1, 2])
        self.clip = self.draw.choice([None, 0.1])
        self.inner = self.draw.choice(["momentum", "adamw", "adagrad"])
        self.whole = self.draw.random() < 0.3
        kind = self.draw.choice([Plain, Tied, Attention])
        self.model = made(lambda: (torch.manual_seed(seed), kind())[1])
        self.optimizer = self.wrap(self.plain())
        self.seen = []

    def plain(self):
        parameters = list(self.model.parameters())
        # Gradients that are rounding errors alone, as an attention to one place has, are no steps with it. Momentum knows none.
        common = {"eps": 1e-3}
        return OPTIMIZERS[self.inner]([{"params": parameters[:2], "lr": 0.02, **common}, {"params": parameters[2:], "weight_decay": 0.01, **common}])

    def wrap(self, plain):
        if self.rank is None:
            return plain
        shard = "parameter" if self.whole else None
        return wrap(self.model, self.transport, plain, backward_passes_per_step=self.passes, shard=shard, max_norm=self.clip)

    def backward(self, number, empty=False):
        for micro in range(self.passes):
            for rank in range(self.size) if self.rank is None else [self.rank]:
                if empty and rank == self.size - 1 and self.size > 1:
                    continue
                x, y = data(number * self.passes + micro, rank)
                result = self.model(x)
                loss = F.cross_entropy(result, y) if result.shape[-1] == 3 else result.square().mean()
                (loss / (self.size if self.rank is None else 1)).backward()

    def run(self):
        for number in range(8):
            action = self.draw.choice(ACTIONS)
            self.optimizer.zero_grad()
            if action == "drop":
                self.backward(100 + number)
                self.optimizer.zero_grad()
            self.backward(number, action == "empty")
            norm = 0.05 if action == "clip" else self.clip
            if self.rank is None and norm:
                nn.utils.clip_grad_norm_(self.model.parameters(), norm)
            elif action == "clip":
                self.optimizer.clip_grad_norm_(0.05)
            self.optimizer.step()
            getattr(self, f"_{action}", lambda: None)()
        if self.rank is not None:
            self.seen += [self.optimizer.full_state_dict()["state"], self.optimizer.state_dict()]
            self.optimizer.close()
        else:
            self.seen.append(self.optimizer.state_dict()["state"])
        return self.model.state_dict(), self.seen

    def _read(self):
        self.seen.append({"norm": self.draw.choice(list(self.model.parameters())).detach().norm()})

    def _evaluate(self):
        self.model.eval()
        with torch.no_grad():
            self.seen.append({"output": self.model(data(0)[0])})
        self.model.train()

    def _scale(self):
        with torch.no_grad():
            self.draw.choice(list(self.model.parameters())).mul_(0.9)

    def _freeze(self):
        self.draw.choice(list(self.model.parameters())).requires_grad_(self.draw.random() < 0.6)

    def _rate(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.7

    def _copy(self):
        self.seen.append(copy.deepcopy(self.model).state_dict())

    def _state(self):
        return copy.deepcopy(self.optimizer.full_state_dict() if self.rank is not None else self.optimizer.state_dict())

    def _save(self):
        state = self._state()
        for values in state["state"].values():
            for key, value in values.items():
                if key in ("exp_avg", "momentum_buffer") and value is not None:
                    value *= 0.5
        self.optimizer.load_state_dict(state)

    def _again(self):
        """Wraps another plain optimizer."""
        state = self._state()
        if self.rank is not None:
            self.optimizer.close()
        frozen = [p for p in self.model.parameters() if not p.requires_grad]
        for parameter in frozen:
            parameter.requires_grad_(True)
        plain = self.plain()
        plain.load_state_dict(state)
        self.optimizer = self.wrap(plain)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_seed(seed):
    size = random.Random(1000 + seed).choice([1, 2, 3])
    results = ranks(lambda rank, transport: Program(seed, rank, size, transport).run(), size)
    expected, seen = Program(seed, None, size).run()
    merged = merge_state_dicts([each.pop() for _, each in results])
    for mine, each in results:
        same_bits(mine, results[0][0])
        same_bits(each[-1], merged["state"])
        assert difference(mine, expected) < 1e-4
        assert len(each) == len(seen)
        for one, other in zip(each, seen):
            assert difference(one, other) < 1e-3
