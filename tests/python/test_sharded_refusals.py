"""What DistributedOptimizer(sharded=True) refuses, by name and with the reason, and mistakes that all ranks hear of."""

import math

import pytest
import torch
import torch.nn.functional as F
from loopback import Hub, Loopback
from models import build, data
from ranks import run_ranks
from sharded_helpers import backward, made, small_buckets, train, wrap  # noqa: F401
from tensorlane import errors
from tensorlane.errors import InvalidArgumentError
from tensorlane.torch import DistributedOptimizer, Min, ShardedGradScaler, merge_state_dicts
from torch import nn

NOT_WHOLE = (
    "no rank has the whole gradient: sharded=True shares the sums out over the ranks and steps the shares: {}: clip with "
    "DistributedOptimizer(max_norm=) or optimizer.clip_grad_norm_(), scale losses with tensorlane.torch.ShardedGradScaler, and clear "
    "gradients with zero_grad()"
)


def alone(net=None, optimizer=None, **options):
    """A world of one rank."""
    model = net or build("plain")
    return model, wrap(model, lambda: Hub(1).transport(0), optimizer and optimizer(model), **options)


def refused(text, call):
    with pytest.raises(InvalidArgumentError) as raised:
        call()
    assert str(raised.value) == text


def clip_by_torch(model, sharded):
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


def clip_values(model, sharded):
    nn.utils.clip_grad_value_(model.parameters(), 1.0)


def log_norms(model, sharded):
    return [p.grad.norm() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("look", [clip_by_torch, clip_values, log_norms])
@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("stepped", [False, True])
def test_who_looks_at_gradients(look, first, stepped):
    """After backward() and after step(): it would find none, and clip nothing."""
    model, sharded = alone()
    train(model, sharded, first)
    sharded.zero_grad()
    backward(model, 0, 0)
    if stepped:
        sharded.step()
    refused(NOT_WHOLE.format("parameter 'first.weight'"), lambda: look(model, sharded))
    sharded.zero_grad()
    assert [p.grad for p in model.parameters()] == [None] * 6


def test_a_plain_grad_scaler():
    model, sharded = alone()
    scaler = torch.amp.GradScaler("cpu")
    x, y = data(0)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    refused(NOT_WHOLE.format("parameter 'first.weight'"), lambda: scaler.step(sharded))


def test_gradients_of_float16_are_not_unscaled():
    model, sharded = alone(build("plain").half())
    scaler = ShardedGradScaler("cpu")
    scaler.scale(model(data(0)[0].half()).sum()).backward()
    text = (
        "gradients of float16 are not unscaled: those that are small are lost before: parameter 'first.weight': keep parameters in float32, and compute under "
        "torch.autocast"
    )
    refused(text, lambda: scaler.unscale_(sharded))
    refused(text, lambda: scaler.step(sharded))


def test_no_scaling_inside_of_step():
    """What GradScaler.step() asks; an AttributeError in a property would mean the same to it."""
    _, sharded = alone()
    assert sharded._step_supports_amp_scaling is False


def test_synchronize():
    refused(NOT_WHOLE.format("SGD.synchronize"), alone()[1].synchronize)


def test_gradients_that_were_not_cleared():
    model, sharded = alone()
    train(model, sharded, 2)
    refused(
        "gradients of the last iteration were not cleared, and gradients that are shared out do not add up: optimizer SGD: call "
        "zero_grad() before each backward pass",
        lambda: backward(model, 2, 0),
    )


@pytest.mark.parametrize("clear", [
    lambda model, sharded: model.zero_grad(),
    lambda model, sharded: [setattr(p, "grad", None) for p in model.parameters()],
    lambda model, sharded: sharded.zero_grad(set_to_none=False),
])
def test_gradients_that_were_cleared_in_another_way(clear):
    model, sharded = alone()
    train(model, sharded, 2)
    clear(model, sharded)
    backward(model, 2, 0)
    sharded.step()


def test_a_gradient_that_was_set():
    model, sharded = alone()
    backward(model, 0, 0)
    model.first.bias.grad = torch.zeros(16)
    refused(
        "it was given a gradient after its own was sent, so the sum over the ranks has the old one: parameter 'first.bias': leave p.grad "
        "alone between backward() and step()",
        sharded.step,
    )


def test_a_second_backward_pass():
    model, sharded = alone()
    train(model, sharded, 1)
    sharded.zero_grad()
    backward(model, 1, 0)
    with pytest.raises(InvalidArgumentError):
        backward(model, 2, 0)


@pytest.mark.parametrize("replace", [lambda model: model.double(), lambda model: setattr(model.first.weight, "data", torch.zeros(16, 6))])
def test_memory_that_was_replaced(replace):
    model, sharded = alone()
    train(model, sharded, 2)
    sharded.zero_grad()
    replace(model)
    with pytest.raises(InvalidArgumentError) as raised:
        model(data(0)[0].to(model.last.weight.dtype)).sum().backward()
        sharded.step()
    assert "parameter 'first.weight'" in str(raised.value) or "parameter '" in str(raised.value)
    assert "convert" in str(raised.value)


def test_a_stale_parameter():
    """Where nothing sees the use: with the watch set aside, as on another thread."""
    from tensorlane.torch import _touch

    model, sharded = alone()
    train(model, sharded, 2)
    sharded.zero_grad()
    with pytest.raises(InvalidArgumentError, match="computed while its update was pending.*: parameter 'first.weight'"), _touch.of_this_thread().aside():
        F.linear(data(0)[0], model.first.weight).sum().backward()


def test_a_parameter_that_is_written_past_torch():
    """Before its new values have arrived."""
    from tensorlane.torch import _touch

    model, sharded = alone()
    train(model, sharded, 2)
    with _touch.of_this_thread().aside():
        torch.autograd.graph.increment_version(model.first.weight)
    refused(
        "it was written while its update was pending, so what was written is lost: parameter 'first.weight': call flush() before what writes it without "
        "torch's functions or on another thread, or pass synchronous=True",
        sharded.flush,
    )


def test_a_parameter_that_was_frozen():
    model = build("frozen")
    _, sharded = alone(model)
    model.second.requires_grad_(True)
    backward(model, 0, 0)
    refused(
        "it was frozen when the optimizer was wrapped, so it is not registered: parameter 2 of group 0: make all parameters that will be trained require "
        "gradients before DistributedOptimizer(), or wrap an optimizer that has loaded what full_state_dict() gives now",
        sharded.step,
    )


# Optimizers


class Signs(torch.optim.Optimizer):
    """Treats every element by itself."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad.sign() * group["lr"])


def test_optimizers_that_are_not_known():
    refused(
        "it is not known whether its step() treats every element by itself: optimizer Signs: pass shard='element' if it does, or "
        "shard='parameter' if it needs whole parameters, as LAMB, Muon and Adafactor do",
        lambda: alone(optimizer=lambda m: Signs(m.parameters(), 0.1)),
    )
    for shard in ("element", "parameter"):
        model, sharded = alone(optimizer=lambda m: Signs(m.parameters(), 0.1), shard=shard)
        train(model, sharded, 2)
        assert sharded.tensorlane_status()["shard"] == shard


@pytest.mark.parametrize("kind", [name for name in ("Adafactor", "Muon") if hasattr(torch.optim, name)])
def test_known_ones_that_need_whole_parameters(kind):
    with pytest.raises(InvalidArgumentError, match=f"treats every element by itself: optimizer {kind}: pass shard="):
        alone(optimizer=lambda m: getattr(torch.optim, kind)([p for p in m.parameters() if p.ndim == 2]))


@pytest.mark.parametrize(
    "optimizer, text",
    [
        (lambda m: torch.optim.LBFGS(m.parameters()), "a closure is refused: it computes gradients inside step.*: optimizer LBFGS"),
        (lambda m: torch.optim.SparseAdam(list(m.parameters())), "sparse gradients cannot be summed: optimizer SparseAdam"),
        (lambda m: torch.optim.SGD(m.parameters(), lr=0.1, differentiable=True), "differentiable=True is refused"),
    ],
)
def test_optimizers_that_no_mode_takes(optimizer, text):
    with pytest.raises(InvalidArgumentError, match=text):
        alone(optimizer=optimizer)


def test_closure():
    refused(
        "a closure is refused: it computes gradients inside step(), after they should have been sent: SGD.step(closure): compute the loss "
        "and call backward() before step()",
        lambda: alone()[1].step(lambda: 0.0),
    )


def test_sparse_gradient():
    model, sharded = alone(nn.Embedding(4, 3, sparse=True))
    with pytest.raises(InvalidArgumentError, match="its gradient is sparse, and only dense ones can be summed: parameter 'weight'"):
        model(torch.tensor([1])).sum().backward()
    del sharded


def test_data_parallel():
    model = build("plain")
    with pytest.raises(InvalidArgumentError, match="parameters under DataParallel are refused"):
        alone(model, model=nn.DataParallel(model))


# Arguments


@pytest.mark.parametrize(
    "options, text",
    [
        ({"shard": "row"}, "shard='row': DistributedOptimizer: use 'element' or 'parameter'"),
        ({"max_norm": 0.0}, "max_norm=0.0: DistributedOptimizer: give a norm above 0, or leave it out"),
        ({"max_norm": math.nan}, "max_norm=nan: DistributedOptimizer: give a norm above 0, or leave it out"),
        ({"wire_dtype": torch.int8}, "gradients cannot travel as torch.int8: DistributedOptimizer: use torch.bfloat16, or leave it out"),
        ({"op": Min}, "gradients cannot be reduced by op 2: DistributedOptimizer: use Sum or Average"),
    ],
)
def test_arguments(options, text):
    refused(text, lambda: alone(**options))


@pytest.mark.parametrize("name, value", [("shard", "element"), ("max_norm", 1.0), ("wire_dtype", torch.bfloat16)])
def test_arguments_of_sharded_alone(name, value):
    model = build("plain")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    refused(
        f"{name}={value} needs sharded=True: DistributedOptimizer: pass both, or neither",
        lambda: DistributedOptimizer(optimizer, model.named_parameters(), transport=Loopback(), **{name: value}),
    )


def test_late_group():
    with pytest.raises(InvalidArgumentError, match="the set of parameters is fixed"):
        alone()[1].add_param_group({"params": [nn.Parameter(torch.ones(1))]})


def test_copies():
    import copy

    refused(
        "it cannot be copied: each rank has a share of its state alone: optimizer SGD: copy what full_state_dict() gives",
        lambda: copy.deepcopy(alone()[1]),
    )


# State


def states(size):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        train(model, sharded, 2, rank)
        return sharded.state_dict()

    return run_ranks(body, size)


def test_the_state_of_another_rank():
    first, second = states(2)
    model, sharded = alone()
    text = (
        "it is the state of rank {} of 2, shared out by element, and this is rank 0 of 1, by element: DistributedOptimizer.load_state_dict: "
        "load what full_state_dict() gave, or merge_state_dicts() of those of all ranks"
    )
    refused(text.format(0), lambda: sharded.load_state_dict(first))
    refused(text.format(1), lambda: sharded.load_state_dict(second))
    sharded.load_state_dict(merge_state_dicts([second, first]))
    train(model, sharded, 1)


def test_a_state_that_is_refused_changes_nothing():
    first, _ = states(2)
    model, sharded = alone()
    train(model, sharded, 1)
    other = {**first, "param_groups": [{**first["param_groups"][0], "lr": 99.0}]}
    with pytest.raises(InvalidArgumentError):
        sharded.load_state_dict(other)
    whole = sharded.full_state_dict()
    whole["state"] = {}
    whole["param_groups"] = [{**whole["param_groups"][0], "lr": 99.0}] * 2
    with pytest.raises(ValueError, match="different number of parameter groups"):
        sharded.load_state_dict(whole)
    assert sharded.param_groups[0]["lr"] == 0.1 and len(sharded.full_state_dict()["state"]) == 6


def test_after_close():
    """The text says the way on."""
    model, sharded = alone()
    train(model, sharded, 1)
    sharded.close()
    for call in (sharded.step, lambda: DistributedOptimizer(sharded, model.named_parameters(), transport=Loopback())):
        with pytest.raises(InvalidArgumentError) as raised:
            call()
        assert str(raised.value).endswith(
            "optimizer SGD: use or wrap a plain optimizer that has loaded what full_state_dict() gave before, or merge_state_dicts() of the state_dict() "
            "that every rank still has"
        )


def test_after_the_job():
    model, sharded = alone()
    train(model, sharded, 1)
    sharded._core.leave("this process has left its job", "call tensorlane.init() and wrap the optimizer again")
    refused(
        "this process has left its job: optimizer SGD: call tensorlane.init() and wrap the optimizer again: it first loads what full_state_dict() gave before, "
        "or merge_state_dicts() of the state_dict() that every rank still has",
        sharded.step,
    )
    assert len(merge_state_dicts([sharded.state_dict()])["state"]) == 6


def test_states_that_are_not_complete():
    first, second = states(2)
    for given in ([first], [first, first], [], [first, {"state": {}, "param_groups": []}]):
        with pytest.raises(InvalidArgumentError, match="merge_state_dicts: give it the state_dict\\(\\) of the sharded optimizer on every rank"):
            merge_state_dicts(given)
    merge_state_dicts([first, second])


def test_full_state_dict_with_gradients_under_way():
    model, sharded = alone()
    backward(model, 0, 0)
    refused(
        "gradients are under way: SGD.full_state_dict: call it after step() and before the next backward pass", sharded.full_state_dict,
    )


# Ranks that do different things


def mistake(do):
    """Both ranks train; then rank 1 calls do(model, optimizer) in place of what rank 0 does. What each heard."""

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        train(model, sharded, 2, rank)
        sharded.zero_grad()
        backward(model, 2, rank)
        if rank == 1:
            do(model, sharded)
        sharded.step()
        train(model, sharded, 1, rank, first=3)

    results = run_ranks(body)
    assert all(isinstance(result, errors.MismatchError) for result in results), results
    return [str(result) for result in results]


def test_one_rank_drops_its_gradients():
    first, second = mistake(lambda model, sharded: sharded.zero_grad())
    assert first == (
        "the ranks do different things: rank 0 calls step() in iteration 2, and rank 1 zero_grad() in iteration 2: DistributedOptimizer: "
        "make the same calls on all ranks"
    )
    assert "rank 1 calls zero_grad() in iteration 2, and rank 0 step() in iteration 2" in second


def test_one_rank_clips():
    first, second = mistake(lambda model, sharded: sharded.clip_grad_norm_(1.0))
    assert "rank 0 calls step() in iteration 2, and rank 1 clip_grad_norm_() with max_norm=1 in iteration 2" in first
    assert "rank 1 calls clip_grad_norm_() with max_norm=1" in second


def test_ranks_that_begin_with_different_parameters():
    def body(rank, transport):
        model = made(lambda: build("plain", seed=7 + rank))
        sharded = wrap(model, transport)
        backward(model, 0, rank)
        sharded.step()

    for result in run_ranks(body):
        assert isinstance(result, errors.MismatchError), result
        assert str(result) == (
            "ranks [1] have computed their first gradients with other parameters than rank 0: DistributedOptimizer: call "
            "broadcast_parameters(model.state_dict()) on all ranks before"
        )


def test_ranks_that_clip_by_different_norms():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        backward(model, 0, rank)
        sharded.clip_grad_norm_(1.0, 2.0 + rank)

    first, second = run_ranks(body)
    assert isinstance(first, errors.MismatchError) and isinstance(second, errors.MismatchError)
    assert str(first) == (
        "the ranks do different things: rank 0 calls clip_grad_norm_() with max_norm=1 in iteration 0, and rank 1 clip_grad_norm_() with max_norm=1, "
        "norm_type=3 in iteration 0: DistributedOptimizer: make the same calls on all ranks"
    )


@pytest.mark.parametrize("max_norm, norm_type, text", [
    (1.0, 0.0, "norm_type=0 is no norm over all ranks: SGD.clip_grad_norm_: use 1, 2 or inf, say"),
    (1.0, math.nan, "norm_type=nan is no norm over all ranks: SGD.clip_grad_norm_: use 1, 2 or inf, say"),
    (math.nan, 2.0, "max_norm=nan: SGD.clip_grad_norm_: give a number, or inf to clip nothing"),
])
def test_norms_that_are_none(max_norm, norm_type, text):
    model, sharded = alone()
    backward(model, 0, 0)
    refused(text, lambda: sharded.clip_grad_norm_(max_norm, norm_type))
    sharded.step()


def test_ranks_that_clip_to_different_norms():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        train(model, wrap(model, transport, max_norm=1.0 + rank), 1, rank)

    for result in run_ranks(body):
        assert isinstance(result, errors.MismatchError) and "with max_norm=1 in iteration 0" in str(result) and "with max_norm=2" in str(result)


def test_one_rank_collects_the_state():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport)
        train(model, sharded, 2, rank)
        if rank == 1:
            sharded.full_state_dict()
        train(model, sharded, 1, rank, first=2)

    first, second = run_ranks(body)
    assert isinstance(first, errors.MismatchError) and isinstance(second, errors.MismatchError), (first, second)
    assert "some ranks call full_state_dict() while others train" in str(second)


def test_after_a_failure_every_call_says_so_again():
    model, sharded = alone()
    train(model, sharded, 2)
    sharded._core._failure = errors.AbortedError("rank 1 has died: h1: resume from a checkpoint")
    for call in (sharded.step, sharded.zero_grad, sharded.full_state_dict, lambda: sharded.clip_grad_norm_(1.0)):
        with pytest.raises(errors.AbortedError, match="rank 1 has died"):
            call()
    with pytest.raises(errors.AbortedError):
        sharded.load_state_dict({})
