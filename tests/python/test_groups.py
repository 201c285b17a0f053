"""Groups of registered tensors, and what ranks agree on before one is given back."""

import pytest
from tensorlane import _native


class Library:
    def __init__(self):
        self.calls = []

    def tl_unregister(self, handle, name):
        self.calls.append(name)
        return 0


@pytest.fixture
def library(monkeypatch):
    fake = Library()
    monkeypatch.setattr(_native, "library", lambda: fake)
    return fake


def context_with(groups, everybody_agrees):
    context = object.__new__(_native.Context)
    context._handle, context._groups = None, list(groups)
    context._all_say = lambda word: everybody_agrees
    return context


@pytest.mark.parametrize("agreed", [True, False])
def test_a_group_goes_when_no_rank_uses_it_any_more(library, agreed):
    alike = [_native.Group(name, ("kind",), []) for name in ("a", "b")]
    context = context_with(alike, agreed)
    assert context.unregister(alike[1]) == agreed
    assert library.calls == ([b"b"] if agreed else [])
    assert [group.name for group in context._groups] == (["a"] if agreed else ["a", "b"])


def test_a_group_with_something_under_way_stays_and_the_others_are_told(library):
    group = _native.Group("a", ("kind",), [])
    group.requests[0] = object()
    said = []
    context = context_with([group], True)
    context._all_say = lambda word: said.append(word) or True
    assert not context.unregister(group)
    assert said == [bytes(32)] and library.calls == [] and context._groups == [group]
