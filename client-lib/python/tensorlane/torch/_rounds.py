"""What the ranks agree on in every round, and when a backward pass is over.

With the gradients of a round travels one more small tensor, the *roll call*: each rank writes what it does, and the
maximum over the ranks tells every rank the same about all of them. A rank that drops the round's gradients while
another applies them, that is in another iteration, or that leaves out a parameter which another one sends, would
otherwise wait for ever or differ in silence: it is an error by name on all ranks.
"""

import sys
import threading
import weakref

import torch

from ..errors import MismatchError

HEAD = 4
_lock = threading.Lock()
_STEPS_MODULUS = 251  # of the count of steps, which travels in a byte
# The last one says that its gradient is accumulated several times in a backward pass.
LEFT_OUT, UNUSED, USED, USED_SEVERAL_TIMES = range(4)


def length(slots):
    return HEAD + 2 * slots


def write(buffer, steps, drop, states):
    """This rank's part. `states`: of each slot."""
    step = steps % _STEPS_MODULUS
    values = [step, 255 - step, int(drop), 1 - int(drop)]
    for state in states:
        values += (state, int(state == LEFT_OUT))
    buffer.copy_(torch.tensor(values, dtype=torch.uint8))


def read(buffer, slots, steps):
    """What is true of all ranks: for each slot the highest state. Raises MismatchError where they do not fit together.
    """
    values = buffer.tolist()
    if values[0] + values[1] != 255:
        raise MismatchError(
            f"the ranks are not in the same iteration: this rank has called step() {steps} times, another one more or "
            "fewer times: DistributedOptimizer: call backward() and step() equally often on all ranks; a rank without "
            "a batch calls step() alone"
        )
    if values[2] and values[3]:
        raise MismatchError(
            "some ranks dropped the gradients of this iteration by zero_grad(), others did not: DistributedOptimizer: "
            "call zero_grad() after backward() on all ranks or on none"
        )
    states = values[HEAD::2]
    for slot, state, left_out in zip(slots, states, values[HEAD + 1 :: 2]):
        if state != LEFT_OUT and left_out:
            raise MismatchError(
                "some ranks leave it out, since it is frozen or in no parameter group there, and others do not: "
                f"{slot.where()}: freeze parameters and change parameter groups alike on all ranks"
            )
    return states


_MOST_PASSES = 64  # what is remembered of those that failed
_passes = {}  # backward passes by their numbers


class _Pass:
    """A backward pass that some senders wait for the end of."""

    def __init__(self):
        self.senders = weakref.WeakSet()
        self.nested = False  # it is inside of another one


def at_end_of_backward(sender):
    """Called by a gradient's hook: when the backward pass is over, sender.end_pass() runs and then sender.after_pass().
    If several senders wait for this pass, every one has sent before any waits. A backward pass inside another one
    (reentrant checkpointing) is a part of it, not its end. Where the outer one has no hook of ours, and where it fails,
    nothing is called. On GPUs hooks run on autograd's threads, and the end may be on another one of them."""
    seen = torch._C._current_graph_task_id(), threading.get_ident()
    if getattr(sender, "seen", None) == seen:
        return
    sender.seen = seen
    task, _ = seen
    with _lock:
        if task not in _passes:
            if len(_passes) >= _MOST_PASSES:
                del _passes[min(_passes)]
            _passes[task] = _Pass()
            torch.autograd.Variable._execution_engine.queue_callback(lambda: _ended(task))
        _passes[task].senders.add(sender)
        _passes[task].nested |= _is_nested()


def _ended(task):
    with _lock:
        ended = _passes.pop(task, None)
    if ended is None or ended.nested or _is_nested():
        return
    senders = list(ended.senders)
    for sender in senders:
        sender.end_pass()
    for sender in senders:
        sender.after_pass()


def _is_nested():
    """Whether this thread runs a backward pass that was called in another one: by its caller's caller, or, on a thread
    of autograd's own, by a torch.autograd.Function. Where the thread that called it is another one (a checkpointed
    segment without a parameter on the device of its result), this is not seen, and a gradient of the next segment is an
    error. Frames of other threads must not be followed: the interpreter may end by it."""
    inside, frame = False, sys._getframe(1)
    while frame is not None:
        if inside and frame.f_code in _CALLERS:
            return True
        inside |= frame.f_code is _BACKWARD
        frame = frame.f_back
    return False


_BACKWARD = torch.autograd.backward.__code__
_CALLERS = (_BACKWARD, torch.autograd.function.BackwardCFunction.apply.__code__)


def on_autograds_thread():
    """Whether this is a thread of autograd's own, at work for a backward pass."""
    return torch._C._current_graph_task_id() != -1 and isinstance(threading.current_thread(), threading._DummyThread)
