"""What a program hears when it ends: the end of its job once, not again by a traceback that nobody can catch."""

import collections
import types

import pytest
import tensorlane
from tensorlane import _native, errors


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
