"""A job that sends bulk without end: its first rank broadcasts to the others, always the least urgent traffic there is.

    tensorlane run -n 2 --hosts lab -- python -m tensorlane.examples.flood --mib 8 --stop /tmp/stop
"""

import argparse
import os
import sys

import numpy

import tensorlane as tl


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=8, help="size of each of the two messages that are under way")
    parser.add_argument(
        "--stop", required=True, metavar="FILE", help="ends when this file appears (looked at by the first rank)"
    )
    args = parser.parse_args()
    tl.init()
    buffers = [numpy.zeros(args.mib << 18, dtype=numpy.float32) for _ in range(2)]
    handles = [None, None]
    turn = 0
    while True:
        if handles[turn] is not None:
            tl.synchronize(handles[turn])
            if buffers[turn][-1] != 0:
                break
        if tl.rank() == 0:
            buffers[turn][-1] = float(os.path.exists(args.stop))
        handles[turn] = tl.broadcast_async_(buffers[turn], 0, name=f"flood.{turn}", priority=0.0)
        turn ^= 1
    tl.synchronize(handles[turn ^ 1])
    tl.shutdown()


if __name__ == "__main__":
    sys.exit(main())
