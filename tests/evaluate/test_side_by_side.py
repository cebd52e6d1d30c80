"""Models and baselines side by side."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate import METRICS, Bootstrap, baselines, evaluate
from deltacell.models import Prediction
from deltacell.screen import Screen, Split

FEW = Bootstrap(50)


def test_groups_cover_the_test_part(evaluation, screen, split):
    assert evaluation.test.rows == len(split.test)
    for by in ("unseen", "kind", "perturbation"):
        assert sum(group.rows for group in evaluation.by(by)) == len(split.test)
    assert [g.label for g in evaluation.by("kind")] == ["digenic", "trigenic"]
    assert {g.label: g.rows for g in evaluation.by("unseen")} == {
        f"{k} unseen gene{'s' * (k != 1)}": n for k, n in split.unseen_counts.items()
    }
    assert [g.label for g in evaluation.by("perturbation")] == ["deletion"]


def test_values_are_those_of_the_rows(evaluation, screen, split, predictions):
    truth = screen.column("score")[split.test].astype(float)
    (_, trigenic) = evaluation.by("kind")
    members = np.array(screen.kind)[split.test] == "trigenic"
    estimate = trigenic.scores["additive"]["pearson"]
    expected = np.corrcoef(predictions["additive"][members], truth[members])[0, 1]
    assert estimate.value == pytest.approx(expected)
    assert estimate.low < estimate.value < estimate.high
    hits = (truth <= -0.08) & (screen.column("p_value")[split.test] <= 0.05)
    assert evaluation.test.positives == hits.sum()
    # A good predictor of scores puts hits, which are low, first.
    assert evaluation.test.scores["good"]["auroc"].value > 0.8


def test_several_seeds_are_averaged_metric_by_metric(evaluation, screen, split, predictions):
    truth = screen.column("score")[split.test].astype(float)
    each = [METRICS["mse"](p, truth) for p in predictions["good"].values()]
    estimate = evaluation.test.scores["good"]["mse"]
    assert evaluation.predictors["good"] == (0, 5)
    assert estimate.seeds == pytest.approx(each)
    assert estimate.value == pytest.approx(np.mean(each))
    assert estimate.seed_deviation == pytest.approx(np.std(each, ddof=1))
    assert evaluation.test.scores["additive"]["mse"].seed_deviation is None


def test_undefined_is_none_with_a_reason(evaluation):
    constant = evaluation.test.scores["global_mean"]
    assert constant["pearson"].value is None
    assert constant["pearson"].reason == "the predictions are all the same"
    assert constant["mse"].value is not None
    difference = evaluation.test.differences["global_mean"]["additive"]["pearson"]
    assert difference.value is None
    assert difference.reason == "global_mean: the predictions are all the same"


def test_differences_are_between_all_predictors_both_ways(evaluation):
    names = set(evaluation.predictors)
    for group in evaluation.groups:
        assert {(a, b) for a, others in group.differences.items() for b in others} == {
            (a, b) for a in names for b in names if a != b
        }
        one, other = (
            group.differences[a][b]["mse"] for a, b in (("good", "additive"), ("additive", "good"))
        )
        assert (one.value, one.low, one.high) == pytest.approx(
            (-other.value, -other.high, -other.low)
        )


def test_the_verdict_names_the_best_of_each_group(evaluation):
    said = {verdict.group: verdict for verdict in evaluation.verdicts}
    assert set(said) == {"test", *(group.label for group in evaluation.by("unseen"))}
    for verdict in said.values():
        assert verdict.best == "good"
        assert verdict.above_chance
        others = {"global_mean", "additive", "query_pair_mean", "shuffled"}
        assert {*verdict.beats, *verdict.level} == others
        assert len(verdict.beats) + len(verdict.level) == len(others)
    assert set(said["test"].beats) == others
    assert evaluation.beats("good", "additive")
    assert not evaluation.beats("additive", "good")
    last = evaluation.by("unseen")[-1]
    # Of genes it has never seen the additive baseline says the same of every row.
    assert last.scores["additive"]["pearson"].value is None
    assert evaluation.beats("good", "additive", last.label)
    assert not evaluation.beats("shuffled", "additive", last.label)


def test_a_model_that_is_only_as_good_is_level(cell, screen, split, predictions):
    good = predictions["good"][0]
    noise = 0.1 * np.random.default_rng(1).normal(size=(2, len(good)))
    given = {"one": good + noise[0], "twin": good + noise[1], "worse": -good}
    result = evaluate(cell, screen, split, given, bootstrap=FEW)
    verdict = result.verdicts[0]
    assert {verdict.best, *verdict.level} == {"one", "twin"}
    assert verdict.beats == ("worse",)
    assert not result.beats("twin", "one")
    assert not result.beats("one", "twin")


def test_a_best_predictor_that_is_no_better_than_chance_is_said_to_be(cell, screen, split):
    rng = np.random.default_rng(5)
    given = {name: rng.normal(size=len(split.test)) for name in ("a", "b")}
    verdict = evaluate(cell, screen, split, given, bootstrap=Bootstrap(200)).verdicts[0]
    assert not verdict.above_chance
    assert verdict.beats == ()
    constant = {name: np.zeros(len(split.test)) for name in ("a", "b")}
    none = evaluate(cell, screen, split, constant, bootstrap=FEW).verdicts[0]
    assert (none.best, none.above_chance) == (None, False)


def test_differences_are_paired(cell, screen, split, predictions):
    additive = predictions["additive"].astype(float)
    noise = np.random.default_rng(1).normal(size=len(additive))
    given = {"additive": additive, "twin": additive + 1e-3 * noise}
    test = evaluate(cell, screen, split, given, bootstrap=FEW).test
    own, between = test.scores["twin"]["pearson"], test.differences["twin"]["additive"]["pearson"]
    assert between.high - between.low < 0.2 * (own.high - own.low)
    assert between.low < between.value < between.high


def test_the_result_is_plain_json_and_the_same_again(evaluation, cell, screen, split, predictions):
    first = json.dumps(evaluation.to_json(), allow_nan=False)
    again = evaluate(cell, screen, split, predictions, bootstrap=Bootstrap(200))
    assert json.dumps(again.to_json()) == first
    other = evaluate(cell, screen, split, predictions, bootstrap=Bootstrap(200, seed=1))
    assert other.test.scores["good"]["pearson"].value == pytest.approx(
        evaluation.test.scores["good"]["pearson"].value
    )
    assert other.test.scores["good"]["pearson"].low != evaluation.test.scores["good"]["pearson"].low


def test_rows_beyond_a_threshold_are_a_group(cell, screen, split, predictions):
    given = {"x": predictions["good"]}
    result = evaluate(cell, screen, split, given, bootstrap=FEW, beyond=0.1)
    (far,) = result.by("beyond")
    score = screen.column("score")[split.test]
    assert far.rows == (np.abs(score) >= np.float32(0.1)).sum() > 0
    assert result.verdicts[-1].group == far.label
    assert evaluate(cell, screen, split, given, bootstrap=FEW, beyond=99).by("beyond") == ()


def test_a_predictor_of_two_parts_answers_among_hits_with_its_size(cell, screen, split):
    truth = torch.tensor(screen.column("score")[split.test].astype(float))
    hit = torch.rand(len(truth), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = {"two": Prediction(hit * truth, hit=hit, given_hit=truth)}
    result = evaluate(cell, screen, split, given, bootstrap=FEW, beyond=0.1)
    assert result.test.scores["two"]["pearson"].value < 0.99
    assert result.by("beyond")[0].scores["two"]["pearson"].value == pytest.approx(1)


def test_test_rows_without_a_score_are_left_out(plain_cell, pairs):
    score = np.linspace(-0.5, 0.5, 40)
    screen = pairs(np.where(np.arange(40) % 4 == 0, np.nan, score), complete=True)
    split = Split.random(screen, validation=0.1, test=0.6)
    given = baselines(plain_cell, screen, split, ["additive"])
    result = evaluate(plain_cell, screen, split, given, bootstrap=FEW)
    known = np.isfinite(screen.column("score")[split.test])
    assert result.test.rows == known.sum() < len(split.test)
    assert len(result.notes) == 1
    assert result.test.scores["additive"]["mse"].value is not None


def test_tiny_test_parts_do_not_crash(plain_cell, pairs):
    screen = pairs(np.linspace(-0.5, 0.5, 12), complete=True)
    rows = np.arange(12)
    split = Split(rows[2:], rows[:0], rows[:2], "random", 0, screen.checksum)
    result = evaluate(plain_cell, screen, split, {"additive": [0, 1], "m": [1, 0]}, bootstrap=FEW)
    estimate = result.test.scores["m"]["mse"]
    assert (estimate.value, estimate.reason) == (None, "there are fewer than 3 rows")
    assert result.verdicts[0].best is None
    json.dumps(result.to_json(), allow_nan=False)


def test_one_class_only_and_resamples_that_lose_one(plain_cell, pairs):
    screen = pairs([0.1, 0.2, 0.3, 0.1, -0.5, *np.linspace(0.1, 0.2, 10)], complete=True)
    rows = np.arange(15)
    prediction = np.arange(5.0)
    split = Split(rows[5:], rows[:0], rows[:5], "random", 0, screen.checksum)
    one_positive = evaluate(plain_cell, screen, split, {"m": prediction}, bootstrap=FEW)
    estimate = one_positive.test.scores["m"]["auroc"]
    assert estimate.value == 0.0
    assert estimate.low is None
    assert "of 50 resamples" in estimate.reason
    split = replace(split, train=rows[4:], test=rows[:4])
    none = evaluate(plain_cell, screen, split, {"m": prediction[:4]}, bootstrap=FEW)
    for name in ("auroc", "aupr"):
        assert none.test.scores["m"][name].value is None
        assert "one class, the negative" in none.test.scores["m"][name].reason


def test_baselines_see_no_test_score(cell: Cell, screen: Screen, split: Split):
    names = ["additive", "query_pair_mean"]
    calls = []
    first = baselines(cell, screen, split, names)
    changed = screen.column("score").copy()
    changed[split.test] = 99.0
    rows = screen.rows.set_column(
        screen.rows.column_names.index("score"), "score", [changed.astype(np.float32)]
    )
    blind = Screen(screen.genes, rows, screen.deleted, screen.coverage)
    same_rows = replace(split, screen_checksum=blind.checksum)
    second = baselines(cell, blind, same_rows, names, progress=lambda *a: calls.append(a))
    for name in names:
        np.testing.assert_array_equal(first[name], second[name])
        assert first[name].shape == split.test.shape
    with pytest.raises(InputError):
        baselines(cell, screen, split, ["nothing"])


def test_what_cannot_be_evaluated(cell, screen, split, plain_cell):
    n = len(split.test)
    not_finite = np.zeros(n)
    not_finite[3] = np.nan
    rows = np.arange(len(screen))
    no_test = Split(rows, rows[:0], rows[:0], "random", 0, screen.checksum)
    other = Screen.synthetic(cell, n=1_400)
    for code, refused in (
        ("no-predictions", lambda: evaluate(cell, screen, split, {})),
        ("no-predictions", lambda: evaluate(cell, screen, split, {"m": {}})),
        ("prediction-shape", lambda: evaluate(cell, screen, split, {"m": np.zeros(3)})),
        ("prediction-not-finite", lambda: evaluate(cell, screen, split, {"m": {7: not_finite}})),
        ("other-genes", lambda: evaluate(plain_cell, screen, split, {"m": np.zeros(n)})),
        ("other-screen", lambda: baselines(cell, other, split)),
        ("no-test-part", lambda: baselines(cell, screen, no_test)),
        ("invalid-bootstrap", lambda: Bootstrap(0)),
        ("invalid-bootstrap", lambda: Bootstrap(level=1.0)),
        ("invalid-bootstrap", lambda: Bootstrap(seed=-1)),
    ):
        with pytest.raises(InputError) as caught:
            refused()
        assert caught.value.code == code
