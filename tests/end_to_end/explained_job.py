"""A rank of a job whose iterations have the parts that `tensorlane explain` tells apart: input (sleeps), computation (keeps a CPU busy), and sums, the last layer's first, each of
which is waited for before the next iteration computes with it. Arguments: JSON of the settings below. It prints its mean iteration, and checks its sums."""

import json
import sys
import time

import numpy
import tensorlane as tl

SETTINGS = {"seconds": 10, "layers": 6, "bytes": 1 << 17, "compute_ms": 8, "input_ms": 0, "slow_rank": -1, "extra_compute_ms": 0, "extra_input_ms": 0}


def compute(ms):
    """So many milliseconds of CPU time of this thread."""
    end = time.thread_time() + ms / 1000
    while time.thread_time() < end:
        pass


def main():
    settings = {**SETTINGS, **json.loads(sys.argv[1])}
    tl.init()
    rank, size, layers = tl.rank(), tl.size(), settings["layers"]
    slow = rank == settings["slow_rank"]
    gradients = [numpy.zeros(settings["bytes"] // 4, numpy.float32) for _ in range(layers)]
    handles = [None] * layers
    began, iterations = time.monotonic(), 0
    vote = numpy.zeros(1, numpy.float32)
    go_on = True
    while go_on:
        time.sleep((settings["input_ms"] + slow * settings["extra_input_ms"]) / 1000)
        for layer in range(layers):  # forward
            if handles[layer] is not None:
                tl.synchronize(handles[layer])
                assert gradients[layer][0] == size * iterations, (layer, gradients[layer][0], iterations)
            compute((settings["compute_ms"] + slow * settings["extra_compute_ms"]) / layers / 3)
        iterations += 1
        for layer in reversed(range(layers)):  # backward
            compute((settings["compute_ms"] + slow * settings["extra_compute_ms"]) / layers * 2 / 3)
            gradients[layer][:] = iterations
            handles[layer] = tl.allreduce_async_(gradients[layer], average=False, name=f"layer{layer}", priority=1 - layer / layers)
        if iterations % 5 == 0:  # all ranks end after the same iteration
            vote[0] = time.monotonic() - began < settings["seconds"]
            tl.synchronize(tl.allreduce_async_(vote, average=False, name="go_on", priority=1.0))
            go_on = vote[0] == size
    for handle in handles:
        tl.synchronize(handle)
    print(json.dumps({"rank": rank, "iterations": iterations, "iteration_ms": (time.monotonic() - began) / iterations * 1000}))
    tl.shutdown()


if __name__ == "__main__":
    main()
