"""Notices that a parameter was written while its update was pending, past every torch function that is watched: by a
NumPy array that shares its memory, a C++ extension, another thread. Tracked writes show in the tensor's version. Others
show in its bits: these are compared for all parameters in the first iterations, when a program's habits show, and for
one parameter of each later iteration, in turn. Not of parameters on GPUs: no NumPy array shares their memory, and to
look at bits there is to wait for the GPU."""

import torch

from ..errors import misuse

_THOROUGH_STEPS = 10
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class Seals:
    """Of one optimizer's slots. `damage`: what becomes of such a write; `way_out`: what lets no update be pending."""

    def __init__(self, damage, way_out):
        self._damage = damage
        self._way_out = way_out
        self._steps = 0

    def make(self, slots):
        """The updates of `slots` have become pending."""
        thorough = slots if self._steps < _THOROUGH_STEPS else [slots[self._steps % len(slots)]]
        self._steps += 1
        for slot in slots:
            slot.seal = (slot.parameter._version, None)
        for slot in thorough:
            if slot.parameter.device.type == "cpu":
                slot.seal = (slot.parameter._version, bits_of(slot.parameter))

    def check(self, slots):
        """Their updates are about to be applied. Raises if a parameter is not what it was."""
        for slot in slots:
            if slot.seal is None:
                continue
            version, bits = slot.seal
            if slot.parameter._version != version or (bits is not None and bits_of(slot.parameter) != bits):
                raise misuse(
                    f"it was written while its update was pending, so {self._damage}", slot.where(),
                    "call flush() before what writes it without torch's functions or on another thread, or "
                    f"{self._way_out}",
                )


def bits_of(parameter):
    """A number that changes with any one of its bits."""
    values = parameter.detach()
    return int(values.contiguous().view(-1).view(_INTEGERS[values.element_size()]).sum())
