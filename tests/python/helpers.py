"""Short forms for the tests of the optimizer: one model, an in-process transport, one iteration."""

import torch
import torch.nn.functional as F
from loopback import Loopback
from models import data
from tensorlane.torch import DistributedOptimizer, _touch


def wrap(model, optimizer=None, *, transport=None, outer=None, **options):
    """Overlapping, unless the options say synchronous=True."""
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    options = {"overlap": not options.get("synchronous"), **options, "synchronous": options.get("synchronous") or None}
    return DistributedOptimizer(optimizer, model.named_parameters(), outer, transport=transport or Loopback(), **options)


def backward(model, seed=0):
    x, y = data(seed)
    F.cross_entropy(model(x), y).backward()


def iterate(model, optimizer, steps=1, seed=0):
    for step in range(steps):
        optimizer.zero_grad()
        backward(model, seed + step)
        optimizer.step()


def bits(model):
    """The parameters as they are in memory: this look does not bring them up to date."""
    with _touch.of_this_thread().aside():
        return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def unchanged(model, before):
    now = bits(model)
    return [name for name in now if torch.equal(now[name], before[name])]


def pending(optimizer):
    return optimizer.tensorlane_status()["pending"]
