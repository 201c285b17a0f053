"""What a key-value store waits for, with operations that are done when the test says so. Real ones: array_calls.py."""

import numpy
import pytest
import tensorlane
import tensorlane.torch
import torch
from tensorlane.errors import InvalidArgumentError


class Operation:
    """Is done when it is waited for, or when its owner says so. What is pushed comes back as it is, as in a world of one rank."""

    def __init__(self, log, name, value):
        self.log, self.name, self.value, self.done = log, name, value, False

    def poll(self):
        return self.done

    def synchronize(self):
        self.log.append(f"wait {self.name}")
        self.done = True
        return self.value


class Calls:
    def __init__(self):
        self.log, self.values, self.started = [], {}, []

    def _start(self, name, value):
        self.log.append(name)
        self.started.append(Operation(self.log, name, value))
        return self.started[-1]

    def push_async(self, value, key, op, *, priority, process_set):
        self.values[key] = value.copy()
        return self._start(f"push {key}", None)

    def pull_async_(self, out, key, *, priority, process_set):
        out[...] = self.values[key]
        return self._start(f"pull {key}", out)

    def allreduce_async(self, value, name, op, *, priority, process_set):
        return self._start(name, value.copy())


def store_of(calls, staleness=0):
    store = tensorlane.KVStore(staleness)
    store._calls = calls
    return store


def ones(number, count=3):
    return numpy.full(count, number, "float32")


@pytest.mark.parametrize("staleness", [1, 2, 5])
def test_a_pull_is_as_old_as_the_bound_allows_and_no_older(staleness):
    calls = Calls()
    store, out = store_of(calls, staleness), ones(0)
    for iteration in range(1, 4 * staleness):
        store.push("k", ones(iteration))
        waited = len([line for line in calls.log if line.startswith("wait")])
        store.pull("k", out)  # nothing is ever done unless it is waited for
        assert out[0] == max(1, iteration - staleness)
        assert len([line for line in calls.log if line.startswith("wait")]) - waited <= 1


def test_a_pull_takes_what_is_newer_without_waiting():
    calls = Calls()
    store, out = store_of(calls, 3), ones(0)
    for number in (1, 2, 3):
        store.push("k", ones(number))
    for operation in calls.started[:2]:
        operation.done = True
    store.pull("k", out)
    assert out[0] == 2 and "wait KVStore.2.k" not in calls.log
    store.pull("k", out)
    assert out[0] == 2  # again, without a push since


def test_rounds_under_way_have_buffers_of_their_own():
    calls = Calls()
    store = store_of(calls, 1)
    for number in range(5):
        store.push("k", ones(number))
    assert calls.log == [
        "KVStore.0.k", "KVStore.1.k", "wait KVStore.0.k", "KVStore.0.k", "wait KVStore.1.k", "KVStore.1.k", "wait KVStore.0.k", "KVStore.0.k",
    ]


def test_all_keys_are_under_way_at_once():
    calls = Calls()
    store = store_of(calls)
    store.push(["a", "b"], [ones(1), ones(2)])
    outs = [ones(0), ones(0)]
    assert store.pull(("b", "a"), outs) is outs
    assert [out[0] for out in outs] == [2, 1]
    assert calls.log == ["push a", "push b", "wait push b", "pull b", "wait push a", "pull a", "wait pull b", "wait pull a"]


def test_a_second_push_waits_for_the_first():
    calls = Calls()
    store = store_of(calls)
    store.push("a", ones(1))
    store.push("a", ones(2))
    assert calls.log == ["push a", "wait push a", "push a"]


@pytest.mark.parametrize("staleness", [0, 2])
def test_refusals(staleness):
    store = store_of(Calls(), staleness)
    with pytest.raises(InvalidArgumentError, match="it was never pushed: key 'k': push it first"):
        store.pull("k", ones(0))
    with pytest.raises(InvalidArgumentError, match="a list of 2 keys has not one value each"):
        store.push(["a", "b"], [ones(0)])
    with pytest.raises(InvalidArgumentError, match="a list names a key twice"):
        store.push(["a", "a"], [ones(0), ones(0)])
    with pytest.raises(InvalidArgumentError, match="staleness -1 is negative"):
        tensorlane.KVStore(-1)


def test_a_stale_value_needs_an_array_like_the_pushed_one():
    store = store_of(Calls(), 1)
    store.push("k", ones(1))
    for out in (ones(0, 4), numpy.ones(3, "int32")):
        with pytest.raises(InvalidArgumentError, match="another number of elements, or another dtype: key 'k'"):
            store.pull("k", out)
    read_only = ones(0)
    read_only.flags.writeable = False
    with pytest.raises(InvalidArgumentError, match="it is read-only"):
        store.pull("k", read_only)
    out = memoryview(bytearray(12)).cast("f")
    assert list(store.pull("k", out)) == [1, 1, 1]


def test_torch():
    calls = Calls()
    calls.allreduce_async = lambda value, name, op, priority, process_set: calls._start(name, value.clone())
    store = tensorlane.torch.KVStore(1)
    store._calls = calls
    store.push("k", torch.full((2, 2), 3, dtype=torch.bfloat16))
    assert torch.equal(store.pull("k", torch.empty(4, dtype=torch.bfloat16)), torch.full((4,), 3, dtype=torch.bfloat16))
