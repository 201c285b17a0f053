"""What is sent when: tied weights, rounds, accumulation, clipping, parameters without gradients."""

import pytest
import torch
import torch.nn.functional as F
from helpers import backward, bits, iterate, unchanged, wrap
from loopback import Loopback
from models import build, data, same_bits
from tensorlane import errors
from tensorlane.torch import DistributedOptimizer, _gradients
from torch import nn
from torch.utils.checkpoint import checkpoint


# Urgency


def test_small_neighbours_that_travel_together_make_nobody_less_urgent(monkeypatch):
    monkeypatch.setattr(_gradients, "BATCH_BYTES", 64 << 10)
    sizes = [8, 8, 200, 200, 8, 8]  # of the linear layers' inputs and outputs: small, large, small ones
    model = nn.Sequential(*(nn.Linear(a, b) for a, b in zip(sizes, sizes[1:])))
    transport = Loopback()
    wrap(model, transport=transport)
    assert len(transport.names) < len(list(model.parameters())), "nothing travels together"
    places = {name: place for place, (name, _) in enumerate(model.named_parameters())}
    urgencies = {name.split("+")[0]: urgency for name, urgency in zip(transport.names, transport.urgencies)}
    assert urgencies.pop("roll_call") == 1
    assert urgencies == {name: 1 - places[name] / len(places) for name in urgencies}


def test_a_batch_does_not_wait_for_those_of_its_parameters_that_are_frozen(monkeypatch):
    monkeypatch.setattr(_gradients, "BATCH_BYTES", 64 << 10)
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer)
    optimizer.flush()
    optimizer.zero_grad()
    model.second.requires_grad_(False)
    transport.log.clear()
    backward(model)
    assert transport.posted() == transport.names[:1], "in the backward pass"


# Tied weights and checkpointing


def test_tied_parameters_are_sent_once_after_the_backward_pass():
    model = build("tied")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer)
    transport.log.clear()
    optimizer.zero_grad()
    backward(model)
    assert "encode.weight" not in transport.posted()
    optimizer.step()
    assert transport.posted() == ["middle.bias", "middle.weight", "encode.weight"] or sorted(transport.posted()[:2]) == ["middle.bias", "middle.weight"]
    assert transport.posted().count("encode.weight") == 1 and transport.posted()[-1] == "encode.weight"


class Checkpointed(nn.Module):
    """One weight in two checkpointed segments: with reentrant checkpointing its gradient is accumulated twice in a backward pass."""

    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.into, self.shared, self.own, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = self.into(x)
        for layer in (self.shared, self.own, self.shared):
            x = checkpoint(lambda v, layer=layer: torch.tanh(layer(v)), x, use_reentrant=self.reentrant, preserve_rng_state=False)  # ranks are threads
        return self.out(x)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_checkpointing_with_a_shared_weight(reentrant, passes):
    def run(synchronous):
        torch.manual_seed(5)
        model = Checkpointed(reentrant)
        transport = Loopback()
        optimizer = wrap(model, synchronous=synchronous, transport=transport, backward_passes_per_step=passes)
        for step in range(5):
            optimizer.zero_grad()
            for micro in range(passes):
                backward(model, step * passes + micro)
            optimizer.step()
        assert transport.posted().count("shared.weight") == 5
        return model.state_dict(), optimizer.tensorlane_status()

    lazy, report = run(False)
    same_bits(lazy, run(True)[0])
    assert report["sent_at_step"] == (["shared.weight", "shared.bias"] if reentrant else [])


# Rounds


def test_two_backward_passes_in_the_first_iteration():
    model = build("plain")
    optimizer = wrap(model)  # held: its hooks go with it
    backward(model)
    with pytest.raises(errors.InvalidArgumentError) as raised:
        backward(model)
    assert str(raised.value).startswith("a gradient appeared after 1 backward pass(es) since the last step(): parameter 'last.")
    assert str(raised.value).endswith("call step() after every backward pass, or set backward_passes_per_step")
    del optimizer


def test_two_backward_passes_later():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    backward(model)
    with pytest.raises(errors.InvalidArgumentError, match="after 1 backward"):
        backward(model)


def test_accumulation_sends_after_the_last_pass():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport, backward_passes_per_step=3)
    for micro in range(3):
        backward(model, micro)
    optimizer.step()
    optimizer.zero_grad()
    transport.log.clear()
    backward(model, 3)
    backward(model, 4)
    assert transport.posted() == []
    backward(model, 5)
    assert len(transport.posted()) == 6
    with pytest.raises(errors.InvalidArgumentError, match="after 3 backward"):
        backward(model, 6)


def test_step_before_the_last_pass_sends_what_there_is():
    model, plain = build("plain"), build("plain")
    optimizer = wrap(model, backward_passes_per_step=3)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for one, net in ((optimizer, model), (reference, plain)):
            one.zero_grad()
            backward(net, step)
            backward(net, step + 10)
            one.step()
    same_bits(model.state_dict(), plain.state_dict())


def test_zero_grad_between_passes_drops_what_was_accumulated():
    model, plain = build("plain"), build("plain")
    optimizer = wrap(model, backward_passes_per_step=2)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(3):
        for one, net in ((optimizer, model), (reference, plain)):
            backward(net, step)
            one.zero_grad()
            backward(net, step + 10)
            one.step()
            one.zero_grad()
    same_bits(model.state_dict(), plain.state_dict())


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("how", [lambda model, optimizer: optimizer.zero_grad(), lambda model, optimizer: model.zero_grad()])
def test_zero_grad_between_backward_and_step_drops_the_gradients(how, synchronous):
    model, plain = build("plain"), build("plain")
    optimizer = wrap(model, synchronous=synchronous)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        for one, net in ((optimizer, model), (reference, plain)):
            net.zero_grad()
            backward(net, step + 10)
            how(net, one)
            backward(net, step)
            one.step()
    same_bits(model.state_dict(), plain.state_dict())


def test_an_iteration_can_be_skipped_after_synchronize():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    optimizer.flush()
    before = bits(model)
    backward(model, 9)
    optimizer.synchronize()
    optimizer.zero_grad()
    assert unchanged(model, before) == list(before)
    iterate(model, optimizer, 1)
    optimizer.flush()
    assert unchanged(model, before) == []


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("change", ["clip_grad_norm_", "data.clamp_", "replace", "foreach"])
def test_gradients_may_be_changed_between_backward_and_step(change, synchronous):
    changes = {
        "clip_grad_norm_": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.1),
        "data.clamp_": lambda model: [p.grad.data.clamp_(-1e-3, 1e-3) for p in model.parameters()],
        "replace": lambda model: [setattr(p, "grad", p.grad * 0.5) for p in model.parameters()],
        "foreach": lambda model: torch._foreach_mul_([p.grad for p in model.parameters()], 0.5),
    }
    model, plain = build("plain"), build("plain")
    optimizer = wrap(model, synchronous=synchronous)
    reference = torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9)
    for step in range(4):
        for one, net in ((optimizer, model), (reference, plain)):
            one.zero_grad()
            backward(net, step)
            changes[change](net)
            one.step()
    same_bits(model.state_dict(), plain.state_dict())


def test_a_dropped_gradient_raises():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer)
    optimizer.zero_grad()
    backward(model)
    model.last.bias.grad = None
    with pytest.raises(errors.InvalidArgumentError) as raised:
        optimizer.step()
    assert str(raised.value) == (
        "its gradient was changed after it was sent, so the sum over the ranks has the old one: parameter 'last.bias': "
        "call synchronize() after backward() and before what changes gradients"
    )


def make_scaler():
    try:
        return torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    except AttributeError:
        pytest.skip("this PyTorch has no GradScaler for the CPU")


def scaled(model, optimizer, poison=None, synchronize=False):
    scaler = make_scaler()
    for step in range(6):
        optimizer.zero_grad()
        x, y = data(step)
        if step == poison:
            x = x * float("inf")
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if synchronize:
            optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict()


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("synchronize", [True, False])
@pytest.mark.parametrize("poison", [None, 0, 3])
def test_grad_scaler(poison, synchronize, synchronous):
    """With a step that the scaler skips, too."""
    model, plain = build("plain"), build("plain")
    result = scaled(model, wrap(model, synchronous=synchronous), poison, synchronize)
    same_bits(result, scaled(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), poison))


# Parameters without gradients


def test_a_parameter_that_no_rank_used_is_left_alone():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=0.5), transport=transport)
    iterate(model, optimizer)
    optimizer.flush()
    transport.log.clear()
    before = bits(model)
    optimizer.zero_grad()
    model.first(torch.ones(1, 6)).sum().backward()
    optimizer.step()
    optimizer.flush()
    assert len(transport.posted()) == 6
    assert torch.equal(transport.buffers[4], torch.zeros(48))
    assert unchanged(model, before) == list(before)[2:], "in spite of momentum and weight decay, as with DistributedDataParallel"


def test_a_group_that_was_dropped_after_its_gradients_were_sent_may_come_back():
    model = build("plain")
    transport = Loopback()
    groups = [{"params": [*model.first.parameters(), *model.second.parameters()]}, {"params": model.last.parameters()}]
    optimizer = wrap(model, torch.optim.SGD(groups, lr=0.1), transport=transport)
    iterate(model, optimizer)
    optimizer.zero_grad()
    backward(model)
    dropped = optimizer.param_groups.pop()
    optimizer.step()
    optimizer.flush()
    optimizer.param_groups.append(dropped)
    optimizer.zero_grad()
    transport.log.clear()
    backward(model)
    assert transport.log.index(("wait", "last.weight")) < transport.log.index(("post", "last.weight")), "nobody needed what was sent before"
    before = bits(model)
    optimizer.step()
    optimizer.flush()
    assert unchanged(model, before) == []


def test_a_parameter_frozen_later_is_left_alone():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5), transport=transport)
    iterate(model, optimizer, 2)
    optimizer.flush()
    optimizer.zero_grad()
    model.second.requires_grad_(False)
    before = bits(model)
    transport.log.clear()
    iterate(model, optimizer, 2)
    optimizer.flush()
    assert unchanged(model, before) == ["second.weight", "second.bias"]
    assert "second.weight" not in transport.posted()


@pytest.mark.parametrize("synchronize", [True, False])
def test_an_old_gradient_of_a_frozen_parameter_is_not_applied(synchronize):
    model = build("plain")
    backward(model)
    model.second.requires_grad_(False)
    optimizer = wrap(model)
    before = bits(model)
    for parameter in (model.first, model.last):
        parameter.zero_grad()
    for step in range(2):
        backward(model, step)
        if synchronize:
            optimizer.synchronize()
        optimizer.step()
        for module in (model.first, model.last):
            module.zero_grad()
    optimizer.flush()
    assert model.second.weight.grad is not None
    assert unchanged(model, before) == ["second.weight", "second.bias"]


def test_an_unregistered_parameter_that_wants_training_is_an_error():
    model = build("frozen")
    optimizer = wrap(model)
    model.second.requires_grad_(True)
    backward(model)
    with pytest.raises(errors.InvalidArgumentError, match="frozen when the optimizer was wrapped.*parameter 2 of group 0"):
        optimizer.step()


def test_nans_pass_through():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 1)
    optimizer.zero_grad()
    model(torch.full((2, 6), float("nan"))).sum().backward()
    optimizer.step()
    optimizer.flush()
    assert model.last.weight.isnan().all()
