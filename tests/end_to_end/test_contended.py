"""What only network priority can do, in two scenarios of deploy/quickstart: an iteration under network priority takes at most 0.85 of one under end-host priority, with the
95% interval of paired blocks below 1.

    contended  a model is trained on four hosts, which are all servers and workers, beside a second job's bulk from four other hosts to the same receivers
    figure5    Geryon's figure 5: one worker gets an urgent parameter from one server and a bulky one from another

In both, the tags alone change nothing: with them on FIFO ports the iteration takes what it takes under end-host priority, within 3%. Runs on a small machine differ by about as
much, so what is asserted is that the 95% interval meets [0.97, 1.03], and that the interval is narrow enough for this to mean something."""

import json
import os
import subprocess
import sys
import tempfile

from daemons import BUILD, PYTHON, expect, require_namespaces, skip

SAME, NARROW = 0.03, 0.05
BLOCKS = 12
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def main():
    require_namespaces()
    if not os.path.exists(PYTHON) or os.path.dirname(BUILD) != ROOT:
        skip(f"needs {ROOT}/build and its Python environment")
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        arguments = ["--only", "contended", "--only", "figure5", "--contended-arms", "endhost,network,network_fifo", "--contended-blocks", str(BLOCKS)]
        subprocess.run([PYTHON, f"{ROOT}/deploy/quickstart_job.py", *arguments, "--json", file.name], check=True, timeout=300)
        result = json.load(file)
    for scenario in ("contended", "figure5"):
        arms = {arm["name"]: arm for arm in result[scenario]}
        ratio = arms["network"]["ratio_to_endhost"]
        expect(ratio["median"] <= 0.85, f"{scenario}: network priority takes {ratio['median']:.3f} of end-host priority's iteration")
        expect(ratio["ci95"][1] < 1, f"{scenario}: the 95% interval is {ratio['ci95']}")
        low, high = arms["network_fifo"]["ratio_to_endhost"]["ci95"]
        expect(low <= 1 + SAME and high >= 1 - SAME, f"{scenario}: tags on FIFO ports change the iteration: the 95% interval of the ratio is {low:.3f} to {high:.3f}")
        expect((high - low) / 2 <= NARROW, f"{scenario}: too noisy to say what tags on FIFO ports change: the 95% interval of the ratio is {low:.3f} to {high:.3f}")
    arms = {arm["name"]: arm for arm in result["contended"]}
    expect(len({arm["final_loss"] for arm in arms.values()}) == 1, f"the arms do not compute the same numbers: {arms}")


if __name__ == "__main__":
    sys.exit(main())
