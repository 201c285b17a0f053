"""Transports for tests in one process: the optimizer's _transport.Transport without daemons.

`Loopback` is a world of one. `Hub(n)` makes n transports, one for each rank's thread, that sum in the order of the ranks.
"""

import threading

import torch

AVERAGE = 1


class Loopback:
    """A world of one: the sum is what was posted. Keeps a log of what the optimizer did."""

    def __init__(self):
        self.log = []
        self.names = []
        self.under_way = set()
        self.failure = None

    def register(self, group, descs, op):
        self.group = group
        self.names = [d.name.split(".", 2)[2] for d in descs]
        self.buffers = [torch.zeros(d.count, dtype=d.dtype) for d in descs]
        return self.buffers

    def post(self, index):
        if self.failure:
            raise self.failure
        assert index not in self.under_way, f"{self.names[index]} posted twice"
        self.under_way.add(index)
        self.log.append(("post", self.names[index]))

    def wait(self, index):
        if self.failure:
            raise self.failure
        self.under_way.discard(index)
        self.log.append(("wait", self.names[index]))

    def post_many(self, indices):
        for index in indices:
            self.post(index)

    def wait_many(self, indices):
        for index in indices:
            self.wait(index)

    def posted(self):
        return [name for what, name in self.log if what == "post"]


class Hub:
    """A world of `size` ranks in the threads of one process."""

    def __init__(self, size):
        self.size = size
        self.changed = threading.Condition()
        self.rounds = {}
        self.registered = {}

    def transport(self, rank):
        return _HubTransport(self, rank)


class _HubTransport:
    def __init__(self, hub, rank):
        self.hub = hub
        self.rank = rank
        self.counts = {}
        self.waiting = {}

    def register(self, group, descs, op):
        self.op = op
        self.buffers = [torch.zeros(d.count, dtype=d.dtype) for d in descs]
        return self.buffers

    def post(self, index):
        assert index not in self.waiting
        sequence = self.counts[index] = self.counts.get(index, 0) + 1
        self.waiting[index] = sequence
        with self.hub.changed:
            self.hub.rounds.setdefault((index, sequence), {})[self.rank] = self.buffers[index].clone()
            self.hub.changed.notify_all()

    def wait(self, index):
        if index not in self.waiting:
            return
        key = (index, self.waiting.pop(index))
        with self.hub.changed:
            assert self.hub.changed.wait_for(lambda: len(self.hub.rounds[key]) == self.hub.size, timeout=30), "a rank did not post"
            parts = [self.hub.rounds[key][rank] for rank in range(self.hub.size)]
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        self.buffers[index].copy_(total / self.hub.size if self.op == AVERAGE else total)

    def post_many(self, indices):
        for index in indices:
            self.post(index)

    def wait_many(self, indices):
        for index in indices:
            self.wait(index)
