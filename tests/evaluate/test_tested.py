"""Among all tested pairs: weights, ranking, calibration."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate import Bootstrap, Zeros, evaluate
from deltacell.evaluate.metrics import Column, Weights, precision_of_first
from deltacell.models import Prediction
from deltacell.report.evaluate import markdown_evaluation
from deltacell.screen import Coverage, Genotypes, Grid, Screen, Split

FEW = Bootstrap(60)
N, HALF = 160, 80


@pytest.fixture(scope="module")
def hits() -> tuple[Cell, Screen, Split, Grid, np.ndarray, np.ndarray]:
    """A list of hits whose chance and sign are known for each pair of its grid."""
    rng = np.random.default_rng(0)
    cell = Cell([f"g{i}" for i in range(N)], [])
    query, array = (x.ravel() for x in np.meshgrid(range(HALF), range(HALF, N), indexing="ij"))
    chance = np.zeros((N, N))
    chance[query, array] = rng.beta(0.3, 3, size=len(query))
    size = np.zeros((N, N))
    size[query, array] = rng.choice([-0.25, 0.2], size=len(query))
    listed = rng.random(len(query)) < chance[query, array]
    pairs = np.stack([query, array], axis=1)[listed]
    genotypes = Genotypes.of(pairs.tolist())
    role = ["query", "array"] * len(pairs)
    coverage = Coverage.from_rows(
        genotypes.genes.numpy(),
        genotypes.offsets.numpy(),
        pl.Series(role),
        pl.Series(["s"] * len(pairs)),
        complete=False,
        n_genes=N,
    )
    score = size[pairs[:, 0], pairs[:, 1]]
    screen = Screen.build(
        cell.genes, genotypes, coverage=coverage, score=score, role=role, study="s"
    )
    split = Split.random(screen, seed=1, test=0.4)
    grid = Grid.of(screen)
    assert grid is not None
    return cell, screen, split, grid, chance, size


def asked(screen: Screen, split: Split, zeros: Zeros) -> np.ndarray:
    test = screen.genotypes.take(torch.tensor(split.test))
    return Genotypes.concat([test, zeros.genotypes]).genes.numpy().reshape(-1, 2)


def truth_of(pairs: np.ndarray, chance: np.ndarray, size: np.ndarray) -> Prediction:
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    hit, given_hit = (torch.tensor(table[low, high]) for table in (chance, size))
    return Prediction(hit * given_hit, hit=hit, given_hit=given_hit)


def test_the_true_chances_are_calibrated_on_the_grid_and_find_hits(hits):
    cell, screen, split, grid, chance, size = hits
    zeros = Zeros.draw(grid, split, 1200)
    n_zeros = grid.count("test", split)
    assert len(zeros.genotypes) == 1200 < n_zeros
    assert zeros.weight == pytest.approx(n_zeros / 1200)
    truth = truth_of(asked(screen, split, zeros), chance, size)
    wide = Prediction(3 * truth.score, hit=truth.hit, given_hit=truth.given_hit)
    given = {"truth": truth, "wide": wide, "score": truth.score}
    tested = evaluate(cell, screen, split, given, zeros=zeros, bootstrap=FEW).tested
    assert tested is not None
    assert tested.hit_share == pytest.approx(len(split.test) / (len(split.test) + n_zeros))
    scores = tested.scores
    assert scores["truth"]["slope"].low < 1 < scores["truth"]["slope"].high
    assert scores["wide"]["slope"].value == pytest.approx(scores["truth"]["slope"].value / 3)
    assert scores["truth"]["auroc_hit"].low > 0.7
    assert scores["truth"]["aupr_hit"].value > 2 * tested.hit_share
    assert scores["truth"]["precision_100_hit"].value > 3 * tested.hit_share
    # Without a probability, hits of either sign are ranked by the distance of the score to 0.
    expected = scores["truth"]["auroc_hit"].value
    assert scores["score"]["auroc_hit"].value == pytest.approx(expected, abs=0.05)
    assert scores["score"]["auroc_hit"].value != expected
    assert scores["score"]["auroc_negative"].value == scores["truth"]["auroc_negative"].value
    table = tested.calibration["truth"]
    for by in ("by_score", "by_hit"):
        total = sum(one["sets"] for one in table[by])
        assert total == pytest.approx(len(split.test) + n_zeros)
        hits_found = sum(one["sets"] * one["measured_hits"] for one in table[by])
        assert hits_found == pytest.approx(len(split.test))
    for one in table["by_hit"]:
        error = np.sqrt(one["predicted_hits"] * (1 - one["predicted_hits"]) / one["sets"])
        assert abs(one["measured_hits"] - one["predicted_hits"]) < 6 * error * zeros.weight
    assert tested.calibration["score"]["by_hit"] is None


def test_figures_are_of_the_grid_however_many_zeros_are_drawn(hits):
    cell, screen, split, grid, chance, size = hits
    found = []
    for n in (10**6, 1500):
        zeros = Zeros.draw(grid, split, n)
        truth = truth_of(asked(screen, split, zeros), chance, size)
        found.append(evaluate(cell, screen, split, {"x": truth}, zeros=zeros, bootstrap=FEW).tested)
    whole, part = found
    assert whole.weight == 1
    assert part.weight > 1
    for metric in ("pearson", "slope", "auroc_hit", "aupr_hit", "aupr_negative"):
        a, b = (one.scores["x"][metric] for one in (whole, part))
        assert b.value == pytest.approx(a.value, rel=0.15)
        assert b.low <= a.value <= b.high


def test_among_hits_the_size_given_a_hit_counts(hits):
    cell, screen, split, grid, chance, size = hits
    zeros = Zeros.draw(grid, split, 500)
    truth = truth_of(asked(screen, split, zeros), chance, size)
    result = evaluate(cell, screen, split, {"x": truth}, zeros=zeros, bootstrap=FEW)
    assert result.test.scores["x"]["pearson"].value == pytest.approx(1)
    assert result.tested.scores["x"]["pearson"].value < 0.9
    assert result.tested.zeros == 500
    text = markdown_evaluation(result.to_json())
    assert "among all tested sets" in text
    assert grid.sentence in text
    json.dumps(result.to_json(), allow_nan=False)


def test_without_zeros_a_list_of_hits_says_nothing_of_all_tested_pairs(hits):
    cell, screen, split, grid, _, _ = hits
    rng = np.random.default_rng(0)
    short = {"x": rng.normal(size=len(split.test))}
    assert evaluate(cell, screen, split, short, bootstrap=FEW).tested is None
    zeros = Zeros.draw(grid, split, 50)
    both = short | {"y": rng.normal(size=len(split.test) + 50)}
    tested = evaluate(cell, screen, split, both, zeros=zeros, bootstrap=FEW).tested
    assert set(tested.scores) == {"y"}
    assert any("x" in sentence for sentence in tested.sentences[-1:])
    with pytest.raises(InputError, match="0 zeros"):
        Zeros.draw(grid, split, 0)


def test_a_screen_of_all_that_was_tested_needs_no_zeros(evaluation, screen, split):
    tested = evaluation.tested
    score, p_value = screen.column("score")[split.test], screen.column("p_value")[split.test]
    hit = (np.abs(score) >= np.float32(0.08)) & (p_value <= 0.05)
    assert tested.hit_share == pytest.approx(hit.mean())
    assert (tested.zeros, tested.weight) == (0, 1)
    assert tested.scores["good"]["auroc_hit"].value > tested.scores["additive"]["auroc_hit"].value
    assert tested.scores["global_mean"]["slope"].value is None


@pytest.mark.parametrize("k", [1, 3, 10])
def test_precision_of_the_first_counts_by_weight_and_shares_ties(k):
    rng = np.random.default_rng(k)
    prediction = rng.integers(0, 6, 40).astype(float)
    positive = rng.integers(0, 2, 40).astype(float)
    weight = rng.integers(1, 4, 40)
    found = precision_of_first(k, float(weight.sum()))(
        Column(prediction), Column(positive), Weights(weight[None].astype(float))
    )
    # Each row written out as often as it counts, in many random orders of equal predictions.
    rows = np.repeat(np.arange(40), weight)
    means = []
    for _ in range(4000):
        order = np.lexsort((rng.random(len(rows)), -prediction[rows]))
        means.append(positive[rows[order[:k]]].mean())
    assert found[0] == pytest.approx(np.mean(means), abs=4 * np.std(means) / np.sqrt(4000) + 1e-9)
