"""What only network priority can do (Geryon, figure 5): beside a second job's bulk from other hosts to the same receivers, an iteration under network priority takes at
most 0.85 of one under end-host priority, with the 95% interval of paired blocks below 1. The sums are the same: so are loss and accuracy."""

import json
import os
import subprocess
import sys
import tempfile

from daemons import BUILD, PYTHON, expect, require_namespaces, skip

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    require_namespaces()
    if not os.path.exists(PYTHON) or os.path.dirname(BUILD) != ROOT:
        skip(f"needs {ROOT}/build and its Python environment")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        subprocess.run([PYTHON, f"{ROOT}/deploy/quickstart_job.py", "--only", "contended", "--contended-blocks", "6", "--json", file.name], check=True, timeout=240)
        arms = {arm["name"]: arm for arm in json.load(file)["contended"]}
    ratio = arms["network"]["ratio_to_endhost"]
    expect(ratio["median"] <= 0.85, f"network priority takes {ratio['median']:.3f} of end-host priority's iteration")
    expect(ratio["ci95"][1] < 1, f"the 95% interval is {ratio['ci95']}")
    expect(arms["network"]["final_loss"] == arms["endhost"]["final_loss"], "the arms do not compute the same numbers")


if __name__ == "__main__":
    sys.exit(main())
