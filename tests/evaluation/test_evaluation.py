"""Models and baselines side by side, how that is rendered, the ceiling, and the figures."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from deltacell.api.figures import draw_figures
from deltacell.cell import Cell, Genes, Relation
from deltacell.evaluation import (
    METRICS,
    Bootstrap,
    baselines,
    evaluate_predictions,
    replicate_ceiling,
)
from deltacell.evaluation.figure_values import calibration, residual_by_degree
from deltacell.evaluation.metrics import Column
from deltacell.models import Prediction
from deltacell.report.evaluate import markdown_evaluation, print_evaluation
from deltacell.screen import Genotypes, Screen, Split
from deltacell.screen.hit_rule import HitRule

FEW = Bootstrap(50)


def groups(evaluation, by):
    return [group for group in evaluation.groups if group.by == by]


def test_groups_cover_the_test_part_and_values_are_those_of_the_rows(
    evaluation,
    screen,
    split,
    predictions,
):
    for by in ("test", "unseen", "kind", "perturbation"):
        assert sum(group.rows for group in groups(evaluation, by)) == len(split.test)
    assert [g.label for g in groups(evaluation, "kind")] == ["digenic", "trigenic"]
    assert {g.label: g.rows for g in groups(evaluation, "unseen")} == {
        f"{k} unseen gene{'s' * (k != '1')}": n
        for k, n in split.to_json()["test_genotypes_by_unseen_genes"].items()
    }
    assert [g.label for g in groups(evaluation, "perturbation")] == ["deletion"]
    truth = screen.column("score")[split.test].astype(float)
    members = np.array(screen.kind)[split.test] == "trigenic"
    estimate = groups(evaluation, "kind")[1].scores["additive"]["pearson"]
    expected = np.corrcoef(predictions["additive"][members], truth[members])[0, 1]
    assert estimate.value == pytest.approx(expected)
    assert estimate.low < estimate.value < estimate.high
    hits = (truth <= -0.08) & (screen.column("p_value")[split.test] <= 0.05)
    assert evaluation.test.positives == hits.sum()
    # A good predictor of scores puts hits, which are low, first.
    assert evaluation.test.scores["good"]["auroc"].value > 0.8
    # Several seeds are averaged metric by metric.
    measure = METRICS["mse"].measure
    each = [measure(Column(p), Column(truth))[0] for p in predictions["good"].values()]
    estimate = evaluation.test.scores["good"]["mse"]
    assert evaluation.predictors["good"] == (0, 5)
    assert estimate.seeds == pytest.approx(each)
    assert estimate.value == pytest.approx(np.mean(each))
    assert estimate.seed_deviation == pytest.approx(np.std(each, ddof=1))
    assert evaluation.test.scores["additive"]["mse"].seed_deviation is None


def test_differences_are_between_all_predictors_both_ways(evaluation):
    names = set(evaluation.predictors)
    for group in evaluation.groups:
        assert {a: set(others) for a, others in group.differences.items()} == {
            name: names - {name} for name in names
        }
        one, other = (
            group.differences[a][b]["mse"] for a, b in (("good", "additive"), ("additive", "good"))
        )
        turned = (-other.value, -other.high, -other.low)
        assert (one.value, one.low, one.high) == pytest.approx(turned)
    constant = evaluation.test.scores["global_mean"]
    assert constant["pearson"].value is None
    assert constant["pearson"].reason == "the predictions are all the same"
    assert constant["mse"].value is not None
    difference = evaluation.test.differences["global_mean"]["additive"]["pearson"]
    assert (difference.value, difference.low) == (None, None)
    assert difference.reason == "global_mean: the predictions are all the same"


def test_the_verdict_names_the_best_of_each_group(evaluation):
    said = {verdict.group: verdict for verdict in evaluation.verdicts}
    assert set(said) == {"test", *(group.label for group in groups(evaluation, "unseen"))}
    others = {"global_mean", "additive", "query_pair_mean", "shuffled"}
    for verdict in said.values():
        assert (verdict.best, verdict.above_chance) == ("good", True)
        assert sorted([*verdict.beats, *verdict.level]) == sorted(others)
    assert set(said["test"].beats) == others
    assert evaluation.beats("good", "additive")
    assert not evaluation.beats("additive", "good")
    last = groups(evaluation, "unseen")[-1]
    # Of genes it has never seen the additive baseline says the same of every row.
    assert last.scores["additive"]["pearson"].value is None
    assert evaluation.beats("good", "additive", last.label)
    assert not evaluation.beats("shuffled", "additive", last.label)


def test_level_predictors_chance_and_constants(cell, screen, split, predictions):
    good, rng = predictions["good"][0], np.random.default_rng(1)
    noise = 0.1 * rng.normal(size=(2, len(good)))
    given = {"one": good + noise[0], "twin": good + noise[1], "worse": -good}
    given["near"] = good + noise[0] + 1e-3 * noise[1]
    result = evaluate_predictions(cell, screen, split, given, bootstrap=FEW)
    # Differences are paired.
    test = result.test
    own, between = test.scores["near"]["pearson"], test.differences["near"]["one"]["pearson"]
    assert between.high - between.low < 0.2 * (own.high - own.low)
    verdict = result.verdicts[0]
    assert {verdict.best, *verdict.level} == {"one", "twin", "near"}
    assert verdict.beats == ("worse",)
    assert not result.beats("twin", "one")
    assert not result.beats("one", "twin")
    rng = np.random.default_rng(5)
    random = {name: rng.normal(size=len(good)) for name in ("a", "b")}
    verdict = evaluate_predictions(cell, screen, split, random, bootstrap=Bootstrap(200)).verdicts[
        0
    ]
    assert (verdict.above_chance, verdict.beats) == (False, ())
    constant = {name: np.zeros(len(good)) for name in ("a", "b")}
    none = evaluate_predictions(cell, screen, split, constant, bootstrap=FEW).verdicts[0]
    assert (none.best, none.above_chance) == (None, False)
    assert (none.beats, none.level) == ((), ())


def test_the_result_is_plain_json_and_the_same_again(evaluation, cell, screen, split, predictions):
    first = json.dumps(evaluation.to_json(), allow_nan=False)
    again, other = (
        evaluate_predictions(cell, screen, split, predictions, bootstrap=Bootstrap(100, seed=seed))
        for seed in (0, 1)
    )
    assert json.dumps(again.to_json()) == first
    one, two = (e.test.scores["good"]["pearson"] for e in (evaluation, other))
    assert one.value == pytest.approx(two.value)
    assert one.low != two.low


def test_rows_beyond_a_threshold_are_a_group_where_two_parts_answer_with_their_size(
    cell,
    screen,
    split,
):
    score = screen.column("score")[split.test]
    truth = torch.tensor(score.astype(float))
    hit = torch.rand(len(truth), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    given = {"two": Prediction(hit * truth, hit=hit, given_hit=truth)}
    result = evaluate_predictions(
        cell, screen, split, given, bootstrap=FEW, beyond=HitRule.symmetric(0.1)
    )
    (far,) = groups(result, "beyond")
    assert far.rows == (np.abs(score) >= np.float32(0.1)).sum() > 0
    assert result.verdicts[-1].group == far.label
    assert result.test.scores["two"]["pearson"].value < 0.99
    assert far.scores["two"]["pearson"].value == pytest.approx(1)
    nothing = evaluate_predictions(
        cell, screen, split, given, bootstrap=FEW, beyond=HitRule.symmetric(99)
    )
    assert not groups(nothing, "beyond")


def test_sets_that_the_context_measured_and_new_ones_are_groups(cell, screen, split):
    score = screen.column("score")[split.test].astype(float)
    in_context = np.arange(len(score)) % 3 == 0
    noise = np.where(in_context, 0, np.random.default_rng(0).normal(size=len(score)))
    result = evaluate_predictions(
        cell,
        screen,
        split,
        {"m": score + noise},
        bootstrap=FEW,
        in_context=in_context,
    )
    measured, new = groups(result, "context")
    assert (measured.rows, new.rows) == (in_context.sum(), (~in_context).sum())
    assert measured.scores["m"]["pearson"].value == pytest.approx(1)
    assert new.scores["m"]["pearson"].value < 0.9
    without = evaluate_predictions(cell, screen, split, {"m": score}, bootstrap=FEW)
    assert not groups(without, "context")


def test_rows_without_a_score_tiny_parts_and_one_class(plain_cell, pairs):
    score = np.linspace(-0.5, 0.5, 40)
    screen = pairs(np.where(np.arange(40) % 4 == 0, np.nan, score), complete=True)
    split = Split.random(screen, validation=0.1, test=0.6)
    given = baselines(plain_cell, screen, split, ["additive"])
    result = evaluate_predictions(plain_cell, screen, split, given, bootstrap=FEW)
    known = np.isfinite(screen.column("score")[split.test])
    assert result.test.rows == known.sum() < len(split.test)
    assert len(result.notes) == 1
    assert result.test.scores["additive"]["mse"].value is not None
    screen = pairs([0.1, 0.2, 0.3, 0.1, -0.5, *np.linspace(0.1, 0.2, 10)], complete=True)
    rows, found = np.arange(15), {}
    for n in (2, 4, 5):
        split = Split(rows[n:], rows[:0], rows[:n], "random", 0, screen.checksum)
        found[n] = evaluate_predictions(
            plain_cell, screen, split, {"m": np.arange(n)}, bootstrap=FEW
        )
        json.dumps(found[n].to_json(), allow_nan=False)
    tiny, one_class, one_positive = (one.test.scores["m"] for one in found.values())
    assert (tiny["mse"].value, found[2].verdicts[0].best) == (None, None)
    for name in ("auroc", "aupr"):
        assert one_class[name].value is None
        assert "all 4 rows are negative" in one_class[name].reason
    # Some resamples lose the only positive.
    assert (one_positive["auroc"].value, one_positive["auroc"].low) == (0.0, None)
    assert "of 50 resamples" in one_positive["auroc"].reason


def test_baselines_see_no_test_score(cell, screen, split):
    names = ["additive", "query_pair_mean"]
    changed = screen.column("score").copy()
    changed[split.test] = 99.0
    blind = screen.with_scores(changed)
    same_rows = replace(split, screen_checksum=blind.checksum)
    first, second = baselines(cell, screen, split, names), baselines(cell, blind, same_rows, names)
    for name in names:
        np.testing.assert_array_equal(first[name], second[name])
        assert first[name].shape == split.test.shape


def test_missing_or_misshapen_predictions_are_refused(cell, screen, split, plain_cell, refused):
    n, rows = len(split.test), np.arange(len(screen))
    not_finite = np.where(np.arange(n) == 3, np.nan, 0)
    no_test = Split(rows, rows[:0], rows[:0], "random", 0, screen.checksum)
    for code, predictions in (
        ("no-predictions", {}),
        ("no-predictions", {"m": {}}),
        ("wrong-predictions", {"m": np.zeros(3)}),
        ("wrong-predictions", {"m": {7: not_finite}}),
    ):
        refused(code, evaluate_predictions, cell, screen, split, predictions)
    refused("other-genes", evaluate_predictions, plain_cell, screen, split, {"m": np.zeros(n)})
    refused("other-screen", baselines, cell, Screen.synthetic(cell, n=1_400), split)
    refused("no-test-part", baselines, cell, screen, no_test)
    refused("unknown-choice", baselines, cell, screen, split, ["nothing"])


def test_renderings_have_all_tables_and_sentences_and_interpret_no_name(evaluation, capsys):
    result = json.loads(json.dumps(evaluation.to_json()).replace("shuffled", "[red]x|y"))
    good = result["groups"][0]["scores"]["good"]
    for metric in ("auroc", "aupr"):
        good[metric].update(low=None, high=None, reason="it is lost")
    text = markdown_evaluation(result)
    lines = text.splitlines()
    one = good["pearson"]
    value = f"{one['value']:.3f} ± {one['seed_deviation']:.3f} ({one['low']:.3f} to"
    assert any(line.startswith(f"| good (2 seeds) | {value}") for line in lines)
    assert "| \\[red\\]x\\|y | " in text
    assert "| global\\_mean | - | - | 0.0" in text
    sentences = [verdict["sentence"] for verdict in result["verdicts"]]
    sentences += [result["leakage"], *result["tested"]["sentences"]]
    assert {f"- {one}" for one in sentences} <= {line.replace("\\", "") for line in lines}
    assert "AUROC, AUPR of good: it is lost." in text
    # A table of one group would repeat the first.
    assert "by perturbation" not in text
    print_evaluation(result)
    said = " ".join(capsys.readouterr().out.split())
    assert all(sentence in said for sentence in sentences)
    assert "[red]x|y (" in said
    # Of all predictors in the file, and of the best one on the terminal.
    shown = [
        ("calibration of additive" in where, "calibration of good" in where)
        for where in (text, said)
    ]
    assert shown == [(True, True), (False, True)]


def repeated(n_sets, noise):
    """Every pair of 40 genes once, twice or three times, the truth of deviation 1."""
    rng = np.random.default_rng(0)
    sets = [(i, j) for i in range(40) for j in range(i + 1, 40)][:n_sets]
    row = np.sort(np.concatenate([np.arange(n_sets), rng.integers(0, n_sets, n_sets)]))
    truth = rng.normal(size=n_sets)[row]
    score = truth + noise * rng.normal(size=len(row))
    genes = Genes([f"g{i}" for i in range(40)])
    return Screen.build(genes, Genotypes.of([sets[r] for r in row]), score=score), truth


@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_the_ceiling_is_what_the_truth_itself_reaches(noise):
    screen, truth = repeated(780, noise)
    ceiling = replicate_ceiling(screen, np.arange(len(screen)))
    reached = np.corrcoef(truth, screen.column("score"))[0, 1]
    assert ceiling.pearson == pytest.approx(reached, abs=0.03)
    assert ceiling.pearson == pytest.approx(1 / np.sqrt(1 + noise**2), abs=0.03)
    assert ceiling.repeated_sets > 300
    # Merged rows have less noise and need the screen before.
    merged = screen.merge("mean")
    rows, first = np.arange(len(merged)), np.unique(screen.keys, return_index=True)[1]
    reached = np.corrcoef(truth[np.sort(first)], merged.column("score"))[0, 1]
    assert replicate_ceiling(merged, rows, screen).pearson == pytest.approx(reached, abs=0.03)
    alone = replicate_ceiling(merged, rows)
    assert (alone.pearson, alone.repeated_sets) == (None, 0)

    # Without repeats or signal there is none.
    same = replicate_ceiling(screen, np.flatnonzero(np.abs(screen.column("score")) < 0.5))
    assert same.noise > same.variance
    few = Screen.build(Genes(["a", "b"]), Genotypes.of([(0, 1), (0, 1)]), score=[1.0, 2.0])
    assert same.pearson is replicate_ceiling(few, np.arange(2)).pearson is None


@pytest.mark.slow
def test_all_figures_go_into_one_folder_and_are_the_same_again(
    tmp_path,
    cell,
    screen,
    split,
    refused,
):
    rng = np.random.default_rng(0)
    zeros = np.zeros(len(split.test))
    given = {"../a $b_": rng.normal(size=len(zeros))}
    weights = {"dango": (["$a_", "b"], rng.dirichlet(np.ones(2), 300))}
    folder = tmp_path / "new" / "f"
    drawn = draw_figures(cell, screen, split, given, folder, weights=weights)
    kinds = ("predicted", "calibration", "residual")
    names = {*(f"_a_b_-{what}.png" for what in kinds), "dango-relations.png"}
    assert {path.name for path in drawn} == names
    assert set(folder.iterdir()) == set(drawn)
    assert all(one.read_bytes().startswith(b"\x89PNG") for one in drawn)
    for one in draw_figures(cell, screen, split, given, tmp_path / "g", weights=weights):
        assert one.read_bytes() == (folder / one.name).read_bytes()
    same = {"a b": zeros, "a_b": zeros}
    refused("same-name", draw_figures, cell, screen, split, same, tmp_path)


def test_calibration_is_the_means_of_bins():
    predicted = np.repeat([0.0, 1.0, 2.0], 4)
    measured = np.array([0, 2, 0, 2, 1, 1, 1, 1, 5, 5, 5, 5], dtype=float)
    bins = calibration(predicted, measured, bins=3)
    np.testing.assert_allclose([bins.predicted, bins.measured], [[0, 1, 2], [1, 1, 5]])
    expected_error = [np.std([0, 2, 0, 2], ddof=1) / 2, 0, 0]
    np.testing.assert_allclose(bins.standard_error, expected_error)
    assert bins.slope == pytest.approx(np.polyfit(predicted, measured, 1)[0])
    measured = np.linspace(-1, 1, 50)
    for scale, slope in ((0.0, None), (1e-4, None), (0.02, 50)):
        bins = calibration(0.3 + scale * measured, measured)
        assert bins.deviation_share == pytest.approx(scale, abs=1e-12)
        assert bins.slope == (None if slope is None else pytest.approx(slope))


def test_residuals_go_to_the_degree_of_each_gene():
    relations = [
        Relation.from_edges("u", [0, 0], [1, 2], n_genes=4, directed=False),
        Relation.from_edges("d", [0], [1], n_genes=4, directed=True),
    ]
    cell, genotypes = Cell(["a", "b", "c", "d"], relations), Genotypes.of([(0, 3), (0,), (3,)])
    bins = residual_by_degree(cell, genotypes, np.array([1.0, 3.0, -1.0]), bins=2)
    np.testing.assert_allclose(bins.degree, [0, 3])
    np.testing.assert_allclose(bins.lower_quartile, [-0.5, 1.5])
    np.testing.assert_allclose(bins.mean, [0, 2])
    np.testing.assert_allclose(bins.upper_quartile, [0.5, 2.5])
    np.testing.assert_allclose(bins.root_mean_square, [1, np.sqrt(5)])
