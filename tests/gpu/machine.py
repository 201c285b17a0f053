"""What a run's figures were measured on. What cannot be found out is left out."""

import json
import os
import platform
import shutil
import subprocess

QUERY = {
    "gpu": "name", "driver": "driver_version", "memory": "memory.total", "pcie_generation": "pcie.link.gen.max", "pcie_generation_now": "pcie.link.gen.current",
    "pcie_width": "pcie.link.width.max", "compute_mode": "compute_mode", "mig": "mig.mode.current",
}
OF_TORCH = """
import json, torch
about = {"torch": torch.__version__, "cuda_of_torch": torch.version.cuda, "torch_sees_gpu": torch.cuda.is_available()}
if about["torch_sees_gpu"]:
    about["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(about))
"""


def output(command, environment=None):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def processor():
    with open("/proc/cpuinfo") as info:
        return next((line.partition(":")[2].strip() for line in info if line.startswith("model name")), platform.machine())


def describe(kit):
    about = {
        "fake": kit.fake, "processor": processor(), "cores": len(os.sched_getaffinity(0)), "kernel": platform.release(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1), "python": platform.python_version(),
    }
    if not kit.fake and shutil.which("nvidia-smi"):
        for key, query in QUERY.items():  # one by one: an older nvidia-smi refuses a query with a name that it does not know
            found = output(["nvidia-smi", "--id=0", f"--query-gpu={query}", "--format=csv,noheader"])
            if found and "N/A" not in found and "Not Supported" not in found:
                about[key] = found.splitlines()[0]
    of_torch = output([kit.python, "-c", OF_TORCH])
    if of_torch:
        about.update(json.loads(of_torch.splitlines()[-1]))
    return about
