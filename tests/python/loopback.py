"""Transports for tests in one process: the optimizer's _transport.Transport without daemons.

`Loopback` is a world of one. `Hub(n)` makes n transports, one for each rank's thread, that reduce in the order of the ranks.
"""

import copy
import threading

import torch
from tensorlane import _native, errors


class _Transport:
    """What both have in common: buffers by index, and calls for many of them."""

    def register(self, group, descs, op):
        self.buffers = [torch.zeros(d.count, dtype=d.dtype, device=d.device or "cpu") for d in descs]
        return self.buffers

    def post_many(self, indices):
        for index in indices:
            self.post(index)

    def wait_many(self, indices):
        for index in indices:
            self.wait(index)


class Loopback(_Transport):
    """A world of one: the sum is what was posted. Keeps a log of what the optimizer did with gradients; its roll call is left out."""

    def __init__(self, arrived=False):
        self.log = []
        self.names = []
        self.buffers = []  # of the gradients, and last of the roll call
        self.under_way = set()
        self.arrived = arrived  # whether a sum is there before anybody waits for it
        self.failure = None

    def register(self, group, descs, op):
        self.group = group
        self.names = [d.name.split(".", 2)[2] for d in descs]
        self.urgencies = [1 - d.position / d.positions for d in descs]
        assert self.names[-1] == "roll_call"
        return super().register(group, descs, op)

    def post(self, index):
        if self.failure:
            raise self.failure
        assert index not in self.under_way, f"{self.names[index]} posted twice"
        self.under_way.add(index)
        self._note("post", index)

    def wait(self, index):
        if self.failure:
            raise self.failure
        if index in self.under_way:
            self.under_way.discard(index)
            self._note("wait", index)

    def done(self, index):
        return index not in self.under_way or self.arrived

    def unregister(self):
        assert self.buffers, "unregistered twice"
        self.buffers = []

    def posted(self):
        return [name for what, name in self.log if what == "post"]

    def _note(self, what, index):
        if self.names[index] != "roll_call":
            self.log.append((what, self.names[index]))


class Hub:
    """A world of `size` ranks in the threads of one process. A rank that gives up calls leave(): then all that wait for it fail, as in a job."""

    def __init__(self, size, seconds=30):
        self.size = size
        self.seconds = seconds
        self.changed = threading.Condition()
        self.rounds = {}
        self.gone = {}
        self.optimizers = [0] * size

    def transport(self, rank, draw=None):
        """One for each optimizer; the ranks ask for theirs in one order. draw(rank) decides whether a sum is there before anybody waits for it (done()); without it
        none is."""
        self.optimizers[rank] += 1
        return _HubTransport(self, rank, self.optimizers[rank], draw)

    def leave(self, rank, why):
        with self.changed:
            self.gone[rank] = why
            self.changed.notify_all()


class _HubTransport(_Transport):
    def __init__(self, hub, rank, number, draw):
        self.hub = hub
        self.number = number
        self.rank = rank
        self.draw = draw
        self.counts = {}
        self.waiting = {}
        self.log = []  # (post or wait, the name of the buffer)

    @property
    def size(self):
        return self.hub.size

    def register(self, group, descs, op):
        self.descs = descs
        self.names = [d.name for d in descs]
        self.ops = [op if d.op is None else d.op for d in descs]
        return super().register(group, descs, op)

    def post(self, index):
        assert index not in self.waiting, f"{self.names[index]} posted twice"
        self.log.append(("post", self.names[index]))
        sequence = self.counts[index] = self.counts.get(index, 0) + 1
        self.waiting[index] = sequence
        with self.hub.changed:
            self.hub.rounds.setdefault((self.number, index, sequence), {})[self.rank] = self.buffers[index].to("cpu", copy=True)
            self.hub.changed.notify_all()

    def wait(self, index):
        if index not in self.waiting:
            return
        key = (self.number, index, self.waiting[index])
        with self.hub.changed:
            parts = self.hub.rounds[key]
            complete = self.hub.changed.wait_for(lambda: len(parts) == self.hub.size or self.hub.gone, timeout=self.hub.seconds)
            if len(parts) < self.hub.size:
                missing = [rank for rank in range(self.hub.size) if rank not in parts]
                assert complete, f"a rank did not post: {self.names[index]} of ranks {missing}"
                raise errors.AbortedError(f"ranks {sorted(self.hub.gone)} left the job: {self.names[index]}: resume from a checkpoint")
            parts = [parts[rank] for rank in range(self.hub.size)]
        del self.waiting[index]
        self.log.append(("wait", self.names[index]))
        now, before = (tensor.view(-1).view(torch.uint8) for tensor in (self.buffers[index].cpu(), parts[self.rank]))
        assert torch.equal(now, before), f"the buffer of {self.names[index]} was written while its operation ran"
        self.buffers[index].copy_(_result(self.descs[index].operation, parts, self.ops[index], self.rank))

    def done(self, index):
        if index in self.waiting and (self.draw is None or not self.draw(self.rank)):
            return False
        self.wait(index)  # whoever asks knows from the roll call that all have posted it
        return True

    def gather(self, name, value):
        """By the same way as sums: everybody's is there when all have called."""
        sequence = self.counts["gather"] = self.counts.get("gather", 0) + 1
        with self.hub.changed:
            values = self.hub.rounds.setdefault((self.number, "gather", sequence), {})
            values[self.rank] = copy.deepcopy(value)
            self.hub.changed.notify_all()
            assert self.hub.changed.wait_for(lambda: len(values) == self.hub.size, timeout=self.hub.seconds), f"a rank did not call gather({name})"
            return [copy.deepcopy(values[rank]) for rank in range(self.hub.size)]

    def unregister(self):
        self.wait_many(list(self.waiting))


def _result(operation, parts, op, rank):
    """What the buffer of `rank` holds afterwards. Outside of its own share a reduce-scatter leaves anything."""
    if operation == _native.ALLREDUCE:
        return _reduced(parts, op)
    share = parts[0].numel() // len(parts)
    if operation == _native.ALLGATHER:
        return torch.cat([part[each * share : (each + 1) * share] for each, part in enumerate(parts)])
    mine = slice(rank * share, (rank + 1) * share)
    result = torch.full_like(parts[0], float("nan"))
    result[mine] = _reduced([part[mine] for part in parts], op)
    return result


def _reduced(parts, op):
    if op == _native.MAX:
        return torch.stack(parts).amax(0)
    total = parts[0].to(torch.float32 if parts[0].element_size() == 2 else parts[0].dtype, copy=True)
    for part in parts[1:]:
        total += part
    return (total / len(parts) if op == _native.AVERAGE else total).to(parts[0].dtype)
