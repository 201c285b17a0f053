#!/usr/bin/env python3
"""Demands that the swarm catches a mutant: check.py SWARM MUTANT.json SEEDS

The swarm must fail within SEEDS seeds, by one of the checkers that the mutant names, and the failing seed must fail again
when it is run alone.
"""
import json
import pathlib
import subprocess
import sys
import tempfile


def run(swarm: str, first: int, seeds: int, report: pathlib.Path) -> dict:
    command = [swarm, "--seed", str(first), "--seeds", str(seeds), "--stop-at-first", "--json", str(report)]
    done = subprocess.run(command, stdout=subprocess.DEVNULL, check=False)
    if done.returncode != 1:
        raise SystemExit(f"the mutant lives: exit status {done.returncode} of {' '.join(command)}")
    failed = json.loads(report.read_text() or "{}").get("failed")
    if not failed:
        raise SystemExit("the swarm ended without a report: an assertion found the mutant before a checker did")
    return failed[0]


def main() -> None:
    swarm, mutant_path, seeds = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    mutant = json.loads(mutant_path.read_text())
    with tempfile.TemporaryDirectory() as folder:
        report = pathlib.Path(folder) / "swarm.json"
        found = run(swarm, 1, seeds, report)
        if found["checker"] not in mutant["checkers"]:
            raise SystemExit(f"checker '{found['checker']}' found the mutant, not {mutant['checkers']}: {found['message']}")
        again = run(swarm, found["seed"], 1, report)
        if again != found:
            raise SystemExit(f"seed {found['seed']} does not replay: {again}")
    print(f"{found['seed']} seeds, checker '{found['checker']}': {found['message']}")


if __name__ == "__main__":
    main()
