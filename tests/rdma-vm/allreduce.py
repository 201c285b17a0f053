"""One rank that sums arrays of known numbers again and again for some seconds, and checks every sum bit by bit.

    allreduce.py SECONDS ELEMENTS

Prints "running" after the first sum, then how many rounds there were and how long the longest took; or the error, and exits with 1."""

import sys
import time

import numpy

import tensorlane as tl


def numbers(elements, rank, count):
    # Small integers: every order of summation gives the same bits.
    return ((numpy.arange(elements) + 7 * rank + count) % 1021).astype(numpy.float32)


def run(seconds, elements):
    rank, size, count, longest, end = tl.rank(), tl.size(), 0, 0.0, time.monotonic() + seconds
    go_on = size
    while go_on == size:
        begin = time.monotonic()
        result = tl.allreduce(numbers(elements, rank, count), op=tl.Sum, name="numbers")
        assert numpy.array_equal(result, sum(numbers(elements, r, count) for r in range(size))), f"a wrong sum in round {count}"
        if count == 0:
            print("running", flush=True)
        count += 1
        # All stop after the same round: when one of them has had enough.
        go_on = tl.allreduce(numpy.float32([time.monotonic() < end]), op=tl.Sum, name="go on")[0]
        longest = max(longest, time.monotonic() - begin)
    print(f"{count} rounds, longest {longest:.2f} s", flush=True)


try:
    tl.init()
    run(float(sys.argv[1]), int(sys.argv[2]))
    tl.shutdown()
except tl.Error as error:
    print(f"error: {error}", flush=True)
    sys.exit(1)
