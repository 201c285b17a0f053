"""DistributedOptimizer with parameters on (fake) GPUs, in real jobs. A script, run by daemons/test_gpus.py:

    tensorlane run -n 2 -- python tests/python/gpu_training.py

Every program is trained on the CPU and on GPUs, with and without overlap, and must come to the same bits. train_equality.py --gpu does the plain ones.
"""

import os
import threading
import time

import fake_gpu
import tensorlane
import tensorlane.torch as tl
import torch
import torch.nn.functional as F
from models import Plain
from tensorlane import _native
from torch import nn
from torch.utils.checkpoint import checkpoint

FIRST, SECOND = fake_gpu.load(), torch.device("fake_gpu", 1)
CPU = torch.device("cpu")
STEPS = 6


def flat(model):
    return torch.cat([p.detach().cpu().flatten() for p in model.parameters()])


def batch(number, device, rank):
    generator = torch.Generator().manual_seed(1000 * rank + number)
    return torch.randn(8, 6, generator=generator).to(device), torch.randint(0, 3, (8,), generator=generator).to(device)


def sgd(parameters, **options):
    return torch.optim.SGD(parameters, **{"lr": 0.05, "momentum": 0.9, "foreach": True, **options})


def wrap(model, overlap, **options):
    tl.broadcast_parameters(model.state_dict(), root_rank=0)
    return tl.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), overlap=overlap, **options)


def on(model, device):
    """Module.to() makes new parameters for a device of this kind."""
    return model.to(device)


# Programs: (device, overlap, rank) -> numbers


def small_batches(device, overlap, rank):
    """Neighbours travel together, and some of them have no gradient."""

    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes, self.never = (nn.Linear(6, 6) for _ in range(3))

        def forward(self, x, branch):
            return self.sometimes(self.always(x)) if branch else self.always(x)

    model = on(Branches(), device)
    optimizer = wrap(model, overlap)
    for step in range(STEPS):
        optimizer.zero_grad()
        if step != 3 or rank == 0:  # a rank without a batch
            model(batch(step, device, rank)[0], rank == 1).square().mean().backward()
        if not overlap and step == 4:
            assert (model.never.weight.grad is None) and model.sometimes.weight.grad is not None
        optimizer.step()
    return flat(model), optimizer


def reentrant(device, overlap, rank):
    """Backward passes inside of others, on autograd's thread; the first of them is seen before any hook of the outer one runs."""

    class Checkpointed(Plain):
        def forward(self, x):
            x = torch.tanh(self.second(torch.relu(self.first(x))))
            x = checkpoint(lambda v: torch.tanh(self.second(v)), x, use_reentrant=True)
            return checkpoint(self.last, x, use_reentrant=True)

    model = on(Checkpointed(), device)
    optimizer = wrap(model, overlap, backward_passes_per_step=2)
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(2):
            x, y = batch(2 * step + number, device, rank)
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model), optimizer


def two_optimizers(device, overlap, rank):
    """A backward pass that reaches both, and one optimizer that is stepped half as often."""
    models = [on(nn.Linear(6, 3), device) for _ in range(2)]
    optimizers = [wrap(model, overlap) for model in models]
    for step in range(STEPS):
        for optimizer in optimizers:
            optimizer.zero_grad()
        x, y = batch(step, device, rank)
        losses = [F.cross_entropy(model(x), y) for model in models]
        (sum(losses) if rank else sum(reversed(losses))).backward()
        optimizers[0].step()
        if step % 2:
            optimizers[1].step()
    optimizers[1].close()
    return torch.cat([flat(model) for model in models]), optimizers[0]


def groups(device, overlap, rank):
    """A group that is dropped, and comes back."""
    model = on(Plain(), device)
    tl.broadcast_parameters(model.state_dict())
    plain = sgd([{"params": list(model.first.parameters())}, {"params": [*model.second.parameters(), *model.last.parameters()], "lr": 0.02}])
    optimizer = tl.DistributedOptimizer(plain, model.named_parameters(), overlap=overlap)
    for step in range(2 * STEPS):
        if step == STEPS:
            dropped = optimizer.param_groups.pop(0)
        if step == STEPS + 3:
            optimizer.add_param_group({"params": dropped["params"], "lr": 0.1})
        optimizer.zero_grad()
        x, y = batch(step, device, rank)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return flat(model), optimizer


def skipped(device, overlap, rank):
    """Gradients that are dropped, clipped and shown."""
    model = on(Plain(), device)
    optimizer = wrap(model, overlap)
    norms = []
    for step in range(STEPS):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        x, y = batch(step, device, rank)
        F.cross_entropy(model(x), y).backward()
        if step == 3:
            continue
        if step % 2:
            optimizer.synchronize()
            norms.append(nn.utils.clip_grad_norm_(model.parameters(), 0.3, foreach=True).detach().cpu())
        optimizer.step()
    return torch.cat([flat(model), torch.stack(norms)]), optimizer


def two_devices(device, overlap, rank):
    """Layers on two GPUs and on the CPU. Hooks run on three threads."""

    class Split(Plain):
        def forward(self, x):
            return super().forward(x)

    model, places = Split(), (device, CPU, SECOND if device == FIRST else CPU)
    layers = [on(layer, place) for layer, place in zip((model.first, model.second, model.last), places)]
    optimizer = wrap(model, overlap)
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, CPU, rank)
        for layer, place in zip(layers, places):
            x = torch.tanh(layer(x.to(place)))
        F.cross_entropy(x.cpu(), y).backward()
        optimizer.step()
    return flat(model), optimizer


def two_streams(device, overlap, rank):
    """Towers whose forward passes, and so their hooks, are on streams of their own. They travel as one batch."""
    model = nn.ModuleList([on(nn.Linear(6, 3), device) for _ in range(2)])
    optimizer = wrap(model, overlap)
    sides = [torch.Stream(device) for _ in range(2)] if device != CPU else []
    for step in range(STEPS):
        optimizer.zero_grad()
        x, y = batch(step, device, rank)
        if sides:
            main, results = torch.accelerator.current_stream(device), []
            for side, tower in zip(sides, model):
                side.wait_stream(main)
                with side:
                    results.append(tower(x))
                main.wait_stream(side)
        else:
            results = [tower(x) for tower in model]
        F.cross_entropy(results[0] + results[1], y).backward()
        optimizer.step()
    return flat(model), optimizer


def on_a_side_stream(device, overlap, rank):
    if device == CPU:
        return reentrant(device, overlap, rank)
    with torch.Stream(device):
        return reentrant(device, overlap, rank)


def on_a_thread(device, overlap, rank):
    found = []

    def body():
        found.append(skipped(device, overlap, rank))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    return found[0]


PROGRAMS = (small_batches, reentrant, two_optimizers, groups, skipped, two_devices, two_streams, on_a_side_stream, on_a_thread)


def train_everywhere(program, rank, size):
    results = []
    for device in (CPU, FIRST):
        for overlap in (False, True):
            torch.manual_seed(3 + rank)
            numbers, optimizer = program(device, overlap, rank)
            wanted = "cross-iteration" if overlap else "synchronous"
            assert optimizer.tensorlane_status()["mode"] == wanted
            optimizer.close()
            results.append(numbers)
    for result in results:
        assert torch.equal(result.view(torch.int32), results[0].view(torch.int32)), (program.__name__, [(r - results[0]).abs().max() for r in results])
    everybodys = tl.allgather(results[-1]).view(size, -1)
    assert all(torch.equal(each.view(torch.int32), results[0].view(torch.int32)) for each in everybodys), program.__name__
    assert results[0].isfinite().all()


def the_thread_waits_for_the_roll_call_alone(rank):
    model = on(Plain(), FIRST)
    context, waited, stream_waits = _native.context(), [], []
    plain_wait, plain_stream_wait = context.wait_many, context.stream_wait
    context.wait_many = lambda requests: (waited.append(len(requests)), plain_wait(requests))
    context.stream_wait = lambda requests, stream: (stream_waits.append(len(requests)), plain_stream_wait(requests, stream))
    looks = torch.Tensor.any

    def looked(*_):
        raise AssertionError("somebody looks at a GPU's values, and so waits for it")

    for overlap in (False, True):
        optimizer = wrap(model, overlap)
        for step in range(STEPS):
            waited.clear(), stream_waits.clear()
            torch.Tensor.any = looked
            optimizer.zero_grad()
            x, y = batch(step, FIRST, rank)
            F.cross_entropy(model(x), y).backward()
            if not overlap:
                nn.utils.clip_grad_norm_(model.parameters(), 0.3, foreach=True)
            optimizer.step()
            torch.Tensor.any = looks
            assert waited in ([1], []), waited
            assert sum(stream_waits) <= 1, stream_waits  # the model is one batch
        optimizer.close()
    del context.wait_many, context.stream_wait


def memory_that_comes_back(rank):
    """An optimizer that nobody uses any more leaves its buffers to the next one; close() gives them back."""
    places = set()
    for turn in range(3):
        model = on(Plain(), FIRST)
        optimizer = wrap(model, overlap=False)
        places.add(optimizer._core._sender._batches[0].buffer.data_ptr())
        x, y = batch(turn, FIRST, rank)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        del model, optimizer
    assert len(places) == 1, places
    model = on(Plain(), FIRST)
    kept = wrap(model, overlap=True)
    assert kept._core._sender._batches[0].buffer.data_ptr() in places
    other = wrap(on(Plain(), FIRST), overlap=True)
    assert other._core._sender._batches[0].buffer.data_ptr() not in places
    before = fake_gpu.driver.fake_cuda_alive(b"device_allocations")
    for optimizer in (kept, other):
        optimizer.close()
    del kept, other, model, optimizer
    fake_gpu.empty_cache()
    assert fake_gpu.driver.fake_cuda_alive(b"device_allocations") < before


def refused(text, call):
    try:
        call()
    except tensorlane.InvalidArgumentError as error:
        assert text in str(error), error
    else:
        raise AssertionError(f"not refused: {text}")


def refusals(rank):
    model = on(Plain(), FIRST)
    optimizer = wrap(model, overlap=False)
    for step in range(2):
        x, y = batch(step, FIRST, rank)
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    fake_gpu.backend.capturing = True
    refused("a CUDA graph is being captured", lambda: F.cross_entropy(model(x), y).backward())
    fake_gpu.backend.capturing = False
    optimizer.zero_grad()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.grad = None
    refused("tensors on meta are not supported: parameter", lambda: tl.DistributedOptimizer(sgd(nn.Linear(2, 2, device="meta").parameters())))
    optimizer.close()


def main():
    torch.set_num_threads(1)
    tl.init()
    rank, size = tl.rank(), tl.size()
    parts = [(program.__name__, lambda program=program: train_everywhere(program, rank, size)) for program in PROGRAMS]
    parts += [
        (part.__name__, lambda part=part: part(rank)) for part in (the_thread_waits_for_the_roll_call_alone, memory_that_comes_back, refusals)
    ]
    for name, part in parts:
        if os.environ.get("ONLY", name) == name:
            began = time.monotonic()
            part()
            if "TALK" in os.environ:
                print(f"{name}: {time.monotonic() - began:.1f} s", flush=True)
    tl.shutdown()
    assert not fake_gpu.violations(), fake_gpu.violations()
    print(f"rank {rank}: all training on GPUs is right")


if __name__ == "__main__":
    main()
