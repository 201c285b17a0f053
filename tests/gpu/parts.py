"""The parts of tests/gpu/run: what each one starts, and what its figures must be."""

import dataclasses
import json
import re
import time
from typing import Callable

from kit import Failed, Skipped

LARGEST = 1 << 30
FAKE_LARGEST = 4 << 20


@dataclasses.dataclass
class Part:
    name: str
    says: str
    correctness: bool  # else figures, which fail nothing
    seconds: int  # at most
    run: Callable  # (kit, seconds) -> figures
    needs_gpu: bool = True


def largest(kit):
    return FAKE_LARGEST if kit.fake else LARGEST


def brief(kit):
    return ["--brief"] if kit.fake else []


def require_right(figures):
    if figures["wrong"] or not figures["checked"]:
        raise Failed(f"{figures['wrong']} of {figures['checked']} checks failed")
    return figures


def operations(per_host):
    def run(kit, seconds):
        command = kit.gpu_check("correctness", "--largest", largest(kit), *brief(kit))
        return require_right(kit.job(2, per_host, command, seconds))
    return run


def measured(part, ranks=1):
    """A part of gpu_check that measures, with each rank on a daemon of its own."""
    def run(kit, seconds):
        return kit.job(ranks, 1, kit.gpu_check(part, "--largest", largest(kit), *brief(kit)), seconds)
    return run


def kernels(kit, seconds):
    image = kit.folder / "lib" / "kernels.fatbin"
    if not image.exists():
        raise Skipped("the kit has no kernels: it was packed where there is no nvcc")
    arguments = ["--kernels", image, "--largest", largest(kit), *brief(kit)]
    return kit.job(1, 1, kit.gpu_check("kernels", *arguments), seconds)


def sharing(kit, seconds):
    """Two hosts with two ranks each, all on one GPU."""
    command = kit.gpu_check("sharing", "--largest", largest(kit), *brief(kit))
    # The fake driver takes anything for kernels, which a build without nvcc does not have.
    kernels_of = {"TENSORLANE_GPU_KERNELS": str(kit.folder / "manifest.json")} if kit.fake else {}
    return require_right(kit.job(4, 2, command, seconds, environment={"TENSORLANE_GPU_SUMS": "1", **kernels_of}))


def script(name, ranks, per_host=1):
    def run(kit, seconds):
        return kit.job(ranks, per_host, kit.python_command(name), seconds)
    return run


NCCL = {
    "multi": "two ranks may share a GPU (NCCL_MULTI_RANK_GPU_ENABLE=1)",
    "hostid": "each rank says that it is another host (NCCL_HOSTID)",
}


def find_nccl(kit, seconds):
    """How this NCCL can be made to run two ranks on one GPU: a key of NCCL, and for each that fails why."""
    refusals = {}
    for way in NCCL:
        try:
            kit.job(2, 1, kit.python_command("rank_peers.py", "--probe", way, "--store", kit.path(f"probe.{way}")), seconds)
            return way, refusals
        except Failed as failure:
            said = [line for line in str(failure).splitlines() if re.search(r"nccl|error", line, re.IGNORECASE)]
            refusals[way] = (said[-1] if said else str(failure)).strip()[:300]
    return None, refusals


def peers(kit, seconds):
    start = time.monotonic()
    way, refusals = (None, {"fake driver": "NCCL needs a GPU"}) if kit.fake else find_nccl(kit, seconds // 4)
    arguments = ["--store", kit.path("peers"), *(["--nccl", way] if way else [])]
    figures = kit.job(2, 1, kit.python_command("rank_peers.py", *arguments), seconds - (time.monotonic() - start))
    figures["skipped"] = {} if way else {"nccl": "; ".join(f"{key}: {why}" for key, why in refusals.items())}
    figures["nccl_way"] = NCCL.get(way)
    return figures


FABRIC = "hosts: [{name: h0, addresses: {tcp: 127.0.0.1}}]\n"


def classes(kit, seconds):
    """What tensorlane.torch.nccl says of each group, beside what NCCL itself says of the communicators."""
    start = time.monotonic()
    way, refusals = (None, {"fake driver": "NCCL needs a GPU"}) if kit.fake else find_nccl(kit, seconds // 3)
    if way is None:
        raise Skipped("no NCCL of two ranks: " + "; ".join(f"{key}: {why}" for key, why in refusals.items()))
    kit.path("fabric.yaml").write_text(FABRIC)
    policy = kit.path("nccl-policy.json")
    policy.write_text(kit.command([str(kit.folder / "bin" / "tensorlane"), "classes", "--for", "nccl", "--fabric", str(kit.path("fabric.yaml")), "--json"], 20))
    arguments = ["--nccl", way, "--policy", policy, "--log", kit.path("nccl"), "--store", kit.path("classes")]
    return kit.job(2, 1, kit.python_command("rank_classes.py", *arguments), seconds - (time.monotonic() - start))


def bench(kit, seconds, *arguments):
    out = kit.path("bench.json")
    compare = ["--compare", "gloo"] if (kit.folder / "bin" / "bench" / "gloo_worker").exists() else []
    sizes = "64K,1M" if kit.fake else "64K,1M,16M"
    command = [str(kit.folder / "bin" / "tensorlane"), "bench", "allreduce", *arguments, *compare]
    kit.command([*command, "--sizes", sizes, "--repeat", "1" if kit.fake else "3", "--json", str(out)], seconds)
    return json.loads(out.read_text())


def cores(kit, seconds):
    """The machine's cores, without the GPU: one host and several, with more lanes, workers and rails."""
    if not (kit.folder / "bin" / "bench" / "tensorlane_worker").exists():
        raise Skipped("the kit has no bench/tensorlane_worker")
    layouts = {"2 ranks of a host": ["--ranks", "2"]} if kit.fake else {
        "8 ranks of a host": ["--ranks", "8"],
        "8 ranks of a host, 4 workers": ["--ranks", "8", "--set", "workers=4"],
        "4 hosts": ["--hosts", "4"],
        "4 hosts, 2 workers each": ["--hosts", "4", "--set", "workers=2"],
    }
    figures = {"bench": {}, "rails": {}, "failed": {}, "skipped": {"openmpi": "it is not installed where nothing but CUDA and PyTorch is"}}
    each = seconds // (len(layouts) + 1)
    for layout, arguments in layouts.items():
        try:
            figures["bench"][layout] = bench(kit, each, *arguments)["results"]
        except Failed as failure:
            figures["failed"][layout] = str(failure)
    program = kit.folder / "bin" / "rails_bench"
    if not program.exists():
        figures["skipped"]["rails"] = "the kit has no rails_bench"
    for rails in (1,) if kit.fake else (1, 2, 4):
        if not program.exists():
            break
        lanes = [str(lanes) for lanes in (1, 2, 4) if lanes <= rails]
        arguments = ["--rails", str(rails), "--lanes", *lanes, "--mib", "4" if kit.fake else "64", "--rounds", "3" if kit.fake else "15"]
        try:
            figures["rails"][f"{rails} rails"] = json.loads(kit.command([str(program), *arguments], each // 3 + 1))["rows"]
        except (Failed, ValueError, KeyError) as failure:
            figures["failed"][f"{rails} rails"] = str(failure)
    if not figures["bench"]:
        raise Failed("; ".join(figures["failed"].values()))
    return figures


PARTS = (
    Part("operations_one_daemon", "every operation, type and size; two ranks on one GPU share a daemon", True, 150, operations(2)),
    Part("operations_two_daemons", "the same, over TCP between two daemons", True, 150, operations(1)),
    Part("calls", "all calls of tensorlane.torch on GPU tensors, as on the CPU", True, 60, script("rank_calls.py", 2)),
    Part("training", "a CNN and a GPT: as on the CPU; overlap as the default", True, 90, script("rank_training.py", 2)),
    Part("staging", "bandwidth beside a plain pinned copy of the same size", False, 40, measured("staging")),
    Part("latency", "small operations beside host memory and plain copies; urgent behind bulk", False, 40, measured("latency")),
    Part("overlap", "a sum between two daemons beside one of host memory and plain copies", False, 40, measured("overlap", 2)),
    Part("sharing", "sums of a host's ranks on their GPU, as on host memory; beside tensors that each rank copies", True, 90, sharing),
    Part("kernels", "bandwidth of the kernels that sum, beside a copy within the GPU", False, 30, kernels),
    Part("cpu", "time of the program's threads for each call", False, 30, measured("cpu")),
    Part("idle", "a training loop with and without an idle daemon and joined job", False, 60, script("rank_idle.py", 1)),
    Part("peers", "two daemons beside Gloo and NCCL over sockets, two ranks on one GPU", False, 170, peers),
    Part("nccl_classes", "groups of a real NCCL ask for the classes of the policy, says NCCL's own log", True, 90, classes),
    Part("cores", "lanes, workers and rails on this machine's cores", False, 150, cores, needs_gpu=False),
)
