"""The device that the ranks' scripts work on: the first CUDA GPU, or with --fake one of tests/python/fake_gpu on the fake driver."""

import argparse
import json
import pathlib
import sys


def arguments(text, **options):
    """The command line of a script; `options` are further ones."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--fake", action="store_true", help="the fake driver stands for the GPU")
    parser.add_argument("--out", metavar="FILE", help="for rank 0's figures")
    for name, how in options.items():
        parser.add_argument(f"--{name}", **how)
    return parser.parse_args()


def open_device(fake):
    """A torch.device."""
    import torch

    torch.set_num_threads(1)
    if not fake:
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.use_deterministic_algorithms(True, warn_only=True)
        return torch.device("cuda", 0)
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))
    import fake_gpu

    return fake_gpu.load()


def synchronize(device):
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type != "cpu":
        torch.accelerator.synchronize(device)


def violations(device):
    """What the fake driver holds against the library."""
    if device.type == "cuda":
        return []
    import fake_gpu

    return fake_gpu.violations()


def write(path, rank, figures):
    if rank == 0 and path:
        pathlib.Path(path).write_text(json.dumps(figures))
