"""A program that is started by itself, without a daemon: every call works, and it is said."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
PROGRAM = """
import time

import numpy
import torch
import tensorlane
import tensorlane.torch as tl

tl.init()
assert (tl.rank(), tl.size()) == (0, 1)
assert tensorlane.allreduce(numpy.arange(5.0)).tolist() == [0, 1, 2, 3, 4]
evens = tensorlane.add_process_set([0])
assert tl.allreduce(torch.ones(3), process_set=evens).tolist() == [1, 1, 1]
of_set, of_job = torch.zeros(1), torch.zeros(1)
receives = [tl.recv_async_(of_set, 0, 5, process_set=evens), tl.recv_async_(of_job, 0, 5)]
sends = [tl.send_async(torch.ones(1), 0, 5), tl.send_async(torch.full((1,), 2.0), 0, 5, process_set=evens)]
for each in receives + sends:
    tl.synchronize(each)
assert (of_job.item(), of_set.item()) == (1, 2)
got, received = tl.alltoall(torch.ones(3), [3])
assert got.tolist() == [1, 1, 1] and received.tolist() == [3]


def train(wrap):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = wrap(torch.optim.Adam(model.parameters()), model)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    if hasattr(optimizer, "synchronize"):
        optimizer.synchronize()
    return [parameter.detach().clone() for parameter in model.parameters()]


plain = train(lambda optimizer, model: optimizer)
wrapped = train(lambda optimizer, model: tl.DistributedOptimizer(optimizer, model.named_parameters()))
assert all(torch.equal(a, b) for a, b in zip(plain, wrapped))
got = torch.zeros(3, dtype=torch.bfloat16)
sent = tl.send_async(torch.arange(3, dtype=torch.bfloat16), 0, 4)
assert tl.recv_(got, 0, 4) == 0 and got.tolist() == [0, 1, 2]
tl.synchronize(sent)
time.sleep(1.5)
assert tensorlane.allreduce(numpy.ones(2)).tolist() == [1, 1], "a program that rests is not ended"
tl.shutdown()
print("done")
"""


def test_a_program_without_a_daemon():
    environment = {
        name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE") and "TENSORLANE" not in name
    }
    environment |= {
        "TENSORLANE_SOCKET": "/tmp/tensorlane-nobody.sock",
        "TENSORLANE_LIBRARY": str(pathlib.Path(os.environ["TENSORLANE_BUILD"]) / "lib" / "libtensorlane.so"),
        "PYTHONPATH": str(HERE.parents[1] / "client-lib" / "python"),
    }
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, timeout=60)
    assert ran.stdout == "done\n", ran.stderr
    said = (
        "rank 0 of 1 works alone, without a daemon (connect to /tmp/tensorlane-nobody.sock: No such file or directory): "
        "start several ranks with 'tensorlane run', or with a launcher that sets RANK and WORLD_SIZE, and tensorlaned on their hosts\n"
    )
    assert ran.stderr == said
