"""DistributedOptimizer(sharded=True): its state in checkpoints, what users write around the loop, and the memory of parameters."""

import copy
import gc
import io

import pytest
import torch
from models import OPTIMIZERS, build, data, groups_of, same_bits
from sharded_helpers import STEPS, made, plain, ranks, small_buckets, train, train_plain, wrap  # noqa: F401
from tensorlane.torch import merge_state_dicts


# State


def test_resuming_on_another_number_of_ranks():
    def start(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["adam"](groups_of(model)))
        train(model, sharded, 4, rank)
        return model.state_dict(), sharded.full_state_dict(), sharded.state_dict()

    saved = ranks(start, 4)
    merged = merge_state_dicts([mine for _, _, mine in saved])
    same_bits(merged["state"], saved[0][1]["state"])
    assert merged["param_groups"] == saved[0][1]["param_groups"]

    model = made(lambda: build("plain"))
    optimizer = OPTIMIZERS["adam"](groups_of(model))
    model.load_state_dict(saved[0][0])
    optimizer.load_state_dict(copy.deepcopy(saved[0][1]))
    train_plain(model, optimizer, 2, 4, first=4)

    def resume(before):
        def body(rank, transport):
            model = made(lambda: build("plain"))
            model.load_state_dict(saved[0][0])
            inner = OPTIMIZERS["adam"](groups_of(model))
            if before:
                inner.load_state_dict(copy.deepcopy(merged))
            sharded = wrap(model, transport, inner)
            if not before:
                sharded.load_state_dict(copy.deepcopy(merged))
            train(model, sharded, 4, rank, first=4)
            return model.state_dict(), sharded.full_state_dict()

        for mine, whole in ranks(body, 2):
            same_bits(mine, model.state_dict())
            same_bits(whole["state"], optimizer.state_dict()["state"])

    resume(False)
    resume(True)


def test_resuming_with_the_state_of_each_rank():
    files = {}

    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["adam"](groups_of(model)))
        train(model, sharded, 4, rank)
        files[rank] = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": sharded.state_dict()}, files[rank])
        train(model, sharded, 4, rank, first=4)
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        files[rank].seek(0)
        saved = torch.load(files[rank])
        model.load_state_dict(saved["model"])
        sharded.load_state_dict(saved["optimizer"])
        train(model, sharded, 4, rank, first=4)
        same_bits(model.state_dict(), expected)
        sharded.close()
        again = wrap(model, transport, OPTIMIZERS["adam"](groups_of(model)))
        model.load_state_dict(saved["model"])
        again.load_state_dict(saved["optimizer"])
        train(model, again, 4, rank, first=4)
        same_bits(model.state_dict(), expected)

    ranks(body)


# Code around the loop


def test_who_reads_a_parameter_waits_for_it():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["momentum"](groups_of(model)))
        seen = []
        average = [p.detach().clone() for p in model.parameters()]
        for step in range(STEPS):
            train(model, sharded, 1, rank, first=step)
            with torch.no_grad():
                torch._foreach_lerp_(average, list(model.parameters()), 0.1)
            seen.append(model.second.weight.norm().item())
            if step == 3:
                model.eval()
                seen.append(model(data(0)[0]).sum().item())
                model.train()
                model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
            if step == 5:
                with torch.no_grad():
                    model.last.bias.clamp_(-0.01, 0.01)
                seen.append(copy.deepcopy(model).last.bias.sum().item())
        return seen, model.state_dict(), [a.clone() for a in average]

    def alone():
        model = made(lambda: build("plain"))
        optimizer, seen = OPTIMIZERS["momentum"](groups_of(model)), []
        average = [p.detach().clone() for p in model.parameters()]
        for step in range(STEPS):
            train_plain(model, optimizer, 2, 1, first=step)
            with torch.no_grad():
                torch._foreach_lerp_(average, list(model.parameters()), 0.1)
            seen.append(model.second.weight.norm().item())
            if step == 3:
                seen.append(model(data(0)[0]).sum().item())
                model.load_state_dict({name: value * 0.5 for name, value in model.state_dict().items()})
            if step == 5:
                with torch.no_grad():
                    model.last.bias.clamp_(-0.01, 0.01)
                seen.append(copy.deepcopy(model).last.bias.sum().item())
        return seen, model.state_dict(), average

    expected = alone()
    for seen, parameters, average in ranks(body):
        assert seen == expected[0]
        same_bits(parameters, expected[1])
        assert all(torch.equal(one, other) for one, other in zip(average, expected[2]))


def test_groups_that_come_back():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["adamw"](groups_of(model)))
        train(model, sharded, 3, rank)
        group = sharded.param_groups.pop(0)
        before = model.first.weight.detach().clone()
        train(model, sharded, 2, rank, first=3)
        assert torch.equal(before, model.first.weight)
        sharded.add_param_group(group)
        train(model, sharded, 2, rank, first=5)
        assert not torch.equal(before, model.first.weight)
        return model.state_dict()

    first, second = ranks(body)
    same_bits(first, second)


@pytest.mark.parametrize("how", ["close", "drop"])
def test_parameters_get_memory_of_their_own_again(how):
    def body(rank, transport):
        model = made(lambda: build("plain"))
        link = transport()
        sharded = wrap(model, lambda: link)
        train(model, sharded, 3, rank)
        expected = {name: value.clone() for name, value in model.state_dict().items()}
        if how == "close":
            sharded.close()
        else:
            sharded.flush()
            del sharded
            gc.collect()
        for buffer in link.buffers:
            buffer.view(torch.uint8).fill_(255)
        same_bits(model.state_dict(), expected)
        again = wrap(model, transport)
        train(model, again, 1, rank)

    ranks(body)


def test_wrapping_a_model_again_goes_on():
    def body(rank, transport):
        model = made(lambda: build("plain"))
        sharded = wrap(model, transport, OPTIMIZERS["momentum"](groups_of(model)))
        train(model, sharded, 3, rank)
        whole = sharded.full_state_dict()
        inner = OPTIMIZERS["momentum"](groups_of(model))
        inner.load_state_dict(whole)
        again = wrap(model, transport, inner)
        train(model, again, STEPS - 3, rank, first=3)
        return model.state_dict()

    for mine in ranks(body):
        same_bits(mine, plain("plain", "momentum", 2)[0])


@pytest.mark.parametrize("saved", [False, True])
def test_going_on_after_close(saved):
    """Without the other ranks, by what full_state_dict() gave before, or by what each rank still has."""
    kept = {}

    def body(rank, transport):
        model = made(lambda: build("plain"))
        inner = OPTIMIZERS["adam"](groups_of(model))
        train_plain(model, inner, 2, 1)
        sharded = wrap(model, transport, inner)
        train(model, sharded, 3, rank, first=1)
        whole = sharded.full_state_dict() if saved else None
        assert not inner.state, "it would go on from here, and keep whole tensors on each rank"
        sharded.close()
        kept[rank] = sharded.state_dict()
        return model, inner, whole

    results = ranks(body)
    for model, inner, whole in results:
        inner.load_state_dict(whole or merge_state_dicts([kept[0], kept[1]]))
        train_plain(model, inner, 2, STEPS - 4, first=4)
        same_bits(model.state_dict(), plain("plain", "adam", 2)[0])
