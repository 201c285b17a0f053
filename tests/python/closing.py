"""Ranks that close or wrap optimizers at different times, and buffers that somebody still has. A script of two ranks, run by daemons/test_daemons.py."""

import threading

import tensorlane.torch as tl
import torch
from tensorlane import _native, errors
from unregister import plan, refused


def wrap():
    model = torch.nn.Linear(64, 64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(0.5)
    return model, tl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())


def step(model, optimizer):
    """Of gradients rank + 1."""
    optimizer.zero_grad()
    model(torch.full((1, 64), tl.rank() + 1.0)).sum().backward()
    optimizer.step()
    assert torch.allclose(model.weight, torch.full_like(model.weight, 0.5 - 0.1 * 1.5))


def close_late():
    """The last rank comes when the first one has given up, which then tries again."""
    model, optimizer = wrap()
    step(model, optimizer)
    if tl.rank() == 0:
        refused(optimizer.close, errors.TimedOutError, "optimizer SGD is not closed on all ranks: rank 1 on host", "has not unregistered after", "call close() again")
        refused(optimizer.step, errors.InvalidArgumentError, "it is closed")
        context = _native.context()
        kind = context._groups[-1].kind
        assert context._groups[-1].idle() and context._idle_group(kind) is None, "what cannot be used is given out again"
    tl.barrier()
    optimizer.close()
    optimizer.close()


def close_while_held():
    """Each rank's buffers are its own affair."""
    model, optimizer = wrap()
    step(model, optimizer)
    held = optimizer._core._sender.slots[0].average if tl.rank() == 0 else None
    value = held.clone() if held is not None else None
    optimizer.close()
    model, optimizer = wrap()
    step(model, optimizer)
    optimizer.close()
    if held is not None:
        assert torch.equal(held, value), "somebody else has its memory"
        assert len(_native.context()._unregistered) == 1
        del held
    model, optimizer = wrap()
    optimizer.close()
    assert not _native.context()._unregistered


def wrap_late():
    if tl.rank() == 0:
        refused(wrap, errors.TimedOutError, "not all ranks register these tensors", "DistributedOptimizer")
    tl.barrier()
    model, optimizer = wrap()
    step(model, optimizer)
    optimizer.close()


def layers(*widths):
    return torch.nn.Sequential(*(torch.nn.Linear(*each) for each in zip(widths, widths[1:])))


def wrap_other_models():
    """Several parameters travel together; the one that differs is named all the same, and alike models can be wrapped after that."""
    whole = layers(20, 3)
    whole[0].bias.requires_grad_(tl.rank() == 0)
    for model, text in (
        (layers(20, 50 + 10 * tl.rank(), 3), "parameter '0.weight' is torch.float32[50, 20] on rank 0 and torch.float32[60, 20] on rank 1"),
        (layers(20, 3, *[3] * tl.rank()), "rank 1 trains parameter '1.weight', torch.float32[3, 3], which rank 0 does not"),
        (whole, "rank 0 trains parameter '0.bias', torch.float32[3], which rank 1 does not"),
    ):
        make = lambda: tl.DistributedOptimizer(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1), model.named_parameters())  # noqa: B023, E731
        refused(make, errors.MismatchError, f"the ranks train different models: {text}: DistributedOptimizer: build the same model")
    sums = tl.Sum if tl.rank() else tl.Average
    refused(lambda: tl.DistributedOptimizer(torch.optim.SGD(layers(3, 3).parameters(), lr=0.1), op=sums), errors.MismatchError, "tensor 'optimizer.", "differs")
    model, optimizer = wrap()
    step(model, optimizer)
    optimizer.close()


def close_on_threads():
    """Both close what one closes."""
    model, optimizer = wrap()
    step(model, optimizer)
    failed = []

    def close():
        try:
            optimizer.close()
        except Exception as error:  # told by the main thread
            failed.append(error)
    threads = [threading.Thread(target=close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed


def give_up_closing():
    """An optimizer that the last rank has not closed when the first one leaves the job, and that the program closes once more after that."""
    model, optimizer = wrap()
    step(model, optimizer)
    if tl.rank() == 0:
        refused(optimizer.close, errors.TimedOutError, "optimizer SGD is not closed on all ranks")
    tl.barrier()
    tl.shutdown()
    optimizer.close()
    optimizer.close()


def main():
    tl.init(timeout=5)
    tl.barrier()
    wrap()[1].close()
    before = plan()["tensors"]
    for case in (close_late, close_while_held, wrap_late, wrap_other_models, close_on_threads):
        case()
        tl.barrier()
        assert plan()["tensors"] == before, (case, plan(), before)
    rank = tl.rank()
    give_up_closing()
    print(f"rank {rank}: all optimizers were closed")


if __name__ == "__main__":
    main()
