"""The example of checkpoints, in which a rank fails once. A script, run under torchrun by examples/test_restarts.py:

    restarts.py HOW RANK TIME FOLDER ...    the rest are arguments of tensorlane.examples.checkpoint

    killed    when RANK has done TIME iterations, it is killed
    raises    then it raises an error
    saving    in the checkpoint TIME it is killed when all ranks have written their files, and nothing says yet that they are whole

The other ranks say how soon they were told, and what.
"""

import os
import pathlib
import signal
import sys
import time

import torch
import torch.distributed.checkpoint as dcp
from tensorlane.examples import checkpoint
from torch.optim.optimizer import register_optimizer_step_post_hook


def fail(how, left, failed_at):
    """To be called each time; the last one fails."""
    left.pop()
    if left:
        return
    failed_at.write_text(str(time.monotonic()))  # all processes of a machine have one clock
    if how == "raises":
        raise ValueError("this rank fails")
    os.kill(os.getpid(), signal.SIGKILL)


def arrange(how, times, failed_at):
    left = [None] * times
    if how == "saving":
        finish = dcp.FileSystemWriter.finish

        def fail_or_finish(*arguments, **options):
            fail(how, left, failed_at)
            return finish(*arguments, **options)

        dcp.FileSystemWriter.finish = fail_or_finish
    else:
        register_optimizer_step_post_hook(lambda *_: fail(how, left, failed_at))


def main():
    how, failing, times, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), pathlib.Path(sys.argv[4])
    sys.argv = ["checkpoint", "--folder", str(folder), *sys.argv[5:]]
    torch.set_num_threads(1)
    rank, failed_at = int(os.environ["RANK"]), folder / "failed"
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        # torchrun ends the other ranks when it sees that one has failed. They are to hear it from their daemon.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if rank == failing:
            arrange(how, times, failed_at)
    try:
        checkpoint.main()
    except torch.distributed.DistBackendError as error:
        print(f"rank {rank}: was told after {time.monotonic() - float(failed_at.read_text()):.3f} s: {error}", flush=True)
        raise


if __name__ == "__main__":
    main()
