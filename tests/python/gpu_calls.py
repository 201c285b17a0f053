"""The calls on torch tensors in the memory of (fake) GPUs. A script, run by daemons/test_gpus.py:

    tensorlane run -n 2 -- python tests/python/gpu_calls.py

Results are compared with those of the same calls on the CPU. What is not ordered by a wait shows, for the fake GPU's operations wait for their stream only.
"""

import os
import threading
import time

import fake_gpu
import tensorlane
import tensorlane.torch as tl
import torch
from tensorlane import _native
from tensorlane.torch import _calls

GPU = fake_gpu.load()
DTYPES = list(_calls._DTYPES)
OPS = {"sum": tl.Sum, "average": tl.Average, "min": tl.Min, "max": tl.Max, "product": tl.Product}


def refused(kind, text, call):
    try:
        call()
    except kind as error:
        assert text in str(error), str(error)
    else:
        raise AssertionError(f"not refused: {text}")


def same(got, wanted):
    assert got.device.type == "fake_gpu" and got.dtype == wanted.dtype and got.shape == wanted.shape, (got.device, got.dtype, got.shape)
    left, right = (tensor.cpu().contiguous().view(-1).view(torch.uint8) for tensor in (got, wanted))
    assert torch.equal(left, right), (got.cpu(), wanted)


def values(rank, dtype, shape, seed=0):
    generator = torch.Generator().manual_seed(100 * seed + rank)
    return torch.randint(-9, 9, shape, generator=generator).to(dtype)


def every_call_and_type(rank, size):
    for dtype in DTYPES:
        x = values(rank, dtype, (2 * size + 1, 5))
        for name, op in OPS.items():
            if name == "average" and not dtype.is_floating_point:
                continue
            same(tl.allreduce(x.to(GPU), op=op), tl.allreduce(x, op=op))
            same(tl.reducescatter(x.to(GPU), op=op), tl.reducescatter(x, op=op))
        same(tl.broadcast(x.to(GPU), size - 1), tl.broadcast(x, size - 1))
        same(tl.allgather(x.to(GPU)), tl.allgather(x))
        there = x.to(GPU)
        assert tl.allreduce_(there, op=tl.Max) is there
        same(there, tl.allreduce(x, op=tl.Max))
        there = x.to(GPU)
        assert tl.broadcast_(there, 0, name=f"in place {dtype}") is there
        same(there, tl.broadcast(x, 0))
    x = values(rank, torch.float32, (7, 3))
    scales = {"prescale_factor": 3.0, "postscale_factor": 0.5}
    same(tl.allreduce(x.to(GPU), **scales), tl.allreduce(x, **scales))
    same(tl.reducescatter(x.to(GPU), **scales), tl.reducescatter(x, **scales))
    same(tl.allreduce_(x.to(GPU), name="scaled in place", **scales), tl.allreduce(x, **scales))
    for count in (1, 1000, 1 << 20, 3_000_001):
        x = values(rank, torch.float32, (count,))
        same(tl.allreduce(x.to(GPU), op=tl.Sum), tl.allreduce(x, op=tl.Sum))
    same(tl.reducescatter(torch.ones(1, 3, device=GPU), op=tl.Sum), torch.full((int(rank == 0), 3), float(size)))


def names_and_handles(rank, size):
    x = torch.full((1000,), rank + 1.0, device=GPU)
    handles = [tl.allreduce_async(x + i, name=f"many.{i}", op=tl.Sum, priority=i / 31) for i in range(32)]
    for i in reversed(range(32)) if rank % 2 else range(32):
        same(tl.synchronize(handles[i]), torch.full((1000,), size * (size + 1) / 2 + size * i))
        assert tl.poll(handles[i]) in (True, False)
    for i in range(30):  # more than there are names for under way at once
        handles.append(tl.allreduce_async(x + i, op=tl.Sum))
    for i, handle in enumerate(handles[32:]):
        same(handle.synchronize(), torch.full((1000,), size * (size + 1) / 2 + size * i))
    handle = tl.allreduce_async(x, op=tl.Sum)
    while not handle.poll():
        pass
    same(handle.synchronize(), torch.full((1000,), size * (size + 1) / 2))
    tl.allreduce(torch.ones(3), name="on the CPU")
    refused(tensorlane.Error, "on the CPU", lambda: tl.allreduce(torch.ones(3, device=GPU), name="on the CPU"))
    refused(tensorlane.InvalidArgumentError, "tensors on meta are not supported", lambda: tl.allreduce(torch.ones(3, device="meta")))


def a_wait_orders(rank, size):
    """Without it the old values are there, however long ago the operation began."""
    for timeout in (None, 60):
        x = torch.full((5000,), rank + 1.0, device=GPU)
        handle = None
        if rank == 0 and size > 1:
            handle = tl.allreduce_async_(x, name=f"late {timeout}", op=tl.Sum)
            assert torch.equal(x.cpu(), torch.full((5000,), 1.0)) and not handle.poll(), "the other ranks have not come"
            refused(tensorlane.TimedOutError, "", lambda: handle.synchronize(0.2))
        tl.barrier(60)
        handle = handle or tl.allreduce_async_(x, name=f"late {timeout}", op=tl.Sum)
        assert handle.synchronize(timeout) is x
        same(x, torch.full((5000,), size * (size + 1) / 2))


def what_goes_in_may_change_at_once(rank, size):
    for turn in range(10):
        x = torch.full((3 * size, 1000), rank + 1.0, device=GPU)
        handles = [
            tl.allreduce_async(x, op=tl.Sum), tl.reducescatter_async(x, op=tl.Sum), tl.allgather_async(x), tl.broadcast_async(x, 0),
            tl.allreduce_async(x, op=tl.Sum, prescale_factor=2.0),
        ]
        x.fill_(-1.0)
        total, summed, scattered, gathered, sent, doubled = size * (size + 1) / 2, *(handle.synchronize() for handle in handles)
        same(summed, torch.full((3 * size, 1000), total))
        same(scattered, torch.full((3, 1000), total))
        same(gathered, torch.cat([torch.full((3 * size, 1000), r + 1.0) for r in range(size)]))
        same(sent, torch.ones(3 * size, 1000))
        same(doubled, torch.full((3 * size, 1000), 2 * total))


def streams(rank, size):
    """The current stream counts: of the call for what goes in, and of the wait for what comes out."""
    first, second = torch.Stream(GPU), torch.Stream(GPU)
    for turn in range(20):
        looked = turn % 2  # and so waited, as this thread
        with first:
            x = torch.full((2000,), rank + 1.0 + turn, device=GPU)
            handle = tl.allreduce_async(x, op=tl.Sum, postscale_factor=1.0 + looked)
        wanted = torch.full((2000,), (1 + looked) * (size * (size + 1) / 2 + turn * size))
        with second:
            result = handle.synchronize()
            if looked:
                same(result, wanted)
        same(handle.synchronize(), wanted)  # for another stream
        del x, result, handle
    other = torch.device("fake_gpu", 1)
    x = torch.full((10,), rank + 1.0, device=other)
    result = tl.allreduce(x, op=tl.Sum)
    assert result.device == other
    same(result, torch.full((10,), size * (size + 1) / 2))


def the_thread_does_not_wait(rank, size):
    stream, other = torch.Stream(GPU), torch.accelerator.current_stream(GPU)
    with stream:
        x = torch.full((4000,), rank + 1.0, device=GPU)
        started = time.monotonic()
        with fake_gpu.held(stream):
            handle = tl.allreduce_async_(x, name="held", op=tl.Sum)
            assert handle.synchronize() is x
            assert not handle.poll()
            with other:
                same(tl.allreduce(torch.ones(3, device=GPU), name="meanwhile"), torch.ones(3))
        assert time.monotonic() - started < 20
        same(x, torch.full((4000,), size * (size + 1) / 2))
        assert handle.poll()


def memory(rank, size):
    """Freed, used again, given back to the driver, and got again at the same address, between operations and while they are under way."""
    fake_gpu.poison()
    before, seen = set(), []
    for turn in range(60):
        x = torch.full((3000 + 1000 * (turn % 3),), rank + turn + 1.0, device=GPU)
        seen.append(x.data_ptr() in before)
        before.add(x.data_ptr())
        if turn % 3 == 0:
            handle = tl.allreduce_async_(x, op=tl.Sum)
        else:
            handle = tl.allreduce_async(x, op=tl.Sum)
        del x
        again = torch.full((3000 + 1000 * (turn % 3),), -5.0, device=GPU)  # where x was, if nobody keeps it
        result = handle.synchronize()
        del handle
        same(result, torch.full(result.shape, size * (size + 1) / 2 + size * turn))
        del result
        if turn % 5 == 4:
            fake_gpu.empty_cache()
        same(again, torch.full(again.shape, -5.0))
    assert sum(seen) > 20, "addresses did not recur, so this has shown nothing"
    fake_gpu.poison(False)


def dropped_handles(rank, size):
    """What nobody waits for keeps its memory until it is done, and no longer."""
    tl.barrier(60)
    shape = (777_001,)
    x = torch.full(shape, 1.0, device=GPU)
    place = x.data_ptr()
    stream = torch.accelerator.current_stream()
    with fake_gpu.held(stream):
        tl.allreduce_async_(x, name="dropped")
        del x
        assert torch.empty(shape, device=GPU).data_ptr() != place
    end = time.monotonic() + 60
    while place not in [each.data_ptr() for each in (torch.empty(shape, device=GPU), torch.empty(shape, device=GPU))]:
        assert time.monotonic() < end, "it is kept for ever"
        _native.forget_dropped()  # as every call does
    side = torch.Stream(GPU)
    x = torch.full((888_001,), 1.0, device=GPU)
    place = x.data_ptr()
    handle = tl.allreduce_async_(x, name="waited for elsewhere", op=tl.Sum)
    with side, fake_gpu.held(side):
        handle.synchronize()
        del x, handle
        with stream:
            assert torch.empty((888_001,), device=GPU).data_ptr() != place, "another stream has yet to wait for it"


def gradients(rank, size):
    def loss(result):
        return (result.sin() * torch.arange(result.numel(), dtype=torch.float64).to(result.device).view(result.shape)).sum() + result.sum() ** 2

    cases = {
        "sum": lambda x: tl.allreduce(x, op=tl.Sum),
        "mean": lambda x: tl.allreduce(x, name=f"mean {x.device.type} {len(x)}", prescale_factor=3.0, postscale_factor=0.5),
        "broadcast": lambda x: tl.broadcast(x, size - 1),
        "allgather": tl.allgather,
        "scatter": lambda x: tl.reducescatter(x, op=tl.Sum, postscale_factor=2.0),
    }
    for rows in (2 * size, 2 * size + 1):
        start = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)
        for collective in cases.values():
            found = []
            for device in (GPU, "cpu"):
                x = start.clone().to(device).requires_grad_()
                loss(collective(x * 2)).backward()
                found.append(x.grad)
            same(*found)
    refused(tensorlane.InvalidArgumentError, "autograd follows it", lambda: tl.allreduce_(torch.ones(3, device=GPU, requires_grad=True) * 2))


def key_values(rank, size):
    store = tl.KVStore()
    keys = [f"gpu.{i}" for i in range(6)]
    for turn in range(3):
        for key in keys:
            mine = torch.full((1000, 3), rank + turn + 1.0, device=GPU)
            store.push(key, mine)
            mine.fill_(-1.0)
        for key in keys:
            same(store.pull(key, torch.zeros(1000, 3, device=GPU)), torch.full((1000, 3), size * (size + 1) / 2 + size * turn))
    stale = tl.KVStore(staleness=2)
    out = torch.empty(1000, device=GPU)
    for last in range(1, 12):
        stale.push("gpu.stale", torch.full((1000,), float(last), device=GPU))
        stale.pull("gpu.stale", out)
        seen = out[0].item() / size
        assert max(1, last - 2) <= seen <= last, (seen, last)
        same(out, torch.full((1000,), seen * size))


def captured_graphs(rank, size):
    x = torch.ones(2 * size, device=GPU)
    handle = tl.allreduce_async(x, op=tl.Sum)
    text = "a CUDA graph is being captured, and what travels between hosts cannot be part of one: tensor '"
    fake_gpu.backend.capturing = True
    for call in (tl.allreduce_, tl.allgather, tl.reducescatter, tl.broadcast):
        refused(tensorlane.InvalidArgumentError, text, lambda call=call: call(x))
    refused(tensorlane.InvalidArgumentError, text, handle.synchronize)
    refused(tensorlane.InvalidArgumentError, "a CUDA graph is being captured", lambda: tl.KVStore().push("captured", x))
    fake_gpu.backend.capturing = False
    same(handle.synchronize(), torch.full((2 * size,), float(size)))
    stream = torch.Stream(GPU)
    with stream:  # the library finds out by itself, too
        x = torch.ones(4, device=GPU)
        x.cpu()
        fake_gpu.driver.fake_cuda_begin_capture(stream.stream_id, 0)
        refused(tensorlane.InvalidArgumentError, "graph", lambda: tl.allreduce_(x, name="captured"))
        fake_gpu.driver.fake_cuda_end_capture(stream.stream_id)
        same(tl.allreduce_(x, name="captured", op=tl.Sum), torch.full((4,), float(size)))


def models(rank, size):
    torch.manual_seed(rank)
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 2)).to(GPU)
    model.register_buffer("flags", torch.tensor([rank == 1, True]).to(GPU))
    model.register_buffer("columns", torch.full((6, 8), float(rank), device=GPU).t())
    tl.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    for name, tensor in model.state_dict().items():
        everybodys = tl.allgather(tensor.detach().to(torch.float32).reshape(1, -1).contiguous())
        same(everybodys, everybodys[size - 1 :].cpu().expand(size, -1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 0:
        model(torch.randn(4, 20).to(GPU)).sum().backward()
        optimizer.step()
    tl.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    for state in optimizer.state_dict()["state"].values():
        assert state["exp_avg"].device == GPU
        for key, tensor in sorted(state.items()):
            everybodys = tl.allgather(tensor.detach().to(GPU, torch.float32).reshape(1, -1).contiguous())
            same(everybodys, everybodys[:1].cpu().expand(size, -1))
            assert key == "step" or everybodys.any()


def process_sets(rank, size):
    mine = [tl.add_process_set([each]) for each in range(size)][rank]
    same(tl.allreduce(torch.full((10,), rank + 1.0, device=GPU), op=tl.Sum, process_set=mine), torch.full((10,), rank + 1.0))
    tl.remove_process_set(mine)


def threads(rank, size):
    """Streams are each thread's own."""
    failed = []

    def body(number):
        try:
            with torch.Stream(GPU):
                for turn in range(20):
                    x = torch.full((500,), rank + number + turn + 1.0, device=GPU)
                    same(tl.allreduce(x, name=f"thread {number}", op=tl.Sum), torch.full((500,), size * (size + 1) / 2 + size * (number + turn)))
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=body, args=(number,)) for number in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed, failed


def main():
    torch.set_num_threads(1)
    tl.init()
    rank, size = tl.rank(), tl.size()
    assert "gpus" not in tl.status()
    for part in (
        every_call_and_type, names_and_handles, a_wait_orders, what_goes_in_may_change_at_once, streams, the_thread_does_not_wait, memory, dropped_handles,
        gradients, key_values, captured_graphs, models, process_sets, threads,
    ):
        if part is the_thread_does_not_wait and os.environ.get("TENSORLANE_STREAM_WAIT") == "0":
            continue  # it does
        if os.environ.get("ONLY", part.__name__) == part.__name__:
            began = time.monotonic()
            part(rank, size)
            if "TALK" in os.environ:
                print(f"{part.__name__}: {time.monotonic() - began:.1f} s", flush=True)
    used = tl.status()["gpus"]
    assert used["devices"][0]["copied_in_bytes"] > 0 and used["pinned_bytes"] > 0, used
    tl.shutdown()
    assert not fake_gpu.violations(), fake_gpu.violations()
    print(f"rank {rank}: all calls on GPUs are right")


if __name__ == "__main__":
    main()
