"""Random training programs: with overlap=True they must give, bit for bit, what they give with synchronous=True, or end by an error by name on every rank. Never a
hang. A script, and a module for test_random.py:

    python tests/python/optimizer_random.py --seeds 200                              ranks are threads of this process
    tensorlane run -n 2 -- python tests/python/optimizer_random.py --daemons --seeds 20     over real daemons
    python tests/python/optimizer_random.py --first 137 --seeds 1 --verbose          seed 137 again, and what it does

A seed says everything: the model, the inner optimizer, the options, and in each iteration what happens to the gradients, the parameters, the groups and the
state. All ranks draw the same; what one rank alone does (it has no batch, or leaves the rules) follows from its number.
"""

import argparse
import contextlib
import copy
import io
import pathlib
import random
import sys
import threading
import time
import traceback

import torch
import torch.nn.functional as F
from torch import nn

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1] / "client-lib" / "python")]

from models import Attention, Plain, Tied  # noqa: E402
from ranks import run_ranks  # noqa: E402
from tensorlane import Error  # noqa: E402

HANG_SECONDS = 20
_random_numbers = threading.Lock()  # torch has one generator for all ranks that are threads of this process


class Shaky(nn.Module):
    """Branches that some iterations leave out, a parameter of its own that may be used early, and a weight that may be used beside its module."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.first, self.second, self.third = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.bypass = self.skip = False

    def early(self, x):
        return x * self.scale

    def forward(self, x):
        x = torch.relu(self.first(self.early(x)))
        if self.bypass:
            x = x * self.second.weight.detach().mean() + F.linear(x, self.second.weight)
        elif not self.skip:
            x = self.second(x)
        return self.third(x)


MODELS = [Plain, Tied, Attention, Shaky, Shaky, Shaky]
INNER = [
    lambda groups: torch.optim.SGD(groups, lr=0.05, momentum=0.9, weight_decay=1e-2),
    lambda groups: torch.optim.SGD(groups, lr=0.05),
    lambda groups: torch.optim.AdamW(groups, lr=0.01, weight_decay=0.1),
    lambda groups: torch.optim.Adagrad(groups, lr=0.05),
    lambda groups: torch.optim.Adam(groups, lr=0.01, foreach=True),
    lambda groups: torch.optim.RMSprop(groups, lr=0.01, momentum=0.5),
]


class Program:
    """What one rank does. `wrap(optimizer, named_parameters, model, **options)` makes it distributed."""

    def __init__(self, seed, rank, size, wrap, note=lambda text: None):
        self.draw = random.Random(seed)
        self.seed, self.rank, self.size = seed, rank, size
        self.note = lambda text: note(f"{self.number}: {text} (before tensor {len(self.seen)})")
        kind = self.draw.choice(MODELS)
        with _random_numbers:
            torch.manual_seed(seed)
            self.model = kind()
        self.half = self.draw.random() < 0.15
        if self.half:
            self.model.to(torch.bfloat16)
        parameters = list(self.model.parameters())
        cut = self.draw.randrange(1, len(parameters))
        groups = [{"params": parameters[:cut]}, {"params": parameters[cut:], "lr": 0.02}]
        self.passes = self.draw.choice([1, 1, 1, 2, 3])
        given = self.model if self.draw.random() < 0.3 else None
        inner = self.draw.choice(INNER)(groups)
        self.optimizer = wrap(inner, self.model.named_parameters(), given, backward_passes_per_step=self.passes)
        self.average = [p.detach().clone() for p in parameters]
        self.dropped = self.saved = None
        self.seen = []

    def run(self, iterations):
        """Everything that this rank has seen, to be compared."""
        try:
            for number in range(iterations):
                self.number = number
                self.iterate()
            self.look("the end")
            self.then_state()
            return self.seen
        finally:
            with contextlib.suppress(Error):
                self.optimizer.close()

    def iterate(self):
        draw = self.draw
        self.zero(draw.choice(["optimizer", "optimizer", "keep", "model"]))
        absent = draw.randrange(self.size) if draw.random() < 0.15 else None
        shape = draw.random(), draw.random(), draw.random()  # early, bypass, skip
        passes = self.passes if draw.random() < 0.8 else draw.randint(1, self.passes)
        begin = draw.random()
        if begin < 0.05:
            self.note("forward pass that fails half way")
            with contextlib.suppress(RuntimeError):
                self.model(self.input(99))
                raise RuntimeError("out of memory")
        for micro in range(passes):
            if self.rank != absent:
                self.backward(micro, shape)
        self.note(f"{passes} passes, rank {absent} has no batch, early/bypass/skip {[f'{s:.2f}' for s in shape]}")
        fate = draw.random()
        if fate < 0.08:
            self.note("skip")
            self.optimizer.synchronize()
            self.zero(draw.choice(["optimizer", "model"]))
            return
        if fate < 0.14 and absent is None and passes == self.passes:
            self.note("drop")
            self.zero("optimizer")
            return
        self.change_gradients(absent, passes)
        self.optimizer.step()
        for _ in range(draw.choice([0, 0, 1, 1, 2])):
            self.after_step()

    def input(self, micro):
        generator = torch.Generator().manual_seed(1000 * self.seed + 100 * self.rank + 10 * self.number + micro)
        x = torch.randn(4, 6, generator=generator)
        return x.to(torch.bfloat16) if self.half else x

    def backward(self, micro, shape):
        x = self.input(micro)
        loss = 0
        if isinstance(self.model, Shaky):
            self.model.bypass, self.model.skip = shape[1] < 0.15, shape[2] < 0.15
            if shape[0] < 0.15:
                loss = self.model.early(x).pow(2).mean()
        (loss + self.model(x).float().square().mean()).backward()

    def zero(self, how):
        if how == "optimizer":
            self.optimizer.zero_grad()
        elif how == "keep":
            self.optimizer.zero_grad(set_to_none=False)
        else:
            self.model.zero_grad()

    def change_gradients(self, absent, passes):
        """A rank without a batch may look at gradients only after synchronize(), and so may all where passes are missing."""
        kind = self.draw.choice(["", "", "", "clip", "norm", "data.clamp", "synchronize", "foreach"])
        if not kind:
            return
        self.note(kind)
        if kind == "synchronize" or absent is not None or passes < self.passes:
            self.optimizer.synchronize()
        gradients = self.gradients()
        if kind == "clip":
            self.seen.append(nn.utils.clip_grad_norm_([p for group in self.optimizer.param_groups for p in group["params"]], 0.3).clone())
        elif kind == "norm":
            self.seen += [g.norm().clone() for g in gradients]
        elif kind == "data.clamp":
            for gradient in gradients:
                gradient.data.clamp_(-0.01, 0.01)
        elif kind == "foreach" and gradients:
            torch._foreach_mul_(gradients, 0.5)

    def after_step(self):
        kinds = [name for name in dir(self) if name.startswith("then_")]
        kind = self.draw.choice(kinds)
        self.note(kind)
        getattr(self, kind)()

    def look(self, why):
        self.note(f"look: {why}")
        self.seen += [p.detach().clone() for p in self.model.parameters()]

    def then_average(self):
        with torch.no_grad():
            for average, parameter in zip(self.average, self.model.parameters()):
                average.lerp_(parameter, 0.1)
        self.seen += [a.clone() for a in self.average]

    def then_norm(self):
        self.seen.append(self.draw.choice(list(self.model.parameters())).float().norm().detach().clone())

    def then_clamp(self):
        for parameter in self.model.parameters():
            parameter.data.clamp_(-0.3, 0.3)

    def then_write_one(self):
        with torch.no_grad():
            self.draw.choice(list(self.model.parameters())).mul_(0.5)

    def then_vector(self):
        vector = nn.utils.parameters_to_vector(self.model.parameters())
        nn.utils.vector_to_parameters(vector * 0.9, self.model.parameters())

    def then_replace_data(self):
        parameter = self.draw.choice(list(self.model.parameters()))
        parameter.data = parameter.data.clone() * 0.75

    def then_initialize(self):
        parameter = self.draw.choice(list(self.model.parameters()))
        nn.init.normal_(parameter, std=0.1, generator=torch.Generator().manual_seed(self.seed))  # a lock must not be held while it waits for other ranks

    def then_lower_precision(self):
        if not self.half:
            self.model.half().float()

    def then_save(self):
        self.saved = copy.deepcopy((self.model.state_dict(), self.optimizer.state_dict())) if self.dropped is None else None

    def then_save_list(self):
        stream = io.BytesIO()
        torch.save(list(self.model.parameters()), stream)
        stream.seek(0)
        self.seen += [p.detach() for p in torch.load(stream, weights_only=False)]

    def then_load(self):
        if self.saved is not None and self.dropped is None:
            self.model.load_state_dict(self.saved[0])
            self.optimizer.load_state_dict(copy.deepcopy(self.saved[1]))

    def then_evaluate(self):
        self.model.eval()
        with torch.no_grad():
            self.seen.append(self.model(self.input(50)).clone())
        self.model.train()

    def then_forward_in_training(self):
        self.seen.append(self.model(self.input(60)).detach().clone())

    def then_state(self):
        for parameter in self.model.parameters():
            self.seen += [v.detach().clone() for v in self.optimizer.state.get(parameter, {}).values() if isinstance(v, torch.Tensor)]

    def then_gradients(self):
        self.seen += [g.norm().clone() for g in self.gradients()]

    def gradients(self):
        """Those of parameters that a group has: the others are this rank's own affair."""
        return [p.grad for group in self.optimizer.param_groups for p in group["params"] if p.grad is not None]

    def then_drop_or_add_a_group(self):
        if self.dropped is None:
            self.dropped = self.optimizer.param_groups.pop()
        elif self.draw.random() < 0.5:
            self.optimizer.param_groups.append(self.dropped)
            self.dropped = None
        else:
            self.optimizer.add_param_group({**self.dropped})
            self.dropped = None

    def then_freeze_or_thaw(self):
        parameter = self.draw.choice(list(self.model.parameters()))
        parameter.requires_grad_(not parameter.requires_grad)
        if not any(p.requires_grad for p in self.model.parameters()):
            parameter.requires_grad_(True)

    def then_change_hyperparameters(self):
        self.optimizer.param_groups[0]["lr"] *= 0.9

    def then_flush(self):
        self.optimizer.flush()

    def then_look(self):
        self.look("after step()")


def options(seed):
    draw = random.Random(seed + 1)
    return {"op": draw.choice([0, 1, 1, 1])}, draw.randint(4, 10)


def run_in_process(seed, mode, size, note):
    """What each rank has seen, or its error."""
    from tensorlane.torch import DistributedOptimizer, _gradients

    chosen, iterations = options(seed)
    arrived = [random.Random(100 * seed + rank) for rank in range(size)]

    def body(rank, transport):
        def wrap(inner, named, model, **more):
            return DistributedOptimizer(inner, named, model, transport=transport(), **chosen, **mode, **more)

        return Program(seed, rank, size, wrap, note if rank == 0 else lambda text: None).run(iterations)

    before = _gradients.BATCH_BYTES
    _gradients.BATCH_BYTES = random.Random(seed + 3).choice([0, 200, 64 << 10])
    try:
        return run_ranks(body, size, HANG_SECONDS, draw=lambda rank: arrived[rank].random() < 0.5)
    finally:
        _gradients.BATCH_BYTES = before


def run_over_daemons(seed, mode, note):
    import tensorlane.torch as tl

    chosen, iterations = options(seed)

    def wrap(inner, named, model, **more):
        return tl.DistributedOptimizer(inner, named, model, **chosen, **mode, **more)

    return [Program(seed, tl.rank(), tl.size(), wrap, note).run(iterations)]


def verdict(expected, got):
    """None when both runs agree; else what is wrong. Both are lists with what each rank saw, or its exception."""
    for results in (expected, got):
        failed = [r for r in results if isinstance(r, BaseException)]
        if failed and (len(failed) < len(results) or not all(isinstance(r, Error) for r in failed)):
            text = "".join(traceback.format_exception(failed[0]))
            return f"not an error by name on every rank: {[repr(r)[:200] for r in results]}\n{text}"
    if isinstance(expected[0], BaseException) or isinstance(got[0], BaseException):
        return None
    for rank, (left, right) in enumerate(zip(expected, got)):
        if len(left) != len(right):
            return f"rank {rank} saw {len(left)} tensors with synchronous=True and {len(right)} with overlap=True"
        for number, (one, other) in enumerate(zip(left, right)):
            if not same_bits(one, other):
                return f"rank {rank}: tensor {number} of {len(left)} differs by {(one.double() - other.double()).abs().max().item():.3g}"
    return None


def same_bits(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))


def check(seed, daemons=False, note=lambda text: None):
    """(what is wrong or None, whether it ended by an error)"""
    modes = {"synchronous": True}, {"overlap": True}
    size = random.Random(seed + 4).choice([1, 2, 2, 3])
    if daemons:
        results = [run_over_daemons(seed, mode, note) for mode in modes]
    else:
        results = [run_in_process(seed, mode, size, note) for mode in modes]
    return verdict(*results), [r for result in results for r in result if isinstance(r, BaseException)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--daemons", action="store_true", help="over the job that this process is a rank of")
    parser.add_argument("--verbose", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.backends.mha.set_fastpath_enabled(False)  # torch leaves it where there are hooks, and its kernels round in another way
    if args.daemons:
        import tensorlane.torch as tl

        tl.init()
    began, wrong, errors = time.monotonic(), [], 0
    for seed in range(args.first, args.first + args.seeds):
        problem, failed = check(seed, args.daemons, print if args.verbose else lambda text: None)
        errors += bool(failed)
        if failed and args.verbose:
            print(f"seed {seed}: {[f'{type(e).__name__}: {e}' for e in failed]}")
        if problem:
            wrong.append(seed)
            print(f"seed {seed}: {problem}", flush=True)
    print(f"{args.seeds} seeds in {time.monotonic() - began:.0f} s: {args.seeds - len(wrong)} right, {errors} of them by an error by name, {len(wrong)} wrong {wrong or ''}")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
