"""Trains with torchft on scikit-learn's handwritten digits: each rank is a replica, and the others go on when one dies.

    tensorlane run -n 2 -- python -m tensorlane.examples.fault_tolerant [--kill 20]

With --kill the last replica kills its process in that iteration. It is started again, and takes over the parameters of
the others. --gloo takes torchft's own process group in place of tensorlane's. Needs the package torchft.
"""

import argparse
import datetime
import os
import signal
import socket
import subprocess
import sys
import zlib

import torch
import torchft
from torch import nn
from torchft.coordination import LighthouseServer

from tensorlane.examples.digits import build_model, load_digits
from tensorlane.torch.torchft import ProcessGroupTensorlane

HOST = socket.gethostname()
NEVER = sys.maxsize
TIMEOUT = datetime.timedelta(seconds=20)


def train(args, replica, replicas):
    """One life of a replica, which is one process here."""
    store = torch.distributed.TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    model = build_model(width=64, seed=1)
    plain = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def load(state):
        model.load_state_dict(state["model"])
        plain.load_state_dict(state["optimizer"])

    group = torchft.ProcessGroupGloo if args.gloo else ProcessGroupTensorlane
    manager = torchft.Manager(
        pg=group(timeout=TIMEOUT), load_state_dict=load, timeout=TIMEOUT, min_replica_size=1,
        state_dict=lambda: {"model": model.state_dict(), "optimizer": plain.state_dict()},
        replica_id=f"digits{replica}", rank=0, world_size=1, store_addr=HOST, store_port=store.port,
        lighthouse_addr=args.lighthouse,
    )
    optimizer = torchft.Optimizer(manager, plain)
    images, labels, test_images, test_labels = load_digits()
    order = torch.Generator()
    over = False
    while not over:
        optimizer.zero_grad()  # asks who is there
        order.manual_seed(manager.current_step() * replicas + replica)
        chosen = torch.randint(len(labels), (args.batch,), generator=order)
        loss = nn.functional.cross_entropy(model(images[chosen]), labels[chosen])
        if args.kill <= manager.current_step() and manager.num_participants() == replicas:
            os.kill(os.getpid(), signal.SIGKILL)
        loss.backward()
        for work in [manager.allreduce(parameter.grad) for parameter in model.parameters()]:
            work.wait()  # says whether it has failed to the manager alone
        optimizer.step()  # unless something has failed
        # A replica that was started again comes late: the others go on until it is there.
        whole = manager.num_participants() == replicas and manager.errored() is None
        over = whole and manager.current_step() >= args.iterations
    with torch.no_grad():
        right = (model(test_images).argmax(1) == test_labels).float().mean().item()
    parameters = zlib.crc32(nn.utils.parameters_to_vector(model.parameters()).detach().numpy().tobytes())
    print(
        f"replica {replica}: {manager.current_step()} iterations, accuracy {right:.3f}, parameters {parameters:08x}",
        flush=True,
    )
    manager.shutdown()


def supervise(args, replica, replicas):
    """Starts the replica's process, again when it dies. Rank 0 has torchft's lighthouse, which says who is there."""
    store = torch.distributed.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=replica == 0, wait_for_workers=False
    )
    if replica == 0:
        lighthouse = LighthouseServer(bind="0.0.0.0:0", min_replicas=1)
        store.set("lighthouse", lighthouse.address())
    command = [
        sys.executable, "-m", "tensorlane.examples.fault_tolerant", *sys.argv[1:],
        "--lighthouse", store.get("lighthouse").decode(),
    ]
    lives, status = 0, -1
    while status < 0:
        dies = lives == 0 and replica == replicas - 1
        status = subprocess.run([*command, "--kill", str(args.kill if dies else NEVER)]).returncode
        lives += 1
    print(f"replica {replica}: {lives} lives, status {status}", flush=True)
    store.set(f"over{replica}", "")
    if replica == 0:
        store.wait([f"over{each}" for each in range(replicas)])
        lighthouse.shutdown()
    return status


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gloo", action="store_true", help="without tensorlane")
    parser.add_argument("--iterations", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16, help="images per replica and iteration")
    parser.add_argument(
        "--kill", type=int, default=NEVER, metavar="ITERATION", help="the last replica dies there, or in a later one"
    )
    parser.add_argument("--lighthouse", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    replica, replicas = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if args.lighthouse is None:
        return supervise(args, replica, replicas)
    return train(args, replica, replicas)


if __name__ == "__main__":
    sys.exit(main())
