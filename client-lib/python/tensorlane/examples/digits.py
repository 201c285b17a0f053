"""Trains a convolutional network with a large fully connected layer on scikit-learn's handwritten digits.

    tensorlane run -n 4 -- python -m tensorlane.examples.digits --iterations 100

The same script is every arm of deploy/quickstart: --mode says who averages the gradients, and --blocks FOLDER lets
somebody outside decide which arm runs when.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import sys
import time

import numpy
import torch
from torch import nn

import tensorlane.torch as tl
from tensorlane.examples.blocks import follow_blocks, write


def build_model(width, seed):
    """Few bytes in the convolutions, which the next forward pass needs first, many in the fully connected layer, which
    it needs last."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(),
        nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * 4 * 4, width), nn.ReLU(),
        nn.Linear(width, 10),
    )


def load_digits():
    """(images, labels) to train on and to test on; every fifth image is for the test. Read from scikit-learn's file:
    its load_digits() gives the same, but imports SciPy, which costs every rank a second of CPU."""
    package = importlib.util.find_spec("sklearn")
    if package is None:
        raise SystemExit(
            "tensorlane: error: no handwritten digits: scikit-learn is not installed: pip install scikit-learn"
        )
    data = numpy.loadtxt(
        pathlib.Path(package.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",", dtype=numpy.float32
    )
    images = torch.from_numpy(data[:, :-1] / 16.0).reshape(-1, 1, 8, 8)
    labels = torch.from_numpy(data[:, -1].astype(numpy.int64))
    test = torch.arange(len(labels)) % 5 == 0
    return images[~test], labels[~test], images[test], labels[test]


class Digits:
    """What one rank of a job trains on. All ranks draw a batch alike, by its number, and each takes its part."""

    def __init__(self, rank, world, batch=16, seed=1):
        """`batch`: images for each rank."""
        self.rank, self.world, self.size, self.seed = rank, world, batch, seed
        self.images, self.labels, self.test_images, self.test_labels = load_digits()

    def batch(self, number):
        order = torch.Generator().manual_seed(self.seed * 1_000_000 + number)
        chosen = torch.randint(len(self.labels), (self.size * self.world,), generator=order)[self.rank :: self.world]
        return self.images[chosen], self.labels[chosen]

    def step(self, number, model, optimizer):
        """One iteration. Its loss on this rank's part of the batch."""
        images, labels = self.batch(number)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    def train(self, model, optimizer, iterations):
        """The loss of the last one."""
        for number in range(iterations):
            loss = self.step(number, model, optimizer)
        return loss

    def accuracy(self, model):
        with torch.no_grad():
            return (model(self.test_images).argmax(1) == self.test_labels).float().mean().item()


def emulate_computation(model, seconds):
    """Each layer with parameters takes `seconds` in the forward pass and twice that in the backward pass, as on an
    accelerator: the host's cores stay free."""
    for layer in model:
        if not any(True for _ in layer.parameters()):
            continue
        layer.register_forward_hook(lambda *_: time.sleep(seconds))
        layer.register_full_backward_pre_hook(lambda *_: time.sleep(2 * seconds))


class Trainer:
    def __init__(self, args):
        self.rank, self.world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
        self.digits = Digits(self.rank, self.world, args.batch, args.seed)
        self.iterations = 0
        self.model = build_model(args.width, args.seed)
        if args.emulate > 0:
            emulate_computation(self.model, args.emulate)
        self.forward = self.model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=args.lr, momentum=0.9)
        if args.mode == "ddp":
            torch.distributed.init_process_group("gloo")
            self.forward = nn.parallel.DistributedDataParallel(self.model)
        elif args.mode == "tensorlane":
            tl.init()
            tl.broadcast_parameters(self.model.state_dict(), root_rank=0)
            self.optimizer = tl.DistributedOptimizer(
                self.optimizer, self.model.named_parameters(), self.model, overlap=True
            )
        self.loss = float("nan")

    def step(self):
        self.loss = self.digits.step(self.iterations, self.forward, self.optimizer)
        self.iterations += 1

    def run(self, iterations):
        """Seconds of each iteration."""
        times = []
        for _ in range(iterations):
            begin = time.perf_counter()
            self.step()
            times.append(time.perf_counter() - begin)
        return times

    def accuracy(self):
        self.model.eval()  # applies what is pending
        right = self.digits.accuracy(self.model)
        self.model.train()
        return right

    def report(self, times):
        return {"times": times, "loss": self.loss, "accuracy": self.accuracy()}

    def close(self):
        if hasattr(self.optimizer, "flush"):
            self.optimizer.flush()
        if tl.is_initialized():
            tl.shutdown()
        elif torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--mode", choices=["tensorlane", "ddp", "nocomm"], default="tensorlane",
        help="who averages the gradients: tensorlane, PyTorch's DDP over Gloo, nobody",
    )
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--batch", type=int, default=16, help="images per rank and iteration")
    parser.add_argument("--width", type=int, default=1024, help="of the fully connected layer")
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--emulate", type=float, default=0.0, metavar="SECONDS",
        help="computation of a layer in the forward pass, emulated; twice that in the backward pass",
    )
    parser.add_argument("--blocks", metavar="FOLDER", help="run blocks of iterations as files in FOLDER say")
    parser.add_argument("--arm", default="arm", help="this job's name in FOLDER")
    parser.add_argument("--json", metavar="FILE", help="rank 0 writes times, loss and accuracy there")
    args = parser.parse_args()
    trainer = Trainer(args)
    if args.blocks:
        follow_blocks(trainer.rank, args.blocks, args.arm, lambda iterations: trainer.report(trainer.run(iterations)))
    else:
        report = trainer.report(trainer.run(args.iterations))
        if trainer.rank == 0:
            times = sorted(report["times"])
            print(
                f"{args.iterations} iterations of {times[len(times) // 2] * 1e3:.1f} ms (median), "
                f"loss {report['loss']:.4f}, accuracy {report['accuracy']:.3f}"
            )
            if args.json:
                write(args.json, json.dumps(report))
    trainer.close()


if __name__ == "__main__":
    sys.exit(main())
