"""One of two ranks: sums of a GPU's tensors by tensorlane, by Gloo and by NCCL over sockets, in turns. Each sum is checked before a time is taken.

`--probe WAY` only tries whether NCCL runs two ranks on one GPU in that way. All talk over loopback: two ranks of two hosts on one machine.
"""

import os
import statistics
import time

import torch
import torch.distributed as dist

import devices

SIZES = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20, 256 << 20)


def set_up_nccl(way):
    """Before NCCL is first used."""
    os.environ.update(NCCL_P2P_DISABLE="1", NCCL_SHM_DISABLE="1", NCCL_IB_DISABLE="1", NCCL_NET="Socket", NCCL_SOCKET_IFNAME="lo", NCCL_DEBUG="WARN",
                      NCCL_CUMEM_ENABLE="0", TORCH_NCCL_ASYNC_ERROR_HANDLING="1")
    if way == "multi":
        os.environ["NCCL_MULTI_RANK_GPU_ENABLE"] = "1"
    else:
        os.environ["NCCL_HOSTID"] = f"tensorlane-rank-{os.environ['RANK']}"


def open_gloo(store):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)


def nccl_group(way):
    set_up_nccl(way)
    torch.cuda.set_device(0)
    return dist.new_group(backend="nccl")


def probe(args, device):
    open_gloo(args.store)
    group = nccl_group(args.probe)
    x = torch.ones(1000, device=device)
    dist.all_reduce(x, group=group)
    devices.synchronize(device)
    assert float(x[0]) == dist.get_world_size(), "NCCL's sum is wrong"
    devices.write(args.out, dist.get_rank(), {"nccl": torch.cuda.nccl.version()})
    os._exit(0)  # a group that is half broken may not end


def p99(times):
    return sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]


def check(call, x, rank, device, name):
    x.fill_(rank + 1)
    call(x)
    devices.synchronize(device)
    assert float(x.min()) == float(x.max()) == 3, f"the sum of {name} is wrong"


def measure(contenders, bytes_, turns, rank, device):
    """By contender: seconds of every turn. What they work on is on the GPU, but for Gloo on the fake one, which it does not know."""
    tensors = {name: torch.zeros(bytes_ // 4).to("cpu" if name == "gloo" and device.type != "cuda" else device) for name in contenders}
    times = {name: [] for name in contenders}
    for name, call in contenders.items():
        check(call, tensors[name], rank, tensors[name].device, name)
        call(tensors[name].zero_())
    for _ in range(turns):
        for name, call in contenders.items():
            devices.synchronize(device)
            dist.barrier()
            start = time.perf_counter()
            call(tensors[name])
            devices.synchronize(tensors[name].device)
            times[name].append(time.perf_counter() - start)
    return times


def main():
    args = devices.arguments(__doc__, probe={"metavar": "WAY"}, nccl={"metavar": "WAY"}, store={"required": True})
    device = devices.open_device(args.fake)
    if args.probe:
        probe(args, device)
    import tensorlane.torch as tl

    tl.init()
    open_gloo(args.store)
    contenders = {"tensorlane": lambda x: tl.allreduce_(x, op=tl.Sum, name=f"sum{x.numel()}"), "gloo": dist.all_reduce}
    if args.nccl:
        group = nccl_group(args.nccl)
        contenders["nccl"] = lambda x: dist.all_reduce(x, group=group)
    figures = {"torch": torch.__version__, "sizes": {}}
    for bytes_ in SIZES[:3] if args.fake else SIZES:
        turns = 3 if args.fake else max(7, min(60, (512 << 20) // bytes_))
        times = measure(contenders, bytes_, turns, tl.rank(), device)
        ours = statistics.median(times["tensorlane"])
        figures["sizes"][str(bytes_)] = {
            name: {"median_us": statistics.median(each) * 1e6, "p99_us": p99(each) * 1e6, "ratio": statistics.median(each) / ours, "turns": turns}
            for name, each in times.items()
        }
        devices.write(args.out, tl.rank(), figures)  # what there is, should a later size fail
    tl.barrier()
    tl.shutdown()
    dist.barrier()
    os._exit(0)  # the groups of torch.distributed need no goodbye


if __name__ == "__main__":
    main()
