"""DistributedOptimizer(sharded=True) of optimizers that are not torch's: what they keep in their groups, of their own and in their state, and what shows that
ranks cannot share one out."""

import copy

import pytest
import torch
from loopback import Hub
from models import build, data, groups_of, same_bits
from sharded_helpers import made, ranks, small_buckets, train, train_plain, wrap  # noqa: F401
from tensorlane.errors import InvalidArgumentError
from torch import nn


class Counting(torch.optim.Optimizer):
    """Counts steps in each group, as apex's FusedAdam and timm's Lamb do: its rate falls with them."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    def count(self, group):
        group["step"] = group.get("step", 0) + 1
        return group["step"]

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            if not group["params"]:
                continue
            rate = group["lr"] / self.count(group)
            for p in group["params"]:
                if p.grad is not None:
                    self.move(p, rate)

    def move(self, p, rate):
        p.sub_(p.grad * rate)


class CountingInPlace(Counting):
    def count(self, group):
        group.setdefault("step", torch.zeros(())).add_(1)
        return float(group["step"])


class CountingByItself(Counting):
    steps = 0

    def count(self, group):
        self.steps += 1
        return self.steps


class CountingInItsState(Counting):
    def count(self, group):
        self.state["steps"] = {"all": self.state.get("steps", {"all": 0})["all"] + 1}
        return self.state["steps"]["all"]


class Moved(Counting):
    """Has state of each element, in float32 whatever the parameter is."""

    def move(self, p, rate):
        sums = self.state[p].setdefault("sum", torch.zeros_like(p, dtype=torch.float32))
        sums.add_(p.grad)
        p.sub_((sums * rate).to(p.dtype))


class Nested(Counting):
    """Keeps tensors in containers."""

    def move(self, p, rate):
        state = self.state[p]
        if not state:
            state["moments"] = {"first": torch.zeros_like(p), "step": 0}
            state["latest"] = [torch.zeros_like(p), torch.zeros_like(p)]
        state["moments"]["first"].add_(p.grad)
        state["moments"]["step"] += 1
        state["latest"] = [state["latest"][1], p.grad.clone()]
        p.sub_((state["moments"]["first"] + state["latest"][0]) * rate / state["moments"]["step"])


COUNTING = [Counting, CountingInPlace, CountingByItself, CountingInItsState, Moved, Nested]


def by_place(state):
    """With dictionaries in the place of lists."""
    if isinstance(state, dict):
        return {key: by_place(value) for key, value in state.items()}
    return by_place(dict(enumerate(state))) if isinstance(state, list) else state


@pytest.mark.parametrize("shard", ["element", "parameter"])
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("kind", COUNTING)
def test_counters_go_on(kind, size, shard):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, kind(groups_of(model)), shard=shard)
        train(model, sharded, rank=rank)
        return model.state_dict(), sharded.full_state_dict(), sharded.param_groups

    model = made(lambda: build("plain"))
    optimizer = kind(groups_of(model))
    train_plain(model, optimizer, size)
    expected = optimizer.state_dict()
    for mine, whole, groups in ranks(body, size):
        same_bits(mine, model.state_dict())
        same_bits(by_place(whole["state"]), by_place(expected["state"]))
        assert whole["param_groups"] == expected["param_groups"]
        assert [group.get("step") for group in groups] == [group.get("step") for group in optimizer.param_groups]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("kind", [Counting, CountingInItsState, Moved, Nested])
def test_counters_in_checkpoints(kind, before):
    def start(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, kind(groups_of(model)), shard="element")
        train(model, sharded, 4, rank)
        return model.state_dict(), sharded.full_state_dict()

    saved = ranks(start, 4)[0]

    def resume(rank, transport):
        model = made(lambda: build("plain"))
        model.load_state_dict(saved[0])
        inner = kind(groups_of(model))
        if before:
            inner.load_state_dict(copy.deepcopy(saved[1]))
        sharded = wrap(model, transport, inner, shard="element")
        if not before:
            sharded.load_state_dict(copy.deepcopy(saved[1]))
        train(model, sharded, 4, rank, first=4)
        return model.state_dict()

    model = made(lambda: build("plain"))
    optimizer = kind(groups_of(model))
    model.load_state_dict(saved[0])
    optimizer.load_state_dict(copy.deepcopy(saved[1]))
    train_plain(model, optimizer, 2, 4, first=4)
    for mine in ranks(resume):
        same_bits(mine, model.state_dict())


def test_schedulers_still_reach_the_groups():
    def schedule(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, Counting(groups_of(model)), shard="element")
        train(model, sharded, rank=rank, schedule=schedule(sharded))
        return model.state_dict()

    model = made(lambda: build("plain"))
    optimizer = Counting(groups_of(model))
    train_plain(model, optimizer, 2, schedule=schedule(optimizer))
    for mine in ranks(body):
        same_bits(mine, model.state_dict())


# Types and shapes of state


def test_state_keeps_its_type_when_it_is_wrapped():
    def body(rank, transport):
        model = made(lambda: build("plain").to(torch.bfloat16))
        inner = Moved(model.parameters())
        x = data(0)[0].to(torch.bfloat16)
        model(x).square().sum().backward()
        inner.step()
        inner.zero_grad()
        expected = inner.state_dict()["state"]
        sharded = wrap(model, transport, inner, shard="element")
        whole = sharded.full_state_dict()["state"]
        same_bits(whole, expected)
        sharded.load_state_dict({"state": expected, "param_groups": sharded.full_state_dict()["param_groups"]})
        return {value["sum"].dtype for value in sharded.full_state_dict()["state"].values()}

    assert ranks(body) == [{torch.bfloat16}] * 2, "load_state_dict() of a plain optimizer makes it the parameter's type"


class Factored(Counting):
    """Keeps a sum for each column."""

    def move(self, p, rate):
        columns = self.state[p].setdefault("columns", torch.zeros(p.shape[-1]))
        columns.add_(p.grad.reshape(-1, p.shape[-1]).square().sum(0))
        p.sub_(p.grad * rate / (1 + columns.sqrt()))


class Narrow(nn.Module):
    """A weight of one row has as many columns as elements."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.last = nn.Linear(6, 1), nn.Linear(1, 3)

    def forward(self, x):
        return self.last(self.first(x))


@pytest.mark.parametrize("size", [1, 2])
def test_factored_state_keeps_its_shape(size):
    def body(rank, transport):
        model = made(Narrow)
        sharded = wrap(model, transport, Factored(model.parameters()), shard="parameter")
        train(model, sharded, rank=rank)
        return model.state_dict(), sharded.full_state_dict()["state"]

    model = made(Narrow)
    optimizer = Factored(model.parameters())
    train_plain(model, optimizer, size)
    for mine, whole in ranks(body, size):
        same_bits(mine, model.state_dict())
        assert {n: v["columns"].shape for n, v in whole.items()} == {n: v["columns"].shape for n, v in optimizer.state_dict()["state"].items()}
        same_bits(whole, optimizer.state_dict()["state"])


class OneNumber(Counting):
    """Keeps one number for each parameter, in a tensor of one element."""

    def move(self, p, rate):
        self.state[p].setdefault("number", torch.zeros(1)).add_(1)
        super().move(p, rate)


def test_one_number_is_no_element():
    """A rank may have one element of a parameter."""

    def body(rank, transport):
        model = made(Narrow)
        sharded = wrap(model, transport, OneNumber(model.parameters()), shard="element")
        train(model, sharded, 2, rank)
        return sharded.full_state_dict()["state"]

    for whole in ranks(body, 4):
        assert all(values["number"].tolist() == [2.0] for values in whole.values()), whole


# What ranks cannot share out


class Clipping(Counting):
    """By the norm over all parameters, in place, as timm's Lamb does by itself."""

    @torch.no_grad()
    def step(self, closure=None):
        gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm() if gradients else 1.0
        for gradient in gradients:
            gradient.div_(max(float(norm), 1.0))
        super().step()


class Trusting(Counting):
    """A rate for each parameter, by its norm, as LAMB."""

    def move(self, p, rate):
        p.sub_(p.grad * rate * p.norm() / p.grad.norm())


class ByDimensions(Counting):
    def move(self, p, rate):
        p.sub_((p.grad + 0.1 * p if p.ndim > 1 else p.grad) * rate)


class Adapting(Counting):
    """Finds its rate in all parameters, as D-Adaptation does."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["d"] = group.get("d", 0.0) + sum(float(p.grad.norm()) for p in group["params"] if p.grad is not None)
        super().step()


class Noisy(Counting):
    def move(self, p, rate):
        p.sub_((p.grad + torch.randn_like(p)) * rate)


NOT_ELEMENTS = (
    "its step() does not treat every element by itself: optimizer {}: pass shard='parameter' if it needs whole parameters, or leave out sharded=True"
)
NOT_PARAMETERS = (
    "its step() does not treat every parameter by itself, and each rank has some of them alone: optimizer {}: turn off what it computes over all of them (a "
    "norm to clip by: max_norm= takes its place), or leave out sharded=True"
)
DEPENDENT = "what its step() writes into group['d'] depends on all parameters, and each rank has a share of them alone: optimizer {}: leave out sharded=True"
RANDOM = "its step() draws random numbers, and ranks that draw the same ones use them for different parameters: optimizer {}: leave out sharded=True"


def wrapped_alone(kind, shard, dtype=torch.float32):
    model = build("plain").to(dtype)
    return wrap(model, lambda: Hub(1).transport(0), kind(groups_of(model)), shard=shard)


@pytest.mark.parametrize("kind, shard, text", [
    (Clipping, "element", NOT_ELEMENTS),
    (Clipping, "parameter", NOT_PARAMETERS),
    (Trusting, "element", NOT_ELEMENTS),
    (ByDimensions, "element", NOT_ELEMENTS),
    (Adapting, "element", DEPENDENT),
    (Adapting, "parameter", DEPENDENT),
    (Noisy, "element", RANDOM),
    (Noisy, "parameter", RANDOM),
])
def test_refused(kind, shard, text):
    with pytest.raises(InvalidArgumentError) as raised:
        wrapped_alone(kind, shard)
    assert str(raised.value) == text.format(kind.__name__)


@pytest.mark.parametrize("shard, text", [("element", NOT_ELEMENTS), ("parameter", NOT_PARAMETERS)])
def test_refused_during_a_warm_up(shard, text):
    """Its rate is zero when it is wrapped."""
    model = build("plain")
    optimizer = Clipping(model.parameters())
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    with pytest.raises(InvalidArgumentError) as raised:
        wrap(model, lambda: Hub(1).transport(0), optimizer, shard=shard)
    assert str(raised.value) == text.format("Clipping")


@pytest.mark.parametrize("kind", [Trusting, ByDimensions])
def test_whole_parameters_are_enough(kind):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, kind(groups_of(model)), shard="parameter")
        train(model, sharded, rank=rank)
        return model.state_dict()

    model = made(lambda: build("plain"))
    train_plain(model, kind(groups_of(model)), 2)
    for mine in ranks(body):
        same_bits(mine, model.state_dict())


class Adam(Counting):
    """With functions whose vectors round in another way than single elements may."""

    def move(self, p, rate):
        values = self.state[p].setdefault("square", torch.zeros_like(p))
        values.mul_(0.9).addcmul_(p.grad, p.grad, value=0.1)
        p.add_(torch.tanh(p.grad * torch.rsqrt(values + 1e-8)).exp().log(), alpha=-rate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shard", ["element", "parameter"])
def test_taken(shard, dtype):
    assert wrapped_alone(Adam, shard, dtype).tensorlane_status()["shard"] == shard


def test_nothing_of_the_trial_stays():
    sharded = wrapped_alone(Moved, "element")
    assert sharded.full_state_dict()["state"] == {} and all("step" not in group for group in sharded.param_groups)
