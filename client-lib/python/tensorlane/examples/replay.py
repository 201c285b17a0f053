"""A job that exchanges what a model's training would and sleeps instead of computing: what an iteration takes on this
fabric, without a GPU.

    tensorlane run -n 3 --hosts lab -- python -m tensorlane.examples.replay \\
        --model inception-v1.json --layer-times times.json --json iterations.json

MODEL is one of the planner's (simulator/planner/models); the times of its layers are as for `tensorlane plan
--layer-times`. The gradients of a layer are reduced as soon as its backward pass is over; the next iteration's forward
pass waits for them layer by layer. The first rank writes the seconds of every iteration."""

import argparse
import json
import sys
import time

import numpy

import tensorlane as tl


class Layer:
    def __init__(self, about, times, urgency):
        self.forward, self.backward, self.urgency = times["forward_s"], times["backward_s"], urgency
        self.variables = [
            (name, numpy.full(elements, float(tl.rank() + 1), dtype=numpy.float32))
            for name, elements in about["variables"]
        ]
        self.handles = []

    def reduce(self):
        for name, array in self.variables:
            array[0] = array[-1] = tl.rank() + 1
        self.handles = [
            tl.allreduce_async_(array, op=tl.Sum, name=name, priority=self.urgency) for name, array in self.variables
        ]

    def wait(self):
        expected = tl.size() * (tl.size() + 1) / 2
        for handle, (name, array) in zip(self.handles, self.variables):
            tl.synchronize(handle)
            if array[0] != expected or array[-1] != expected:
                raise AssertionError(f"{name}: {array[0]}, {array[-1]} instead of {expected}")
        self.handles = []


class Clock:
    """What is computed takes as long as it should, however late a sleep ends."""

    def __init__(self):
        self.now = time.monotonic()

    def compute(self, seconds):
        self.now += seconds
        left = self.now - time.monotonic()
        if left > 0:
            time.sleep(left)

    def waited(self):
        self.now = max(self.now, time.monotonic())


def iterate(layers, clock):
    for layer in layers:
        if layer.handles:
            layer.wait()
            clock.waited()
        clock.compute(layer.forward)
    for layer in reversed(layers):
        clock.compute(layer.backward)
        layer.reduce()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, metavar="FILE")
    parser.add_argument("--layer-times", required=True, metavar="FILE")
    parser.add_argument("--iterations", type=int, default=10, help="after two to warm up")
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    with open(args.model) as model, open(args.layer_times) as times:
        about, seconds = json.load(model)["layers"], {layer["name"]: layer for layer in json.load(times)["layers"]}
    tl.init()
    layers = [Layer(layer, seconds[layer["name"]], 1 - i / len(about)) for i, layer in enumerate(about)]
    clock, taken = Clock(), []
    for _ in range(args.iterations + 2):
        began = time.monotonic()
        iterate(layers, clock)
        taken.append(time.monotonic() - began)
    for layer in layers:
        layer.wait()
    if tl.rank() == 0 and args.json:
        with open(args.json, "w") as file:
            json.dump({"iterations_s": taken[2:]}, file)
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
