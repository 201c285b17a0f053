"""Groups of registered tensors, and what becomes of them when they are given back."""

import contextlib
import threading

import pytest
from tensorlane import _native, errors
from tensorlane._gate import Gate
from tensorlane._gpu_memory import GpuMemory


class Library:
    """Answers with these statuses, in this order, then with OK."""

    def __init__(self):
        self.unregistered, self.freed, self.statuses = [], [], []

    def tl_unregister(self, handle, name):
        self.unregistered.append(name)
        return self.statuses.pop(0) if self.statuses else errors.OK

    def tl_free(self, handle, address):
        self.freed.append(address)
        return errors.OK

    def tl_last_error(self):
        return b"rank 1 on host h1 has not unregistered"


class Tensor:
    def __init__(self, used=False):
        self.used = used

    def in_use(self):
        return self.used


class Request:
    """Is done when it is waited for as often as this."""

    def __init__(self, waits):
        self.waits = waits

    def wait(self, timeout):
        self.waits -= 1
        if self.waits > 0:
            raise errors.TimedOutError("not done")


@pytest.fixture
def library(monkeypatch):
    fake = Library()
    monkeypatch.setattr(_native, "library", lambda: fake)
    return fake


def context_with(*groups):
    context = object.__new__(_native.Context)
    context._handle, context._lock, context.gate = object(), threading.Lock(), Gate()
    context._groups, context._unregistered = list(groups), []
    context.gpu_memory = GpuMemory(contextlib.nullcontext(), None)
    context._asked, context.timeout, context.size = None, 5, 2
    return context


def group_of(name, *tensors):
    return _native.Group(name, ("kind",), tensors, [f"{name}.{number}" for number in range(len(tensors))])


def test_a_group_goes_whoever_uses_its_buffers_and_each_of_them_when_nobody_does(library):
    used = Tensor(used=True)
    first, second = group_of("a", Tensor(), used), group_of("b", Tensor())
    context = context_with(first, second)
    context.unregister(first)
    assert library.unregistered == [b"a"] and context._groups == [second]
    assert library.freed == ["a.0"]
    used.used = False
    context.unregister(second)
    assert library.freed == ["a.0", "a.1", "b.0"]


@pytest.mark.parametrize("status", [errors.TIMED_OUT, errors.AbortedError.status])
def test_a_group_that_not_all_ranks_unregister_is_given_to_nobody_and_the_next_call_goes_on(library, status):
    group = group_of("a", Tensor())
    context = context_with(group)
    assert context._idle_group(("kind",)) is group
    library.statuses = [status, status]
    for _ in range(2):
        with pytest.raises(errors.Error, match="rank 1 on host h1"):
            context.unregister(group)
        assert context._groups == [group] and context._idle_group(("kind",)) is None and library.freed == []
    context.unregister(group)
    assert len(library.unregistered) == 3 and context._groups == [] and library.freed == ["a.0"]


def test_ctrl_c_leaves_the_call_under_way_and_the_next_one_waits_for_it(library, monkeypatch):
    group = group_of("a", Tensor())
    context = context_with(group)
    waits = []

    def interrupted(call):
        waits.append(call)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(_native._Call, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            context.unregister(group)
    context.unregister(group)
    assert library.unregistered == [b"a"] and context._groups == []


def ask_by(context, monkeypatch, waits, agree=True):
    """How often a question to all ranks was begun; the others answer after so many waits."""
    begun = []

    def begin(self, context, kind, idle):
        self.kind, self.idle, self.request = kind, idle, Request(waits)
        self.all_agree = lambda: agree and idle is not None
        begun.append(kind)

    monkeypatch.setattr(_native._Asked, "__init__", begin)
    return begun


@pytest.mark.parametrize("agree", [True, False])
def test_a_question_that_other_ranks_have_not_answered_is_not_asked_twice(monkeypatch, agree):
    group = group_of("a", Tensor())
    context = context_with(group)
    begun = ask_by(context, monkeypatch, waits=3, agree=agree)
    for _ in range(2):
        with pytest.raises(errors.TimedOutError, match="not all ranks register these tensors: within 5 s: "):
            context._agree_on_idle_group(("kind",))
    assert context._agree_on_idle_group(("kind",)) is (group if agree else None)
    assert begun == [("kind",)]


def test_a_question_that_was_given_up_is_answered_before_the_next_one(monkeypatch):
    context = context_with()
    begun = ask_by(context, monkeypatch, waits=2)
    with pytest.raises(errors.TimedOutError):
        context._agree_on_idle_group(("one",))
    with pytest.raises(errors.TimedOutError):
        context._agree_on_idle_group(("other",))
    assert context._agree_on_idle_group(("other",)) is None
    assert begun == [("one",), ("other",)]
