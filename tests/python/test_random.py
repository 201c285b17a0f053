"""A few seeds of optimizer_random.py; TENSORLANE_OPTIMIZER_SEEDS sets how many. The bugs planted below must be found, too."""

import os

import optimizer_random
import pytest
import torch
from tensorlane.torch import _gradients, _optimizer, _touch

SEEDS = int(os.environ.get("TENSORLANE_OPTIMIZER_SEEDS", 40))
SEEDS_FOR_PLANTED = 60


@pytest.fixture(autouse=True)
def one_kind_of_attention():
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    yield
    torch.backends.mha.set_fastpath_enabled(before)


def test_random_programs_give_the_numbers_of_synchronous_mode():
    wrong = {seed: problem for seed in range(SEEDS) if (problem := optimizer_random.check(seed)[0])}
    assert not wrong


def without_watch(patch):
    patch.setattr(_touch.Watch, "_see", lambda self, values: None)


def unused_counts_as_used(patch):
    patch.setattr(_gradients.GradientSender, "used", lambda self, slot: True)


def skipped_modules_keep_their_updates(patch):
    patch.setattr(_optimizer._Core, "flush", lambda self: None)


def recording_ends_by_itself(patch):
    def new_round(self):
        self.recording = self.recording and not self.round_open
        self._begin()

    patch.setattr(_gradients.GradientSender, "new_round", new_round)


def dropped_gradients_come_back(patch):
    """The last averages are put into p.grad, although zero_grad() or a new backward pass came between."""
    patch.setattr(_optimizer._Core, "_is_shown", lambda self, slot: True)


def averages_are_kept_for_the_next_step(patch):
    """As before: after a skipped iteration a rank without a batch steps alone."""
    patch.setattr(_optimizer._Core, "_has_averages", lambda self: self.averaged and not self._sender.round_open)
    before = _optimizer._Core.before_zero_grad

    def before_zero_grad(self, set_to_none=True):
        averaged = self.averaged
        before(self, set_to_none)
        self.averaged = averaged

    patch.setattr(_optimizer._Core, "before_zero_grad", before_zero_grad)


PLANTED = [
    without_watch, unused_counts_as_used, skipped_modules_keep_their_updates, recording_ends_by_itself, dropped_gradients_come_back,
    averages_are_kept_for_the_next_step,
]


@pytest.mark.parametrize("plant", PLANTED)
def test_a_planted_bug_is_found(plant, monkeypatch):
    plant(monkeypatch)
    monkeypatch.setattr(optimizer_random, "HANG_SECONDS", 1)
    found = next((seed for seed in range(SEEDS_FOR_PLANTED) if not is_right(seed)), None)
    assert found is not None


def is_right(seed):
    """As a program that did not know of the bug would end: an error counts, for without the bug these seeds have none."""
    problem, failed = optimizer_random.check(seed)
    return problem is None and not failed
