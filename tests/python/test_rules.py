"""The rules of the cross-iteration optimizer, one by one."""

import copy
import gc
import io
import pickle
import threading

import pytest
import torch
import torch.nn.functional as F
from loopback import Loopback
from models import OPTIMIZERS, Attention, Plain, Tied, build, data, same_bits, train
from tensorlane import errors
from tensorlane.torch import DistributedOptimizer
from torch import nn
from torch.utils.checkpoint import checkpoint


def wrap(model, optimizer=None, transport=None, **options):
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return DistributedOptimizer(optimizer, model.named_parameters(), transport=transport or Loopback(), **options)


def backward(model, seed=0):
    x, y = data(seed)
    F.cross_entropy(model(x), y).backward()


def iterate(model, optimizer, steps=1, seed=0):
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, seed + step)
        optimizer.step()


def bits(model):
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def unchanged(model, before):
    return [name for name, parameter in model.named_parameters() if torch.equal(parameter, before[name])]


def pending(optimizer):
    return optimizer.tensorlane_status()["pending"]


# When parameters change


def test_nothing_changes_before_step_nor_in_step():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer)
    before = bits(model)
    optimizer.zero_grad()
    backward(model, 1)
    assert unchanged(model, before) == list(before)
    optimizer.step()
    assert unchanged(model, before) == list(before) and pending(optimizer) == 6
    optimizer.flush()
    assert unchanged(model, before) == [] and pending(optimizer) == 0


def test_the_first_iteration_is_synchronous():
    model = build("plain")
    optimizer = wrap(model)
    before = bits(model)
    iterate(model, optimizer)
    assert unchanged(model, before) == [] and pending(optimizer) == 0


def test_each_update_waits_for_its_own_module():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 2)
    transport.log.clear()
    before = bits(model)
    model.first(torch.randn(2, 6))
    assert [n for n in before if n not in unchanged(model, before)] == ["first.weight", "first.bias"]
    assert transport.log == [("wait", "first.weight"), ("wait", "first.bias")]
    assert pending(optimizer) == 4


def test_gradients_leave_in_the_order_of_the_backward_pass():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer)
    transport.log.clear()
    backward(model)
    order = [name.split(".")[0] for name in transport.posted()]
    assert order == ["last", "last", "second", "second", "first", "first"], "all are sent before step(), the last layer first"
    optimizer.step()
    assert len(transport.posted()) == 6


def test_positions_are_the_order_of_named_parameters():
    model = build("plain")
    transport = Loopback()
    wrap(model, transport=transport)
    assert transport.names == [name for name, _ in model.named_parameters()]


def test_without_names_the_order_of_the_groups_counts():
    transport = Loopback()
    model = build("plain")
    DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), transport=transport)
    assert transport.names == [f"noname.0.{i}" for i in range(6)]


def test_hyperparameters_are_those_of_the_moment_of_step():
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        groups = [{"params": [p]} for p in model.parameters()]
        optimizer = wrap(model, torch.optim.Adam(groups, lr=0.1, betas=(0.9, 0.99)), synchronous=synchronous)
        for step in range(4):
            iterate(model, optimizer, seed=step)
            for number, group in enumerate(optimizer.param_groups):
                group.update(lr=0.01 * (step + number), betas=(0.1 * step, 0.9), weight_decay=0.1 * step, eps=1e-3)
    same_bits(models[0].state_dict(), models[1].state_dict())


def test_a_tensor_as_learning_rate_is_snapshot_too():
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        rate = torch.tensor(0.1)
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=rate), synchronous=synchronous)
        for step in range(3):
            iterate(model, optimizer, seed=step)
            rate.mul_(0.1)
    same_bits(models[0].state_dict(), models[1].state_dict())


@pytest.mark.parametrize("to_none", [True, False])
def test_zero_grad_after_step_is_harmless(to_none):
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        optimizer = wrap(model, synchronous=synchronous)
        for step in range(4):
            backward(model, step)
            optimizer.step()
            optimizer.zero_grad(set_to_none=to_none)
    same_bits(models[0].state_dict(), models[1].state_dict())


def test_grad_is_local_until_synchronize():
    class Doubled(Loopback):
        def wait(self, index):
            if index in self.under_way:
                self.buffers[index].mul_(2)
            super().wait(index)

    model = build("plain")
    optimizer = wrap(model, transport=Doubled())
    iterate(model, optimizer)
    optimizer.zero_grad()
    backward(model, 1)
    local = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.step()
    optimizer.flush()
    assert all(torch.equal(p.grad, local[n]) for n, p in model.named_parameters())
    optimizer.zero_grad()
    backward(model, 1)
    local = {n: p.grad.clone() for n, p in model.named_parameters()}
    optimizer.synchronize()
    assert all(torch.equal(p.grad, 2 * local[n]) for n, p in model.named_parameters())


def test_step_after_synchronize_applies_grad_as_it_is():
    model = build("plain")
    optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=1.0))
    iterate(model, optimizer)
    optimizer.zero_grad()
    backward(model)
    optimizer.synchronize()
    before = bits(model)
    for parameter in model.parameters():
        parameter.grad.fill_(0.25)
    with optimizer.skip_synchronize():
        optimizer.step()
    assert pending(optimizer) == 0
    assert all(torch.equal(p, before[n] - 0.25) for n, p in model.named_parameters())


def test_updates_do_not_go_through_data():
    """A tracked update makes autograd refuse a backward pass over values that are gone; one through .data would give wrong gradients silently."""
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    version = model.second.weight._version
    x = torch.randn(2, 6, requires_grad=True)
    loss = model(x).sum()
    assert model.second.weight._version > version
    backward(model, 5)
    optimizer.step()
    optimizer.flush()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_updates_run_on_the_training_thread_only():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    raised = []

    def other():
        try:
            model(torch.randn(2, 6))
        except errors.InvalidArgumentError as error:
            raised.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert raised == [
        "a forward pass on another thread needs its pending update: parameter 'first.weight': "
        "run the forward pass on the thread that calls step(), or call flush() there first"
    ]
    assert pending(optimizer) == 6


# Modules whose hooks do not fire


def test_a_weight_whose_owner_is_never_called_is_waited_for_above():
    model = build("attention")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 2)
    before = bits(model)
    fired = []
    model.layer.self_attn.out_proj.register_forward_pre_hook(lambda *_: fired.append(True))
    transport.log.clear()
    model.layer.self_attn(*[torch.randn(1, 1, 8)] * 3)
    assert not fired, "if torch called it, this would test nothing"
    moved = [n for n in before if n not in unchanged(model, before)]
    assert moved == [f"layer.self_attn.{n}" for n in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]


def test_the_evaluation_fast_path_sees_no_old_weight():
    """In evaluation a TransformerEncoderLayer calls none of its children; here the model is in evaluation while it trains."""
    model = build("attention").eval()
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    assert pending(optimizer) > 0
    x, _ = data(3)
    with torch.no_grad():
        lazy = model(x)
    assert pending(optimizer) == 0
    with torch.no_grad():
        assert torch.equal(lazy, model(x))


def test_a_forward_pass_without_gradients_may_bypass_the_children():
    """Newer versions of torch leave the fast path where there are hooks; what other modules do is their own affair."""

    class Bypass(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = nn.Linear(6, 3)

        def forward(self, x):
            return self.child(x) if torch.is_grad_enabled() else F.linear(x, self.child.weight, self.child.bias)

    model = Bypass()
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    assert pending(optimizer) == 2
    with torch.no_grad():
        lazy = model(torch.ones(1, 6))
    assert pending(optimizer) == 0
    with torch.no_grad():
        assert torch.equal(lazy, model(torch.ones(1, 6)))


def test_a_parameter_without_a_module_is_updated_in_step():
    scale = nn.Parameter(torch.ones(3))
    model = nn.Linear(6, 3)
    optimizer = DistributedOptimizer(
        torch.optim.SGD([scale, *model.parameters()], lr=0.1), [("scale", scale), *model.named_parameters()], transport=Loopback()
    )
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.ones(2, 6)) * scale).sum().backward()
        before = scale.detach().clone()
        optimizer.step()
        assert not torch.equal(before, scale)
    assert optimizer.tensorlane_status()["updated_in_step"] == ["scale"]
    assert pending(optimizer) == 2


@pytest.mark.parametrize("first", [True, False])
def test_a_module_that_some_iterations_skip(first):
    """Skipped in the first iteration: its ancestor guards it. Skipped later: its update is applied before its buffer is used again."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes = nn.Linear(6, 3), nn.Linear(3, 3)

        def forward(self, x, both=False):
            x = self.always(x)
            return self.sometimes(x) if both else x

    def run(synchronous):
        torch.manual_seed(3)
        model = Branches()
        optimizer = wrap(model, synchronous=synchronous)
        for step in range(6):
            optimizer.zero_grad()
            model(torch.ones(2, 6), both=(step in (0, 4, 5)) == first).square().sum().backward()
            optimizer.step()
        return model.state_dict()

    same_bits(run(False), run(True))


def test_a_weight_used_before_its_module_runs_is_not_read_stale():
    """The parent uses the child's weight by itself first: the parent must wait for it, although the child's own hook fires later."""

    class Early(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(6, 6, bias=False)

        def forward(self, x):
            return self.linear(F.linear(x, self.linear.weight))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Early()

        def forward(self, x):
            return self.inner(x)

    def run(synchronous):
        torch.manual_seed(3)
        model = Model()
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.01), synchronous=synchronous)
        for step in range(4):
            optimizer.zero_grad()
            model(data(step)[0]).square().sum().backward()
            optimizer.step()
        return model.state_dict()

    same_bits(run(False), run(True))


def test_a_stale_gradient_is_an_error_that_names_the_parameter():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    x, _ = data(0)
    with pytest.raises(errors.InvalidArgumentError) as raised:
        F.linear(x, model.first.weight).sum().backward()
    assert str(raised.value) == (
        "its gradient was computed while its update was pending, from values that step() had already replaced: parameter 'first.weight': "
        "use the parameter only inside the modules that used it in the first iteration, or call flush() before the forward pass"
    )


def test_parametrized_weights():
    def run(synchronous):
        model = build("plain")
        torch.nn.utils.parametrizations.weight_norm(model.second)
        optimizer = wrap(model, synchronous=synchronous)
        iterate(model, optimizer, 5)
        return model.state_dict()

    same_bits(run(False), run(True))


@pytest.mark.filterwarnings("ignore:.*weight_norm.*")
def test_weights_made_by_another_pre_hook():
    """The old weight_norm computes the weight in a forward pre-hook of its own: ours must run first."""

    def run(synchronous):
        model = build("plain")
        torch.nn.utils.weight_norm(model.second)
        optimizer = wrap(model, synchronous=synchronous)
        iterate(model, optimizer, 5)
        optimizer.flush()
        return {n: p.detach() for n, p in model.named_parameters()}

    same_bits(run(False), run(True))


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
            x = checkpoint(lambda v, layer=layer: torch.tanh(layer(v)), x, use_reentrant=self.reentrant)
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
    wrap(model)
    backward(model)
    with pytest.raises(errors.InvalidArgumentError) as raised:
        backward(model)
    assert str(raised.value).startswith("a gradient appeared after 1 backward pass(es) since the last step(): parameter 'last.")
    assert str(raised.value).endswith("call step() after every backward pass, or set backward_passes_per_step")


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


def test_zero_grad_between_backward_and_step():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer)
    backward(model)
    with pytest.raises(errors.InvalidArgumentError, match="zero_grad\\(\\) between backward\\(\\) and step\\(\\) would drop gradients that have been sent"):
        optimizer.zero_grad()


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


@pytest.mark.parametrize("first", [True, False])
def test_clipping_without_synchronize_raises(first):
    """Clipping counts as a change even when nothing is clipped."""
    model = build("plain")
    optimizer = wrap(model)
    if not first:
        iterate(model, optimizer)
        optimizer.zero_grad()
    backward(model)
    nn.utils.clip_grad_norm_(model.parameters(), 1e9)
    with pytest.raises(errors.InvalidArgumentError) as raised:
        optimizer.step()
    assert str(raised.value) == (
        "its gradient was changed after it was sent, so the sum over the ranks has the old one: parameter 'first.weight': "
        "call synchronize() after backward() and before what changes gradients (clipping, GradScaler.unscale_, zero_grad)"
    )


def test_a_replaced_or_dropped_gradient_raises():
    for change in (lambda p: setattr(p, "grad", p.grad * 0.5), lambda p: setattr(p, "grad", None)):
        model = build("plain")
        optimizer = wrap(model)
        iterate(model, optimizer)
        optimizer.zero_grad()
        backward(model)
        change(model.last.bias)
        with pytest.raises(errors.InvalidArgumentError, match="changed after it was sent.*parameter 'last.bias'"):
            optimizer.step()


def make_scaler():
    try:
        return torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)
    except AttributeError:
        pytest.skip("this PyTorch has no GradScaler for the CPU")


def scaled(model, optimizer, poison=None):
    scaler = make_scaler()
    for step in range(6):
        optimizer.zero_grad()
        x, y = data(step)
        if step == poison:
            x = x * float("inf")
        scaler.scale(F.cross_entropy(model(x), y)).backward()
        if hasattr(optimizer, "synchronize"):
            optimizer.synchronize()
        scaler.step(optimizer)
        scaler.update()
    return model.state_dict()


@pytest.mark.parametrize("poison", [None, 0, 3])
def test_grad_scaler(poison):
    """With a step that the scaler skips, too."""
    lazy_model, plain = build("plain"), build("plain")
    lazy = scaled(lazy_model, wrap(lazy_model), poison)
    same_bits(lazy, scaled(plain, torch.optim.SGD(plain.parameters(), lr=0.1, momentum=0.9), poison))


def test_grad_scaler_without_synchronize_raises():
    model = build("plain")
    optimizer = wrap(model)
    scaler = make_scaler()
    x, y = data(0)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    with pytest.raises(errors.InvalidArgumentError) as raised:
        scaler.step(optimizer)
    assert str(raised.value) == (
        "GradScaler.step() changes gradients that have been sent: DistributedOptimizer: "
        "call synchronize() after backward() and before GradScaler.unscale_() or step()"
    )


# Parameters without gradients


def test_an_unused_parameter_counts_as_zeros():
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
    assert unchanged(model, before) == [], "momentum and weight decay go on, as on a rank that used it"


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


# What flushes


FLUSHERS = {
    "state_dict": lambda model, optimizer: model.state_dict(),
    "state_dict of a child": lambda model, optimizer: model.first.state_dict(),
    "optimizer state_dict": lambda model, optimizer: optimizer.state_dict(),
    "eval": lambda model, optimizer: model.eval(),
    "train(False)": lambda model, optimizer: model.train(False),
    "deepcopy": lambda model, optimizer: copy.deepcopy(model),
    "deepcopy of the optimizer": lambda model, optimizer: copy.deepcopy(optimizer),
    "pickle": lambda model, optimizer: pickle.dumps(model),
    "pickle of the optimizer": lambda model, optimizer: pickle.dumps(optimizer),
    "torch.save": lambda model, optimizer: torch.save(model, io.BytesIO()),
    "flush": lambda model, optimizer: optimizer.flush(),
}


@pytest.mark.parametrize("how", FLUSHERS)
def test_flushes(how):
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    before = bits(model)
    assert pending(optimizer) == 6
    FLUSHERS[how](model, optimizer)
    assert pending(optimizer) == 0 and unchanged(model, before) == []


def test_train_mode_does_not_flush():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    model.train()
    assert pending(optimizer) == 6


def test_loading_a_model_is_not_overwritten_by_a_pending_update():
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    other = build("plain", seed=99).state_dict()
    model.load_state_dict(other)
    assert pending(optimizer) == 0
    same_bits(model.state_dict(), other)


def test_loading_an_optimizer():
    model, twin = build("plain"), build("plain")
    optimizer, other = wrap(model, OPTIMIZERS["adam"](model.parameters())), wrap(twin, OPTIMIZERS["adam"](twin.parameters()))
    iterate(model, optimizer, 3)
    saved = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    iterate(twin, other, 2, seed=50)
    twin.load_state_dict(saved[1])
    other.load_state_dict(saved[0])
    for net, one in ((model, optimizer), (twin, other)):
        iterate(net, one, 3, seed=70)
    same_bits(model.state_dict(), twin.state_dict())


@pytest.mark.parametrize("copier", [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m))])
def test_a_copy_of_the_model_is_free_of_the_optimizer(copier):
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    twin = copier(model)
    same_bits(twin.state_dict(), model.state_dict())
    assert not any(m._forward_pre_hooks for m in twin.modules())
    assert not any(name in vars(m) for m in twin.modules() for name in ("train", "state_dict", "__reduce_ex__"))
    backward(model, 3)
    optimizer.step()
    before = bits(twin)
    twin(torch.randn(1, 6)).sum().backward()
    twin.eval()
    assert pending(optimizer) == 6 and unchanged(twin, before) == list(before)


def test_a_copy_of_the_optimizer_is_a_plain_one():
    model = build("plain")
    optimizer = wrap(model, OPTIMIZERS["adam"](model.parameters()))
    iterate(model, optimizer, 2)
    twin = pickle.loads(pickle.dumps(optimizer))
    assert type(twin) is torch.optim.Adam
    same_bits(twin.state_dict()["state"], optimizer.state_dict()["state"])


def test_updates_survive_an_optimizer_that_goes_out_of_scope():
    def run(synchronous):
        model = build("plain")
        iterate(model, wrap(model, synchronous=synchronous), 3)
        gc.collect()
        return model.state_dict()

    same_bits(run(False), run(True))


def test_wrapping_again_takes_over():
    model = build("plain")
    old_transport, transport = Loopback(), Loopback()
    old = wrap(model, transport=old_transport)
    iterate(model, old, 2)
    before = bits(model)
    new = wrap(model, transport=transport)
    assert unchanged(model, before) == [], "what was pending is applied"
    old_transport.log.clear()
    iterate(model, new, 2)
    assert old_transport.log == [] and transport.posted()
    with pytest.raises(errors.InvalidArgumentError, match="another DistributedOptimizer has its parameters now"):
        old.step()


def test_close_leaves_nothing_on_the_model():
    gc.collect()  # what earlier tests have dropped
    global_hooks = dict(torch.nn.modules.module._global_forward_pre_hooks)
    model = build("plain")
    optimizer = wrap(model)
    clean = [set(vars(m)) for m in build("plain").modules()]
    iterate(model, optimizer, 2)
    optimizer.close()
    assert [set(vars(m)) for m in model.modules()] == clean
    assert not any(m._forward_pre_hooks for m in model.modules())
    assert torch.nn.modules.module._global_forward_pre_hooks == global_hooks


# Being an optimizer


def test_it_is_an_optimizer_of_the_wrapped_class():
    model = build("plain")
    inner = torch.optim.AdamW(model.parameters())
    optimizer = wrap(model, inner)
    assert isinstance(optimizer, torch.optim.AdamW)
    assert optimizer.param_groups is inner.param_groups and optimizer.state is inner.state


def test_step_hooks_of_the_user_run_once_per_step():
    for synchronous in (False, True):
        model = build("plain")
        optimizer = wrap(model, synchronous=synchronous)
        calls = []
        optimizer.register_step_pre_hook(lambda *_: calls.append("pre"))
        optimizer.register_step_post_hook(lambda *_: calls.append("post"))
        iterate(model, optimizer, 3)
        optimizer.flush()
        assert calls == ["pre", "post"] * 3


@pytest.mark.filterwarnings("error")
def test_schedulers_made_before_and_after_wrapping():
    def run(before, synchronous=False):
        model = build("plain")
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        if before:
            scheduler = torch.optim.lr_scheduler.LambdaLR(inner, lambda n: 0.8**n)
        optimizer = wrap(model, inner, synchronous=synchronous)
        if not before:
            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda n: 0.8**n)
        for step in range(5):
            iterate(model, optimizer, seed=step)
            if before:
                inner._opt_called = True  # else torch warns that it saw no step(); with a scheduler made for ours it does not
            scheduler.step()
        return model.state_dict()

    same_bits(run(True), run(False))
    same_bits(run(False), run(False, synchronous=True))


def test_state_made_in_a_forward_pass_under_inference_mode_is_ordinary():
    """Momentum that begins later makes its buffer in the forward pass; an inference tensor could not be updated afterwards."""
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), synchronous=synchronous)
        for step in range(4):
            iterate(model, optimizer, seed=step)
            if step == 1:
                with torch.inference_mode():
                    model(data(step)[0])
            optimizer.param_groups[0]["momentum"] = 0.9
    same_bits(models[0].state_dict(), models[1].state_dict())


class Multiplying(torch.optim.Optimizer):
    """Uses a product of matrices, which autocast would compute in bfloat16."""

    def __init__(self, params):
        super().__init__(params, {})

    @torch.no_grad()
    def step(self, closure=None):
        for parameter in self.param_groups[0]["params"]:
            flat = parameter.grad.reshape(1, -1)
            parameter.sub_(0.01 * parameter.grad * torch.mm(flat, flat.t()).item())


def test_updates_in_a_forward_pass_under_autocast_have_full_precision():
    models = [build("plain") for _ in range(2)]
    for model, synchronous in zip(models, (False, True)):
        optimizer = wrap(model, Multiplying(model.parameters()), synchronous=synchronous)
        for step in range(4):
            optimizer.zero_grad()
            x, y = data(step)
            with torch.autocast("cpu", dtype=torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            optimizer.step()
    same_bits(models[0].state_dict(), models[1].state_dict())


# Failures below


def test_a_failed_transport_fails_everything_after_it():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 2)
    transport.failure = errors.AbortedError("the job was aborted: host b: resume from a checkpoint")
    for use in (lambda: model(torch.randn(1, 6)), model.state_dict, optimizer.flush, optimizer.step):
        with pytest.raises(errors.AbortedError, match="host b"):
            use()


def test_a_failed_post_is_not_taken_for_a_result():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 1)
    before = bits(model)
    transport.log.clear()
    transport.failure = errors.AbortedError("the job was aborted: host b: resume from a checkpoint")
    with pytest.raises(errors.AbortedError):
        backward(model)
    with pytest.raises(errors.AbortedError):
        optimizer.step()
    assert unchanged(model, before) == list(before)


def test_a_gradient_that_could_not_be_posted_is_posted_at_step():
    model = build("plain")
    transport = Loopback()
    optimizer = wrap(model, transport=transport)
    iterate(model, optimizer, 1)
    optimizer.zero_grad()
    transport.log.clear()
    transport.failure = errors.InvalidArgumentError("an operation on it is under way: tensor: wait for it")
    with pytest.raises(errors.InvalidArgumentError):
        backward(model)
    transport.failure = None
    optimizer.step()
    assert sorted(transport.posted()) == sorted(transport.names)


def test_leaving_the_job_applies_what_is_pending(monkeypatch):
    import tensorlane
    from tensorlane import _native

    left = []
    monkeypatch.setattr(_native, "_context", object())
    monkeypatch.setattr(_native, "shutdown", lambda: left.append(True))
    model, other = build("plain"), build("plain")
    broken = Loopback()
    optimizer, failing = wrap(model), wrap(other, transport=broken)
    iterate(model, optimizer, 2)
    iterate(other, failing, 2)
    broken.failure = errors.AbortedError("the job was aborted: host b: resume from a checkpoint")
    before = bits(model)
    with pytest.raises(errors.AbortedError):
        tensorlane.shutdown()
    assert unchanged(model, before) == [] and left == [True]
    with pytest.raises(errors.InvalidArgumentError, match="this process has left its job"):
        iterate(model, optimizer)
