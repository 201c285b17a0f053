"""Names of DDP's buckets: what all ranks find by the order of their calls alone."""

import pytest
from tensorlane import _native
from tensorlane.torch import _ddp

HOST, FLOAT = _native.MEMORY_HOST, _native.FLOAT32


def test_alike_buckets_take_turns():
    names = _ddp._Names()
    drawn = [names.next(1000, FLOAT, HOST) for _ in range(20)]
    assert len(set(drawn)) == 8 and drawn[:8] == drawn[8:16]


@pytest.mark.parametrize("mebibytes, expected", [(25, 2), (64, 1), (500, 1), (8, 8)])
def test_large_ones_have_fewer_names(mebibytes, expected):
    names = _ddp._Names()
    assert len({names.next(mebibytes << 18, FLOAT, HOST) for _ in range(20)}) == expected


def test_unlike_buckets_share_none():
    names = _ddp._Names()
    kinds = [(1000, FLOAT, HOST), (1001, FLOAT, HOST), (1000, _native.FLOAT16, HOST), (1000, FLOAT, _native.MEMORY_CUDA)]
    assert len({names.next(*kind) for kind in kinds}) == len(kinds)


def test_what_the_last_calls_did_not_use_is_given_back_once(monkeypatch):
    monkeypatch.setattr(_ddp, "_KEPT_CALLS", 5)
    names = _ddp._Names()
    first = [names.next(7, FLOAT, HOST), names.next(7, FLOAT, HOST)]
    for call in range(5):
        assert names.old() == []
        names.next(8, FLOAT, HOST)
    assert names.old() == first and names.old() == []
    assert names.next(7, FLOAT, HOST) == first[0]


def test_any_number_of_sizes_has_a_bounded_number_of_names():
    names, live = _ddp._Names(), set()
    for count in range(1, 3 * _ddp._KEPT_CALLS):
        live -= set(names.old())
        live.add(names.next(count, FLOAT, HOST))
        assert len(live) <= _ddp._KEPT_CALLS + 1
