"""Wraps models of 4 MiB one after the other: more than arenas of 70 MiB have room for. A script, run by daemons/test_daemons.py."""

import gc

import tensorlane.torch as tl
import torch


def wrap(size):
    model = torch.nn.Linear(size, size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model, tl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), synchronous=True)


def step(model, optimizer, value):
    optimizer.zero_grad()
    (model(torch.full((1, model.in_features), value)).sum()).backward()
    optimizer.step()


def main():
    tl.init()
    rank, size = tl.rank(), tl.size()
    mean = sum(range(1, size + 1)) / size
    model, optimizer = wrap(1024)
    for turn in range(24):
        step(model, optimizer, rank + 1.0)
        assert torch.allclose(model.weight, torch.full_like(model.weight, 0.5 - 0.1 * mean)), turn
        if turn % 2:
            optimizer.close()
        # On one rank garbage goes later than on the others, which must not matter.
        kept = (model, optimizer) if turn % 10 == 3 and rank == 0 else None
        model, optimizer = wrap(1024)
        del kept
    # None is alike another: what is closed is given back.
    for turn in range(24):
        optimizer.close()
        model, optimizer = wrap(1025 + turn)
        step(model, optimizer, rank + 1.0)
        assert torch.allclose(model.weight, torch.full_like(model.weight, 0.5 - 0.1 * mean)), turn
    optimizer.close()
    first, second = wrap(64), wrap(64)  # alike, and both in use
    step(*first, 1.0)
    step(*second, 2.0)
    assert torch.allclose(first[0].weight, torch.full((64, 64), 0.4)) and torch.allclose(second[0].weight, torch.full((64, 64), 0.3))
    gc.collect()
    tl.shutdown()
    print(f"rank {rank}: all models were wrapped")


if __name__ == "__main__":
    main()
