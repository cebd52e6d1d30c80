"""An evaluation does not depend on the order of rows, nor on how often a set is written."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell
from deltacell.evaluate import METRICS, Bootstrap, evaluate
from deltacell.screen import Genotypes, Screen, Split

CELL = Cell([f"g{i}" for i in range(20)], [])
SETS = [(i, j) for i in range(20) for j in range(i + 1, 20)]
FEW = Bootstrap(40)


def made(seed, n, often):
    """``n`` pairs, each written ``often`` times, all of them test rows but the first ten."""
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(SETS))[:n]
    score = np.repeat(rng.normal(scale=0.2, size=n), often)
    sets = Genotypes.of([SETS[i] for i in np.repeat(chosen, often)])
    screen = Screen.build(CELL.genes, sets, score=score, study="s", p_value=0.01)
    rows, held = np.arange(len(screen)), 10 * often
    parts, unseen = (rows[:held], rows[:0], rows[held:]), np.repeat(np.arange(n - 10) % 2, often)
    split = Split(*parts, "random", 0, screen.checksum, unseen=unseen)
    noise = np.repeat(rng.normal(size=(2, n)), often, axis=1)
    given = {"additive": score + noise[0], "model": score + 0.3 * noise[1]}
    return screen, split, {name: values[held:] for name, values in given.items()}


def numbers(evaluation):
    return np.array(
        [
            [np.nan if x is None else x for x in (e.value, e.low, e.high)]
            for group in evaluation.groups
            for of_name in (*group.scores.values(), *group.differences["model"].values())
            for e in of_name.values()
        ]
    )


@given(seed=st.integers(0, 10_000))
@settings(max_examples=15, deadline=None)
def test_the_order_of_the_test_rows_does_not_matter(seed):
    screen, split, predictions = made(seed, 60, 2)
    order = np.random.default_rng(seed).permutation(len(split.test))
    at = np.concatenate([split.train, split.test[order]])
    shuffled = screen.take(at)
    same = replace(split, screen_checksum=shuffled.checksum, unseen=split.unseen[order])
    first = evaluate(CELL, screen, split, predictions, bootstrap=FEW)
    turned = {name: values[order] for name, values in predictions.items()}
    second = evaluate(CELL, shuffled, same, turned, bootstrap=FEW)
    np.testing.assert_allclose(numbers(first), numbers(second), atol=1e-9)


@given(seed=st.integers(0, 10_000), often=st.integers(2, 5))
@settings(max_examples=15, deadline=None)
def test_rows_written_again_are_no_further_evidence(seed, often):
    # For metrics that are means over rows, each value and interval stays what it was.
    results = [evaluate(CELL, *made(seed, 60, times), bootstrap=FEW).groups for times in (1, often)]
    for once, again in zip(*results, strict=True):
        assert again.rows == often * once.rows
        assert again.gene_sets == once.gene_sets
        for metric in set(METRICS) - {"spearman"}:
            a, b = (group.differences["model"]["additive"][metric] for group in (once, again))
            assert (a.value, a.low, a.high) == pytest.approx((b.value, b.low, b.high), abs=1e-9)
