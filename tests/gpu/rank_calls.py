"""One rank: every call of tensorlane.torch on GPU tensors gives the bits that it gives on the CPU."""

import torch

import devices

INTEGERS = (torch.int8, torch.int32, torch.int64, torch.uint8)
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16, *INTEGERS)


class Checks:
    def __init__(self, tl, device):
        self.tl = tl
        self.device = device
        self.count = 0

    def values(self, dtype, rows, seed):
        generator = torch.Generator().manual_seed(1000 * self.tl.rank() + seed)
        values = torch.randint(-8, 9, (rows, 5), generator=generator)
        return values.to(dtype) if dtype in INTEGERS else (values / 4 + torch.rand(rows, 5, generator=generator)).to(dtype)

    def same(self, found, expected, what):
        self.count += 1
        assert found.device == self.device, f"{what}: the result is on {found.device}"
        assert found.dtype == expected.dtype and found.shape == expected.shape, f"{what}: {found.dtype} {tuple(found.shape)}"
        left, right = (tensor.detach().cpu().contiguous().view(-1).view(torch.uint8) for tensor in (found, expected))
        assert torch.equal(left, right), f"{what}: not as on the CPU"

    def both(self, what, call, values):
        """`call` of the values on the GPU and on the CPU."""
        self.same(call(values.to(self.device)), call(values.clone()), what)


def check_dtype(checks, dtype, rows, seed):
    tl = checks.tl
    what = f"{dtype} of {rows} rows"
    reductions = {"sum": tl.Sum, "min": tl.Min, "max": tl.Max, "product": tl.Product, **({} if dtype in INTEGERS else {"average": tl.Average})}
    values = checks.values(dtype, rows, seed)
    for name, op in reductions.items():
        checks.both(f"allreduce {name} {what}", lambda x, op=op: tl.allreduce(x, op=op), values)
        checks.both(f"allreduce_ {name} {what}", lambda x, op=op: tl.allreduce_(x, op=op), values)
        checks.both(f"reducescatter {name} {what}", lambda x, op=op: tl.reducescatter(x, op=op), values)
    for root in range(tl.size()):
        checks.both(f"broadcast {what}", lambda x, root=root: tl.broadcast(x, root), values)
        checks.both(f"broadcast_ {what}", lambda x, root=root: tl.broadcast_(x, root), values)
    checks.both(f"allgather {what}", tl.allgather, values)


def check_handles(checks):
    """Many operations under way, waited for in another order; their inputs change meanwhile, and results are used on other streams."""
    tl = checks.tl
    values = [checks.values(torch.float32, 1 + 997 * i, i) for i in range(8)]
    expected = [tl.allreduce(value, op=tl.Sum, name=f"cpu{i}") for i, value in enumerate(values)]
    tensors = [value.to(checks.device) for value in values]
    handles = [tl.allreduce_async(tensor, op=tl.Sum, name=f"gpu{i}") for i, tensor in enumerate(tensors)]
    for tensor in tensors:
        tensor.zero_()
    for i in reversed(range(8)):
        checks.same(tl.synchronize(handles[i]), expected[i], f"handle {i}")


def check_gradients(checks):
    tl = checks.tl
    for name, call in {"allreduce": lambda x: tl.allreduce(x, op=tl.Average), "allgather": tl.allgather, "reducescatter": lambda x: tl.reducescatter(x, op=tl.Sum),
                       "broadcast": lambda x: tl.broadcast(x, 0)}.items():
        gradients = []
        for device in (checks.device, torch.device("cpu")):
            x = checks.values(torch.float32, 6, 3).to(device).requires_grad_()
            (call(x) * 3).sum().backward()
            gradients.append(x.grad)
        checks.same(gradients[0], gradients[1], f"gradient of {name}")


def check_store(checks):
    tl = checks.tl
    values = checks.values(torch.float32, 100, 9)
    results = []
    for device in (checks.device, torch.device("cpu")):
        store = tl.KVStore()
        out = torch.zeros(100, 5, device=device)
        store.push(f"key.{device.type}", values.to(device))
        store.pull(f"key.{device.type}", out)
        results.append(out)
    checks.same(results[0], results[1], "KVStore")


def main():
    args = devices.arguments(__doc__)
    device = devices.open_device(args.fake)
    import tensorlane.torch as tl

    tl.init()
    checks = Checks(tl, device)
    for seed, rows in enumerate((1, 7) if args.fake else (1, 7, 1000, 200_001)):
        for dtype in DTYPES:
            check_dtype(checks, dtype, rows, seed)
    check_handles(checks)
    check_gradients(checks)
    check_store(checks)
    state = {"weight": checks.values(torch.float32, 10, 1).to(device)}
    tl.broadcast_parameters(state, root_rank=0)
    checks.same(state["weight"], tl.broadcast(checks.values(torch.float32, 10, 1), 0), "broadcast_parameters")
    devices.synchronize(device)
    assert not devices.violations(device), devices.violations(device)[:3]
    tl.barrier()
    devices.write(args.out, tl.rank(), {"checked": checks.count, "torch": torch.__version__, "status": tl.status().get("gpus")})
    tl.shutdown()


if __name__ == "__main__":
    main()
