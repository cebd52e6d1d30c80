"""What counts as a hit, and hits among all tested pairs: weights, ranking, calibration."""

import json

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.evaluation import Bootstrap, TestedZeros, evaluate_predictions
from deltacell.evaluation.hits import positives
from deltacell.evaluation.metrics import Column, Weights, precision_of_first
from deltacell.models import Prediction
from deltacell.report.evaluate import markdown_evaluation
from deltacell.screen import Coverage, Genotypes, Grid, Screen, Split, StudyCoverage
from deltacell.screen.hit_rule import HitRule

FEW = Bootstrap(60)
N, HALF = 160, 80
nan = np.nan

SCORES = [-0.5, -0.08, -0.01, 0.0, 0.02, 0.3]
HITS = [-0.5, -0.1, -0.09, 0.1, 0.2, 0.3]
TESTED, LISTED = {"complete": True}, {"complete": False}
P = {"p_value": [0.001, 0.2, 0.01, 0.5, 0.5, 0.001]}
FEW_P = {"p_value": [0.1, nan, 0.01, 1, 1, 1]}
MIXED_P = {"p_value": [0.01, 0.01, 0.9, 0.9, 0.01, 0.01]}
SIGN = {"sign": np.array([-1, -1, 1, 1, 0, -1], dtype=np.int8)}


@pytest.mark.parametrize(
    ("score", "columns", "threshold", "among", "label"),
    [
        (SCORES, TESTED | P, -0.08, "tested", [1, 0, 0, 0, 0, 0]),
        (SCORES, TESTED, -0.05, "tested", [1, 1, 0, 0, 0, 0]),
        # Rows that cannot be told are left out and counted.
        ([nan, -1, -1, 0, 0, 0], TESTED | FEW_P, -0.08, "tested", [nan, nan, 1, 0, 0, 0]),
        # On a list of hits it is the sign.
        (HITS, LISTED | {"p_value": 0.01}, -0.08, "hits", [1, 1, 1, 0, 0, 0]),
        (HITS, LISTED, -0.08, "hits", [1, 1, 1, 0, 0, 0]),
        ([nan] * 6, SIGN, -0.08, "hits", [1, 1, 0, 0, nan, 1]),
        # What is not known to list hits only does not.
        (HITS, TESTED, -0.08, "tested", [1, 1, 1, 0, 0, 0]),
        (HITS, {}, -0.08, "tested", [1, 1, 1, 0, 0, 0]),
        (SCORES, LISTED, -0.08, "tested", [1, 1, 0, 0, 0, 0]),
        (HITS, LISTED | MIXED_P, -0.08, "tested", [1, 1, 0, 0, 0, 0]),
        (np.abs(HITS), LISTED | {"phenotype": "fitness"}, -0.08, "tested", [0] * 6),
    ],
)
def test_labels_of_hits_follow_scores_statuses_and_thresholds(
    pairs, score, columns, threshold, among, label
):
    found = positives(pairs(score, **columns), np.arange(6), HitRule.symmetric(threshold))
    np.testing.assert_array_equal(found.label, label)
    facts = found.facts
    assert (facts.among, facts.positives) == (among, np.nansum(label))
    assert facts.rows == 6 - facts.left_out == np.isfinite(label).sum()
    if among == "tested":
        assert (facts.largest_p is None) == ("p_value" not in columns)


@pytest.fixture(scope="module")
def hits():
    """A list of hits whose chance and sign are known for each pair of its grid."""
    rng = np.random.default_rng(0)
    cell = Cell([f"g{i}" for i in range(N)], [])
    query, array = (x.ravel() for x in np.meshgrid(range(HALF), range(HALF, N), indexing="ij"))
    chance, size = np.zeros((2, N, N))
    chance[query, array] = rng.beta(0.3, 3, size=len(query))
    size[query, array] = rng.choice([-0.25, 0.2], size=len(query))
    listed = rng.random(len(query)) < chance[query, array]
    pairs = np.stack([query, array], axis=1)[listed]
    study = StudyCoverage("s", np.arange(HALF), np.arange(HALF + 1), np.arange(HALF, N), False)
    about = {"coverage": Coverage((study,)), "score": size[tuple(pairs.T)], "study": "s"}
    screen = Screen.build(cell.genes, Genotypes.of(pairs.tolist()), **about)
    split, grid = Split.random(screen, seed=1, test=0.4), Grid.of(screen)
    test = screen.genotypes.take(torch.tensor(split.test))

    def evaluated(n, given):
        """Evaluate what a function makes of the true chances and sizes, with n zeros."""
        zeros = TestedZeros.draw(grid, split, n)
        both = Genotypes.concat([test, zeros.genotypes]).genes.numpy().reshape(-1, 2)
        low, high = both.min(axis=1), both.max(axis=1)
        hit, given_hit = (torch.tensor(table[low, high]) for table in (chance, size))
        truth = Prediction(hit * given_hit, hit=hit, given_hit=given_hit)
        return zeros, evaluate_predictions(
            cell, screen, split, given(truth), zeros=zeros, bootstrap=FEW
        )

    return split, grid, evaluated


def test_the_true_chances_are_calibrated_on_the_grid_and_find_hits(hits):
    split, grid, evaluated = hits

    def given(truth):
        wide = Prediction(3 * truth.score, hit=truth.hit, given_hit=truth.given_hit)
        return {"truth": truth, "wide": wide, "score": truth.score}

    zeros, result = evaluated(1200, given)
    tested, n_zeros = result.tested, grid.count("test", split)
    assert tested.zeros == len(zeros.genotypes) == 1200 < n_zeros
    assert zeros.weight == pytest.approx(n_zeros / 1200)
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
    for bins in (table.by_score, table.by_hit):
        n_sets = sum(row.sets for row in bins)
        assert n_sets == pytest.approx(len(split.test) + n_zeros)
        n_hits = sum(row.sets * row.measured_hits for row in bins)
        assert n_hits == pytest.approx(len(split.test))
    for row in table.by_hit:
        error = np.sqrt(row.predicted_hits * (1 - row.predicted_hits) / row.sets)
        assert abs(row.measured_hits - row.predicted_hits) < 6 * error * zeros.weight
    assert tested.calibration["score"].by_hit is None
    assert {row.predicted_hits for row in tested.calibration["score"].by_score} == {None}
    # Among hits the size given a hit counts.
    assert result.test.scores["truth"]["pearson"].value == pytest.approx(1)
    assert scores["truth"]["pearson"].value < 0.9
    text = markdown_evaluation(result.to_json())
    assert "among all tested sets" in text
    assert grid.sentence in text
    json.dumps(result.to_json(), allow_nan=False)


def test_figures_are_of_the_grid_however_many_zeros_are_drawn(hits, refused):
    *_, evaluated = hits
    whole, part = (evaluated(n, lambda truth: {"x": truth})[1].tested for n in (10**6, 1500))
    assert whole.weight == 1 < part.weight
    for metric in ("pearson", "slope", "auroc_hit", "aupr_hit", "aupr_negative"):
        a, b = (one.scores["x"][metric] for one in (whole, part))
        assert b.value == pytest.approx(a.value, rel=0.15)
        assert b.low <= a.value <= b.high
    split, _, evaluated = hits
    assert evaluated(0, lambda truth: {"x": truth})[1].tested is None
    short = {"x": np.zeros(len(split.test))}
    refused("wrong-predictions", evaluated, 50, lambda truth: short)


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
        Column(prediction),
        Column(positive),
        Weights(weight[None].astype(float)),
    )
    # Each row written out as often as it counts, in many random orders of equal predictions.
    rows = np.repeat(np.arange(40), weight)
    means = []
    for _ in range(4000):
        order = np.lexsort((rng.random(len(rows)), -prediction[rows]))
        means.append(positive[rows[order[:k]]].mean())
    assert found[0] == pytest.approx(np.mean(means), abs=4 * np.std(means) / np.sqrt(4000) + 1e-9)
