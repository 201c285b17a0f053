"""The cross-iteration optimizer computes, bit for bit, what our synchronous mode and plain PyTorch compute."""

import inspect
import threading

import pytest
import torch
from loopback import Hub, Loopback
from models import OPTIMIZERS, SCENARIOS, build, groups_of, same_bits, train
from ranks import device_of
from tensorlane.torch import DistributedOptimizer


def distributed(model, optimizer, scenario, transport, synchronous=False):
    return DistributedOptimizer(
        OPTIMIZERS[optimizer](groups_of(model)), model.named_parameters(), overlap=not synchronous, transport=transport,
        backward_passes_per_step=3 if scenario == "accumulation" else 1,
    )


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_one_rank(optimizer, scenario):
    lazy_model, synchronous_model, plain_model = (build(scenario) for _ in range(3))
    lazy = distributed(lazy_model, optimizer, scenario, Loopback())
    train(lazy_model, lazy, scenario)
    report = lazy.tensorlane_status()
    assert report["mode"] == "cross-iteration"
    trainable = [n for n, p in lazy_model.named_parameters() if p.requires_grad]
    assert report["pending"] == (0 if scenario == "clipping" else len(trainable))
    assert report["sent_at_step"] == (["encode.weight"] if scenario == "tied" else [])
    assert report["updated_in_step"] == []

    synchronous = distributed(synchronous_model, optimizer, scenario, Loopback(), synchronous=True)
    train(synchronous_model, synchronous, scenario)
    assert synchronous.tensorlane_status()["mode"] == "synchronous"
    plain = OPTIMIZERS[optimizer](groups_of(plain_model))
    train(plain_model, plain, scenario)

    start = build(scenario).state_dict()
    moved = [not torch.equal(start[n], synchronous_model.state_dict()[n]) for n in trainable]
    assert all(moved), "a test in which nothing changes would show nothing"
    same_bits(lazy_model.state_dict(), synchronous_model.state_dict())
    same_bits(synchronous_model.state_dict(), plain_model.state_dict())
    same_bits(lazy.state_dict()["state"], synchronous.state_dict()["state"])
    same_bits(lazy.state_dict()["state"], plain.state_dict()["state"])


def run_ranks(scenario, optimizer, synchronous, size=2):
    """Trains `size` ranks in threads, each with data of its own; returns their models' state_dicts."""
    hub, results, errors = Hub(size), [None] * size, []
    models = [build(scenario).to(device_of(number)) for number in range(size)]

    def rank(number):
        try:
            torch.set_default_device(device_of(number))
            model = models[number]
            wrapped = distributed(model, optimizer, scenario, hub.transport(number), synchronous)
            train(model, wrapped, scenario, rank=number)
            results[number] = model.to(device_of(0)).state_dict()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=rank, args=(n,)) for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
def test_two_ranks(optimizer, scenario):
    lazy = run_ranks(scenario, optimizer, synchronous=False)
    synchronous = run_ranks(scenario, optimizer, synchronous=True)
    same_bits(lazy[0], lazy[1])
    same_bits(synchronous[0], synchronous[1])
    same_bits(lazy[0], synchronous[0])
    alone = build(scenario)
    train(alone, OPTIMIZERS[optimizer](groups_of(alone)), scenario)
    assert any(not torch.equal(alone.state_dict()[k], v) for k, v in lazy[0].items()), "the other rank's data had no effect"


@pytest.mark.parametrize("option", ["foreach", "fused"])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adagrad])
def test_multi_tensor_code_when_the_user_asks_for_it(kind, option):
    if option not in inspect.signature(kind).parameters:
        pytest.skip(f"this PyTorch's {kind.__name__} has no {option} code")
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        wrapped = kind(model.parameters(), lr=0.01, weight_decay=0.01, **{option: True})
        train(model, DistributedOptimizer(wrapped, model.named_parameters(), overlap=not synchronous, transport=Loopback()), "plain")
    same_bits(models[0].state_dict(), models[1].state_dict())


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes(dtype):
    states = []
    for synchronous in (False, True):
        model = build("plain").to(dtype)
        optimizer = DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), model.named_parameters(), overlap=not synchronous, transport=Loopback()
        )
        for step in range(20):
            optimizer.zero_grad()
            model(torch.full((4, 6), step / 20, dtype=dtype)).square().sum().backward()
            optimizer.step()
        states.append(model.state_dict())
    same_bits(*states)
