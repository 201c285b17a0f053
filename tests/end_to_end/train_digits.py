"""One rank that trains the digits example with each of some daemons in turn, from the same start, and prints a digest of the parameters.

    train_digits.py [--shuffle] ITERATIONS NAME=SOCKET[@LEADER]...

--shuffle: the gradients of an iteration are submitted when all are there, in an order that is drawn anew by every rank and iteration.
PyTorch is imported once; every training is a child of its own."""

import argparse
import hashlib
import json
import os
import random
import sys

from tensorlane.examples.digits import Trainer
from tensorlane.torch import _gradients, _optimizer
from tensorlane.torch._transport import NativeTransport


class ShuffledTransport(NativeTransport):
    """Posts what was to be posted in an order of its own."""

    def __init__(self, process_set=None):
        super().__init__(process_set)
        self._random = random.Random(os.environ["RANK"])
        self._unposted = []

    def post_many(self, indices):
        self._unposted.extend(indices)
        if len(self._unposted) == len(self._tensors):
            self._post_all()

    def wait_many(self, indices):
        self._post_all()
        super().wait_many(indices)

    def done(self, index):
        self._post_all()
        return super().done(index)

    def _post_all(self):
        self._random.shuffle(self._unposted)
        for index in self._unposted:
            super().post_many([index])
        self._unposted.clear()


def train(name, place, iterations, shuffle):
    socket, _, leader = place.partition("@")
    os.environ.update(TENSORLANE_SOCKET=socket, TENSORLANE_JOB=name, **({"MASTER_ADDR": leader} if leader else {}))
    _gradients.BATCH_BYTES = 0  # the daemons are to order and to batch what is small
    if shuffle:
        _optimizer.NativeTransport = ShuffledTransport
    trainer = Trainer(argparse.Namespace(mode="tensorlane", batch=16, width=256, lr=0.02, seed=1, emulate=0.0))
    report = trainer.report(trainer.run(iterations))
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    trainer.close()
    print(json.dumps({"name": name, "digest": digest.hexdigest(), "loss": report["loss"]}), flush=True)


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("iterations", type=int)
parser.add_argument("arms", nargs="+")
arguments = parser.parse_args()
for argument in arguments.arms:
    name, place = argument.split("=")
    child = os.fork()
    if child == 0:
        train(name, place, arguments.iterations, arguments.shuffle)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        sys.exit(f"training with {name} ended with status {status}")
