"""What a program hears when it ends: the end of its job once, not again by a traceback that nobody can catch."""

import collections
import types

import pytest
import tensorlane
from tensorlane import _native, _process_sets, _reports, errors


@pytest.fixture
def ended(monkeypatch):
    """In a job that is over, so that leaving it fails."""
    def leave():
        raise errors.AbortedError("rank 0 left the job: h0: resume from a checkpoint")

    monkeypatch.setattr(_native, "joined_here", lambda: True)
    monkeypatch.setattr(_native, "library", lambda: types.SimpleNamespace(tl_last_error=lambda: b"rank 0 left the job"))
    monkeypatch.setattr(_native, "_raised", collections.deque())
    monkeypatch.setattr(tensorlane, "shutdown", leave)


def test_an_end_that_was_raised_is_not_told_again(ended):
    with pytest.raises(errors.AbortedError):
        _native.check(errors.AbortedError.status)
    tensorlane._leave_at_exit()


def test_an_end_that_nobody_has_seen_is_told(ended):
    with pytest.raises(errors.TimedOutError):
        _native.check(errors.TIMED_OUT)
    with pytest.raises(errors.AbortedError):
        tensorlane._leave_at_exit()


@pytest.mark.parametrize("kind", [errors.UnavailableError, errors.TimedOutError, errors.MismatchError])
def test_an_error_that_was_raised_is_not_told_again(ended, monkeypatch, kind):
    def leave():
        raise kind("rank 0 left the job")

    with pytest.raises(kind):
        _native.check(kind.status)
    monkeypatch.setattr(tensorlane, "shutdown", leave)
    tensorlane._leave_at_exit()


def test_the_end_of_a_job_is_told_once_whatever_its_text(ended):
    with pytest.raises(errors.UnavailableError):
        _native.check(errors.UnavailableError.status)
    tensorlane._leave_at_exit()


def joined(monkeypatch, finalize=lambda: None, requests=()):
    monkeypatch.setattr(_native, "_context", types.SimpleNamespace(rank=0, timeout=9, finalize=finalize, requests=lambda: requests))
    monkeypatch.setattr(_process_sets, "_added", [])


def test_a_set_is_removed_though_its_optimizer_cannot_apply_its_updates(monkeypatch):
    def fails(*_):
        raise ValueError("a loss that is no number")

    finalized = []
    joined(monkeypatch)
    process_set = tensorlane.ProcessSet([0])
    process_set._context = types.SimpleNamespace(finalize=lambda: finalized.append(True))
    _process_sets._added.append(process_set)
    monkeypatch.setattr(_reports, "members", lambda: [types.SimpleNamespace(process_set=process_set, leave=fails)])
    with pytest.warns(RuntimeWarning, match=r"ProcessSet\(\[0\]\) is removed without the last updates of its optimizer: a loss that is no number"):
        tensorlane.remove_process_set(process_set)
    assert finalized == [True] and process_set not in _process_sets._added


def test_who_leaves_while_ranks_have_not_added_a_set_is_told_of_the_set(monkeypatch):
    def times_out():
        raise errors.TimedOutError("operations of this rank are still under way")

    joined(monkeypatch, times_out)
    monkeypatch.setattr(_process_sets, "_asked", types.SimpleNamespace(process_set="ProcessSet([0, 1])", late=lambda: "rank 3 has"))
    with pytest.raises(errors.TimedOutError, match=r"has left its job, though rank 3 has not called add_process_set\(\): ProcessSet\(\[0, 1\]\)"):
        tensorlane.shutdown()
    assert _process_sets._asked is None and not tensorlane.is_initialized()
    joined(monkeypatch, times_out)
    with pytest.raises(errors.TimedOutError, match="still under way"):
        tensorlane.shutdown()


def test_what_leaving_waits_for_is_said(monkeypatch, caplog):
    def failed():
        raise errors.AbortedError("the job is over")

    tests = (lambda: True, lambda: False, failed, lambda: False)
    joined(monkeypatch, lambda: None, [types.SimpleNamespace(test=test) for test in tests])
    tensorlane.shutdown()
    assert "rank 0 leaves its job, and waits up to 9 s for its 2 operation(s) that are under way" in caplog.text
    caplog.clear()
    joined(monkeypatch, lambda: None, [types.SimpleNamespace(test=tests[0])])
    tensorlane.shutdown()
    assert not caplog.records
