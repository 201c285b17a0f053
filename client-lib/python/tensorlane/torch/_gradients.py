"""Sends gradients as they appear in the backward pass and keeps the sums in buffers of our own.

A *round* is what one step() consumes: the gradients of `passes` backward passes. Each registered parameter has a slot;
its place in the list is its position in the forward pass. Small neighbours share a registered tensor: a *batch* of
slots. In a round a slot's gradient is copied into its buffer once, and the buffer is posted when it has all of its
gradients: by the hook that runs when autograd has accumulated the last of them, or, where that moment is not known, by
send_rest() at the end of the backward pass, at step() or at synchronize():
  - in the first round, which only counts how often each slot's gradient is accumulated;
  - for *late* slots: tied parameters, and those accumulated several times in one backward pass (reentrant checkpointing
    of a shared weight);
  - for parameters that got no gradient: they count as p.grad, or as zeros, for other ranks may have used them. The roll
    call (_rounds.py), which send_rest() posts last, says whether any rank has.

A batch of parameters on a GPU has its buffer there. Whatever reads or writes that is put on the stream that is current
then, which in a hook is the stream that computed the gradient; waiting makes the current stream wait, and only the roll
call is waited for by the thread. On GPUs autograd runs hooks on threads of its own, one for each GPU.
"""

import threading
import weakref

import torch

from .. import _constants, _native
from ..errors import misuse
from . import _device, _rounds
from ._transport import TensorDesc

_SUPPORTED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
BATCH_BYTES = 64 << 10  # neighbours travel together up to this size


class Slot:
    """One registered parameter. `average` is its buffer, shaped like the parameter; it holds the result from wait()
    until the next post."""

    __slots__ = (
        "name", "index", "parameter", "average", "batch", "trained", "late", "accumulations", "last_pass", "passes",
        "given", "state", "seen", "left", "shown", "update", "seal", "watched",
    )

    def __init__(self, name, index, parameter):
        self.name = name
        self.index = index
        self.parameter = parameter
        self.average = None
        self.batch = None
        self.trained = True  # a parameter group has it
        self.late = False
        self.left = None  # (weak p.grad, its version) when the averages were put into it
        self.shown = None  # weak p.grad as step() or the backward pass left it, while it is watched
        self.update = None  # the snapshot of its group's hyperparameters while an update is pending
        self.seal = None  # what the parameter was when the update became pending
        self.watched = ()  # keys of what is watched meanwhile
        self.reset()

    def reset(self):
        """To the start of a round."""
        self.accumulations = 0
        self.last_pass = None  # the number of the latest pass that brought a gradient
        self.passes = 0  # how many passes did
        self.given = False  # its gradient of this round is complete
        self.state = _rounds.LEFT_OUT
        self.seen = None  # (p.grad, its version) after the last accumulation

    def where(self):
        return f"parameter '{self.name}'"

    def changed(self):
        """Whether p.grad is no longer what autograd left there."""
        if self.seen is None:
            return False
        gradient, version = self.seen
        return self.parameter.grad is not gradient or gradient._version != version

    def leave(self, gradient):
        """The averages have been put into it."""
        self.left = weakref.ref(gradient), gradient._version

    def was_left(self, gradient, version):
        """Whether it held the averages when it had this version."""
        return self.left is not None and self.left[0]() is gradient and self.left[1] == version

    def sent(self):
        return self.given and self.batch.posted

    def takes_part(self):
        return self.trained and (self.parameter.requires_grad or self.parameter.grad is not None)


class Batch:
    """One registered tensor: a large slot, or several small neighbours of one type and device."""

    __slots__ = ("index", "slots", "device", "buffer", "posted", "given", "wanted", "streams", "__weakref__")

    def __init__(self, index, slots):
        self.index = index
        self.slots = slots
        self.device = _device.gpu(slots[0].parameter, slots[0].where())
        self.buffer = None
        self.streams = None if self.device is None else _device.Streams()  # of the gradients that were given
        self.reset()

    def reset(self):
        self.posted = False
        self.given = 0
        self.wanted = len(self.slots)

    def give(self):
        """One gradient more, which the current stream has computed."""
        self.given += 1
        if self.streams is not None:
            self.streams.add(self.device)

    def count_wanted(self):
        """How many gradients to wait for in a round that begins."""
        self.wanted = sum(slot.trained and slot.parameter.requires_grad for slot in self.slots)

    def complete(self):
        """Whether it can be posted. A frozen slot may still have an update pending, which needs the buffer."""
        return not self.posted and self.given >= self.wanted and all(slot.update is None for slot in self.slots)

    def release(self):
        self.buffer = None
        for slot in self.slots:
            slot.average = None

    def label(self):
        first = self.slots[0].name
        return first if len(self.slots) == 1 else f"{first}+{len(self.slots) - 1}"

    def kinds(self):
        """(name, type and shape) of each parameter, for texts."""
        return tuple((slot.name, _kind(slot.parameter)) for slot in self.slots)

    def bind(self, buffer):
        self.buffer, begin = buffer, 0
        for slot in self.slots:
            count = slot.parameter.numel()
            slot.batch, slot.average = self, buffer[begin : begin + count].view(slot.parameter.shape)
            begin += count

    def fill(self):
        """Copies the gradients in. False when no slot takes part in this round."""
        if self.streams is not None:
            self.streams.join(self.device)
        sources, targets, empty = [], [], []
        for slot in self.slots:
            slot.state = _rounds.LEFT_OUT
            if slot.takes_part():
                gradient = slot.parameter.grad
                slot.state = _rounds.UNUSED if gradient is None else _rounds.USED
                if gradient is not None:
                    check_fits(slot, gradient, slot.average.dtype)
                    sources.append(gradient)
                    targets.append(slot.average)
                    continue
            empty.append(slot.average)
        if all(slot.state == _rounds.LEFT_OUT for slot in self.slots):
            return False
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(targets, sources)
            if empty:
                torch._foreach_zero_(empty)
        return True


class GradientSender:
    """Used by the training thread, and in a backward pass by autograd's threads, which then wait for each other or run
    while that thread waits. Holds hooks on the parameters until close(). Calls owner.before_round() when the
    first gradient of a round appears, and owner.after_pass(last) at the end of each backward pass, when all senders
    that took part in it have sent; `last`: of its round. With `whole` the end of the last pass of a round sends all
    that is left. `owner` is held weakly."""

    def __init__(self, transport, group, named_parameters, op, passes, owner, whole):
        self._transport = transport
        self._passes = passes
        self._sums = op == _constants.Sum
        self._owner = weakref.ref(owner)
        self.whole = whole
        self.steps = 0  # how many step() has made
        self.recording = True
        self.seen = None  # the backward pass and the thread of the last hook
        self._lock = threading.RLock()  # of hooks, on several GPUs
        self._pass_open = False
        self._passes_done = 0
        self._open = set()  # indices of what was posted and not yet waited for
        self._sent_whole = False  # all of this round has been posted
        self._agreed = None  # the roll call's outcome of the latest round
        self._agreed_steps = 0
        self.slots = [Slot(name, i, p) for i, (name, p) in enumerate(named_parameters)]
        for slot in self.slots:
            _check_supported(slot)
        self._batches = self._make_batches()
        self._roll_call_index = len(self._batches)
        self._register(group, op)
        self._hooks = [
            s.parameter.register_post_accumulate_grad_hook(_AccumulateHook(self, s.index)) for s in self.slots
        ]

    def close(self):
        for hook in self._hooks:
            hook.remove()

    def unregister(self):
        """Collective, after close(): the buffers are no longer ours. After an error another call goes on."""
        for batch in self._batches:
            batch.release()
        self._roll_call = None
        self._transport.unregister()

    @property
    def round_open(self):
        """Whether a gradient has been accumulated since the last new_round() or forget_unsent()."""
        return self._pass_open or self._passes_done > 0

    @property
    def posted(self):
        """Whether a part of this round has been posted."""
        return any(batch.posted for batch in self._batches)

    def on_accumulated(self, slot):
        with self._lock:
            self._take(slot, slot.parameter.grad)

    def _take(self, slot, gradient):
        if gradient.is_sparse:
            raise misuse(
                "its gradient is sparse, and only dense ones can be summed", slot.where(),
                "build the layer with sparse=False",
            )
        if slot.update is not None:
            raise misuse(
                "its gradient was computed while its update was pending, from values that step() had already replaced",
                slot.where(),
                "use the parameter on the thread that calls step(), or call flush() before the forward pass",
            )
        if not self._pass_open and slot.seen and slot.seen[0] is not gradient and not self.posted:
            self.forget_unsent()  # somebody has set p.grad to None since: what was accumulated before is gone
        if not self.round_open:
            self._owner().before_round()
        if not slot.trained:
            return
        if slot.given or slot.batch.posted or (slot.passes == self._passes and slot.last_pass != self._passes_done):
            raise misuse(
                f"a gradient appeared after {self._passes} backward pass(es) since the last step()", slot.where(),
                "call step() after every backward pass, or set backward_passes_per_step",
            )
        if self._sums and slot.was_left(gradient, gradient._version - 1):
            raise misuse(
                "its gradient was added to the sum over the ranks that an earlier backward pass had left in p.grad",
                slot.where(), "call zero_grad() before each backward pass, or set backward_passes_per_step",
            )
        _rounds.at_end_of_backward(self)
        self._pass_open = True
        slot.accumulations += 1
        slot.passes += slot.last_pass != self._passes_done
        slot.last_pass = self._passes_done
        slot.seen = (gradient, gradient._version)
        if not self.recording and not slot.late and self._passes_done + 1 >= self._passes:
            slot.given = True
            slot.batch.give()
            if slot.batch.complete():
                self._post(slot.batch)

    def set_trained(self, slots):
        """These are in a parameter group; the others are left alone."""
        for slot in self.slots:
            slot.trained = slot in slots
        for batch in self._batches:
            batch.count_wanted()

    def end_pass(self):
        """The backward pass is over. See _rounds.at_end_of_backward()."""
        self._close_pass()
        if self.whole and self._passes_done >= self._passes:
            self.send_rest()

    def after_pass(self):
        owner = self._owner()
        if owner is not None:
            owner.after_pass(self._passes_done >= self._passes)

    def send_rest(self, drop=False):
        """Sends what has not been sent in this round, and the roll call. Errors: a gradient was changed after autograd
        wrote it."""
        if self._sent_whole:
            return
        self._close_pass()
        if not drop:
            self.check_unchanged()
        unsent = [batch for batch in self._batches if not batch.posted]
        self._settle(unsent)
        rest = [batch for batch in unsent if batch.fill()]
        self._note_late()
        _rounds.write(self._roll_call, self.steps, drop, [slot.state for slot in self.slots])
        self._agreed, self._agreed_steps = None, self.steps
        indices = [*(batch.index for batch in rest), self._roll_call_index]
        self._transport.post_many(indices)
        self._open.update(indices)
        for batch in rest:
            batch.posted = True
        for slot in self.slots:
            slot.given = True
        self._sent_whole = True

    def check_unchanged(self):
        """Raises if somebody has written to a gradient after autograd did."""
        for slot in self.slots:
            if slot.changed() and (slot.sent() or slot.parameter.grad is not None):
                raise misuse(
                    "its gradient was changed after it was sent, so the sum over the ranks has the old one",
                    slot.where(), "call synchronize() after backward() and before what changes gradients",
                )

    def wait(self, slots):
        """Returns when `average` of all these holds the result of the latest round that was sent as a whole (on a GPU,
        when the current stream comes to what it is given from now on). The roll call comes first."""
        if self._roll_call_index in self._open:
            self._transport.wait(self._roll_call_index)
            self._open.discard(self._roll_call_index)
            self._agreed = _rounds.read(self._roll_call, self.slots, self._agreed_steps)
        indices = list({slot.batch.index: None for slot in slots if slot.batch.index in self._open})
        if indices:
            self._transport.wait_many(indices)
            self._open.difference_update(indices)

    def used(self, slot):
        """Whether any rank had a gradient for it in the latest round. After wait()."""
        return self._agreed[slot.index] >= _rounds.USED

    def done(self, slot):
        """Whether wait([slot]) would return at once, and no stream would wait."""
        return self._agreed is not None and (
            slot.batch.index not in self._open or self._transport.done(slot.batch.index)
        )

    def new_round(self):
        """After step() or synchronize(). The first round in which any rank had gradients ends the recording, on all
        ranks."""
        if self.recording and self._agreed is not None and any(state >= _rounds.USED for state in self._agreed):
            self.recording = False
            for slot in self.slots:
                slot.late = slot.late or self._agreed[slot.index] == _rounds.USED_SEVERAL_TIMES
        self._begin()

    def forget_unsent(self):
        """zero_grad(): what was accumulated since the last round is gone, and nothing of it was posted."""
        for slot in self.slots:
            slot.left = None
        self._begin()

    def _begin(self):
        self._pass_open = False
        self._passes_done = 0
        self._sent_whole = False
        for slot in self.slots:
            slot.reset()
        for batch in self._batches:
            batch.reset()

    def _close_pass(self):
        if self._pass_open:
            self._pass_open = False
            self._passes_done += 1

    def _note_late(self):
        for slot in self.slots:
            if slot.state == _rounds.USED and (slot.late or slot.accumulations > max(self._passes_done, 1)):
                slot.state = _rounds.USED_SEVERAL_TIMES

    def _settle(self, batches):
        """Before their buffers are used again: what an earlier round has left under way, because nobody needed its
        result, is over."""
        self.wait([slot for batch in batches for slot in batch.slots])

    def _post(self, batch):
        self._settle([batch])
        if batch.fill():
            self._transport.post(batch.index)
            self._open.add(batch.index)
            batch.posted = True

    def _make_batches(self):
        return [Batch(i, members) for i, members in enumerate(_neighbours(self.slots))]

    def _register(self, group, op):
        descs = []
        for batch in self._batches:
            first = batch.slots[0]
            count = sum(slot.parameter.numel() for slot in batch.slots)
            descs.append(
                TensorDesc(
                    f"{group}.{batch.label()}", count, first.parameter.dtype, first.index, len(self.slots),
                    parameters=batch.kinds(), device=batch.device,
                )
            )
        descs.append(self._roll_call_desc(group))
        *buffers, self._roll_call = self._transport.register(group, descs, op)
        for batch, buffer in zip(self._batches, buffers):
            batch.bind(buffer)

    def _roll_call_desc(self, group):
        count = len(self.slots)
        return TensorDesc(f"{group}.roll_call", _rounds.length(count), torch.uint8, 0, count, _native.MAX)


def _neighbours(slots):
    """Lists of neighbours of one type and device, as long as they stay small."""
    batches, last, size = [], [], 0
    for slot in slots:
        bytes_of_slot = slot.parameter.numel() * slot.parameter.element_size()
        if not last or not alike(last[0].parameter, slot.parameter) or size + bytes_of_slot > BATCH_BYTES:
            last, size = [], 0
            batches.append(last)
        last.append(slot)
        size += bytes_of_slot
    return batches


def alike(left, right):
    """Whether they can travel together."""
    return (left.dtype, left.device) == (right.dtype, right.device)


class _AccumulateHook:
    """Holds its sender weakly: an optimizer that the user has dropped sends nothing."""

    def __init__(self, sender, index):
        self._sender = weakref.ref(sender)
        self._index = index

    def __call__(self, parameter):
        sender = self._sender()
        if sender is not None:
            sender.on_accumulated(sender.slots[self._index])


def _kind(tensor):
    """Its type and shape, for texts."""
    return f"{tensor.dtype}{list(tensor.shape)}"


def check_fits(slot, gradient, dtype):
    """Raises unless the gradient is what was registered: of this type, and like the slot's buffer."""
    if gradient.dtype != dtype or gradient.shape != slot.average.shape:
        raise misuse(
            f"its gradient is of {_kind(gradient)}, and it was registered as {dtype}{list(slot.average.shape)}",
            slot.where(),
            "convert the model before DistributedOptimizer(), or wrap the optimizer again",
        )
    if gradient.device != slot.average.device:
        raise misuse(
            f"its gradient is on {gradient.device}, and it was registered on {slot.average.device}", slot.where(),
            "move the model before DistributedOptimizer(), or wrap the optimizer again",
        )


def _check_supported(slot):
    parameter = slot.parameter
    _device.gpu(parameter, slot.where())
    if parameter.dtype not in _SUPPORTED:
        raise misuse(
            f"dtype {parameter.dtype} is not supported", slot.where(), "use float32, float64, float16 or bfloat16"
        )
    if parameter.numel() == 0:
        raise misuse("it has no elements", slot.where(), "remove it from the optimizer's parameters")
