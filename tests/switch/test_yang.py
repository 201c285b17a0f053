#!/usr/bin/env python3
"""SONiC's and OpenConfig's configuration of random fabrics against their YANG models (yanglint). usage: test_yang.py TENSORLANE_SWITCH

The models are other people's and not part of the project: TENSORLANE_YANG names their folder, or they are at ../shared/yang. Without them,
or without yanglint, the test is skipped."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

import fabrics

SWITCH = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
YANG = pathlib.Path(os.environ.get("TENSORLANE_YANG", ROOT.parent / "shared" / "yang"))
FABRICS = 20


def valid(folder, db):
    """Whether yanglint takes it: two -i, or it looks at no reference or crashes; XML, as JSON would need every leaf's type."""
    config, data = folder / "config_db.json", folder / "data.xml"
    config.write_text(json.dumps(db))
    subprocess.run([sys.executable, "-B", YANG / "example" / "db2xml.py", config, data], check=True, capture_output=True, timeout=60)
    models = sorted(str(path) for path in (YANG / "sonic").glob("*.yang"))
    done = subprocess.run(["yanglint", "-i", "-i", "-t", "config", "-p", YANG / "sonic", *models, data], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 7), done
    return done.returncode == 0, done.stderr


def openconfig_is_valid(path):
    models = [YANG / "openconfig" / f"{name}.yang" for name in ("openconfig-qos", "openconfig-interfaces", "openconfig-if-ethernet", "iana-if-type")]
    done = subprocess.run(["yanglint", "-Q", "-i", "-i", "-t", "config", "-p", YANG / "openconfig", *models, path], capture_output=True, text=True, timeout=60)
    assert done.returncode in (0, 7), done
    return done.returncode == 0, done.stderr


def main():
    if shutil.which("yanglint") is None or not (YANG / "sonic").is_dir():
        print(f"skipped: yanglint and SONiC's models in {YANG} are needed; TENSORLANE_YANG names another folder")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for seed in range(FABRICS):
            (folder / "fabric.yaml").write_text(fabrics.fabric_text(seed))
            for model in ("dynamic", "traditional"):
                subprocess.run([SWITCH, "render", "--fabric", folder / "fabric.yaml", "--target", "sonic", "--out", folder / "out", "--buffer-model", model],
                               check=True, capture_output=True, timeout=60)
                for device in sorted({path.parent for path in (folder / "out").glob("*/*.json")}):
                    db = json.loads((device / "config_db.json").read_text())
                    fine, why = valid(folder, db)
                    assert fine, (seed, model, device.name, why)
                    if device.name != "leaf0":
                        break
            subprocess.run([SWITCH, "render", "--fabric", folder / "fabric.yaml", "--target", "openconfig", "--out", folder / "out"],
                           check=True, capture_output=True, timeout=60)
            for device in sorted({path.parent for path in (folder / "out").glob("*/*.json")}):
                fine, why = openconfig_is_valid(device / "openconfig.json")
                assert fine, (seed, device.name, why)
        # They do refuse what is wrong.
        broken = folder / "broken.json"
        broken.write_text((device / "openconfig.json").read_text().replace('"output-queue": "TC0"', '"output-queue": "TC9"'))
        assert not openconfig_is_valid(broken)[0]
        port = sorted(db["PORT_QOS_MAP"])[0]
        db["QUEUE"][f"{port}|3"]["scheduler"] = "gone"
        assert not valid(folder, db)[0]
    print(f"{FABRICS} fabrics: SONiC with both buffer models, OpenConfig")


main()
