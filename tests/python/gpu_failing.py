"""What a program hears of an error of the (fake) driver that comes while an operation on a GPU is under way. A script, run by daemons/test_gpus.py:

    tensorlane run -n 2 -- python tests/python/gpu_failing.py calls|optimizer cuMemcpyHtoDAsync_v2

On rank 0 the next call of that entry point fails, with nobody waiting for it but a stream. The other rank hears that rank 0 has gone.
"""

import sys
import time

import fake_gpu
import tensorlane
import tensorlane.torch as tl
import torch
import torch.nn.functional as F
from models import Plain, data

GPU = fake_gpu.load()
INVALID_VALUE = 1


def fails(call, text):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        try:
            call()
        except tensorlane.UnavailableError as error:
            assert text in str(error), error
            return
        time.sleep(0.01)
    raise AssertionError(f"no error: {text}")


def calls(rank, text, break_driver):
    x = torch.full((300_000,), rank + 1.0, device=GPU)
    tl.allreduce_(x, op=tl.Sum, name="x").cpu()
    kept = tl.allreduce_(torch.full((4,), 7.0, device=GPU), op=tl.Max, name="kept")
    assert kept.cpu().tolist() == [7.0] * 4
    with fake_gpu.held():
        try:
            handle = tl.allreduce_async_(x, op=tl.Sum, name="x")
            break_driver()
            handle.synchronize()
        except tensorlane.UnavailableError as error:
            assert rank != 0 and text in str(error), error  # the other rank was faster
    if rank == 0:
        assert x.isnan().all(), x
        assert kept.cpu().tolist() == [7.0] * 4
    for number in range(2):  # it says so again
        fails(lambda: tl.allreduce_(torch.ones(3, device=GPU), name="next"), text)
        fails(lambda: tl.allreduce_(torch.ones(3), name="next on the CPU"), text)


def optimizer(rank, text, break_driver):
    torch.manual_seed(3)
    model = Plain().to(GPU)
    distributed = tl.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), overlap=False)
    steps = 0

    def iterate():
        nonlocal steps
        if steps == 3:
            break_driver()
        steps += 1
        distributed.zero_grad()
        x, y = data(steps, rank)
        F.cross_entropy(model(x.to(GPU)), y.to(GPU)).backward()
        distributed.step()

    fails(iterate, text)
    assert steps > 3
    if rank == 0 and steps > 4:
        assert all(parameter.isnan().all() for parameter in model.parameters()), "the failed operation's result is not marked"
    fails(distributed.step, text)


def main(part, symbol):
    tl.init()
    rank = tl.rank()
    text = f"{symbol.removesuffix('_v2')} failed with CUDA_ERROR_INVALID_VALUE" if rank == 0 else "closed its session without goodbye: rank 0"
    part(rank, text, lambda: rank == 0 and fake_gpu.driver.fake_cuda_fail(symbol.encode(), 1, INVALID_VALUE))
    assert not fake_gpu.violations(), fake_gpu.violations()
    print(f"rank {rank}: has heard of it")


if __name__ == "__main__":
    main({"calls": calls, "optimizer": optimizer}[sys.argv[1]], sys.argv[2])
