"""Several ranks in the threads of this process, for tests of what they agree on."""

import os
import threading

import torch
from loopback import Hub


def device_of(rank):
    """Where a rank's tensors are. On fake GPUs each rank has one of its own: autograd has one thread for each GPU, and a rank that waits there must not stop
    another one."""
    kind = os.environ.get("TENSORLANE_TEST_DEVICE")
    return torch.device(kind, rank) if kind else torch.device("cpu")


def run_ranks(body, size=2, seconds=20, draw=None):
    """Calls body(rank, transport) on a thread of each rank; `transport()` makes one for the next optimizer. Returns what each returned, or the exception that
    ended it: then the rank has left the job."""
    hub, results = Hub(size, seconds), [None] * size

    def run(rank):
        try:
            torch.set_default_device(device_of(rank))
            results[rank] = body(rank, lambda: hub.transport(rank, draw))
        except BaseException as error:
            results[rank] = error
            hub.leave(rank, error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results
