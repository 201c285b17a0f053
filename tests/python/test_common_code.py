"""What users write around a training loop gives the numbers of synchronous mode with overlap=True, too: everything that torch's functions see is brought up to
date first, and what they do not see is an error by name."""

import copy
import io

import pytest
import torch
import torch.nn.functional as F
from helpers import bits, pending, unchanged, wrap
from loopback import Loopback
from models import OPTIMIZERS
from tensorlane import errors
from tensorlane.torch import DistributedOptimizer, _touch
from torch import nn
from torch.nn.utils import prune

ITERATIONS = 5


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def batch(number):
    return torch.randn(8, 4, generator=torch.Generator().manual_seed(number))


def iterate(model, optimizer, number):
    optimizer.zero_grad()
    model(batch(number)).square().mean().backward()
    optimizer.step()


def flat(tensors):
    return torch.cat([t.detach().flatten() for t in tensors])


def adam(model):
    return OPTIMIZERS["adam"](model.parameters())


def each_iteration(use, inner=None):
    """Trains, calls use(model, optimizer, number) after each step() and returns what it returned and the parameters at the end."""

    def run(synchronous):
        model = network()
        optimizer = wrap(model, inner and inner(model), synchronous=synchronous)
        seen = []
        for number in range(ITERATIONS):
            iterate(model, optimizer, number)
            result = use(model, optimizer, number)
            if isinstance(result, torch.Tensor):
                seen.append(result.detach().flatten().clone())
        return torch.cat([*seen, flat(model.parameters())])

    return run


def moving_average(start, update):
    def run(synchronous):
        model = network()
        optimizer = wrap(model, synchronous=synchronous)
        average = start(model)
        for number in range(ITERATIONS):
            iterate(model, optimizer, number)
            update(average, model)
        return flat(average.parameters() if isinstance(average, nn.Module) else average)

    return run


def saved(thing):
    stream = io.BytesIO()
    torch.save(thing, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=False)


def no_grad(function):
    return torch.no_grad()(function)


def overwrite(model, change):
    for parameter in model.parameters():
        parameter.data = change(parameter.data)


def prune_first(model, optimizer, number):
    if number == 2:
        prune.l1_unstructured(model[0], "weight", amount=0.5)


CODE = {
    "EMA by hand": moving_average(
        lambda m: [p.detach().clone() for p in m.parameters()],
        no_grad(lambda average, m: [a.mul_(0.9).add_(p, alpha=0.1) for a, p in zip(average, m.parameters())]),
    ),
    "EMA by lerp_ of data": moving_average(
        lambda m: [p.data.clone() for p in m.parameters()], lambda average, m: [a.lerp_(p.data, 0.1) for a, p in zip(average, m.parameters())],
    ),
    "EMA by foreach": moving_average(
        lambda m: [p.detach().clone() for p in m.parameters()], no_grad(lambda average, m: torch._foreach_lerp_(average, list(m.parameters()), 0.1)),
    ),
    "AveragedModel": moving_average(torch.optim.swa_utils.AveragedModel, lambda average, m: average.update_parameters(m)),
    "norm": each_iteration(lambda m, o, n: torch.stack([p.norm() for p in m.parameters()])),
    "item": each_iteration(lambda m, o, n: torch.tensor([p.flatten()[0].item() for p in m.parameters()])),
    "numpy": each_iteration(lambda m, o, n: torch.from_numpy(m[0].weight.detach().numpy().copy())),
    "parameters_to_vector": each_iteration(lambda m, o, n: nn.utils.parameters_to_vector(m.parameters())),
    "saved list": each_iteration(lambda m, o, n: flat(saved(list(m.parameters())))),
    "saved dict of data": each_iteration(lambda m, o, n: flat(saved({k: p.data for k, p in m.named_parameters()}).values())),
    "copied list": each_iteration(lambda m, o, n: flat(copy.deepcopy(list(m.parameters())))),
    "functional_call": each_iteration(
        lambda m, o, n: torch.func.functional_call(m, {k: p.detach().clone() for k, p in m.named_parameters()}, (torch.ones(1, 4),))
    ),
    "vmap": each_iteration(lambda m, o, n: torch.vmap(lambda x: F.linear(x, m[0].weight))(batch(n))),
    "jit.trace": each_iteration(lambda m, o, n: torch.jit.trace(m, torch.ones(1, 4))(torch.ones(1, 4))),
    "WGAN's clamp": each_iteration(lambda m, o, n: [p.data.clamp_(-0.05, 0.05) for p in m.parameters()]),
    "clamp without grad": each_iteration(no_grad(lambda m, o, n: [p.clamp_(-0.05, 0.05) for p in m.parameters()])),
    "mask": each_iteration(no_grad(lambda m, o, n: m[0].weight.mul_(torch.eye(4)))),
    "prune": each_iteration(prune_first),
    "initialized again": each_iteration(lambda m, o, n: nn.init.constant_(m[0].bias, 0.5) if n == 2 else None),
    "reset_parameters": each_iteration(lambda m, o, n: (torch.manual_seed(n), m[2].reset_parameters())[0] and None),
    "data replaced": each_iteration(lambda m, o, n: overwrite(m, lambda values: values * 0.5)),
    "vector_to_parameters": each_iteration(
        lambda m, o, n: nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(m.parameters()) * 0.9, m.parameters())
    ),
    "half and back": each_iteration(lambda m, o, n: m.half().float() and None),
    "copy_ from another": each_iteration(no_grad(lambda m, o, n: m[0].weight.copy_(torch.ones(4, 4)) if n == 2 else None)),
    "element": each_iteration(no_grad(lambda m, o, n: m[0].weight.__setitem__((0, 0), 1.0))),
    "state": each_iteration(lambda m, o, n: torch.stack([o.state[p]["step"] for p in m.parameters()]), adam),
    "state held": each_iteration(lambda m, o, n: flat(s["exp_avg"] for s in vars(o)["state"].values()), adam),
    "state_dict of the optimizer": each_iteration(lambda m, o, n: flat(s["exp_avg"] for s in o.state_dict()["state"].values()), adam),
    "mode of another kind": each_iteration(lambda m, o, n: with_device(m)),
}


def with_device(model):
    with torch.device("cpu"):
        return model[0].weight.sum() + torch.ones(1)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("code", CODE)
def test_common_code_gives_the_numbers_of_synchronous_mode(code):
    expected, got = CODE[code](True), CODE[code](False)
    assert torch.equal(expected, got)


def test_aliases_made_before_are_seen():
    """Old code keeps lists of p.data."""

    def run(synchronous):
        model = network()
        optimizer = wrap(model, synchronous=synchronous)
        aliases = [p.data for p in model.parameters()]
        seen = []
        for number in range(ITERATIONS):
            iterate(model, optimizer, number)
            seen += [a.clone().flatten() for a in aliases]
            for alias in aliases:
                alias.mul_(0.99)
        return torch.cat([*seen, flat(model.parameters())])

    assert torch.equal(run(True), run(False))


class Scaled(nn.Module):
    """Uses its parameter in a method of its own before forward(), from the second iteration on."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        self.linear = nn.Linear(4, 1)

    def embed(self, x):
        return x * self.scale

    def forward(self, x):
        return self.linear(self.embed(x))


class Bypassed(nn.Module):
    """Every other iteration uses a weight detached, and not its module."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x, bypass):
        x = self.first(x)
        return x * self.second.weight.detach().mean() if bypass else self.second(x)


def early(model, number):
    loss = model(batch(number)).square().mean()
    return loss + model.embed(batch(number)).pow(3).mean() if number else loss


def earlier(model, number):
    extra = model.embed(batch(number)).pow(3).mean() if number else 0
    return model(batch(number)).square().mean() + extra


@pytest.mark.parametrize("make, loss", [(Scaled, early), (Scaled, earlier), (Bypassed, lambda m, n: m(batch(n), n % 2 == 1).square().mean())])
def test_a_use_before_or_beside_the_module_is_not_stale(make, loss):
    def run(synchronous):
        torch.manual_seed(2)
        model = make()
        optimizer = wrap(model, torch.optim.SGD(model.parameters(), lr=0.1), synchronous=synchronous)
        for number in range(6):
            optimizer.zero_grad()
            loss(model, number).backward()
            optimizer.step()
        return flat(model.parameters())

    assert torch.equal(run(True), run(False))


def test_looking_at_shapes_and_flags_applies_nothing():
    model = network()
    optimizer = wrap(model)
    for number in range(2):
        iterate(model, optimizer, number)
    for parameter in model.parameters():
        assert parameter.shape and parameter.dtype and parameter.requires_grad and parameter.numel() and parameter.size() and parameter.grad is not None
        hash(parameter), parameter.device, parameter.is_leaf
    optimizer.zero_grad()
    assert pending(optimizer) == 4


def test_modes_of_the_user_are_left_as_they_were_entered():
    model = network()
    optimizer = wrap(model)

    class Counting(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, function, types, args=(), kwargs=None):
            Counting.calls += 1
            return function(*args, **(kwargs or {}))

    for number in range(4):
        with torch.device("cpu"), Counting():
            iterate(model, optimizer, number)
        torch.set_default_device("cpu")
        iterate(model, optimizer, number)
        torch.set_default_device(None)
    before = Counting.calls
    iterate(model, optimizer, 4)
    assert Counting.calls == before > 0
    left = [torch._C._get_function_stack_at(i) for i in range(torch._C._len_torch_function_stack())]
    assert [type(mode) for mode in left] == [_touch.Watch]


# What no function of torch sees


def written_unseen(model, optimizer, write):
    for number in range(3):
        iterate(model, optimizer, number)
    write()
    with pytest.raises(errors.InvalidArgumentError) as raised:
        optimizer.flush()
    assert str(raised.value) == (
        "it was written while its update was pending, so the update would be applied to other values than without overlap: parameter '0.weight': "
        "call flush() before what writes it without torch's functions or on another thread, or leave out overlap=True"
    )
    with pytest.raises(errors.InvalidArgumentError, match="it was written"):
        optimizer.close()


def test_a_write_through_numpy_is_an_error_that_names_the_parameter():
    model = network()
    memory = model[0].weight.detach().numpy()
    optimizer = wrap(model)
    written_unseen(model, optimizer, lambda: memory.fill(0.5))


def test_a_tracked_write_that_the_watch_misses_is_an_error_in_any_iteration():
    model = network()
    optimizer = wrap(model)
    for number in range(30):
        iterate(model, optimizer, number)

    def write():
        with _touch.of_this_thread().aside(), torch.no_grad():
            model[0].weight.add_(1.0)

    written_unseen(model, optimizer, write)


# Two optimizers that see each other's gradients


@pytest.mark.parametrize("module_zero_grad", [True, False])
@pytest.mark.parametrize("overlap", [True, False])
def test_a_gan(overlap, module_zero_grad):
    """The generator's backward pass reaches the discriminator's gradients, which are dropped."""

    def run(wrapped):
        torch.manual_seed(3)
        generator, critic = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))
        optimizers = [torch.optim.Adam(m.parameters(), lr=0.01) for m in (generator, critic)]
        if wrapped:
            passes = (1, 2)
            optimizers = [
                DistributedOptimizer(o, m.named_parameters(), backward_passes_per_step=n, overlap=overlap, transport=Loopback())
                for o, m, n in zip(optimizers, (generator, critic), passes)
            ]
        early = [m.zero_grad for m in (generator, critic)]  # bound before the optimizer guards it
        zero = early if module_zero_grad else [o.zero_grad for o in optimizers]
        for number in range(6):
            zero[1]()
            critic(batch(number)).mean().neg().backward()
            critic(generator(batch(number + 50)).detach()).mean().backward()
            optimizers[1].step()
            for parameter in critic.parameters():
                parameter.data.clamp_(-0.1, 0.1)
            zero[0]()
            critic(generator(batch(number + 90))).mean().neg().backward()
            optimizers[0].step()
        return flat([*generator.parameters(), *critic.parameters()])

    assert torch.equal(run(True), run(False))


# Groups


@pytest.mark.parametrize("synchronous", [True, False])
def test_a_dropped_group_stays_and_comes_back(synchronous):
    model, plain = network(), network()

    def sgd(net):
        return torch.optim.SGD([{"params": net[0].parameters()}, {"params": net[2].parameters()}], lr=0.1, momentum=0.9)

    transport = Loopback()
    optimizer, reference = wrap(model, sgd(model), transport=transport, synchronous=synchronous), sgd(plain)
    for number in range(9):
        for one, net in ((optimizer, model), (reference, plain)):
            if number == 3:
                kept = one.param_groups.pop(0)
                one.state.pop(net[0].weight, None)
            elif number == 6 and one is optimizer:
                one.param_groups.insert(0, kept_of_optimizer)
            elif number == 6:
                one.param_groups.insert(0, kept_of_reference)
            if number == 3 and one is optimizer:
                kept_of_optimizer = kept
            elif number == 3:
                kept_of_reference = kept
            net.zero_grad()
            iterate(net, one, number)
    assert torch.equal(flat(model.parameters()), flat(plain.parameters()))
    optimizer.flush()
    assert not transport.under_way


def test_add_param_group_takes_a_known_group_back():
    model = network()
    optimizer = wrap(model, torch.optim.SGD([{"params": model[0].parameters()}, {"params": model[2].parameters()}], lr=0.1))
    iterate(model, optimizer, 0)
    group = optimizer.param_groups.pop(1)
    iterate(model, optimizer, 1)
    optimizer.add_param_group({"params": group["params"], "lr": 0.01})
    before = bits(model)
    iterate(model, optimizer, 2)
    optimizer.flush()
    assert unchanged(model, before) == []


def test_a_gradient_of_another_type_is_an_error():
    model = network()
    optimizer = wrap(model)
    iterate(model, optimizer, 0)
    model.double()
    with pytest.raises(errors.InvalidArgumentError, match=r"its gradient is of torch.float64\[.*registered as torch.float32.*parameter '2.bias': convert"):
        optimizer.zero_grad()
        model(batch(1).double()).sum().backward()


def test_contradictions_are_refused():
    model = network()
    with pytest.raises(errors.InvalidArgumentError, match="contradict each other"):
        wrap(model, overlap=True, synchronous=True)


def test_the_default_is_always_right():
    model = network()
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), transport=Loopback())
    for number in range(3):
        iterate(model, optimizer, number)
        assert optimizer.tensorlane_status()["mode"] == "synchronous" and pending(optimizer) == 0
