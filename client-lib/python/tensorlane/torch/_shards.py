"""How parameters are shared out over the ranks (DistributedOptimizer with sharded=True), and what travels.

Neighbours in the forward pass make a *bucket*. It has two flat buffers of one layout, which a reduce-scatter and an
all-gather cut into one *share* for each rank:
  - `values` holds the parameters themselves: each p.data lies in it, so that what arrives is in its place;
  - `buffer` gets the gradients, as of _gradients.py, in the type that travels. Then p.grad is given up.
By element, a share is the rank's part of all elements, ceil(n / ranks) of them, whatever parameter they belong to. By
parameter, a share holds whole parameters. What of a parameter lies in this rank's share is a *segment*.
"""

import torch

from .. import _native
from ..errors import MismatchError, misuse
from . import _rounds
from ._gradients import Batch, GradientSender, alike, check_fits
from ._transport import TensorDesc

BUCKET_BYTES = 1 << 20  # neighbours travel together up to this size
TINY_BYTES = 64 << 10  # and what is smaller, with others of its module, or with the next one, however large those are
ELEMENT, PARAMETER = "element", "parameter"  # what is never cut

# Urgencies, in the order of the next forward pass, which waits for all-gathers. step() waits for all reduce-scatters as
# soon as the backward pass has ended, so none of them can wait for another job's bulk: all are above the threshold
# between two classes, by default.
_VALUES, _GRADIENTS = (0.75, 0.25), (0.5, 0.24)

# What a rank does with the gradients of a round.
STEP, DROP, CLIP, UNSCALE = range(1, 5)
COMPARE = 5  # before the first of them: whether all ranks have trained the same model
_CALLS = {STEP: "step()", DROP: "zero_grad()", CLIP: "clip_grad_norm_()", UNSCALE: "GradScaler.unscale_()"}
_CALLS[COMPARE] = "a first time"
_VERDICT = 5  # numbers of each rank: the call, how many step() there were, max_norm, norm_type, and what the call means


class Segment:
    """What this rank has of a parameter: `count` elements from `begin` on, as they lie in memory. `parameter` is what
    the inner optimizer steps, with `gradient`; both are views of the bucket's buffers."""

    __slots__ = ("slot", "begin", "count", "parameter", "gradient")

    def __init__(self, slot, begin, count):
        self.slot = slot
        self.begin = begin
        self.count = count


class Bucket(Batch):
    """Slots whose parameters are shared out together."""

    __slots__ = ("by", "wire", "rank", "size", "offsets", "share", "values", "gradients", "segments", "padding")

    def __init__(self, index, slots, by, wire, rank, size):
        self.by = by
        dtype = slots[0].parameter.dtype
        self.wire = wire if wire is not None and dtype in (torch.float32, torch.float64) else dtype
        self.rank = rank
        self.size = size
        counts = [slot.parameter.numel() for slot in slots]
        self.offsets, self.share = (_cut_elements if by == ELEMENT else _cut_parameters)(counts, size)
        self.values = self.gradients = None
        self.segments = []
        self.padding = []
        super().__init__(index, slots)
        if self.device is not None:
            raise misuse(
                "sharded=True takes parameters in host memory", slots[0].where(), "move it to the CPU, or leave it out"
            )

    def count(self):
        """Elements of a buffer."""
        return self.share * self.size

    def bind(self, buffer):
        """The buffer of gradients."""
        self.buffer = buffer
        for slot, offset in zip(self.slots, self.offsets):
            slot.batch, slot.average = self, _shaped(buffer[offset : offset + slot.parameter.numel()], slot.parameter)
        end = 0
        for offset, slot in sorted(zip(self.offsets, self.slots), key=lambda pair: pair[0]):
            self.padding.append(buffer[end:offset])
            end = offset + slot.parameter.numel()
        self.padding = [gap for gap in (*self.padding, buffer[end:]) if gap.numel()]

    def bind_values(self, values):
        """The parameters move into this buffer."""
        self.values = values
        mine = self._mine(self.buffer)
        same = self.wire == values.dtype
        self.gradients = mine if same else torch.zeros(self.share, dtype=values.dtype, device=values.device)
        for slot, offset in zip(self.slots, self.offsets):
            place = _shaped(_storage_of_its_own(values, offset, slot.parameter.numel()), slot.parameter)
            place.copy_(slot.parameter.detach())
            slot.parameter.data = place
            self._add_segment(slot, offset)

    def release(self):
        super().release()
        self.values = self.gradients = None
        self.segments, self.padding = [], []

    def fill(self):
        """Takes the gradients out of p.grad. False when no slot takes part in this round."""
        for slot in self.slots:
            if slot.takes_part() and slot.parameter.grad is not None:
                check_fits(slot, slot.parameter.grad, slot.parameter.dtype)
        sources, targets, empty = [], [], list(self.padding)
        for slot in self.slots:
            gradient = slot.parameter.grad if slot.takes_part() else None
            slot.state = _rounds.USED if gradient is not None else _rounds.LEFT_OUT
            if gradient is None:
                slot.state = _rounds.UNUSED if slot.takes_part() else _rounds.LEFT_OUT
                empty.append(slot.average)
                continue
            sources.append(gradient)
            targets.append(slot.average)
        if all(slot.state == _rounds.LEFT_OUT for slot in self.slots):
            return False
        with torch.no_grad():
            if sources:
                torch._foreach_copy_(targets, sources)
            if empty:
                torch._foreach_zero_(empty)
        for slot in self.slots:
            if slot.state == _rounds.USED:
                slot.parameter.grad = slot.seen = None
        return True

    def take_sums(self):
        """This rank's share has arrived."""
        if self.gradients.dtype != self.wire:
            self.gradients.copy_(self._mine(self.buffer))

    def _mine(self, buffer):
        return buffer[self.rank * self.share : (self.rank + 1) * self.share]

    def _add_segment(self, slot, offset):
        first = self.rank * self.share
        begin, end = max(offset, first), min(offset + slot.parameter.numel(), first + self.share)
        if begin >= end:
            return
        segment = Segment(slot, begin - offset, end - begin)
        values, gradient = self.values[begin:end], self.gradients[begin - first : end - first]
        if self.by == PARAMETER:
            values, gradient = _shaped(values, slot.parameter), _shaped(gradient, slot.parameter)
        segment.parameter, segment.gradient = torch.nn.Parameter(values), gradient
        self.segments.append(segment)


class ShardSender(GradientSender):
    """Reduce-scatters gradients, and all-gathers parameters. Used as its base."""

    def __init__(self, transport, group, named_parameters, op, passes, owner, *, by, wire):
        self._kind = by, wire, transport.rank, transport.size
        super().__init__(transport, group, named_parameters, op, passes, owner, whole=True)
        self._values_under_way = set()  # numbers of buckets

    @property
    def buckets(self):
        return self._batches

    @property
    def sent_whole(self):
        """All of this round has been posted."""
        return self._sent_whole

    def post_values(self, buckets):
        """This rank's shares of these are stepped: everybody gets them."""
        numbers = [bucket.index for bucket in buckets]
        self._transport.post_many([self._first_value + number for number in numbers])
        self._values_under_way.update(numbers)

    def wait_values(self, buckets):
        numbers = [bucket.index for bucket in buckets if bucket.index in self._values_under_way]
        if numbers:
            self._transport.wait_many([self._first_value + number for number in numbers])
            self._values_under_way.difference_update(numbers)

    def exchange(self, call, value=0.0, limit=0.0, kind=0.0):
        """The `value` of each rank, in their order. Collective: MismatchError where they make different calls, or give
        different limits (max_norm) or kinds (norm_type), which are numbers."""
        rank, size = self._kind[2:]
        mine = [float(call), float(self.steps), limit, kind, value]
        self._verdict[rank * _VERDICT : (rank + 1) * _VERDICT] = torch.tensor(mine, dtype=torch.float64)
        self._transport.post(self._verdict_index)
        self._transport.wait(self._verdict_index)
        rows = self._verdict.view(size, _VERDICT).tolist()
        for other, row in enumerate(rows):
            if row[:-1] != mine[:-1]:
                raise MismatchError(
                    f"the ranks do different things: rank {rank} calls {_said(mine)}, and rank {other} {_said(row)}: "
                    "DistributedOptimizer: make the same calls on all ranks"
                )
        return [row[-1] for row in rows]

    def gather(self, value):
        """Collective, between rounds: everybody's `value`. MismatchError where another rank has a round open."""
        _rounds.write(self._roll_call, self.steps, True, [_rounds.UNUSED] * len(self.slots))
        self._transport.post(self._roll_call_index)
        self._transport.wait(self._roll_call_index)
        try:
            _rounds.read(self._roll_call, self.slots, self.steps)
        except MismatchError:
            raise MismatchError(
                "some ranks call full_state_dict() while others train: DistributedOptimizer: call it on all ranks, "
                "between the same two iterations; state_dict() has this rank's part alone"
            ) from None
        return self._transport.gather(f"{self._group}.state", value)

    def _make_batches(self):
        by = self._kind[0]
        size = self._kind[3]
        most = BUCKET_BYTES if by == ELEMENT else BUCKET_BYTES * size
        return [Bucket(i, slots, *self._kind) for i, slots in enumerate(_neighbours(self.slots, most))]

    def check_unchanged(self):
        """As of its base. When gradients have been sent, none is in p.grad."""
        super().check_unchanged()
        for slot in self.slots:
            if slot.sent() and slot.state != _rounds.LEFT_OUT and slot.parameter.grad is not None:
                raise misuse(
                    "it was given a gradient after its own was sent, so the sum over the ranks has the old one",
                    slot.where(), "leave p.grad alone between backward() and step()",
                )

    def _register(self, group, op):
        self._group = group
        gradients, values = [], []
        for bucket in self._batches:
            name, first, dtype = bucket.label(), bucket.slots[0].index, bucket.slots[0].parameter.dtype
            common = {"position": first, "positions": len(self.slots), "count": bucket.count()}
            gradients.append(TensorDesc(
                f"{group}.{name}", dtype=bucket.wire, operation=_native.REDUCESCATTER, op=op,
                urgency=self._urgency(_GRADIENTS, first), parameters=bucket.kinds(), **common,
            ))
            values.append(TensorDesc(
                f"{group}.{name}.values", dtype=dtype, operation=_native.ALLGATHER,
                urgency=self._urgency(_VALUES, first), **common,
            ))
        verdict = TensorDesc(
            f"{group}.verdict", _VERDICT * self._kind[3], torch.float64, 0, len(self.slots),
            operation=_native.ALLGATHER, urgency=1.0,
        )
        count = len(self._batches)
        self._first_value, self._verdict_index = count + 1, 2 * count + 1
        buffers = self._transport.register(group, [*gradients, self._roll_call_desc(group), *values, verdict], op)
        self._roll_call, self._verdict = buffers[count], buffers[-1]
        with torch.no_grad():
            for bucket, buffer, memory in zip(self._batches, buffers, buffers[count + 1 :]):
                bucket.bind(buffer)
                bucket.bind_values(memory)

    def _urgency(self, band, position):
        lowest, width = band
        return lowest + width * (1 - position / len(self.slots))

    def unregister(self):
        self._verdict = None
        super().unregister()


def _said(row):
    """What a rank has said by exchange(), in words."""
    call, steps, limit, kind, _ = row
    given = f" with max_norm={limit:g}" if limit or call == CLIP else ""
    given += f", norm_type={kind:g}" if kind not in (0.0, 2.0) else ""
    return f"{_CALLS[int(call)]}{given} in iteration {int(steps)}"


def _neighbours(slots, most):
    """Lists of those that travel together."""
    buckets, last, size, module = [], [], 0, None
    for slot in slots:
        count, owner = slot.parameter.numel() * slot.parameter.element_size(), slot.name.rpartition(".")[0]
        fits = size + count <= most or size <= TINY_BYTES or (owner == module and count <= TINY_BYTES)
        if not last or not alike(last[0].parameter, slot.parameter) or not fits:
            last, size = [], 0
            buckets.append(last)
        last.append(slot)
        size, module = size + count, owner
    return buckets


def _cut_elements(counts, size):
    """(where each parameter begins, elements of a share)."""
    offsets, end = [], 0
    for count in counts:
        offsets.append(end)
        end += count
    return offsets, -(-end // size)


def _cut_parameters(counts, size):
    """As _cut_elements(): the largest ones first, each to the rank that has the least."""
    loads, owners = [0] * size, {}
    for place in sorted(range(len(counts)), key=lambda place: -counts[place]):
        owner = loads.index(min(loads))
        owners[place] = owner, loads[owner]
        loads[owner] += counts[place]
    share = max(loads)
    return [owner * share + begin for owner, begin in (owners[place] for place in range(len(counts)))], share


def _shaped(flat, parameter):
    """A view of the shape and the strides of the parameter, where that is dense in memory."""
    strides = torch.empty_like(parameter, device="meta").stride()
    return flat.as_strided(parameter.shape, strides, flat.storage_offset())


def _storage_of_its_own(flat, begin, count):
    """These elements of a buffer, as a tensor that ends with them: whoever saves it saves nothing else."""
    size = flat.element_size()
    return torch.from_numpy(flat.view(torch.uint8).numpy()[begin * size : (begin + count) * size]).view(flat.dtype)
