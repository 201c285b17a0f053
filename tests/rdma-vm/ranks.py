"""Runs ranks on a host of a bed, each in a child of this process, which has imported what they need: emulated, even importing NumPy takes
seconds, and a fork none. PyTorch would take a minute, and its tensors reach the daemon in the same way.

    ranks.py FOLDER

Prints "ready", then runs what appears in FOLDER (`Ranks` of daemons_in_bed.py puts it there), the same one on all hosts:
  N.job      {"iterations": how many, "environment": {...}}
  N.out      what the rank writes, growing
  N.status   its exit status, made when it has ended"""

import hashlib
import json
import os
import sys
import time
import traceback

import numpy
import tensorlane

POLL = 0.1
# Each layer is large enough for every host to send parts of it; the first is what the next iteration needs first.
WIDTHS, URGENCIES = (64, 1024, 1024, 64), (1.0, 0.1, 0.1)
BATCH, RATE = 16, 0.02


def step(weights, inputs, wanted):
    """Forward and backward pass, and the update by gradients that are averaged as they appear. The loss."""
    activations = [inputs]
    for layer, weight in enumerate(weights):
        result = activations[-1] @ weight
        activations.append(numpy.maximum(result, 0) if layer + 1 < len(weights) else result)
    error = (activations[-1] - wanted) / BATCH
    handles = [None] * len(weights)
    for layer in reversed(range(len(weights))):
        gradient = activations[layer].T @ error
        handles[layer] = tensorlane.allreduce_async(gradient, name=f"layer{layer}", op=tensorlane.Average, priority=URGENCIES[layer])
        error = (error @ weights[layer].T) * (activations[layer] > 0)
    for weight, handle in zip(weights, handles, strict=True):
        weight -= RATE * handle.synchronize()
    return float(((activations[-1] - wanted) ** 2).mean())


def pass_on(rank, size):
    """Messages around all ranks. Grants of operations that are over have had the numbers that theirs get."""
    for turn in range(8):
        send = tensorlane.send_async(numpy.full(300_000, 10 * rank + turn, "float32"), (rank + 1) % size, turn)
        got = numpy.zeros(300_000, "float32")
        assert tensorlane.recv_(got, (rank - 1) % size, turn) == (rank - 1) % size
        assert (got == 10 * ((rank - 1) % size) + turn).all(), f"message {turn} is wrong"
        send.synchronize()


def train(iterations):
    """Trains layers to do what others do, then passes messages on; prints every iteration's number and, at the end, a digest of the parameters."""
    tensorlane.init()
    draw = numpy.random.default_rng(1)
    weights = [draw.normal(0, 0.05, shape).astype(numpy.float32) for shape in zip(WIDTHS, WIDTHS[1:], strict=False)]
    teacher = draw.normal(0, 0.1, (WIDTHS[0], WIDTHS[-1])).astype(numpy.float32)
    draw, loss = numpy.random.default_rng(2 + tensorlane.rank()), None
    for iteration in range(iterations):
        inputs = draw.normal(0, 1, (BATCH, WIDTHS[0])).astype(numpy.float32)
        loss = step(weights, inputs, inputs @ teacher)
        print(f"iteration {iteration}", flush=True)
    pass_on(tensorlane.rank(), tensorlane.size())
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(weight.tobytes())
    tensorlane.shutdown()
    print(json.dumps({"digest": digest.hexdigest(), "loss": loss}), flush=True)


def child(path, job):
    """The rank itself; its exit status."""
    out = os.open(f"{path}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(job["environment"])
    try:
        train(job["iterations"])
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def put(path, text):
    """Whole or not there."""
    with open(f"{path}.new", "w") as file:
        file.write(text)
    os.rename(f"{path}.new", path)


def main(folder):
    print("ready", flush=True)
    number, children = 0, {}
    while True:
        for pid in list(children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                put(f"{children.pop(pid)}.status", str(os.waitstatus_to_exitcode(status)))
        path = f"{folder}/{number}"
        if not os.path.exists(f"{path}.job"):
            time.sleep(POLL)
            continue
        with open(f"{path}.job") as file:
            job = json.load(file)
        if (pid := os.fork()) == 0:
            os._exit(child(path, job))
        children[pid] = path
        number += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
