"""Which parameter ranks do not have alike, after the daemons have found that they register different tensors: several
parameters may share one, so the daemons cannot name it."""

import itertools
import json

import numpy

from .. import _native
from ..errors import Error, MismatchError

_NAME = "tensorlane.models"
_SENTENCE_BYTES = 1000  # two names of 255 bytes fit


def explain(error, context, ranks, parameters):
    """Collective: the MismatchError to raise in place of `error`, which all ranks got. `ranks`: how those of `context`
    are called. `parameters`: [(name, type and shape)] of this rank, in their order. `error` itself, if the parameters
    are alike, or the ranks cannot be asked."""
    try:
        reference = _of_first(context, parameters)
        place, sentence = _first_difference(reference, parameters, ranks[0], ranks[context.rank])
        mine = numpy.zeros(8 + _SENTENCE_BYTES, "uint8")
        _put(mine, place.to_bytes(8, "big") + sentence.encode()[:_SENTENCE_BYTES])
        everybodys = numpy.zeros((context.size, mine.size), "uint8")
        _finish(context, "allgather", context.allgather(
            _NAME, mine.ctypes.data, everybodys.ctypes.data, mine.size, _native.UINT8, 1.0, (mine, everybodys)))
    except Error:
        return error
    answers = [(row[:8].tobytes(), row[8:].tobytes().rstrip(b"\0").decode(errors="replace")) for row in everybodys]
    differences = [(place, sentence) for place, sentence in answers if sentence]
    if not differences:
        return error
    sentence = min(differences, key=lambda difference: difference[0])[1]
    return MismatchError(
        f"the ranks train different models: {sentence}: DistributedOptimizer: build the same model and freeze the same "
        "parameters on every rank"
    )


def _of_first(context, parameters):
    """The list of rank 0."""
    text = json.dumps(parameters).encode()
    length = numpy.array([len(text)], "int64")
    _finish(context, "broadcast", context.broadcast(_NAME, length.ctypes.data, 1, _native.INT64, 0, 1.0, length))
    buffer = numpy.zeros(int(length[0]), "uint8")
    if context.rank == 0:
        _put(buffer, text)
    _finish(
        context, "broadcast", context.broadcast(_NAME, buffer.ctypes.data, buffer.size, _native.UINT8, 0, 1.0, buffer)
    )
    return [tuple(parameter) for parameter in json.loads(buffer.tobytes())]


def _put(buffer, text):
    buffer[: len(text)] = numpy.frombuffer(text, "uint8")


def _finish(context, operation, request):
    request.wait(context.timeout)
    context.forget(f"{operation}.{_NAME}")


def _first_difference(reference, mine, first, rank):
    """(its place, what it is), or (any place, "")."""
    theirs_by_name, ours_by_name = dict(reference), dict(mine)
    for place, (theirs, ours) in enumerate(itertools.zip_longest(reference, mine)):
        if theirs == ours:
            continue
        if theirs is not None and theirs[0] not in ours_by_name:
            return place, f"rank {first} trains parameter '{theirs[0]}', {theirs[1]}, which rank {rank} does not"
        if ours is not None and ours[0] not in theirs_by_name:
            return place, f"rank {rank} trains parameter '{ours[0]}', {ours[1]}, which rank {first} does not"
        if theirs[0] == ours[0]:
            return place, f"parameter '{ours[0]}' is {theirs[1]} on rank {first} and {ours[1]} on rank {rank}"
        return (
            place,
            f"parameter {place} is '{theirs[0]}' on rank {first} and '{ours[0]}' on rank {rank}, in another order",
        )
    return 0, ""
