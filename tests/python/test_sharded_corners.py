"""DistributedOptimizer(sharded=True): what one rank's share alone shows, and states that are not as this optimizer would have saved them."""

import copy
import math

import pytest
import torch
from sharded_helpers import made, ranks, small_buckets, wrap  # noqa: F401
from tensorlane import InvalidArgumentError
from tensorlane.torch import ShardedGradScaler
from torch import nn


def seeded(*layers):
    """Layers of a (class, its arguments) each, alike on all ranks."""
    torch.manual_seed(3)
    return nn.Sequential(*(layer(*arguments) for layer, *arguments in layers))


def two_layers(width=16):
    return seeded((nn.Linear, 8, width), (nn.Linear, width, 8))


def step(model, optimizer, spoiled=None):
    optimizer.zero_grad()
    loss = model(torch.ones(2, 8)).square().sum()
    if spoiled is not None:
        loss = loss + model[-1].bias[-1] * spoiled
    loss.backward()
    optimizer.step()


def test_a_norm_that_is_no_number_spoils_every_gradient():
    def body(rank, transport):
        model = made(two_layers)
        sharded = wrap(model, transport, max_norm=1.0)
        step(model, sharded, math.nan)
        return [bool(p.isnan().all()) for p in model.parameters()]

    for spoiled in ranks(body):
        assert all(spoiled), "as torch.nn.utils.clip_grad_norm_() does"


def test_all_ranks_skip_a_step_that_one_share_spoils():
    def body(rank, transport):
        model = made(two_layers)
        before = copy.deepcopy(model.state_dict())
        sharded, scaler = wrap(model, transport), ShardedGradScaler("cpu", init_scale=4.0)
        sharded.zero_grad()
        scaler.scale(model(torch.ones(2, 8)).sum() + model[-1].bias[-1] * math.inf).backward()
        scaler.step(sharded)
        scaler.update()
        return scaler.get_scale(), all(torch.equal(value, before[name]) for name, value in model.state_dict().items())

    assert ranks(body) == [(2.0, True)] * 2


def by_layer(model, sharded=None):
    """An optimizer for each of the two layers; `sharded` makes it one of all ranks."""
    plain = [torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9), torch.optim.Adam(model[1].parameters(), lr=0.1)]
    return [sharded(optimizer) for optimizer in plain] if sharded else plain


def train_by_layer(model, optimizers):
    for _ in range(4):
        for optimizer in optimizers:
            optimizer.zero_grad()
        model(torch.ones(2, 8)).square().sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_two_optimizers_share_a_model_and_no_parameter():
    def body(rank, transport):
        model = made(two_layers)
        trained = train_by_layer(model, by_layer(model, lambda plain: wrap(model, transport, plain)))
        first = wrap(model, transport, torch.optim.SGD(model.parameters(), lr=0.1))
        wrap(model, transport, torch.optim.SGD(model[1].parameters(), lr=0.1))
        with pytest.raises(InvalidArgumentError, match="another DistributedOptimizer has its parameters now"):
            first.zero_grad()
        return trained

    model = made(two_layers)
    alone = train_by_layer(model, by_layer(model))
    for trained in ranks(body):
        assert all(torch.equal(value, alone[name]) for name, value in trained.items())


def test_a_rank_without_a_share_has_no_part_in_the_least_element():
    def body(rank, transport):
        model = made(lambda: seeded((nn.Linear, 3, 1, False)))
        sharded = wrap(model, transport, shard="parameter")
        sharded.zero_grad()
        model(torch.tensor([[2.0, 3.0, 4.0]])).sum().backward()
        return float(sharded.clip_grad_norm_(1e9, -math.inf))

    assert ranks(body) == [2.0, 2.0]


def test_the_same_rank_of_another_model():
    def body(rank, transport):
        other = made(lambda: two_layers(24))
        sharded = wrap(other, transport, torch.optim.Adam(other.parameters()))
        step(other, sharded)
        saved = sharded.state_dict()
        sharded.close()
        model = made(two_layers)
        sharded = wrap(model, transport, torch.optim.Adam(model.parameters()))
        with pytest.raises(InvalidArgumentError, match="load what full_state_dict"):
            sharded.load_state_dict(saved)

    ranks(body)


def test_the_state_of_a_parameter_that_is_not_trained_is_loaded_too():
    def body(rank, transport):
        model = made(two_layers)
        model[0].bias.requires_grad_(False)
        sharded = wrap(model, transport, torch.optim.Adagrad(model.parameters()))
        step(model, sharded)
        saved = copy.deepcopy(sharded.full_state_dict())
        for values in saved["state"].values():
            values["sum"] += 5
        sharded.load_state_dict(saved)
        return saved["state"], sharded.full_state_dict()["state"]

    for saved, loaded in ranks(body):
        assert saved.keys() == loaded.keys() == set(range(4))
        assert all(torch.equal(saved[number]["sum"], loaded[number]["sum"]) for number in saved)


def test_state_in_another_order_of_memory():
    def body(rank, transport):
        model = made(lambda: seeded((nn.Conv2d, 3, 8, 3)).to(memory_format=torch.channels_last))
        sharded = wrap(model, transport, torch.optim.Adam(model.parameters()))
        sharded.zero_grad()
        model(torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(rank))).square().mean().backward()
        sharded.step()
        saved = copy.deepcopy(sharded.full_state_dict())
        weight = saved["state"][0]
        for key in ("exp_avg", "exp_avg_sq"):
            weight[key] = weight[key].contiguous()
        sharded.load_state_dict(saved)
        return weight, sharded.full_state_dict()["state"][0]

    for saved, loaded in ranks(body):
        assert all(torch.equal(saved[key], loaded[key]) for key in ("exp_avg", "exp_avg_sq"))
