"""How long an iteration of a GPT takes whose optimizer is shared out over the ranks, beside what PyTorch has for that over Gloo. In the lab (root); all ways
take turns in one run, alone and beside a second job's bulk to the same hosts.

    build/venv/bin/python tests/bench/sharded_training.py [--json FILE] [--blocks N] [--iterations N] [--parts alone contended] [--arms ARM...]

Four hosts of one rank, ports of 500 Mbit/s. Computation is emulated: each linear layer takes its share of --forward seconds, and twice that in the backward
pass, so that the hosts' cores stay free. Gradients are clipped to a norm of 1.0. All ways must come to the same losses before a time is printed. The arms of
PyTorch meet FIFO ports, on which their traffic and the bulk share; those of tensorlane meet strict ports.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
HOSTS, WORDS, LENGTH, BATCH, NORM = 4, 512, 8, 1, 1.0
OURS = "sharded"
ARMS = {
    "nocomm": "no communication",
    "ddp": "DistributedDataParallel over Gloo",
    "ddp_small": "the same with buckets of 4 MB",
    "zero": "ZeroRedundancyOptimizer over Gloo",
    "fsdp": "FSDP2 over Gloo",
    "fsdp_prefetch": "FSDP2 over Gloo, asynchronous, prefetching",
    "ddp_tensorlane": "DistributedDataParallel over tensorlane",
    "fsdp_tensorlane": "FSDP2 over tensorlane, asynchronous, prefetching",
    OURS: "DistributedOptimizer(sharded=True)",
}
BACKEND = ("ddp_tensorlane", "fsdp_tensorlane")  # they need torch.distributed's backend of this name
TENSORLANE = (*BACKEND, OURS)


def has_backend():
    """Whether the package has one for the torch that runs."""
    from tensorlane.torch import _backend

    return os.path.exists(_backend.library_path())


# The ranks


class Emulated:
    """What is computed takes as long as it should, however late a sleep ends."""

    def __init__(self, model, forward):
        from torch import nn

        layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
        elements = sum(layer.weight.numel() for layer in layers)
        for layer in layers:
            seconds = forward * layer.weight.numel() / elements
            layer.register_forward_hook(lambda *_, seconds=seconds: time.sleep(seconds))
            layer.register_full_backward_pre_hook(lambda *_, seconds=seconds: time.sleep(2 * seconds))


class Arm:
    """One way to train. The model is the same in all of them."""

    def __init__(self, name, rank, args):
        import torch
        from sharded import Gpt

        torch.manual_seed(1)
        self.name, self.rank, self.iteration = name, rank, 0
        self.net = Gpt(args.width, args.blocks_of_model, 4, WORDS, LENGTH)
        self.elements = sum(p.numel() for p in self.net.parameters())
        Emulated(self.net, args.forward)
        self.clip = lambda: torch.nn.utils.clip_grad_norm_(self.net.parameters(), NORM)
        getattr(self, f"_{name}")()

    def _adamw(self):
        import torch

        return torch.optim.AdamW(self.net.parameters(), lr=1e-3, eps=1e-4)

    def _nocomm(self):
        self.optimizer = self._adamw()

    def _ddp(self, backend="gloo", **options):
        import torch

        self.net = torch.nn.parallel.DistributedDataParallel(self.net, process_group=_group(backend), **options)
        self.optimizer = self._adamw()

    def _ddp_small(self):
        self._ddp(bucket_cap_mb=4, gradient_as_bucket_view=True)

    def _ddp_tensorlane(self):
        self._ddp("tensorlane", bucket_cap_mb=4, gradient_as_bucket_view=True)

    def _zero(self):
        import torch
        from torch.distributed.optim import ZeroRedundancyOptimizer

        self.net = torch.nn.parallel.DistributedDataParallel(self.net, gradient_as_bucket_view=True)
        self.optimizer = ZeroRedundancyOptimizer(
            self.net.parameters(), torch.optim.AdamW, parameters_as_bucket_view=True, lr=1e-3, eps=1e-4
        )

    def _fsdp(self, backend="gloo", prefetch=False):
        from torch.distributed.device_mesh import DeviceMesh
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(_group(backend), "cpu")
        blocks = list(self.net.blocks)
        for block in blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=not prefetch)
        fully_shard(self.net, mesh=mesh, reshard_after_forward=not prefetch)
        if prefetch:
            for module in [self.net, *blocks]:
                module._set_unshard_async_op(True)  # documented, though its name begins so
            self.net.set_modules_to_forward_prefetch(blocks[:2])
            for place, block in enumerate(blocks):
                block.set_modules_to_forward_prefetch(blocks[place + 1 : place + 3])
                block.set_modules_to_backward_prefetch(blocks[max(0, place - 2) : place][::-1])
        self.optimizer = self._adamw()

    def _fsdp_prefetch(self):
        self._fsdp(prefetch=True)

    def _fsdp_tensorlane(self):
        self._fsdp("tensorlane", prefetch=True)

    def _sharded(self):
        import tensorlane.torch as tl

        self.optimizer = tl.DistributedOptimizer(
            self._adamw(), self.net.named_parameters(), sharded=True, max_norm=NORM
        )
        self.clip = lambda: None

    def step(self):
        """Returns the loss of this rank."""
        import torch
        import torch.nn.functional as F

        # The same in all arms; without communication each rank goes a way of its own.
        generator = torch.Generator().manual_seed(1000 * self.iteration + self.rank)
        text = torch.randint(WORDS, (BATCH, LENGTH + 1), generator=generator)
        self.iteration += 1
        self.optimizer.zero_grad()
        loss = F.cross_entropy(self.net(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        loss.backward()
        self.clip()
        self.optimizer.step()
        return loss.item()

    def run(self, iterations):
        times, losses = [], []
        for _ in range(iterations):
            begin = time.perf_counter()
            losses.append(self.step())
            times.append(time.perf_counter() - begin)
        return {"times": times, "losses": losses, "elements": self.elements}


_groups = {}


def _group(backend):
    import torch

    if backend not in _groups:
        _groups[backend] = torch.distributed.new_group(backend=backend)
    return _groups[backend]


def work(args):
    """One rank: what follow_blocks() asks for is the turn of the next arm of turns()."""
    import torch
    import torch.distributed as dist

    import tensorlane.torch as tl
    from tensorlane.examples.blocks import follow_blocks

    torch.set_num_threads(1)
    tl.init()
    dist.init_process_group("gloo")
    arms = {name: Arm(name, tl.rank(), args) for name in args.arms}
    order = turns(args)

    def run(iterations):
        dist.barrier()
        return arms[next(order)].run(iterations)

    follow_blocks(tl.rank(), args.folder, "ranks", run)
    tl.shutdown()
    dist.destroy_process_group()


def turns(args):
    """The arms in the order in which they run: all of them in each block, shuffled by a fixed seed."""
    draw = random.Random(1)
    for _ in range(args.blocks):
        block = list(args.arms)
        draw.shuffle(block)
        yield from block


# The run


def measure(part, args):
    """{arm: reports of its blocks}."""
    import quickstart_job as quickstart

    contended = part == "contended"
    fabric = quickstart.Fabric("lab", "--hosts", str(2 * HOSTS if contended else HOSTS), "--speed", args.speed)
    jobs = quickstart.Jobs(fabric, os.path.join(args.out, part))
    worker = [
        pathlib.Path(__file__).stem, "--folder", jobs.folder, "--blocks", str(args.blocks), "--forward", str(args.forward), "--width", str(args.width),
        "--blocks-of-model", str(args.blocks_of_model), "--arms", *args.arms,
    ]
    reports = {name: [] for name in args.arms}
    try:
        jobs.start("ranks", HOSTS, ["--pattern", "ring"], worker, [f"h{i}" for i in range(HOSTS)])
        jobs.wait_file(os.path.join(jobs.folder, "ranks.ready"), 300)
        for i in range(HOSTS if contended else 0):
            stop = ["--mib", "4", "--stop", os.path.join(jobs.folder, "stop")]
            jobs.start(f"bulk{i}", 2, ["--pattern", "parameter_server"], ["tensorlane.examples.flood", *stop], [f"h{HOSTS + i}", f"h{i}"])
        time.sleep(5 if contended else 0)  # until the bulk flows
        for number, arm in enumerate(turns(args)):
            fabric.policy("strict" if arm in TENSORLANE else "fifo")
            report = jobs.block("ranks", number, args.iterations)
            reports[arm].append(report)
            print(f"{part}: {arm}: {statistics.median(report['times'][1:]) * 1e3:.0f} ms", flush=True)
    finally:
        jobs.stop()
        fabric.down()
    check(reports)
    return reports


def check(reports):
    """All arms that exchange gradients have the same losses, up to the order of sums."""
    trained = {arm: [loss for report in blocks for loss in report["losses"]] for arm, blocks in reports.items() if arm != "nocomm"}
    first = next(iter(trained.values()), [])
    for arm, losses in trained.items():
        worst = max(abs(one - other) for one, other in zip(losses, first))
        if worst > 0.02:
            raise SystemExit(f"sharded_training: {arm} and {next(iter(trained))} have trained different models: losses differ by {worst:.3g}")


def ratios(reports, rival):
    """Of medians in paired blocks: (median, least, most)."""
    pairs = sorted(
        statistics.median(other["times"][1:]) / statistics.median(ours["times"][1:]) for ours, other in zip(reports[OURS], reports[rival])
    )
    return statistics.median(pairs), pairs[0], pairs[-1]


def bound(args, elements):
    """Seconds that no way can beat which clips: gradients travel behind the backward pass and parameters in front of the forward pass."""
    seconds = elements * 4 * (HOSTS - 1) / HOSTS * 8 / (float(args.speed.split()[0]) * 1e6)
    return max(2 * args.forward, seconds) + max(args.forward, seconds)


def table(part, reports, args):
    medians = {arm: statistics.median(t for report in blocks for t in report["times"][1:]) for arm, blocks in reports.items()}
    print(f"\n{part}: {HOSTS} hosts, {args.speed}, {next(iter(reports.values()))[0]['elements']:,} parameters, computation of {3 * args.forward:.2f} s")
    result = {"arms": medians}
    for arm, median in medians.items():
        line = f"{ARMS[arm]:52}{median * 1e3:8.0f} ms"
        if OURS in reports and arm not in (OURS, "nocomm"):
            middle, least, most = ratios(reports, arm)
            line += f"   {middle:.2f} times ours ({least:.2f} to {most:.2f})"
        print(line)
    others = [arm for arm in medians if arm not in (*TENSORLANE, "nocomm")]
    if OURS in medians and others:
        fastest = min(others, key=medians.get)
        result["fastest"], result["times_as_fast"] = fastest, ratios(reports, fastest)[0]
        result["bound_s"] = bound(args, reports[OURS][0]["elements"])
        print(f"times as fast as the fastest of the others ({fastest}): {result['times_as_fast']:.2f}")
        print(f"what the network and the clipping allow: {result['bound_s'] * 1e3:.0f} ms, alone")
    return result


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=8)
    parser.add_argument("--iterations", type=int, default=6, help="of a block; its first is left out")
    parser.add_argument("--parts", nargs="+", choices=["alone", "contended"], default=["alone", "contended"])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), help="default: all that this installation has")
    parser.add_argument("--speed", default="500 Mbit/s")
    parser.add_argument("--forward", type=float, default=0.25, help="seconds that the forward pass computes; the backward pass takes twice that")
    parser.add_argument("--width", type=int, default=320)
    parser.add_argument("--blocks-of-model", type=int, default=8)
    parser.add_argument("--out", default=str(ROOT / "build" / "sharded_training"))
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--folder", help=argparse.SUPPRESS)  # a rank of the run
    args = parser.parse_args()
    args.arms = args.arms or [arm for arm in ARMS if arm not in BACKEND or has_backend()]
    return args


def main():
    args = parse()
    sys.path.insert(0, str(HERE.parent / "python"))
    if args.folder:
        return work(args)
    sys.path.insert(0, str(ROOT / "deploy"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    os.environ["OMP_NUM_THREADS"] = "1"
    missing = [ARMS[arm] for arm in BACKEND if arm not in args.arms]
    if missing:
        print(f"left out, since this installation has no such backend or --arms leaves it out: {', '.join(missing)}")
    result = {part: table(part, measure(part, args), args) for part in args.parts}
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
