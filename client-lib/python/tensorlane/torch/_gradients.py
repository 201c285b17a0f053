"""Sends gradients as they appear in the backward pass and keeps the sums in buffers of our own.

A *round* is what one step() consumes: the gradients of `passes` backward passes. Each registered parameter has a slot; its place in the list is
its position in the forward pass. In a round a slot's gradient is copied into its buffer and posted once, by the hook that runs when autograd has
accumulated it for the last time of the round, or, where that moment is not known, by send_rest() at step() or synchronize():
  - in the first round, which only counts how often each slot's gradient is accumulated;
  - for *late* slots: tied parameters, and those accumulated several times in one backward pass (reentrant checkpointing of a shared weight);
  - for parameters that got fewer gradients than `passes`. One that got none sends p.grad as it is, or zeros, for other ranks may have used it.
"""

import sys
import weakref

import torch

from ..errors import misuse
from ._transport import TensorDesc

_SUPPORTED = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


class Slot:
    """One registered parameter. `average` is its buffer, shaped like the parameter; it holds the result from wait() until the next post."""

    __slots__ = ("name", "index", "parameter", "average", "late", "accumulations", "outer_accumulations", "sent", "active", "seen", "update")

    def __init__(self, name, index, parameter):
        self.name = name
        self.index = index
        self.parameter = parameter
        self.average = None
        self.late = False
        self.update = None  # the snapshot of its group's hyperparameters while an update is pending
        self.reset()

    def reset(self):
        """To the start of a round."""
        self.accumulations = 0
        self.outer_accumulations = 0
        self.sent = False
        self.active = False  # takes part in this round
        self.seen = None  # (p.grad, its version) after the last accumulation

    def where(self):
        return f"parameter '{self.name}'"

    def changed(self):
        """Whether p.grad is no longer what autograd left there."""
        if self.seen is None:
            return False
        gradient, version = self.seen
        return self.parameter.grad is not gradient or gradient._version != version


class GradientSender:
    """Owned by one optimizer and used by its training thread. Holds hooks on the parameters until close()."""

    def __init__(self, transport, group, named_parameters, op, passes):
        self._transport = transport
        self._passes = passes
        self.recording = True
        self.round_open = False  # a gradient has been accumulated since the last new_round()
        self.slots = [Slot(name, i, p) for i, (name, p) in enumerate(named_parameters)]
        for slot in self.slots:
            _check_supported(slot)
        descs = [TensorDesc(f"{group}.{s.name}", s.parameter.numel(), s.parameter.dtype) for s in self.slots]
        for slot, buffer in zip(self.slots, transport.register(group, descs, op)):
            slot.average = buffer.view(slot.parameter.shape)
        self._hooks = [s.parameter.register_post_accumulate_grad_hook(_AccumulateHook(self, s.index)) for s in self.slots]

    def close(self):
        for hook in self._hooks:
            hook.remove()

    def on_accumulated(self, slot):
        gradient = slot.parameter.grad
        if gradient.is_sparse:
            raise misuse("its gradient is sparse, and only dense ones can be summed", slot.where(), "build the layer with sparse=False")
        if slot.update is not None:
            raise misuse(
                "its gradient was computed while its update was pending, from values that step() had already replaced", slot.where(),
                "use the parameter only inside the modules that used it in the first iteration, or call flush() before the forward pass",
            )
        self.round_open = True
        slot.accumulations += 1
        if self.recording or slot.late:
            slot.outer_accumulations += _backward_depth() == 1
        if slot.sent or slot.outer_accumulations > self._passes:
            raise misuse(
                f"a gradient appeared after {self._passes} backward pass(es) since the last step()", slot.where(),
                "call step() after every backward pass, or set backward_passes_per_step",
            )
        slot.seen = (gradient, gradient._version)
        if not (self.recording or slot.late) and slot.accumulations == self._passes:
            self._send(slot)

    def send_rest(self):
        """Sends what has not been sent in this round. Errors: a gradient was changed after autograd wrote it."""
        for slot in self.slots:
            if slot.changed() and (slot.sent or slot.parameter.grad is not None):
                raise misuse(
                    "its gradient was changed after it was sent, so the sum over the ranks has the old one", slot.where(),
                    "call synchronize() after backward() and before what changes gradients (clipping, GradScaler.unscale_, zero_grad)",
                )
        for slot in self.slots:
            # Frozen since it was registered, as on every rank: nothing to send, nothing to update.
            if not slot.sent and (slot.parameter.requires_grad or slot.parameter.grad is not None):
                self._send(slot)

    def wait(self, slot):
        """Returns when `slot.average` holds this round's result."""
        self._transport.wait(slot.index)

    def new_round(self):
        """After step() or synchronize(). The first one that saw gradients ends the recording."""
        if self.recording and self.round_open:
            self.recording = False
            for slot in self.slots:
                slot.late = slot.late or slot.accumulations > self._passes
        self.round_open = False
        for slot in self.slots:
            slot.reset()

    def forget_unsent(self):
        """zero_grad() between two passes of a round: what was accumulated so far is gone."""
        for slot in self.slots:
            slot.seen = None

    def _send(self, slot):
        gradient = slot.parameter.grad
        with torch.no_grad():
            if gradient is None:
                slot.average.zero_()
            else:
                slot.average.copy_(gradient)
        self._transport.post(slot.index)
        slot.sent = slot.active = True


class _AccumulateHook:
    """Holds its sender weakly: an optimizer that the user has dropped sends nothing."""

    def __init__(self, sender, index):
        self._sender = weakref.ref(sender)
        self._index = index

    def __call__(self, parameter):
        sender = self._sender()
        if sender is not None:
            sender.on_accumulated(sender.slots[self._index])


def _backward_depth():
    """How many backward passes are running on this thread: 2 or more inside reentrant checkpointing."""
    depth, frame = 0, sys._getframe(1)
    while frame is not None:
        depth += frame.f_code is torch.autograd.backward.__code__
        frame = frame.f_back
    return depth


def _check_supported(slot):
    parameter = slot.parameter
    if parameter.device.type != "cpu":
        raise misuse(f"tensors on {parameter.device} are not supported yet", slot.where(), "keep the model on the CPU")
    if parameter.dtype not in _SUPPORTED:
        raise misuse(f"dtype {parameter.dtype} is not supported", slot.where(), "use float32, float64, float16 or bfloat16")
    if parameter.numel() == 0:
        raise misuse("it has no elements", slot.where(), "remove it from the optimizer's parameters")
