"""DistributedOptimizer(sharded=True): it trains what plain PyTorch trains, with a share of the state on each rank, and what leaves when."""

import math

import pytest
import torch
import torch.nn.functional as F
from loopback import Hub
from models import OPTIMIZERS, SCENARIOS, Plain, build, data, groups_of, same_bits
from sharded_helpers import STEPS, backward, difference, made, plain, ranks, small_buckets, train, train_plain, wrap  # noqa: F401
from tensorlane.torch import DistributedOptimizer, ShardedGradScaler, _shards
from torch import nn
from torch.utils.checkpoint import checkpoint


def cosine(optimizer):
    return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)


def trained(scenario, optimizer, size, passes=1, schedule=None, **options):
    """[(parameters, whole state, status)] of the ranks."""

    def body(rank, transport):
        model = made(lambda: build(scenario))
        inner = OPTIMIZERS[optimizer](groups_of(model))
        sharded = wrap(model, transport, inner, backward_passes_per_step=passes, **options)
        train(model, sharded, rank=rank, passes=passes, schedule=schedule and schedule(sharded))
        return model.state_dict(), sharded.full_state_dict(), sharded.tensorlane_status()

    return ranks(body, size)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("scenario", [scenario for scenario in SCENARIOS if scenario not in ("scheduler", "clipping", "accumulation")])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_numbers_are_those_of_one_process(optimizer, scenario, size):
    """Bit for bit: the same sums in the same order, stepped by the same arithmetic."""
    results = trained(scenario, optimizer, size)
    parameters, state = plain(scenario, optimizer, size)
    for mine, whole, _ in results:
        same_bits(mine, parameters)
        same_bits(whole["state"], state["state"])
        assert whole["param_groups"] == state["param_groups"]
    assert difference(parameters, made(lambda: build(scenario)).state_dict()) > 1e-3, "nothing was trained"


@pytest.mark.parametrize("size", [2, 4])
def test_schedulers(size):
    parameters, state = plain("plain", "adamw", size, schedule=cosine)
    for mine, whole, _ in trained("plain", "adamw", size, schedule=cosine):
        same_bits(mine, parameters)
        assert whole["param_groups"] == state["param_groups"]


@pytest.mark.parametrize("size", [2, 3])
def test_accumulation(size):
    parameters, _ = plain("plain", "adamw", size, passes=3)
    for mine, _, _ in trained("plain", "adamw", size, passes=3):
        assert difference(mine, parameters) < 1e-6


@pytest.mark.parametrize("how", ["max_norm", "method"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_clipping(size, how):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        options = {"max_norm": 0.05} if how == "max_norm" else {}
        sharded = wrap(model, transport, OPTIMIZERS["adam"](groups_of(model)), **options)
        norms = []
        for step in range(STEPS):
            sharded.zero_grad()
            backward(model, step, rank)
            if how == "method":
                norms.append(sharded.clip_grad_norm_(0.05))
            sharded.step()
        return model.state_dict(), norms

    results = ranks(body, size)
    parameters, _ = plain("plain", "adam", size, clip=0.05)
    unclipped, _ = plain("plain", "adam", size)
    assert difference(unclipped, parameters) > 1e-3, "clipping had no effect"
    for mine, norms in results:
        assert difference(mine, parameters) < 1e-6
        same_bits(mine, results[0][0])
        assert norms == results[0][1]


@pytest.mark.parametrize("kind", [0.5, 1.0, 2.0, 3.0, math.inf, -1.0, -math.inf])
def test_norms(kind):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        backward(model, 0, rank)
        return float(sharded.clip_grad_norm_(1e9, kind))

    model = made(lambda: build("plain"))
    for rank in range(3):
        backward(model, 0, rank, 1 / 3)
    expected = float(nn.utils.clip_grad_norm_(model.parameters(), 1e9, kind))
    assert ranks(body, 3) == pytest.approx([expected] * 3, rel=1e-6 if kind > 0 else 1e-2)  # the least elements are sums that nearly cancel


@pytest.mark.parametrize("kind", [2.0, math.inf, -math.inf])
@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("name", ["first", "last"])  # of the first rank's share, and the last one's
def test_a_norm_that_is_not_finite(kind, value, name):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        getattr(model, name).bias.register_hook(lambda gradient: gradient * 0 + value if rank == 1 else gradient)
        backward(model, 0, rank)
        if (kind, value) == (-math.inf, math.inf):  # it is the least one
            return sharded.clip_grad_norm_(1.0, kind, error_if_nonfinite=True)
        with pytest.raises(RuntimeError, match="non-finite"):
            sharded.clip_grad_norm_(1.0, kind, error_if_nonfinite=True)

    ranks(body)


# Memory


@pytest.mark.parametrize("size", [2, 3, 4])
def test_each_rank_has_its_share_of_the_state(size):
    results = trained("plain", "adamw", size)
    elements = sum(p.numel() for p in made(lambda: build("plain")).parameters())
    shares = [status["elements"] for _, _, status in results]
    assert sum(shares) == elements and max(shares) <= -(-elements // size) + results[0][2]["buckets"]
    assert results[0][2]["buckets"] > 1

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, torch.optim.AdamW(model.parameters()))
        train(model, sharded, 2, rank)
        return sum(value.numel() for values in sharded.state.values() for key, value in values.items() if key == "exp_avg")

    assert ranks(body, size) == shares


def test_one_bucket_is_shared_out_evenly(monkeypatch):
    monkeypatch.setattr(_shards, "BUCKET_BYTES", 1 << 20)
    elements = sum(p.numel() for p in made(lambda: build("plain")).parameters())
    for size in (2, 3, 4):
        shares = [status["elements"] for _, _, status in trained("plain", "sgd", size)]
        assert max(shares) == -(-elements // size)


def test_gradients_are_given_up_when_they_are_sent():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        train(model, sharded, 2, rank)
        sharded.zero_grad()
        backward(model, 2, rank)
        with torch._C.DisableTorchFunction():
            return [name for name, p in model.named_parameters() if p.grad is not None]

    assert ranks(body) == [[], []]


def test_who_saves_one_parameter_saves_no_other():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        train(model, sharded, 2, rank)
        for parameter in model.parameters():
            assert parameter.untyped_storage().nbytes() == parameter.numel() * 4

    ranks(body)


# When


def test_what_leaves_when():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        link = transport()
        sharded = wrap(model, lambda: link)
        train(model, sharded, 2, rank)
        sharded.flush()
        del link.log[:]
        sharded.zero_grad()
        backward(model, 2, rank)
        in_backward = list(link.log)
        sharded.step()
        pending = sharded.tensorlane_status()["pending"]
        in_step = link.log[len(in_backward) :]
        del link.log[:]
        model(data(3, rank)[0])
        return in_backward, in_step, list(link.log), pending

    for in_backward, in_step, in_forward, pending in ranks(body):
        sent = [name.split(".", 2)[2] for what, name in in_backward if what == "post"]
        assert sent == ["last.weight+1", "second.weight+1", "first.weight+1", "roll_call"]
        assert not [name for what, name in in_backward if what == "wait"], "the backward pass waits for nobody"
        values = [name for what, name in in_step if name.endswith(".values")]
        assert [name.split(".", 2)[2] for name in values] == ["first.weight+1.values", "second.weight+1.values", "last.weight+1.values"]
        assert not [name for what, name in in_step if name.endswith(".values") and what == "wait"]
        assert pending == 6
        assert in_forward == [("wait", name) for name in values], "each module waits for its own parameters, in the order of the forward pass"


def test_urgencies():
    model = build("plain")
    link = Hub(1).transport(0)
    sharded = wrap(model, lambda: link)
    gradients = [d.urgency for d in link.descs if d.operation == 6]
    values = [d.urgency for d in link.descs if d.operation == 2 and d.name.endswith(".values")]
    assert gradients == sorted(gradients, reverse=True) and values == sorted(values, reverse=True)
    assert 1 >= max(values) and min(values) > max(gradients) and min(gradients) >= 0.5, "step() waits for all of them: none is bulk"
    del sharded


def test_synchronous():
    for mine, _, status in trained("plain", "adamw", 2, synchronous=True):
        assert (status["reason"], status["pending"]) == ("synchronous=True was asked for", 0)
        same_bits(mine, plain("plain", "adamw", 2)[0])


@pytest.mark.filterwarnings("ignore:Using `torch.compile")
def test_a_compiled_model():
    def body(model, called, sharded):
        for step in range(3):
            sharded.zero_grad()
            backward(called, step, 0)
            sharded.step()
        return model.state_dict()

    model = build("plain")
    called = torch.compile(model, backend="eager")
    sharded = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), model=called, sharded=True, transport=Hub(1).transport(0)
    )
    mine = body(model, called, sharded)
    assert sharded.tensorlane_status()["reason"] == "the model is compiled (torch.compile)"
    other = build("plain")
    same_bits(mine, body(other, other, torch.optim.SGD(other.parameters(), lr=0.1)))


# Models and gradients of all kinds


class Branches(nn.Module):
    """`sometimes` runs in iterations from 3 on, `never` in none."""

    def __init__(self):
        super().__init__()
        self.always, self.sometimes, self.never = nn.Linear(6, 3), nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x, both):
        return self.sometimes(self.always(x)) if both else self.always(x)


@pytest.mark.parametrize("size", [1, 2])
def test_gradients_that_appear_late_or_never(size):
    def backward_of(model, step, rank, share=1.0):
        (F.cross_entropy(model(data(step, rank)[0], step >= 3 and rank == 0), data(step, rank)[1]) * share).backward()

    def body(rank, transport):
        model = made(lambda: (torch.manual_seed(3), Branches())[1])
        sharded = wrap(model, transport, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1))
        for step in range(STEPS):
            sharded.zero_grad()
            backward_of(model, step, rank)
            sharded.step()
        return model.state_dict()

    results = ranks(body, size)
    model = made(lambda: (torch.manual_seed(3), Branches())[1])
    train_plain(model, torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1), size, backward=backward_of)
    for mine in results:
        same_bits(mine, model.state_dict())


@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputation(reentrant):
    """Forward hooks run again in the backward pass. Ranks are threads here, so one must not set the random state while another makes its model."""

    class Checkpointed(Plain):
        def forward(self, x):
            x = torch.relu(self.first(x.requires_grad_()))
            return self.last(torch.tanh(checkpoint(self.second, x, use_reentrant=reentrant, preserve_rng_state=False)))

    def model_of():
        torch.manual_seed(7)
        return Checkpointed()

    def body(rank, transport):
        model = made(model_of)
        sharded = wrap(model, transport, OPTIMIZERS["adamw"](groups_of(model)))
        train(model, sharded, rank=rank)
        return model.state_dict()

    expected, _ = plain("plain", "adamw", 2)
    for mine in ranks(body):
        same_bits(mine, expected)


def test_a_rank_without_a_batch():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["adamw"](groups_of(model)), max_norm=1.0)
        for step in range(4):
            sharded.zero_grad()
            if rank == 0 or step < 2:
                backward(model, step, rank)
            sharded.step()
        return model.state_dict()

    first, second = ranks(body)
    same_bits(first, second)


def test_zero_grad_drops_what_was_sent():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["adamw"](groups_of(model)))
        for step in range(STEPS):
            for dropped in (True, False):
                sharded.zero_grad()
                backward(model, 100 + step if dropped else step, rank)
            sharded.step()
        return model.state_dict()

    for mine in ranks(body):
        same_bits(mine, plain("plain", "adamw", 2)[0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    def loop(model, optimizer, rank, size):
        for step in range(4):
            optimizer.zero_grad()
            for each in range(size) if rank is None else [rank]:
                (model(torch.full((4, 6), (step + each) / 8, dtype=dtype)).square().sum() / (size if rank is None else 1)).backward()
            optimizer.step()
        return model.state_dict()

    def body(rank, transport):
        model = made(lambda: build("plain")).to(dtype)
        return loop(model, wrap(model, transport, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)), rank, 2)

    model = build("plain").to(dtype)
    expected = loop(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), None, 2)
    for mine in ranks(body):
        assert difference(mine, expected) <= {torch.float64: 1e-12, torch.bfloat16: 0.05, torch.float16: 0.01}[dtype]


def test_gradients_that_travel_in_half_the_bytes():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        link = transport()
        sharded = wrap(model, lambda: link, OPTIMIZERS["adamw"](groups_of(model)), wire_dtype=torch.bfloat16)
        assert {d.dtype for d in link.descs if d.operation == 6} == {torch.bfloat16}
        train(model, sharded, rank=rank)
        return model.state_dict(), {value.dtype for values in sharded.state.values() for value in values.values()}

    first, second = ranks(body)
    same_bits(first[0], second[0])
    assert first[1] == {torch.float32}
    assert 0 < difference(first[0], plain("plain", "adamw", 2)[0]) < 0.01


def test_strides_stay():
    """Convolutions in channels_last compute other bits than in the usual order."""

    def model_of():
        torch.manual_seed(5)
        return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).to(memory_format=torch.channels_last)

    def loop(model, optimizer, numbers):
        for step in range(3):
            optimizer.zero_grad()
            for number in numbers:
                x = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(10 * step + number)).to(memory_format=torch.channels_last)
                (model(x).square().mean() / len(numbers)).backward()
            optimizer.step()

    def body(rank, transport):
        model = made(model_of)
        strides = [p.stride() for p in model.parameters()]
        sharded = wrap(model, transport, torch.optim.Adam(model.parameters()))
        loop(model, sharded, [rank])
        assert [p.stride() for p in model.parameters()] == strides
        return model.state_dict(), sharded.full_state_dict()["state"]

    model = model_of()
    optimizer = torch.optim.Adam(model.parameters())
    loop(model, optimizer, range(2))
    for mine, state in ranks(body):
        assert difference(mine, model.state_dict()) < 1e-6
        assert difference(state, optimizer.state_dict()["state"]) < 1e-6


def test_a_parameter_of_no_module_is_there_when_step_returns():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        loose = nn.Parameter(torch.ones(3))
        named = [*model.named_parameters(), ("loose", loose)]
        optimizer = torch.optim.SGD([p for _, p in named], lr=0.1)
        sharded = DistributedOptimizer(optimizer, named, sharded=True, transport=transport())
        for step in range(3):
            sharded.zero_grad()
            (model(data(step, rank)[0]) * loose).square().mean().backward()
            sharded.step()
        status = sharded.tensorlane_status()
        return status["updated_in_step"], status["pending"]

    for unguarded, pending in ranks(body):
        assert unguarded == ["loose"] and 0 < pending < 7


def test_a_graph_of_before_the_step_is_no_graph_any_more():
    """As with a plain optimizer: what it has saved was changed in place."""

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        train(model, sharded, 2, rank)
        sharded.zero_grad()
        loss = F.cross_entropy(model(data(2, rank)[0]), data(2, rank)[1])
        loss.backward(retain_graph=True)
        sharded.step()
        sharded.zero_grad()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    ranks(body)


# Optimizers that need whole parameters


def whole_parameter_optimizers():
    found = {"Adafactor": lambda m: torch.optim.Adafactor(m.parameters(), lr=0.01)} if hasattr(torch.optim, "Adafactor") else {}
    if hasattr(torch.optim, "Muon"):
        found["Muon"] = lambda m: torch.optim.Muon([p for p in m.parameters() if p.ndim == 2], lr=0.01)
    return found


@pytest.mark.parametrize("kind", whole_parameter_optimizers())
@pytest.mark.parametrize("size", [2, 4])
def test_whole_parameters(kind, size):
    make = whole_parameter_optimizers()[kind]

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, make(model), shard="parameter")
        train(model, sharded, rank=rank)
        return model.state_dict(), sharded.full_state_dict()["state"], len(sharded.state)

    model = made(lambda: build("plain"))
    optimizer = make(model)
    train_plain(model, optimizer, size)
    results = ranks(body, size)
    for mine, state, _ in results:
        if kind == "Adafactor":
            same_bits(mine, model.state_dict())
            same_bits(state, optimizer.state_dict()["state"])
        else:  # of what Muon leaves out, no gradient is averaged
            assert difference(mine, results[0][0]) < 1 and torch.equal(mine["second.weight"], model.state_dict()["second.weight"])
    assert sum(count for _, _, count in results) == len(optimizer.state)


# Loss scaling


def scaled(model, optimizer, scaler, batches, spoiled=None, clip=None):
    for step in range(STEPS):
        optimizer.zero_grad()
        for rank, share in batches:
            x, y = data(step, rank)
            loss = F.cross_entropy(model(x), y) * share
            scaler.scale(loss * math.inf if (step, rank) == spoiled else loss).backward()
        if clip:
            clip(scaler, optimizer)
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("spoiled", [None, (3, 1)])
def test_grad_scaler(spoiled, clipped):
    def clip_shares(scaler, optimizer):
        scaler.unscale_(optimizer)
        optimizer.clip_grad_norm_(0.1)

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["adamw"](groups_of(model)))
        scaler = ShardedGradScaler("cpu", init_scale=1024.0)
        scaled(model, sharded, scaler, [(rank, 1.0)], spoiled, clip_shares if clipped else None)
        return model.state_dict(), scaler.get_scale()

    model = made(lambda: build("plain"))

    def clip_all(scaler, optimizer):
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaled(model, OPTIMIZERS["adamw"](groups_of(model)), scaler, [(0, 0.5), (1, 0.5)], spoiled, clip_all if clipped else None)
    for mine, scale in ranks(body):
        assert difference(mine, model.state_dict()) < 1e-6
        assert scale == scaler.get_scale() == (512.0 if spoiled else 1024.0)
