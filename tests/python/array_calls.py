"""Every array call, on every rank of a real job, results checked. A script, run by daemons/test_daemons.py."""

import array

import numpy
import tensorlane
import tensorlane.torch as tl
import torch


def expect(actual, wanted):
    numpy.testing.assert_array_equal(numpy.asarray(actual), numpy.asarray(wanted))


def refused(kind, fragment, call):
    try:
        call()
    except kind as error:
        assert fragment in str(error), str(error)
        assert str(error).count(": ") >= 2, f"not WHAT: WHERE: WHAT TO DO: {error}"
    else:
        raise AssertionError(f"{fragment!r} was expected")


def numpy_calls(rank, size):
    total = size * (size + 1) / 2
    for kind in ("float32", "float64", "float16"):
        mine = numpy.full((3, 5), rank + 1, kind)
        expect(tensorlane.allreduce(mine, name=f"sum.{kind}", op=tensorlane.Sum), numpy.full((3, 5), total, kind))
        expect(mine, numpy.full((3, 5), rank + 1, kind))
        expect(tensorlane.allreduce(mine, name=f"mean.{kind}"), numpy.full((3, 5), total / size, kind))
        expect(tensorlane.allreduce(mine, average=False, name=f"scaled.{kind}", prescale_factor=2.0, postscale_factor=4.0), numpy.full((3, 5), 8 * total, kind))
        assert tensorlane.allreduce_(mine, name=f"inplace.{kind}", op=tensorlane.Sum, postscale_factor=0.5) is mine
        expect(mine, numpy.full((3, 5), total / 2, kind))
    root = size - 1
    mine = numpy.arange(4, dtype="float32") + 10 * rank
    expect(tensorlane.broadcast(mine, root, name="b"), numpy.arange(4) + 10 * root)
    expect(mine, numpy.arange(4) + 10 * rank)
    tensorlane.broadcast_(mine, root, name="b_")
    expect(mine, numpy.arange(4) + 10 * root)
    gathered = tensorlane.allgather(numpy.full((2, 3), rank, "float64"), name="g")
    expect(gathered, numpy.repeat(numpy.arange(size, dtype="float64"), 2)[:, None] * numpy.ones(3))
    buffer = array.array("d", [rank + 1.0] * 7)
    tensorlane.allreduce_(buffer, name="buffer", op=tensorlane.Sum)
    expect(buffer, [total] * 7)
    nan = tensorlane.allreduce(numpy.array([numpy.nan if rank == 0 else 1.0, 2.0]), name="nan", op=tensorlane.Sum)
    assert numpy.isnan(nan[0]) and nan[1] == 2 * size


def torch_calls(rank, size):
    total = size * (size + 1) / 2
    for kind in (torch.float32, torch.float64, torch.float16, torch.bfloat16):
        mine = torch.full((2, 3), rank + 1.0, dtype=kind)
        expect(tl.allreduce(mine, op=tl.Sum).float(), torch.full((2, 3), total))
        expect(tl.allreduce_(mine, op=tl.Sum, prescale_factor=2.0, postscale_factor=0.5).float(), torch.full((2, 3), total))
        expect(tl.broadcast(torch.full((3,), float(rank), dtype=kind), 0).float(), torch.zeros(3))
        expect(tl.allgather(torch.full((1, 2), float(rank), dtype=kind)).float(), torch.arange(size)[:, None] * torch.ones(2))
    bits = torch.full((3,), rank + 1.0, dtype=torch.bfloat16)
    tensorlane.allreduce_(bits, name="bfloat16.dlpack", op=tensorlane.Sum)
    expect(bits.float(), torch.full((3,), total))


def handles(rank, size):
    started = [tl.allreduce_async_(torch.full((1000,), rank + float(i)), name=f"many.{i}", op=tl.Sum, priority=i / 31) for i in range(32)]
    order = reversed(range(32)) if rank % 2 else range(32)
    for i in order:
        expect(tl.synchronize(started[i]), torch.full((1000,), size * (size - 1) / 2 + size * i))
    handle = tl.allreduce_async(torch.ones(5), name="polled")
    while not tl.poll(handle):
        pass
    expect(tl.synchronize(handle), torch.ones(5))
    for _ in range(3):  # a dropped handle must not free memory that is being written
        tl.allreduce_async(torch.ones(200_000), name=f"dropped.{_}")
    tl.barrier()


def objects(rank, size):
    model = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 1)
    model[0].weight.data = model[0].weight.data.contiguous(memory_format=torch.channels_last)
    tl.broadcast_parameters(model.state_dict(), root_rank=size - 1)
    for name, tensor in model.state_dict().items():
        assert (tensor == size).all(), name
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (rank + 1))
    if rank == 0:
        model(torch.ones(1, 1, 5, 5)).sum().backward()
        optimizer.step()
    tl.broadcast_optimizer_state(optimizer, root_rank=0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert len(optimizer.state_dict()["state"]) == 4
    other = torch.nn.Linear(3, 2).double()  # other sizes and another type under names that were used before
    tl.broadcast_parameters([("0.weight", other.weight), ("0.bias", other.bias)], root_rank=0)
    assert tl.broadcast_object({"rank": rank, "text": "x" * 10_000}, 0) == {"rank": 0, "text": "x" * 10_000}


def bad_input(rank, size):
    refused(tensorlane.InvalidArgumentError, "no rank", lambda: tensorlane.broadcast(numpy.ones(3), size))
    tensorlane.allreduce(numpy.ones(3, "float32"), name="agreed")
    refused(tensorlane.Error, "agreed", lambda: tensorlane.allreduce(numpy.ones(4, "float32"), name="agreed"))
    if size > 1:
        refused(tensorlane.MismatchError, "differs", lambda: tensorlane.allreduce(numpy.ones(3 + rank, "float32"), name="differs"))
    tensorlane.barrier(30)


def main():
    tensorlane.init()
    rank, size = tensorlane.rank(), tensorlane.size()
    assert tensorlane.is_initialized() and 0 <= tensorlane.local_rank() < tensorlane.local_size() <= size
    numpy_calls(rank, size)
    torch_calls(rank, size)
    handles(rank, size)
    objects(rank, size)
    bad_input(rank, size)
    status = tensorlane.status()
    assert status["daemon"] and status["optimizers"] == []
    tensorlane.shutdown()
    assert not tensorlane.is_initialized()
    print(f"rank {rank}: all array calls are right")


if __name__ == "__main__":
    main()
