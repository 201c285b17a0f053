"""Ranks that Open MPI's mpirun has started join a job by its variables: the same sums as those of ranks that were given theirs."""

import os
import subprocess
import sys

from daemons import BUILD, Daemons, expect, outputs, skip

MESSAGE = f"{BUILD}/tests/message"
MPIRUN = "mpirun.openmpi"
SUM = [MESSAGE, "sum", "4096", "5", "0"]


def main():
    if subprocess.run(["which", MPIRUN], capture_output=True).returncode != 0:
        skip("Open MPI is not installed")
    with Daemons(1) as daemons:
        given = outputs(daemons.job("given", SUM, per_host=2), 30)
        environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
        environment |= {"TENSORLANE_SOCKET": daemons.socket("h0"), "TENSORLANE_JOB": "mpi", "OMP_NUM_THREADS": "1"}
        mpirun = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-n", "2"]
        done = subprocess.run([*mpirun, *SUM], env=environment, capture_output=True, text=True, timeout=30)
        expect(done.returncode == 0, f"{' '.join(mpirun)} ended with status {done.returncode}: {done.stdout}{done.stderr}")
        printed = done.stdout.split("\n")
        hashes = [text.split()[-1] for text, _ in given] + [line.split()[-1] for line in printed if line.strip()]
        expect(len(hashes) == 4 and len(set(hashes)) == 1, f"two ranks by their variables and two by mpirun have other sums: {hashes}")
        print(f"four ranks, two of them by {MPIRUN}, have the same sum, {hashes[0]}")


if __name__ == "__main__":
    sys.exit(main())
