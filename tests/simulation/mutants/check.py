#!/usr/bin/env python3
"""Demands that the swarm catches a mutant: check.py SWARM MUTANT.json SEEDS

SWARM has the mutant's bug, among those of others (mutate.py). It must fail within SEEDS seeds, by one of the checkers that the
mutant names, and the failing seed must fail again when it is run alone. Where the mutant names the checker "crash" an end of the
program by an assertion or a fault counts, too. The seed that the mutant names was the first once, and is tried before all others;
`seeds` is the same by what TENSORLANE_UNCHECKED leaves out.
"""
import json
import os
import re
import pathlib
import subprocess
import sys
import tempfile


def run(swarm: str, first: int, seeds: int, report: pathlib.Path, crash: bool) -> dict | None:
    """The first failure; None where all seeds passed."""
    command = [swarm, "--seed", str(first), "--seeds", str(seeds), "--stop-at-first", "--json", str(report)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False)
    sys.stderr.write(done.stderr)
    if done.returncode == 0:
        return None
    if done.returncode != 1:
        raise SystemExit(f"exit status {done.returncode} of {' '.join(command)}")
    failed = json.loads((report.read_text() if report.exists() else "") or "{}").get("failed")
    ended = re.search(r"the program failed: seed (\d+)", done.stderr)
    if not failed and ended and crash:
        return {"checker": "crash", "seed": int(ended[1]), "message": "an assertion, or a fault"}
    if not failed:
        raise SystemExit("the swarm ended without a report: an assertion found the mutant before a checker did")
    return failed[0]


def main() -> None:
    swarm, mutant_path, seeds = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    mutant = json.loads(mutant_path.read_text())
    os.environ["TENSORLANE_MUTANT"] = mutant_path.stem
    known = mutant.get("seed") or mutant.get("seeds", {}).get(os.environ.get("TENSORLANE_UNCHECKED"))
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "swarm.json"
        crash = "crash" in mutant["checkers"]
        found = (run(swarm, known, 1, report, crash) if known else None) or run(swarm, 1, seeds, report, crash)
        if found is None:
            raise SystemExit(f"the mutant lives: {seeds} seeds")
        if found["checker"] not in mutant["checkers"]:
            raise SystemExit(f"checker '{found['checker']}' found the mutant, not {mutant['checkers']}: {found['message']}")
        if found["checker"] == "crash":  # what lies behind the end of a table differs from run to run
            print(f"seed {found['seed']}: {found['message']}")
            return
        again = run(swarm, found["seed"], 1, report, crash)
        if again != found:
            raise SystemExit(f"seed {found['seed']} does not replay: {again}")
    print(f"seed {found['seed']}, checker '{found['checker']}': {found['message']}")


if __name__ == "__main__":
    main()
