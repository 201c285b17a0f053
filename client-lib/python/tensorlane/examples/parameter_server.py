"""Trains by a parameter server whose values may be stale: a rank pushes what it has done to each parameter since the
start, and pulls the mean of all ranks', which may be that of up to STALENESS of its pushes ago. So no rank waits for a
slow one, unless it is that far ahead of it.

    tensorlane run -n 4 -- python -m tensorlane.examples.parameter_server --staleness 2

--staleness 0 is synchronous.
"""

import argparse
import random
import sys
import time

import torch
from torch import nn

import tensorlane.torch as tl
from tensorlane.examples.digits import Digits, build_model


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--staleness", type=int, default=2)
    parser.add_argument(
        "--jitter", type=float, default=0.01, metavar="SECONDS", help="an iteration takes up to this longer"
    )
    parser.add_argument("--iterations", type=int, default=200)
    args = parser.parse_args()
    tl.init()
    model = build_model(width=64, seed=1)
    digits = Digits(tl.rank(), tl.size())
    store = tl.KVStore(staleness=args.staleness)
    # Values are sums of all changes since the start, so that none is lost where a newer value replaces one.
    names, parameters = zip(*model.named_parameters())
    start = [parameter.detach().clone() for parameter in parameters]
    mine, means = ([torch.zeros_like(parameter) for parameter in parameters] for _ in range(2))
    pushed_at, oldest, waited, pauses = torch.zeros(1), 0, 0.0, random.Random(tl.rank())
    for number in range(args.iterations):
        time.sleep(pauses.uniform(0, args.jitter))
        images, labels = digits.batch(number)
        model.zero_grad()
        nn.functional.cross_entropy(model(images), labels).backward()
        begin = time.perf_counter()
        with torch.no_grad():
            for change, parameter in zip(mine, parameters):
                change -= 0.1 * parameter.grad
            # All ranks push the same number here, so that the value that comes back says how old it is.
            store.push(["pushed at", *names], [torch.full((1,), float(number)), *mine], tl.Average)
            store.pull(["pushed at", *names], [pushed_at, *means])
            for parameter, first, mean in zip(parameters, start, means):
                parameter.copy_(first + mean)
        oldest = max(oldest, number - int(pushed_at))
        waited += time.perf_counter() - begin
    with torch.no_grad():
        for parameter, first, change in zip(parameters, start, mine):
            parameter.copy_(first + tl.allreduce(change))  # what all ranks have done: the same everywhere
        loss = nn.functional.cross_entropy(model(digits.test_images), digits.test_labels).item()
    print(
        f"rank {tl.rank()}: values up to {oldest} pushes old, {waited:.2f} s in the store, test loss {loss:.6f}, "
        f"accuracy {digits.accuracy(model):.3f}", flush=True,
    )
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
