"""The arithmetic of a config: samples, steps, batches, epochs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from deltacell.profile.phases import NoTimer
from deltacell.train.build import (
    MODE_STEPS,
    make_loop,
    most_batches,
    samples_per_epoch,
    steps_per_epoch,
)
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.loop import Hooks, Loop
from deltacell.train.processes import make_fabric

Small = Callable[..., Config]


def loop_of(config: Config) -> Loop:
    return make_loop(make_fabric(config), config, load_data(config), timer=NoTimer(), hooks=Hooks())


@pytest.mark.parametrize(
    ("given", "samples", "steps"),
    [
        ([], 74, 5),
        (["data.batch_size=74"], 74, 1),
        (["data.batch_size=9", "optimizer.accumulate=3"], 74, 3),
        (["data.samples_per_epoch=33"], 33, 3),
        (["data.samples_per_epoch=3300"], 74, 5),
    ],
)
def test_steps_of_an_epoch_are_those_that_are_done(
    small: Small, given: list[str], samples: int, steps: int
) -> None:
    config = small("trainer.epochs=1", *given)
    data = load_data(config)
    assert samples_per_epoch(config, data) == samples
    assert steps_per_epoch(config, data) == steps
    loop = loop_of(config)
    loop.run()
    assert loop.position.step == steps


def test_batches_and_epochs_of_modes(small: Small) -> None:
    assert most_batches(small()) is None
    assert most_batches(small("mode_steps=7")) == 7
    assert most_batches(small("mode=data")) == MODE_STEPS
    loop = loop_of(small("mode=data", "mode_steps=12"))
    assert loop.limits.epochs == 3
    loop.run()
    assert loop.position.step == 12


def test_validation_looks_at_the_same_rows_every_time(small: Small) -> None:
    rows = [
        loop_of(small("trainer.validation_samples=3", f"seed={seed}")).validation for seed in (0, 5)
    ]
    assert rows[0] is not None
    assert rows[1] is not None
    assert len(rows[0].rows) == 3
    assert np.array_equal(rows[0].rows, rows[1].rows)
    assert set(rows[0].rows.tolist()) <= set(load_data(small()).split.validation.tolist())


def test_validation_batches(small: Small) -> None:
    for hetero, given, size in ((False, [], 4096), (True, [], 16), (True, [5], 5)):
        words = [f"trainer.validation_batch_size={n}" for n in given]
        loader = loop_of(small(*words, hetero=hetero)).validation
        assert loader is not None
        assert loader.batch_size == size
        assert not loader.shuffle
