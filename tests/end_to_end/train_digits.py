"""One rank that trains the digits example with each of some daemons in turn, from the same start, and prints a digest of the parameters.

    train_digits.py ITERATIONS NAME=SOCKET...

PyTorch is imported once; every training is a child of its own."""

import argparse
import hashlib
import json
import os
import sys

from tensorlane.examples.digits import Trainer


def train(name, socket, iterations):
    os.environ.update(TENSORLANE_SOCKET=socket, TENSORLANE_JOB=name)
    trainer = Trainer(argparse.Namespace(mode="tensorlane", batch=16, width=256, lr=0.02, seed=1, emulate=0.0))
    report = trainer.report(trainer.run(iterations))
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    trainer.close()
    print(json.dumps({"name": name, "digest": digest.hexdigest(), "loss": report["loss"]}), flush=True)


for argument in sys.argv[2:]:
    name, socket = argument.split("=")
    child = os.fork()
    if child == 0:
        train(name, socket, int(sys.argv[1]))
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    if status != 0:
        sys.exit(f"training with {name} ended with status {status}")
