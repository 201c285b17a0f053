#!/usr/bin/env python3
"""Writes the planner's models from the definitions of their architectures: `generate.py [FOLDER]`.

A model is a list of layers in the order of the forward pass: name, multiply-adds of one sample, variables as [name, elements].
The convolutional models follow TensorFlow-Slim, with which TicTac measured (its table 1 counts variables and bytes; the check at the
end holds every model against it, and the others against their published totals). Batch normalisation there has an offset (beta) and
no scale. Times are not in the files: the planner divides a measured throughput by multiply-adds.
"""

import json
import math
import pathlib
import sys


class Net:
    """Layers that are added in order, and the size of what flows between them."""

    def __init__(self, size, channels):
        self.layers, self.size, self.channels = [], size, channels

    def layer(self, name, macs, variables):
        self.layers.append({"name": name, "macs": int(macs), "variables": [[v, int(n)] for v, n in variables]})

    def conv(self, name, out, kernel, stride=1, padding="SAME", norm="beta", size=None, channels=None, keep=False):
        """norm: beta (batch normalisation without scale), bias, none. `keep`: a branch; the main path's size stays."""
        kh, kw = kernel if isinstance(kernel, tuple) else (kernel, kernel)
        h, w = (size or self.size)
        channels = channels or self.channels
        if padding == "SAME":
            h, w = math.ceil(h / stride), math.ceil(w / stride)
        else:
            h, w = (h - kh) // stride + 1, (w - kw) // stride + 1
        weights = kh * kw * channels * out
        variables = [(f"{name}/weights", weights)]
        if norm != "none":
            variables.append((f"{name}/{'biases' if norm == 'bias' else 'beta'}", out))
        self.layer(name, weights * h * w, variables)
        if not keep:
            self.size, self.channels = (h, w), out
        return (h, w), out

    def pool(self, kernel, stride, padding="VALID"):
        h, w = self.size
        if padding == "SAME":
            self.size = (math.ceil(h / stride), math.ceil(w / stride))
        else:
            self.size = ((h - kernel) // stride + 1, (w - kernel) // stride + 1)

    def dense(self, name, inputs, outputs):
        self.layer(name, inputs * outputs, [(f"{name}/weights", inputs * outputs), (f"{name}/biases", outputs)])


def alexnet_v2():
    net = Net((224, 224), 3)
    net.conv("conv1", 64, 11, 4, "VALID", "bias")
    net.pool(3, 2)
    net.conv("conv2", 192, 5, norm="bias")
    net.pool(3, 2)
    net.conv("conv3", 384, 3, norm="bias")
    net.conv("conv4", 384, 3, norm="bias")
    net.conv("conv5", 256, 3, norm="bias")
    net.pool(3, 2)
    net.conv("fc6", 4096, 5, padding="VALID", norm="bias")
    net.conv("fc7", 4096, 1, norm="bias")
    net.conv("fc8", 1000, 1, norm="bias")
    return net


def alexnet():
    net = Net((227, 227), 3)
    for name, out, kernel, stride, padding, pool in (("conv1", 96, 11, 4, "VALID", True), ("conv2", 256, 5, 1, "SAME", True),
                                                     ("conv3", 384, 3, 1, "SAME", False), ("conv4", 384, 3, 1, "SAME", False),
                                                     ("conv5", 256, 3, 1, "SAME", True)):
        net.conv(name, out, kernel, stride, padding, "bias")
        if pool:
            net.pool(3, 2)
    net.dense("fc6", 6 * 6 * 256, 4096)
    net.dense("fc7", 4096, 4096)
    net.dense("fc8", 4096, 1000)
    return net


def vgg(blocks):
    net = Net((224, 224), 3)
    for b, (count, out) in enumerate(zip(blocks, (64, 128, 256, 512, 512)), 1):
        for i in range(1, count + 1):
            net.conv(f"conv{b}_{i}", out, 3, norm="bias")
        net.pool(2, 2)
    net.dense("fc6", 7 * 7 * 512, 4096)
    net.dense("fc7", 4096, 4096)
    net.dense("fc8", 4096, 1000)
    return net


def resnet_v1(units):
    net = Net((224, 224), 3)
    net.conv("conv1", 64, 7, 2)
    net.pool(3, 2, "SAME")
    for b, (count, depth) in enumerate(zip(units, (256, 512, 1024, 2048)), 1):
        for u in range(1, count + 1):
            # Slim strides in the last unit of a block, not the first of the next.
            stride = 2 if u == count and b < 4 else 1
            size, channels = net.size, net.channels
            name = f"block{b}/unit_{u}"
            if u == 1:
                net.conv(f"{name}/shortcut", depth, 1, stride, size=size, channels=channels, keep=True)
            net.conv(f"{name}/conv1", depth // 4, 1)
            net.conv(f"{name}/conv2", depth // 4, 3, stride)
            net.conv(f"{name}/conv3", depth, 1)
    net.dense("logits", 2048, 1000)
    return net


def resnet_v2(units):
    net = Net((224, 224), 3)
    net.conv("conv1", 64, 7, 2, norm="bias")
    net.pool(3, 2, "SAME")
    for b, (count, depth) in enumerate(zip(units, (256, 512, 1024, 2048)), 1):
        for u in range(1, count + 1):
            stride = 2 if u == count and b < 4 else 1
            size, channels = net.size, net.channels
            name = f"block{b}/unit_{u}"
            net.layer(f"{name}/preact", 0, [(f"{name}/preact/beta", channels)])
            if u == 1:
                net.conv(f"{name}/shortcut", depth, 1, stride, norm="bias", size=size, channels=channels, keep=True)
            net.conv(f"{name}/conv1", depth // 4, 1)
            net.conv(f"{name}/conv2", depth // 4, 3, stride)
            net.conv(f"{name}/conv3", depth, 1, norm="bias")
    net.layer("postnorm", 0, [("postnorm/beta", 2048)])
    net.dense("logits", 2048, 1000)
    return net


def branches(net, name, spec):
    """An inception block: branches of (outputs, kernel, stride) convolutions from the same input; "pool" keeps the channels. The last
    size counts."""
    size, channels, outputs = net.size, net.channels, 0
    for b, branch in enumerate(spec):
        at, through, last = size, channels, None
        for i, step in enumerate(branch):
            if step[0] == "pool":
                if step[1] == 2:
                    at = tuple(math.ceil(x / 2) if step[2] == "SAME" else (x - 3) // 2 + 1 for x in at)
                continue
            out, kernel, stride, padding = (*step, 1, "SAME")[:4] if len(step) == 2 else (*step, "SAME")[:4]
            if out == "split":  # several convolutions side by side
                total = 0
                for j, k in enumerate(kernel):
                    net.conv(f"{name}/branch_{b}/{i}_{j}", stride, k, size=at, channels=through, keep=True)
                    total += stride
                through = total
                continue
            at, through = net.conv(f"{name}/branch_{b}/{i}", out, kernel, stride, padding, size=at, channels=through, keep=True)
        outputs += through
        last = at
    net.size, net.channels = last, outputs


def inception_v1():
    net = Net((224, 224), 3)
    net.conv("Conv2d_1a", 64, 7, 2)
    net.pool(3, 2, "SAME")
    net.conv("Conv2d_2b", 64, 1)
    net.conv("Conv2d_2c", 192, 3)
    net.pool(3, 2, "SAME")
    rows = {"3b": (64, 96, 128, 16, 32, 32), "3c": (128, 128, 192, 32, 96, 64), "4b": (192, 96, 208, 16, 48, 64),
            "4c": (160, 112, 224, 24, 64, 64), "4d": (128, 128, 256, 24, 64, 64), "4e": (112, 144, 288, 32, 64, 64),
            "4f": (256, 160, 320, 32, 128, 128), "5b": (256, 160, 320, 32, 128, 128), "5c": (384, 192, 384, 48, 128, 128)}
    for name, (a, b1, b2, c1, c2, d) in rows.items():
        if name in ("4b", "5b"):
            net.pool(3 if name == "4b" else 2, 2, "SAME")
        branches(net, f"Mixed_{name}", [[(a, 1)], [(b1, 1), (b2, 3)], [(c1, 1), (c2, 3)], [("pool", 1), (d, 1)]])
    net.dense("logits", 1024, 1000)
    return net


def inception_v2():
    net = Net((224, 224), 3)
    # Separable: 8 filters per channel of depth, then 1x1.
    net.layer("Conv2d_1a", 112 * 112 * (7 * 7 * 24 + 24 * 64),
              [("Conv2d_1a/depthwise_weights", 7 * 7 * 3 * 8), ("Conv2d_1a/pointwise_weights", 24 * 64), ("Conv2d_1a/beta", 64)])
    net.size, net.channels = (112, 112), 64
    net.pool(3, 2, "SAME")
    net.conv("Conv2d_2b", 64, 1)
    net.conv("Conv2d_2c", 192, 3)
    net.pool(3, 2, "SAME")
    rows = {"3b": (64, 64, 64, 64, 96, 32), "3c": (64, 64, 96, 64, 96, 64), "4a": (0, 128, 160, 64, 96, 0),
            "4b": (224, 64, 96, 96, 128, 128), "4c": (192, 96, 128, 96, 128, 128), "4d": (160, 128, 160, 128, 160, 96),
            "4e": (96, 128, 192, 160, 192, 96), "5a": (0, 128, 192, 192, 256, 0), "5b": (352, 192, 320, 160, 224, 128),
            "5c": (352, 192, 320, 192, 224, 128)}
    for name, (a, b1, b2, c1, c2, d) in rows.items():
        if a == 0:
            branches(net, f"Mixed_{name}", [[(b1, 1), (b2, 3, 2)], [(c1, 1), (c2, 3), (c2, 3, 2)], [("pool", 2, "SAME")]])
        else:
            branches(net, f"Mixed_{name}", [[(a, 1)], [(b1, 1), (b2, 3)], [(c1, 1), (c2, 3), (c2, 3)], [("pool", 1), (d, 1)]])
    net.dense("logits", 1024, 1000)
    return net


def inception_v3():
    net = Net((299, 299), 3)
    net.conv("Conv2d_1a", 32, 3, 2, "VALID")
    net.conv("Conv2d_2a", 32, 3, 1, "VALID")
    net.conv("Conv2d_2b", 64, 3)
    net.pool(3, 2)
    net.conv("Conv2d_3b", 80, 1, 1, "VALID")
    net.conv("Conv2d_4a", 192, 3, 1, "VALID")
    net.pool(3, 2)
    for name, pool in (("5b", 32), ("5c", 64), ("5d", 64)):
        branches(net, f"Mixed_{name}", [[(64, 1)], [(48, 1), (64, 5)], [(64, 1), (96, 3), (96, 3)], [("pool", 1), (pool, 1)]])
    branches(net, "Mixed_6a", [[(384, 3, 2, "VALID")], [(64, 1), (96, 3), (96, 3, 2, "VALID")], [("pool", 2, "VALID")]])
    for name, n in (("6b", 128), ("6c", 160), ("6d", 160), ("6e", 192)):
        branches(net, f"Mixed_{name}", [[(192, 1)], [(n, 1), (n, (1, 7)), (192, (7, 1))],
                                        [(n, 1), (n, (7, 1)), (n, (1, 7)), (n, (7, 1)), (192, (1, 7))], [("pool", 1), (192, 1)]])
    # The auxiliary head hangs on 6e.
    size, channels = net.size, net.channels
    at, through = net.conv("AuxLogits/1b", 128, 1, size=tuple((x - 5) // 3 + 1 for x in size), channels=channels, keep=True)
    net.conv("AuxLogits/2a", 768, at, 1, "VALID", size=at, channels=through, keep=True)
    net.dense("AuxLogits/2b", 768, 1000)
    branches(net, "Mixed_7a", [[(192, 1), (320, 3, 2, "VALID")], [(192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, "VALID")],
                               [("pool", 2, "VALID")]])
    for name in ("7b", "7c"):
        branches(net, f"Mixed_{name}", [[(320, 1)], [(384, 1), ("split", ((1, 3), (3, 1)), 384)],
                                        [(448, 1), (384, 3), ("split", ((1, 3), (3, 1)), 384)], [("pool", 1), (192, 1)]])
    net.dense("logits", 2048, 1000)
    return net


def yolo():
    net = Net((448, 448), 3)
    net.conv("conv1", 64, 7, 2, norm="bias")
    net.pool(2, 2)
    net.conv("conv2", 192, 3, norm="bias")
    net.pool(2, 2)
    number = 3

    def convs(*steps):
        nonlocal number
        for out, kernel, *stride in steps:
            net.conv(f"conv{number}", out, kernel, stride[0] if stride else 1, norm="bias")
            number += 1

    convs((128, 1), (256, 3), (256, 1), (512, 3))
    net.pool(2, 2)
    convs(*((256, 1), (512, 3)) * 4, (512, 1), (1024, 3))
    net.pool(2, 2)
    convs(*((512, 1), (1024, 3)) * 2, (1024, 3), (1024, 3, 2), (1024, 3), (1024, 3))
    net.dense("fc25", 7 * 7 * 1024, 4096)
    net.dense("fc26", 4096, 7 * 7 * 30)
    return net


def gpt2(layers=12, width=768, context=1024, vocabulary=50257):
    net = Net((1, context), width)
    net.layer("embedding", 0, [("wte", vocabulary * width), ("wpe", context * width)])

    def norm(name):
        return [(f"{name}/weight", width), (f"{name}/bias", width)]

    def linear(name, inputs, outputs):
        return [(f"{name}/weight", inputs * outputs), (f"{name}/bias", outputs)]

    for i in range(layers):
        attention = context * 4 * width * width + 2 * context * context * width
        net.layer(f"h{i}/attention", attention, norm(f"h{i}/ln_1") + linear(f"h{i}/c_attn", width, 3 * width) +
                  linear(f"h{i}/attn_proj", width, width))
        net.layer(f"h{i}/mlp", context * 8 * width * width, norm(f"h{i}/ln_2") + linear(f"h{i}/c_fc", width, 4 * width) +
                  linear(f"h{i}/mlp_proj", 4 * width, width))
    net.layer("head", context * vocabulary * width, norm("ln_f"))  # its matrix is the embedding's
    return net


SLIM = "TensorFlow-Slim nets; TicTac (Hashemi et al., SysML 2019), table 1"
# name -> (definition, source, published variables or None, MiB of table 1 or elements in all)
MODELS = {
    "alexnet": (alexnet, "Krizhevsky et al., NIPS 2012, without groups; the 93.99% in FC layers of Geryon, figure 6", None, 62_378_344),
    "alexnet-v2": (alexnet_v2, SLIM, 16, 191.89),
    "inception-v1": (inception_v1, SLIM, 116, 25.24),
    "inception-v2": (inception_v2, SLIM, 141, 42.64),
    "inception-v3": (inception_v3, SLIM, 196, 103.54),
    "resnet-50-v1": (lambda: resnet_v1((3, 4, 6, 3)), SLIM, 108, 97.39),
    "resnet-101-v1": (lambda: resnet_v1((3, 4, 23, 3)), SLIM, 210, 169.74),
    "resnet-50-v2": (lambda: resnet_v2((3, 4, 6, 3)), SLIM, 125, 97.45),
    "resnet-101-v2": (lambda: resnet_v2((3, 4, 23, 3)), SLIM, 244, 169.86),
    "vgg-16": (lambda: vgg((2, 2, 3, 3, 3)), SLIM, 32, 527.79),
    "vgg-19": (lambda: vgg((2, 2, 4, 4, 4)), SLIM, 38, 548.05),
    "yolo": (yolo, "Redmon et al., CVPR 2016, figure 3; the 77.86% in FC layers of Geryon, figure 6", None, 271_703_550),
    "gpt2": (gpt2, "Radford et al. 2019, the smallest model, 1,024 tokens a sample", None, 124_439_808),
}


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    for name, (define, source, variables, size) in MODELS.items():
        net = define()
        sizes = [n for layer in net.layers for _, n in layer["variables"]]
        total = sum(sizes)
        found = total if isinstance(size, int) else round(total * 4 / 2**20, 2)
        if found != size or (variables is not None and len(sizes) != variables):
            sys.exit(f"{name}: {len(sizes)} variables, {found} instead of {variables}, {size}")
        head = json.dumps({"name": name, "source": source, "elements": total})[:-1]
        layers = ",\n  ".join(json.dumps(layer, separators=(",", ":")) for layer in net.layers)
        (folder / f"{name}.json").write_text(f'{head}, "layers": [\n  {layers}\n]}}\n')


if __name__ == "__main__":
    main()
