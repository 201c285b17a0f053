"""How somebody outside lets several jobs that are all up take turns: files in a folder that all of them see."""

import json
import os
import time

POLL_SECONDS = 0.005


def follow_blocks(rank, folder, arm, run):
    """Whenever FOLDER/ARM.go.K appears (it holds a number of iterations), calls run(iterations) and answers with
    FOLDER/ARM.done.K from rank 0: what run() returned, as JSON. Returns when FOLDER/stop appears."""
    if rank == 0:
        write(os.path.join(folder, f"{arm}.ready"), "{}")
    block = 0
    while True:
        gate = os.path.join(folder, f"{arm}.go.{block}")
        if os.path.exists(gate):
            report = run(int(open(gate).read()))
            if rank == 0:
                write(os.path.join(folder, f"{arm}.done.{block}"), json.dumps(report))
            block += 1
        elif os.path.exists(os.path.join(folder, "stop")):
            return
        else:
            time.sleep(POLL_SECONDS)


def write(path, text):
    """In one piece: who sees the file sees all of it."""
    with open(path + ".part", "w") as file:
        file.write(text)
    os.replace(path + ".part", path)
