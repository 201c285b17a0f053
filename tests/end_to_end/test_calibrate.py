"""`tensorlane calibrate` against a port of a known rate: the bandwidth of its model is within 15% of the rate, the overhead is what a message can take, and the batching
threshold follows from both. `tensorlane plan` takes the model."""

import json
import math
import os
import subprocess
import sys
import tempfile

from daemons import BUILD, expect, require_namespaces

RATE = 200e6
CLASSES = ["urgent", "bulk"]


def run(*command):
    done = subprocess.run([f"{BUILD}/bin/tensorlane", *command], capture_output=True, text=True, timeout=100)
    return done.returncode, done.stdout + done.stderr


def check(model):
    expect(len(model["hosts"]) == 2 and model["transport"] == "tcp", f"measured {model['hosts']} over {model['transport']}")
    expect([c["class"] for c in model["classes"]] == CLASSES, "a model for each class")
    for c in model["classes"]:
        expect(abs(c["bits_per_second"] / RATE - 1) <= 0.15, f"{c['class']}: {c['bits_per_second'] / 1e6:.1f} Mbit/s through a port of {RATE / 1e6:.0f}")
        expect(0 < c["overhead_s"] < 0.02, f"{c['class']}: {c['overhead_s'] * 1e6:.1f} us for each transfer")
        threshold = 1.5 * c["overhead_s"] / c["seconds_per_byte"]
        expect(math.isclose(c["batching_threshold_bytes"], threshold, rel_tol=0.01, abs_tol=2), f"{c['class']}: batches from {c['batching_threshold_bytes']} bytes on")


def main():
    require_namespaces()
    with tempfile.TemporaryDirectory() as folder:
        file = os.path.join(folder, "network.json")
        calibrate = ["--", f"{BUILD}/bin/tensorlane", "calibrate", "--budget", "500 ms", "--json", file]
        status, output = run("run", "-n", "2", "--hosts", "lab", "--speed", f"{RATE / 1e6:.0f} Mbit/s", *calibrate)
        print(output)
        expect(status == 0, f"calibrate ended with {status}")
        with open(file) as report:
            model = json.load(report)
        check(model)
        plan = ["plan", "--model", "vgg-19", "--batch", "64", "--gpu-images-per-second", "36.9", "--hosts", "2", "--network-model", file]
        status, output = run(*plan, "--json", file + ".plan")
        expect(status == 0, f"plan takes the model: {output[-300:]}")
        with open(file + ".plan") as report:
            assumed = json.load(report)["assumptions"]
        print(json.dumps(assumed))
        expect(assumed["network_model"] == file and assumed["hop_latency_s"] > 0, "and says so")
        # On one host there is no fabric to measure.
        status, output = run("run", "-n", "2", "--ranks-per-host", "2", *calibrate)
        expect(status == 2 and "one rank on each of two hosts" in output, f"two ranks of one host: {status}, {output[-300:]}")
        status, output = run(*plan[:-1], os.path.join(BUILD, "CMakeCache.txt"))
        expect(status == 1 and "no report of `tensorlane calibrate`" in output, f"another file: {status}, {output[-300:]}")


if __name__ == "__main__":
    sys.exit(main())
