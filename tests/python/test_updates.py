"""When parameters change, and which module waits for which: the rules of the cross-iteration optimizer."""

import threading

import pytest
import torch
import torch.nn.functional as F
from helpers import backward, bits, iterate, pending, unchanged, wrap
from loopback import Loopback
from models import build, data, same_bits
from tensorlane import errors
from tensorlane.torch import DistributedOptimizer, _touch
from torch import nn


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
    assert transport.names == [*(name for name, _ in model.named_parameters()), "roll_call"]


def test_without_names_the_order_of_the_groups_counts():
    transport = Loopback()
    model = build("plain")
    DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), transport=transport)
    assert transport.names == [*(f"noname.0.{i}" for i in range(6)), "roll_call"]


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


class Doubled(Loopback):
    """As if another rank had the same gradients, and they were summed."""

    def wait(self, index):
        if index in self.under_way and self.names[index] != "roll_call":
            self.buffers[index].mul_(2)
        super().wait(index)


LOOKS = {
    "norm": lambda gradients: [g.norm() for g in gradients],
    "norm through data": lambda gradients: [g.data.norm() for g in gradients],
    "clone": lambda gradients: [g.clone().sum() for g in gradients],
    "stack": lambda gradients: torch.cat([g.flatten() for g in gradients]).unbind(),
}


@pytest.mark.parametrize("synchronous", [True, False])
@pytest.mark.parametrize("after", ["backward", "step", "flush"])
@pytest.mark.parametrize("look", LOOKS)
def test_grad_holds_the_averages_whenever_somebody_looks(look, after, synchronous):
    model, plain = build("plain"), build("plain")
    optimizer = wrap(model, transport=Doubled(), synchronous=synchronous)
    for step in range(3):
        optimizer.zero_grad()
        backward(model, step)
        plain.load_state_dict({name: value.clone() for name, value in model.state_dict().items()})
        plain.zero_grad()
        backward(plain, step)
        if after != "backward":
            optimizer.step()
        if after == "flush":
            optimizer.flush()
        seen, expected = (LOOKS[look]([p.grad for p in m.parameters()]) for m in (model, plain))
        assert all(torch.equal(one, 2 * other) for one, other in zip(seen, expected))
        if after == "backward":
            optimizer.step()


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
        torch.optim.SGD([scale, *model.parameters()], lr=0.1), [("scale", scale), *model.named_parameters()], overlap=True, transport=Loopback()
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
    """Where nothing sees the use: with the watch set aside, as on another thread."""
    model = build("plain")
    optimizer = wrap(model)
    iterate(model, optimizer, 2)
    x, _ = data(0)
    with pytest.raises(errors.InvalidArgumentError) as raised, _touch.of_this_thread().aside():
        F.linear(x, model.first.weight).sum().backward()
    assert str(raised.value) == (
        "its gradient was computed while its update was pending, from values that step() had already replaced: parameter 'first.weight': "
        "use the parameter on the thread that calls step(), or call flush() before the forward pass"
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
