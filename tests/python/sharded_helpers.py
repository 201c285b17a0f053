"""Short forms for the tests of DistributedOptimizer(sharded=True): ranks in threads, and the plain training that they must equal."""

import contextlib
import threading

import pytest
import torch
import torch.nn.functional as F
from models import OPTIMIZERS, build, data, groups_of
from ranks import run_ranks
from tensorlane.torch import DistributedOptimizer, _lifetime, _shards

STEPS = 8
_building = threading.Lock()  # torch has one generator for all ranks that are threads of this process


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch):
    """The models of these tests are so small that one bucket would hold them."""
    monkeypatch.setattr(_shards, "BUCKET_BYTES", 512)
    monkeypatch.setattr(_shards, "TINY_BYTES", 64)
    yield
    _lifetime.with_pending.clear()  # of ranks whose threads are over


def made(make):
    with _building:
        return make()


def ranks(body, size=2, **options):
    """body(rank, transport) on each rank; what each returned. The first exception is raised."""
    results = run_ranks(body, size, **options)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


def wrap(net, transport, optimizer=None, **options):
    optimizer = optimizer or torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    # Of those that are not known it is found out whether they draw random numbers.
    with _building if "shard" in options else contextlib.nullcontext():
        return DistributedOptimizer(optimizer, net.named_parameters(), sharded=True, transport=transport(), **options)


def backward(model, step, rank, share=1.0):
    x, y = data(step, rank)
    loss = F.cross_entropy(model(x), y) * share
    loss.backward()
    return loss.detach()


def train(model, optimizer, steps=STEPS, rank=0, passes=1, first=0, schedule=None):
    """The loop as a user writes it."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for micro in range(passes):
            backward(model, step * passes + micro, rank)
        optimizer.step()
        if schedule is not None:
            schedule.step()


def train_plain(model, optimizer, size, steps=STEPS, passes=1, first=0, schedule=None, clip=None, backward=backward):
    """One process with the batches of all ranks."""
    for step in range(first, first + steps):
        optimizer.zero_grad()
        for micro in range(passes):
            for rank in range(size):
                backward(model, step * passes + micro, rank, 1 / size)
        if clip is not None:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if schedule is not None:
            schedule.step()


def plain(scenario, optimizer, size, **options):
    """(parameters, state) of train_plain()."""
    model = made(lambda: build(scenario))
    inner = OPTIMIZERS[optimizer](groups_of(model))
    schedule = options.pop("schedule", None)
    train_plain(model, inner, size, schedule=schedule and schedule(inner), **options)
    return model.state_dict(), inner.state_dict()


def difference(left, right):
    """The largest one between two state_dicts, in all of their tensors."""
    assert left.keys() == right.keys()
    found = 0.0
    for key, value in left.items():
        if isinstance(value, dict):
            found = max(found, difference(value, right[key]))
        elif isinstance(value, torch.Tensor):
            assert value.shape == right[key].shape and value.dtype == right[key].dtype, key
            found = max(found, (value.double() - right[key].double()).abs().max().item())
    return found
