"""Runs ranks on a host of a bed, each in a child of this process, which has imported what they need: emulated, importing PyTorch takes half
a minute, and a fork none.

    ranks.py FOLDER

Prints "ready", then runs what appears in FOLDER (`Ranks` of daemons_in_bed.py puts it there), the same one on all hosts:
  N.job      {"iterations": how many, "environment": {...}}
  N.out      what the rank writes, growing
  N.status   its exit status, made when it has ended"""

import functools
import hashlib
import json
import os
import sys
import time
import traceback
import types

# What serves PyTorch's compiler alone is a third of what importing it takes. Its optimizers import the compiler itself, a minute's work here,
# only to have themselves left out of it.
for unused in ("torch._meta_registrations", "torch._prims", "torch.export"):
    sys.modules[unused] = types.ModuleType(unused)
import torch  # noqa: E402
from torch._opaque_base import OpaqueBaseMeta  # noqa: E402

torch._C._set_generator_metaclass(OpaqueBaseMeta)  # which torch._prims would have done
compiler = types.ModuleType("torch._dynamo")
compiler.disable = lambda function, *_, **__: function
compiler.graph_break = lambda *_: None
sys.modules["torch._dynamo"] = torch._dynamo = compiler

from tensorlane.examples import digits  # noqa: E402
from tensorlane.torch import _gradients  # noqa: E402

_gradients.BATCH_BYTES = 0  # every host is to write in every class: small neighbours that share a tensor leave one reducer

POLL = 0.1


def make_trainer(mode):
    return digits.Trainer(types.SimpleNamespace(mode=mode, batch=16, width=256, lr=0.02, seed=1, emulate=0.0))


def warm_up():
    """Reads the data, and does everything that PyTorch does once, so that every rank finds it done."""
    digits.load_digits = functools.cache(digits.load_digits)
    make_trainer("nocomm").run(1)


def train(iterations):
    """Trains the digits example; prints every iteration's number and, at the end, a digest of the parameters."""
    trainer = make_trainer("tensorlane")
    for iteration in range(iterations):
        trainer.run(1)
        print(f"iteration {iteration}", flush=True)
    trainer.model.eval()  # applies what is under way
    digest = hashlib.sha256()
    for parameter in trainer.model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    trainer.close()
    print(json.dumps({"digest": digest.hexdigest(), "loss": trainer.loss}), flush=True)


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
    warm_up()
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
