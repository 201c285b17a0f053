"""What ranks that do different things in an iteration find out: the right numbers, or the same error on all of them."""

import pytest
import torch
import torch.nn.functional as F
from models import build, data
from ranks import device_of, run_ranks
from tensorlane import errors
from tensorlane.torch import DistributedOptimizer
from torch import nn

MODES = pytest.mark.parametrize("overlap", [True, False])


def make(transport, overlap, model=None, **inner):
    model = model or build("plain")
    optimizer = torch.optim.SGD(model.parameters(), **{"lr": 0.1, "momentum": 0.9, **inner})
    return model, DistributedOptimizer(optimizer, model.named_parameters(), overlap=overlap, transport=transport())


def backward(model, rank, number):
    x, y = data(number, rank)
    F.cross_entropy(model(x), y).backward()


def iterate(model, optimizer, rank, number, present=True):
    optimizer.zero_grad()
    if present:
        backward(model, rank, number)
    optimizer.step()


def trained(transport, overlap, rank, model, iterations):
    """After so many iterations that all ranks made alike."""
    model, optimizer = make(transport, overlap, model)
    for number in range(iterations):
        iterate(model, optimizer, rank, number)
    return model, optimizer


def flat(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


# torch.manual_seed() is one for all threads.
def models(of_each=1):
    return [build("plain").to(device_of(rank)) for rank in range(2) for _ in range(of_each)]


def equal_on_all(results):
    for result in results:
        if isinstance(result, BaseException):
            raise result
    assert all(torch.equal(results[0], result) for result in results)
    return results[0]


def same_error_on_all(results, kind, text):
    assert all(isinstance(result, kind) and text in str(result) for result in results), results


@MODES
@pytest.mark.parametrize("zero_grad", ["optimizer", "model", "by hand", "in place"])
def test_a_rank_without_a_batch_after_a_skipped_iteration(zero_grad, overlap):
    nets = models()

    def body(rank, transport):
        model, optimizer = trained(transport, overlap, rank, nets[rank], 3)
        backward(model, rank, 3)
        optimizer.synchronize()
        drop(zero_grad, model, optimizer)
        if rank == 0:
            backward(model, rank, 4)
        optimizer.step()
        iterate(model, optimizer, rank, 5)
        return flat(model)

    results = run_ranks(body)
    if zero_grad == "in place" and device_of(0).type != "cpu":  # to look at a GPU's values would be to wait for it
        same_error_on_all(results, errors.MismatchError, "the ranks are not in the same iteration")
    else:
        equal_on_all(results)


def drop(how, model, optimizer):
    if how in ("optimizer", "model"):
        (optimizer if how == "optimizer" else model).zero_grad()
        return
    for parameter in model.parameters():
        if how == "by hand":
            parameter.grad = None
        else:
            parameter.grad.zero_()


@MODES
def test_a_parameter_that_only_one_rank_used_moves_on_all(overlap):
    class Branch(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes, self.never = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x, branch):
            return self.sometimes(self.always(x)) if branch else self.always(x)

    torch.manual_seed(4)
    nets = [Branch().to(device_of(rank)) for rank in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())

    def body(rank, transport):
        model, optimizer = make(transport, overlap, nets[rank], weight_decay=0.1)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        for number in range(4):
            optimizer.zero_grad()
            model(data(number, rank)[0], rank == 1).square().mean().backward()
            optimizer.step()
        still = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
        assert still == {"never.weight", "never.bias"}
        return flat(model)

    equal_on_all(run_ranks(body))


@MODES
def test_only_some_ranks_are_an_iteration_ahead(overlap):
    nets = models()

    def body(rank, transport):
        model, optimizer = trained(transport, overlap, rank, nets[rank], 3)
        x, y = data(3, rank)
        for _ in range(2 if rank == 0 else 1):
            F.cross_entropy(model(x), y).backward()
            if rank == 0:
                optimizer.synchronize()
        optimizer.step()
        for number in range(4, 6):
            iterate(model, optimizer, rank, number)
        return flat(model)

    same_error_on_all(run_ranks(body), errors.MismatchError, "the ranks are not in the same iteration")


def test_only_some_ranks_drop_their_gradients():
    nets = models()

    def body(rank, transport):
        model, optimizer = trained(transport, True, rank, nets[rank], 3)
        backward(model, rank, 3)
        optimizer.zero_grad() if rank == 0 else optimizer.step()
        optimizer.flush()

    same_error_on_all(run_ranks(body), errors.MismatchError, "some ranks dropped the gradients of this iteration")


@MODES
def test_only_some_ranks_freeze_a_parameter(overlap):
    nets = models()

    def body(rank, transport):
        model, optimizer = trained(transport, overlap, rank, nets[rank], 2)
        optimizer.zero_grad()
        model.second.weight.requires_grad_(rank == 0)
        for number in range(2, 4):
            iterate(model, optimizer, rank, number)
        return flat(model)

    same_error_on_all(run_ranks(body), errors.MismatchError, "parameter 'second.weight'")


@MODES
def test_a_group_that_was_dropped_while_a_rank_has_no_batch(overlap):
    nets = models()

    def body(rank, transport):
        model = nets[rank]
        groups = [{"params": model.first.parameters()}, {"params": [*model.second.parameters(), *model.last.parameters()]}]
        optimizer = DistributedOptimizer(torch.optim.SGD(groups, lr=0.1), model.named_parameters(), overlap=overlap, transport=transport())
        for number in range(2):
            iterate(model, optimizer, rank, number)
        optimizer.param_groups.pop(0)
        for number in range(2, 6):
            iterate(model, optimizer, rank, number, present=rank != number % 3)
        return flat(model)

    equal_on_all(run_ranks(body))


@MODES
def test_two_optimizers_reached_by_one_backward_pass(overlap):
    """All have sent before any waits."""
    nets = models(of_each=2)

    def body(rank, transport):
        pairs = [make(transport, overlap, nets[2 * rank + i]) for i in range(2)]
        for number in range(4):
            for _, optimizer in pairs:
                optimizer.zero_grad()
            x, y = data(number, rank)
            first, second = (F.cross_entropy(model(x), y) for model, _ in pairs)
            ((first + second) if rank else (second + first)).backward()
            for _, optimizer in pairs:
                optimizer.step()
        return torch.cat([flat(model) for model, _ in pairs])

    equal_on_all(run_ranks(body))
