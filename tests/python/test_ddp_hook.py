"""When the futures of DDP's buckets end, and how, with sums that are done, or fail, when the test says so. Real ones: ddp_hook.py."""

import pytest
import torch
from tensorlane import _process_sets, errors
from tensorlane.torch import _calls, _ddp, ddp_comm_hook

SIZE = 2


class Context:
    """Of a job of two ranks. forget() raises what is in `late` first."""

    rank, size = 0, SIZE

    def __init__(self):
        self.forgotten = []
        self.late = []

    def forget(self, call):
        self.forgotten.append(call)
        if self.late:
            raise self.late.pop(0)


class Sum:
    """A handle."""

    def __init__(self, buffer):
        self.buffer = buffer
        self.is_done = False
        self.error = None

    def poll(self):
        if self.error is not None:
            raise self.error
        return self.is_done

    def synchronize(self):
        if self.error is not None:
            raise self.error
        self.is_done = True
        return self.buffer.mul_(SIZE)  # the other rank has the same


class Bucket:
    def __init__(self, count, last=False):
        self._buffer = torch.ones(count)
        self._last = last

    def buffer(self):
        return self._buffer

    def is_last(self):
        return self._last

    def parameters(self):
        return []


class Hook:
    """The hook, and what it has started."""

    def __init__(self, monkeypatch):
        self.context, self.sums = Context(), []
        self.in_backward = True
        monkeypatch.setattr(type(_process_sets.of(None)), "context", lambda _: self.context)
        monkeypatch.setattr(_ddp, "_buckets", {})
        monkeypatch.setattr(_calls, "start_sum", self._start)
        monkeypatch.setattr(torch._C, "_current_autograd_node", lambda: self if self.in_backward else None)

    def _start(self, buffer, name, shown, process_set):
        self.sums.append(Sum(buffer))
        return self.sums[-1]

    def __call__(self, count=4, **options):
        return ddp_comm_hook(None, Bucket(count, **options))


@pytest.fixture
def hook(monkeypatch):
    return Hook(monkeypatch)


def test_a_sum_that_is_done_ends_its_future_at_the_next_bucket(hook):
    first, second = hook(), hook()
    assert not first.done()
    hook.sums[1].is_done = True
    third = hook()
    assert not first.done() and not second.done(), "in the order of the calls"
    hook.sums[0].is_done = True
    fourth = hook()
    assert first.done() and second.done() and not third.done() and not fourth.done()
    assert first.value().equal(torch.ones(4))


def test_the_first_pass_of_a_static_graph_waits(hook):
    early = hook()
    hook.in_backward = False
    assert hook().done() and early.done()


class NoError(Exception):
    """Of no class of this package."""


@pytest.mark.parametrize("error", [errors.AbortedError("rank 1 has died: h1: resume from a checkpoint"), RuntimeError("of torch"), NoError("of anybody")])
@pytest.mark.parametrize("when", ["next bucket", "waiting"])
def test_a_sum_that_fails_ends_all_futures(hook, error, when):
    """DDP, and whoever has called then() of one, would wait for them without end."""
    futures = [hook(), hook(), hook()]
    seen = []
    futures[2].add_done_callback(lambda future: seen.append(future))
    hook.sums[0].error = error
    hook.in_backward = when == "next bucket"
    with pytest.raises(type(error), match=str(error)):
        hook()
    assert all(future.done() for future in futures) and len(seen) == 1
    for future in futures:
        with pytest.raises(type(error), match=str(error)):
            future.wait()


def test_after_a_failure_the_next_bucket_starts_anew(hook):
    hook()
    hook.sums[0].error = RuntimeError("once")
    with pytest.raises(RuntimeError, match="once"):
        hook()
    hook.in_backward = False
    assert hook().value().equal(torch.ones(4))


def test_what_is_given_back_waits_for_late_ranks(hook, monkeypatch):
    """Another rank may compute for longer than TENSORLANE_TIMEOUT before it comes to this bucket."""
    monkeypatch.setattr(_ddp, "_KEPT_CALLS", 2)
    old = hook(count=3)
    later = [hook(), hook()]
    hook.context.late = [errors.TimedOutError("rank 1 is not here"), errors.TimedOutError("rank 1 is not here")]
    hook()
    assert len(hook.context.forgotten) == 3 and len(set(hook.context.forgotten)) == 1
    assert hook.context.forgotten[0].startswith("allreduce.ddp.3.")
    assert old.done() and all(future.done() for future in later), "nothing of a tensor that is given back is under way"


def test_what_is_given_back_when_the_job_ends(hook, monkeypatch):
    monkeypatch.setattr(_ddp, "_KEPT_CALLS", 2)
    hook(count=3), hook(), hook()
    hook.context.late = [errors.AbortedError("rank 1 has died")]
    with pytest.raises(errors.AbortedError, match="rank 1 has died"):
        hook()
