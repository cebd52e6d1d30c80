"""Targets on a common scale and back."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.errors import InputError
from deltacell.train.data import Standard


def test_mean_and_deviation_become_0_and_1_and_undo_is_the_inverse() -> None:
    targets = np.random.default_rng(0).normal(3, 0.1, 1000)
    standard = Standard.of(targets)
    found = standard.apply(targets)
    assert abs(found.mean()) < 1e-12
    assert found.std() == pytest.approx(1)
    np.testing.assert_allclose(standard.undo(torch.tensor(found)).numpy(), targets, rtol=1e-12)


def test_many_targets_of_single_precision_are_summed_in_double() -> None:
    targets = np.full(3_000_000, 1.1, dtype=np.float32)
    targets[::2] = 0.9
    assert Standard.of(targets).mean == pytest.approx(1.0, abs=1e-7)


def test_the_plain_one_changes_nothing() -> None:
    targets = np.array([0.5, -2.0])
    assert np.array_equal(Standard().apply(targets), targets)


@pytest.mark.parametrize("targets", [[1.0, 1.0, 1.0], [1.0, np.nan]])
def test_targets_without_a_scale_are_refused(targets: list[float]) -> None:
    with pytest.raises(InputError, match=r"(?s)training targets.*data.standardise=false"):
        Standard.of(np.array(targets))
