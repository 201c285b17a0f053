"""Runs ranks on a host of a bed, each in a child of this process, which has imported what they need: emulated, importing PyTorch takes half
a minute, and a fork none.

    ranks.py FOLDER

Prints "ready", then runs what appears in FOLDER (`Ranks` of daemons_in_bed.py puts it there), the same one on all hosts:
  N.job      {"run": name below, "arguments": [...], "environment": {...}}
  N.out      what the rank writes, growing
  N.status   its exit status, made when it has ended"""

import hashlib
import json
import os
import sys
import time
import traceback
import types

import numpy
import torch

# PyTorch's optimizers import its compiler, a minute's work here, only to have themselves left out of it.
compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda *_: None
sys.modules["torch._dynamo"] = torch._dynamo = compiler

import tensorlane as tl  # noqa: E402
from tensorlane.examples.digits import Trainer  # noqa: E402

POLL = 0.1


def train(iterations):
    """Trains the digits example; prints every iteration's number and, at the end, a digest of the parameters."""
    trainer = Trainer(types.SimpleNamespace(mode="tensorlane", batch=16, width=256, lr=0.02, seed=1, emulate=0.0))
    for iteration in range(iterations):
        trainer.run(1)
        print(f"iteration {iteration}", flush=True)
    loss = trainer.report([])["loss"]  # waits for what is under way
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    trainer.close()
    print(json.dumps({"digest": digest.hexdigest(), "loss": loss}), flush=True)


def numbers(elements, rank, count):
    # Small integers: every order of summation gives the same bits.
    return ((numpy.arange(elements) + 7 * rank + count) % 1021).astype(numpy.float32)


def sum_arrays(seconds, elements):
    """Sums arrays of known numbers again and again, and checks every sum bit by bit. Prints "running" after the first one, then how many
    there were and how long the longest took."""
    tl.init()
    rank, size, count, longest, end = tl.rank(), tl.size(), 0, 0.0, time.monotonic() + seconds
    go_on = size
    while go_on == size:
        begin = time.monotonic()
        result = tl.allreduce(numbers(elements, rank, count), op=tl.Sum, name="numbers")
        assert numpy.array_equal(result, sum(numbers(elements, r, count) for r in range(size))), f"a wrong sum in round {count}"
        if count == 0:
            print("running", flush=True)
        count += 1
        # All stop after the same round: when one of them has had enough.
        go_on = tl.allreduce(numpy.float32([time.monotonic() < end]), op=tl.Sum, name="go on")[0]
        longest = max(longest, time.monotonic() - begin)
    tl.shutdown()
    print(f"{count} rounds, longest {longest:.2f} s", flush=True)


def child(path, job):
    """The rank itself; its exit status. What is wrong with the job ends in a line "error: ..."."""
    out = os.open(f"{path}.out", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.environ.update(job["environment"])
    try:
        {"train": train, "sum_arrays": sum_arrays}[job["run"]](*job["arguments"])
    except tl.Error as error:
        print(f"error: {error}", flush=True)
        return 1
    except BaseException:
        traceback.print_exc()
        return 2
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
