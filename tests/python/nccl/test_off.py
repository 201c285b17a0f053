"""With the package installed and classes not enabled, PyTorch is as without it: the files that are opened, the modules that are imported, and the options
of groups are the same, but for the entry point itself, which PyTorch looks up and calls."""

import json
import os
import pathlib
import re
import subprocess
import sys
import sysconfig

import pytest
from forking import HERE, environment

SITE = pathlib.Path(sysconfig.get_path("purelib"))
PROGRAM = """
import sys
sys.path.append(sys.argv[1])
opened = set()
sys.addaudithook(lambda event, arguments: opened.add(str(arguments[0])) if event == "open" else None)
import json
import torch
sys.path.append(sys.argv[2])
import nccl_stub
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.distributed.device_mesh import init_device_mesh
nccl_stub.install()
nccl_stub.start(8)
init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
dist.new_group([0, 1], pg_options=nccl_stub.Options(), timeout=nccl_stub.Options()._timeout)
options = [{**vars(each.options), "config": vars(each.options.config)} for each in nccl_stub.made]
functions = [c10d._new_process_group_helper, c10d.split_group]
print(json.dumps({
    "opened": sorted(opened), "modules": sorted(sys.modules), "options": json.loads(json.dumps(options, default=str)),
    "functions": [[f.__module__, f.__code__.co_name, hasattr(f, "_tensorlane")] for f in functions],
}))
"""


def trace(folder, names):
    """Of a Python whose site-packages has these names of ours only."""
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to(SITE / name)
    variables = environment({"PYTHONDONTWRITEBYTECODE": "1"})
    del variables["PYTHONPATH"]
    done = subprocess.run([sys.executable, "-S", "-c", PROGRAM, folder, HERE], capture_output=True, text=True, env=variables, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    # Names of files that are opened anew in each run: "/tmp/tmpab12", "/proc/123/stat".
    found["opened"] = {re.sub(r"[0-9]+|tmp\w+", "#", each.replace(str(folder), "SITE")) for each in found["opened"]}
    return found


def test_off_is_stock(tmp_path):
    names = os.listdir(SITE)
    ours = [name for name in names if name.startswith("tensorlane")]
    if "tensorlane_autoload.py" not in ours:
        pytest.skip("tensorlane is not installed here: run deploy/install-deps client")
    without = trace(tmp_path / "without", [name for name in names if name not in ours])
    with_it = trace(tmp_path / "with", names)
    assert with_it["options"] == without["options"] and len(without["options"]) == 5
    assert with_it["functions"] == without["functions"] and not any(wrapped for *_, wrapped in with_it["functions"])
    assert set(with_it["modules"]) - set(without["modules"]) == {"tensorlane_autoload"} and set(without["modules"]) <= set(with_it["modules"])
    more = {each for each in with_it["opened"] - without["opened"]}
    assert more and all(re.fullmatch(r"SITE/(__pycache__/)?tensorlane_autoload\.[\w.#-]+|SITE/tensorlane-[\w.#-]+\.dist-info/\w+(\.txt)?", each) for each in more), more
    assert not without["opened"] - with_it["opened"]
