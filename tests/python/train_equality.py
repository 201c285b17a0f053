"""Trains small models on every rank and checks that all ways to do it give the same numbers. A script, run by daemons/test_daemons.py:

    tensorlane run -n 4 -- python tests/python/train_equality.py --json FILE [--gpu]

For each model and dtype: cross-iteration equals synchronous mode bitwise, repeated runs and all ranks agree bitwise, and one process with the whole
batch agrees to 1e-6 (float32) or 1e-12 (float64). A ring of more than two hosts adds in an order that depends on a tensor's number in the job, so with
--numbered the later runs of one job agree to the same tolerance only; --synchronous records that mode, to be compared with another job. FILE (rank 0) has the parameters and their digests, so that other worlds and patterns can be
compared: train_equality.py --compare FILE FILE...
"""

import argparse
import hashlib
import json
import sys

import torch
import torch.nn.functional as F
from models import SCENARIOS

TOLERANCE = {"float32": 1e-6, "float64": 1e-12}
GLOBAL_BATCH = 16
STEPS = 20
MODELS = ("plain", "clipping", "accumulation", "tied", "frozen", "attention")
PASSES = 2  # backward passes for one step in "accumulation"


def build(scenario, dtype, seed):
    torch.manual_seed(seed)
    return SCENARIOS[scenario]().to(dtype)


def batch(number, dtype):
    device, generator = torch.get_default_device(), torch.Generator("cpu").manual_seed(number)
    x = torch.randn(GLOBAL_BATCH, 6, generator=generator, dtype=torch.float64, device="cpu")
    return x.to(device, dtype), torch.randint(0, 3, (GLOBAL_BATCH,), generator=generator, device="cpu").to(device)


def train(model, optimizer, scenario, rank, size, dtype):
    passes = PASSES if scenario == "accumulation" else 1
    for step in range(STEPS):
        optimizer.zero_grad()
        for micro in range(passes):
            x, y = batch(step * passes + micro, dtype)
            # Contiguous: how a library multiplies strided rows differs between processors, and between devices.
            F.cross_entropy(model(x[rank::size].contiguous()), y[rank::size]).backward()
        if scenario == "clipping":
            if hasattr(optimizer, "synchronize"):
                optimizer.synchronize()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
    return flat(model)


def flat(model):
    return torch.cat([tensor.reshape(-1) for tensor in model.state_dict().values()])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def distributed(tl, scenario, dtype, synchronous):
    # Other ranks start elsewhere: the broadcast must bring them to the root's parameters.
    model = build(scenario, dtype, 7 + tl.rank())
    tl.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = tl.DistributedOptimizer(
        sgd(model), model.named_parameters(), overlap=not synchronous, backward_passes_per_step=PASSES if scenario == "accumulation" else 1
    )
    tl.broadcast_optimizer_state(optimizer, root_rank=0)
    result = train(model, optimizer, scenario, tl.rank(), tl.size(), dtype)
    wanted = "synchronous" if synchronous else "cross-iteration"
    require(optimizer.tensorlane_status()["mode"] == wanted, f"{scenario}: the optimizer is not {wanted}")
    optimizer.close()
    return result


def require(condition, text):
    if not condition:
        raise SystemExit(f"train_equality: {text}")


def difference(left, right):
    """The largest difference, relative to the values where they are larger than 1."""
    return ((left - right).abs() / right.abs().clamp(min=1)).max().item()


def check(tl, scenario, name, numbered, synchronous):
    dtype = getattr(torch, name)
    allowed = TOLERANCE[name] if numbered else 0
    lazy = distributed(tl, scenario, dtype, synchronous=synchronous)
    start = flat(build(scenario, dtype, 7))
    require(difference(lazy, start) > 1e-3, f"{scenario} {name}: nothing was trained")
    gathered = tl.allgather(lazy, name=f"check.{scenario}.{name}").view(tl.size(), -1)
    for rank in range(tl.size()):
        require(torch.equal(gathered[rank], lazy), f"{scenario} {name}: ranks {rank} and {tl.rank()} differ")
    require(difference(distributed(tl, scenario, dtype, synchronous=synchronous), lazy) <= allowed, f"{scenario} {name}: a repeated run differs")
    require(difference(distributed(tl, scenario, dtype, synchronous=not synchronous), lazy) <= allowed, f"{scenario} {name}: the other mode differs")
    alone = build(scenario, dtype, 7)
    found = difference(lazy, train(alone, sgd(alone), scenario, 0, 1, dtype))
    require(found <= TOLERANCE[name], f"{scenario} {name}: one process with the whole batch differs by {found:.3g}")
    return lazy


def run(path, numbered, synchronous, on_gpu):
    models = MODELS
    import tensorlane.torch as tl

    torch.set_num_threads(1)
    if on_gpu:
        import fake_gpu

        torch.set_default_device(fake_gpu.load())
        models = [model for model in MODELS if model != "attention"]  # torch computes it on a CPU in another way
    tl.init()
    results = {f"{scenario} {name}": check(tl, scenario, name, numbered, synchronous) for scenario in models for name in TOLERANCE}
    tl.barrier()
    if on_gpu:
        require(not fake_gpu.violations(), f"the driver was misused: {fake_gpu.violations()}")
        require(tl.status()["gpus"]["devices"][0]["copied_in_bytes"] > 0, "nothing was copied to the GPU")
    if tl.rank() == 0 and path:
        cases = {
            case: {"digest": hashlib.sha256(v.cpu().numpy().tobytes()).hexdigest(), "values": v.double().tolist()} for case, v in results.items()
        }
        with open(path, "w") as file:
            json.dump({"size": tl.size(), "cases": cases}, file)
    tl.shutdown()


def compare(paths):
    """Prints for each file whether it agrees with the first one bitwise, and how much it differs. All must agree within the tolerance."""
    files = []
    for path in paths:
        with open(path) as file:
            files.append(json.load(file)["cases"])
    for path, cases in zip(paths[1:], files[1:]):
        require(cases.keys() <= files[0].keys(), f"{path}: other cases than {paths[0]}")
        for case, content in cases.items():
            found = difference(torch.tensor(content["values"], dtype=torch.float64), torch.tensor(files[0][case]["values"], dtype=torch.float64))
            require(found <= TOLERANCE[case.split()[1]], f"{case}: {path} and {paths[0]} differ by {found:.3g}")
        print(f"{path}: {'bitwise equal' if all(c['digest'] == files[0][k]['digest'] for k, c in cases.items()) else 'equal within the tolerance'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE")
    parser.add_argument("--compare", nargs="+", metavar="FILE")
    parser.add_argument("--numbered", action="store_true")
    parser.add_argument("--synchronous", action="store_true")
    parser.add_argument("--gpu", action="store_true", help="on the fake GPU (fake_gpu/)")
    args = parser.parse_args()
    compare(args.compare) if args.compare else run(args.json, args.numbered, args.synchronous, args.gpu)


if __name__ == "__main__":
    sys.exit(main())
