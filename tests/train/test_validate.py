"""Scores of the validation part, and how good they are."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy import stats

from deltacell.screen import Loader
from deltacell.train.build import make_task
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.predictor import Predictor
from deltacell.train.task import Validation, validate

Small = Callable[..., Config]


@pytest.mark.parametrize("size", [1, 5, 16, 1000])
def test_rows_come_back_in_their_order_whatever_the_batch(small: Small, size: int) -> None:
    config = small("loss=log_cosh")
    data = load_data(config)
    torch.manual_seed(0)
    task = make_task(config, data)
    rows = np.random.default_rng(0).permutation(len(data.screen))[:37]
    loader = Loader(data.screen, rows, batch_size=size, shuffle=False, targets=data.targets)
    steps: list[tuple[int, int]] = []
    for _ in range(2):
        found = validate(task, loader, progress=lambda done, all_: steps.append((done, all_)))
        assert np.array_equal(found.rows, rows)
        expected = Predictor(task.model, data.cell, data.standard)(
            data.screen.genotypes.take(torch.tensor(rows))
        ).numpy()
        np.testing.assert_allclose(found.predicted, expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found.measured, data.screen.column("score")[rows])
        error = (expected - found.measured) / data.standard.std
        assert found.loss == pytest.approx(np.log(np.cosh(error)).mean(), rel=1e-4)
    assert steps[-1] == (len(loader), len(loader))


def test_dropout_rests_and_training_goes_on_after(small: Small) -> None:
    config = small("model.dropout=0.5", hetero=True)
    data = load_data(config)
    task = make_task(config, data).train()
    loader = Loader(data.screen, shuffle=False, targets=data.targets, batch_size=64)
    before = torch.get_rng_state()
    first, second = validate(task, loader), validate(task, loader)
    assert np.array_equal(first.predicted, second.predicted)
    assert torch.equal(torch.get_rng_state(), before)
    assert task.model.training


def test_metrics_are_those_of_scipy() -> None:
    draw = np.random.default_rng(0)
    measured = draw.normal(size=200)
    predicted = measured + draw.normal(size=200)
    found = Validation(np.arange(200), measured, predicted, 0.5).metrics()
    assert found["pearson"] == pytest.approx(stats.pearsonr(measured, predicted)[0])
    assert found["spearman"] == pytest.approx(stats.spearmanr(measured, predicted)[0], rel=1e-5)
    assert found["mse"] == pytest.approx(np.mean((measured - predicted) ** 2))
    assert found["loss"] == 0.5


@pytest.mark.parametrize(
    ("measured", "predicted"), [([1.0, 2.0], [3.0, 3.0]), ([1.0], [2.0]), ([], [])]
)
def test_what_has_no_correlation_has_none(measured: list[float], predicted: list[float]) -> None:
    found = Validation(np.arange(len(measured)), np.array(measured), np.array(predicted), 0.0)
    metrics = found.metrics()
    assert math.isnan(metrics["pearson"])
    assert math.isnan(metrics["spearman"])
    assert math.isnan(metrics["mse"]) is (not measured)
