"""DistributedDataParallel with ddp_comm_hook, beside the same over Gloo: both must come to the same bits. A script of one rank or two, run by daemons/test_ddp.py:

    ddp_hook.py                everything that works, and what is refused
    ddp_hook.py dies           the last rank dies in a backward pass
    ddp_hook.py dies static    the last rank dies in the first backward pass of a static graph
"""

import os
import signal
import sys

import tensorlane
import tensorlane.torch as tl
import torch
import torch.distributed as dist
from tensorlane.torch import _ddp
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from unregister import plan, refused

STEPS = 6
SMALL = 0.002  # megabytes of a bucket: a layer or two


class Mlp(nn.Sequential):
    def __init__(self, *widths, dtype=torch.float32):
        layers = [nn.Linear(one, other, dtype=dtype) for one, other in zip(widths, widths[1:])]
        super().__init__(*(each for layer in layers for each in (layer, nn.Tanh())))


class Branches(nn.Module):
    """The ranks leave out different layers, and all of them one."""

    def __init__(self):
        super().__init__()
        self.first, self.even, self.odd, self.never = (nn.Linear(8, 8) for _ in range(4))

    def forward(self, x):
        return (self.odd if dist.get_rank() % 2 else self.even)(self.first(x).tanh())


class Checkpointed(nn.Module):
    """Its gradients appear in backward passes inside the backward pass."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Mlp(8, 16, 8) for _ in range(3))

    def forward(self, x):
        x = x.clone().requires_grad_()
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=True)
        return x


class WithEmpty(Mlp):
    """A bucket of no elements, and one of another type."""

    def __init__(self):
        super().__init__(8, 16, 8)
        self.empty = nn.Parameter(torch.zeros(0, 4, dtype=torch.float16))
        self.shift = nn.Parameter(torch.zeros(8, dtype=torch.float64))

    def forward(self, x):
        return super().forward(x) + self.shift + self.empty.sum()


def wrap(build, hook, state=None, cap=SMALL, **options):
    torch.manual_seed(3)
    model = DistributedDataParallel(build(), bucket_cap_mb=cap, **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model, number):
    parameter = list(model.parameters())[-1]
    generator = torch.Generator().manual_seed(100 * number + dist.get_rank())
    return model(torch.randn(4, 8, generator=generator).to(parameter.dtype)).abs().square().mean()


def step(model, optimizer, number):
    optimizer.zero_grad()
    loss = loss_of(model, number)
    loss.backward()
    optimizer.step()
    return loss.detach()


def plain(model, optimizer):
    return [step(model, optimizer, number) for number in range(STEPS)]


def accumulated(model, optimizer):
    for number in range(STEPS):
        optimizer.zero_grad()
        with model.no_sync():
            loss_of(model, 2 * number).backward()
        loss_of(model, 2 * number + 1).backward()
        optimizer.step()
    return []


def uneven(model, optimizer):
    with model.join():
        for number in range(STEPS + 3 * dist.get_rank()):
            step(model, optimizer, number)
    return []


def same(build, train=plain, hook=tl.ddp_comm_hook, peer=None, **options):
    """Trains with the hook and with `peer`, torch's own way: losses and parameters are the same, bit for bit."""
    results = []
    for each in (hook, peer):
        model, optimizer = wrap(build, each, **options)
        losses = train(model, optimizer)
        results.append([p.detach().clone() for p in model.parameters()] + losses)
    start = list(wrap(build, None, **options)[0].parameters())
    assert any(not torch.equal(one, other) for one, other in zip(results[0], start)), "nothing was trained"
    for ours, theirs in zip(*results):
        assert torch.equal(ours, theirs), (build, train, options, (ours - theirs).abs().max())


def rebuilt():
    """DDP makes other buckets after the first iteration."""
    passes = [[]]  # the sizes of the buckets of each backward pass

    def spy(state, bucket):
        passes[-1].append(bucket.buffer().numel())
        if bucket.is_last():
            passes.append([])
        return tl.ddp_comm_hook(state, bucket)

    same(lambda: Mlp(8, 32, 16, 24, 8), hook=spy)
    first, *later, none = passes
    assert not none and len(later) == STEPS - 1 and all(each == later[0] for each in later) and first != later[0] and len(later[0]) > 1, passes


def wrappers():
    for wrapper in (default_hooks.fp16_compress_wrapper, default_hooks.bf16_compress_wrapper):
        ours, theirs = wrapper(tl.ddp_comm_hook), wrapper(default_hooks.allreduce_hook)
        ours.__name__ = theirs.__name__ = "wrapped"  # by its name DDP takes bfloat16 for NCCL only
        same(lambda: Mlp(8, 32, 16, 8), hook=ours, peer=theirs)


def two_models():
    """By turns, in one backward pass, and one of them by Gloo."""

    def train(hooks):
        pairs = [wrap(lambda width=width: Mlp(8, width, 8), hook) for width, hook in zip((16, 24), hooks)]
        for number in range(STEPS):
            for model, optimizer in pairs:
                step(model, optimizer, number)
            for _, optimizer in pairs:
                optimizer.zero_grad()
            sum(loss_of(model, number + 50) for model, _ in pairs).backward()
            for _, optimizer in pairs:
                optimizer.step()
        return [p for model, _ in pairs for p in model.parameters()]

    theirs = train((None, None))
    for hooks in ((tl.ddp_comm_hook, tl.ddp_comm_hook), (tl.ddp_comm_hook, None)):
        for one, other in zip(train(hooks), theirs):
            assert torch.equal(one, other)


def process_sets():
    rank, size = dist.get_rank(), dist.get_world_size()
    same(lambda: Mlp(8, 16, 8), state=tl.global_process_set)
    everybody = tl.add_process_set(list(range(size)))
    same(lambda: Mlp(8, 16, 8), state=everybody)
    alone = [tl.add_process_set([each]) for each in range(size)]
    groups = [dist.new_group([each]) for each in range(size)]
    same(lambda: Mlp(8, 16, 8), state=alone[rank], process_group=groups[rank])
    if rank == 0:  # what one rank does by itself, the others need not know of
        model = wrap(lambda: Mlp(8, 16, 8), tl.ddp_comm_hook, alone[0], cap=25, process_group=groups[0])
        for number in range(3):
            step(*model, number)
    same(lambda: Mlp(8, 16, 8), cap=25)
    if size > 1:
        not_a_member = wrap(lambda: Mlp(8, 8), tl.ddp_comm_hook, alone[1 - rank])
        refused(lambda: step(*not_a_member, 0), tensorlane.InvalidArgumentError, f"rank {rank} is not in the process set")
    for each in [everybody, *alone]:
        tl.remove_process_set(each)


def any_number_of_models(models=30):
    """Names do not grow without end, beside a model that stays, and one that was given back can be used again."""
    kept, _ddp._KEPT_CALLS = _ddp._KEPT_CALLS, 10
    lasting = wrap(lambda: Mlp(8, 100, 8), tl.ddp_comm_hook, cap=25)
    plain(*lasting)
    plain(*lasting)  # until it has all names that alike buckets share
    before = plan()["tensors"]
    for number in [*range(models), 0]:
        step(*lasting, number)
        same(lambda: Mlp(8, 8 + number, 8), cap=25)
    _ddp._KEPT_CALLS = kept
    most = 2 * STEPS  # of the two models that the last 10 calls reach
    assert plan()["tensors"] <= before + most, (plan()["tensors"], before)


def failed_pass():
    """Where the program's own code raises in a backward pass, a new model goes on."""
    model, optimizer = wrap(lambda: Mlp(8, 32, 16, 8), tl.ddp_comm_hook)
    step(model, optimizer, 0)
    step(model, optimizer, 1)

    def fail(_):
        raise ArithmeticError("a gradient that is no number")

    model.module[0].weight.register_hook(fail)
    refused(lambda: step(model, optimizer, 2), ArithmeticError, "a gradient that is no number")
    same(lambda: Mlp(8, 32, 16, 8))


def goes_on():
    """The backward pass of the first rank is computed to its end while the last rank has not begun its own."""
    store, last = dist.distributed_c10d._get_default_store(), dist.get_world_size() - 1
    futures = []

    def hook(state, bucket):
        is_last = bucket.is_last()
        futures.append(tl.ddp_comm_hook(state, bucket))
        if dist.get_rank() == 0 and is_last:
            assert last == 0 or not any(future.done() for future in futures)
            store.set("computed", "yes")
        return futures[-1]

    model, _ = wrap(lambda: Mlp(8, 32, 16, 8), hook)
    for number in range(2):
        loss = loss_of(model, number)
        if dist.get_rank() == last and last > 0:
            store.wait(["computed"])
        loss.backward()
        dist.barrier()
        assert all(future.done() for future in futures)
        if dist.get_rank() == 0:
            store.delete_key("computed")
        futures.clear()
        dist.barrier()


def refusals():
    sparse = wrap(lambda: nn.Sequential(nn.Embedding(10, 3, sparse=True)), tl.ddp_comm_hook)[0]
    refused(
        lambda: sparse(torch.tensor([1, 2])).sum().backward(), tensorlane.InvalidArgumentError, "gradients are sparse", "parameters of shape (10, 3)", "sparse=False"
    )
    group = wrap(lambda: Mlp(8, 8), tl.ddp_comm_hook, dist.group.WORLD)
    refused(lambda: step(*group, 0), tensorlane.InvalidArgumentError, "its state is a ProcessGroup", "register it with None")


def another_world():
    """torch's process group is made anew: of one rank, and in another order."""
    rank, size = tl.rank(), tl.size()
    worlds = [(0, 1)] if size > 1 else []
    worlds += [(size - 1 - rank, size)] if size > 1 else []
    for number, (as_rank, of_size) in enumerate(worlds):
        dist.destroy_process_group()
        store = dist.HashStore() if of_size == 1 else dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]) + 1, is_master=rank == 0)
        dist.init_process_group("gloo", store=store, rank=as_rank, world_size=of_size)
        model = wrap(lambda: Mlp(8, 8), tl.ddp_comm_hook)
        text = f"this process is rank {rank} of {size} in tensorlane's job, and rank {as_rank} of {of_size} in torch's process group"
        refused(lambda: step(*model, number), tensorlane.MismatchError, text, "start both with the same RANK and WORLD_SIZE")
    if of_size_is_shared := size > 1:
        dist.barrier()
    return of_size_is_shared


def dies(static):
    rank, last = tl.rank(), tl.size() - 1
    model, optimizer = wrap(lambda: Mlp(8, 32, 16, 8), None, static_graph=static)
    calls = []

    def hook(state, bucket):
        calls.append(bucket.index())
        if rank == last and len(calls) == (1 if static else 5):
            os.kill(os.getpid(), signal.SIGKILL)
        return tl.ddp_comm_hook(state, bucket)

    model.register_comm_hook(None, hook)
    refused(lambda: plain(model, optimizer), tensorlane.Error, f"rank {last}")
    refused(lambda: step(*wrap_without_peers(), 0), tensorlane.Error, f"rank {last}")
    print(f"rank {rank}: was told who died", flush=True)
    os._exit(1)  # torch's process group waits for the dead


def wrap_without_peers():
    """A model that the dead are not asked about: torch's process group is one of this rank alone, and of the world that the hook is told of."""
    model, optimizer = wrap(lambda: Mlp(8, 8), None, process_group=ALONE)
    model.register_comm_hook(None, tl.ddp_comm_hook)
    return model, optimizer


def works():
    rebuilt()
    same(lambda: Mlp(*[8] * 30), cap=0.0001)  # more alike buckets in a pass than they have names
    same(lambda: Mlp(8, 600, 600, 8), cap=0.5)
    same(lambda: Mlp(8, 32, 8, dtype=torch.float64))
    same(lambda: Mlp(8, 32, 8, dtype=torch.bfloat16))
    same(lambda: Mlp(8, 32, 8, dtype=torch.complex64))
    same(lambda: Mlp(8, 32, 16, 8), gradient_as_bucket_view=True)
    same(lambda: Mlp(8, 32, 16, 8), static_graph=True)
    same(Checkpointed)
    same(WithEmpty)
    same(Branches, find_unused_parameters=True)
    same(lambda: Mlp(8, 32, 16, 8), accumulated)
    same(lambda: Mlp(8, 32, 16, 8), uneven, peer=default_hooks.allreduce_hook)
    wrappers()
    two_models()
    process_sets()
    any_number_of_models()
    goes_on()
    failed_pass()


def main():
    global ALONE
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    early = wrap(lambda: Mlp(8, 8), tl.ddp_comm_hook)
    refused(lambda: step(*early, 0), tensorlane.InvalidArgumentError, "call tensorlane.init() first")
    tl.init(timeout=30)
    rank = tl.rank()
    if sys.argv[1:2] == ["dies"]:
        ALONE = [dist.new_group([each]) for each in range(tl.size())][rank]
        return dies(sys.argv[2:] == ["static"])
    works()
    refusals()
    another_world()
    tl.shutdown()
    dist.destroy_process_group()
    print(f"rank {rank}: DDP with the hook is right")


if __name__ == "__main__":
    main()
