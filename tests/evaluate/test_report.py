"""Renderings of an evaluation: as given, nothing left out, nothing computed."""

from __future__ import annotations

import json

from deltacell.report.evaluate import markdown_evaluation, print_evaluation


def titles_of_tested(lines):
    return next(line for line in lines if line.startswith("| predictor | Pearson ↑ | slope |"))


def test_markdown_has_the_tables_and_the_sentences(evaluation):
    text = markdown_evaluation(evaluation.to_json())
    lines = text.splitlines()
    titles = "Pearson ↑ | Spearman ↑ | MSE ↓ | AUROC ↑ | AUPR ↑ | not additive"
    assert f"| predictor | {titles} |" in lines
    good = next(line for line in lines if line.startswith("| good (2 seeds)"))
    estimate = evaluation.test.scores["good"]["pearson"]
    assert f"{estimate.value:.3f} ± {estimate.seed_deviation:.3f}" in good
    assert f"({estimate.low:.3f} to {estimate.high:.3f})" in good
    (constant, *_) = (line for line in lines if line.startswith("| global\\_mean"))
    assert constant.startswith("| global\\_mean | - | - | 0.0")
    verdicts = [verdict.sentence for verdict in evaluation.verdicts]
    for sentence in (*verdicts, evaluation.ceiling.sentence, *evaluation.tested.sentences):
        assert f"- {sentence}".replace("_", "\\_") in lines
    assert "Not given on test: Pearson, Spearman of global\\_mean: the predictions" in text
    # A table of one group would repeat the first.
    assert "by perturbation" not in text
    assert f"({evaluation.tested.hit_share:.2%} hits, 95 % interval)" in text
    slope = evaluation.tested.scores["good"]["slope"]
    assert f"{slope.value:.3f} ± " in next(
        line for line in lines[lines.index(titles_of_tested(lines)) :] if "good (2 seeds)" in line
    )
    for name in evaluation.predictors:
        assert f"calibration of {name}: ".replace("_", "\\_") in text


def test_a_value_without_an_interval_is_not_called_missing(evaluation):
    result = evaluation.to_json()
    for metric in ("auroc", "aupr"):
        result["groups"][0]["scores"]["good"][metric].update(
            low=None, high=None, reason="it is not defined in 125 of 1,000 resamples"
        )
    text = markdown_evaluation(result)
    why = "AUROC, AUPR of good: it is not defined in 125 of 1,000 resamples."
    assert f"- Given without an interval on test: {why}" in text
    assert f"Not given on test: {why}" not in text
    assert "- Not given on test: Pearson, Spearman of global\\_mean: " in text


def test_counts_of_one_are_singular(evaluation, capsys):
    result = evaluation.to_json()
    result["groups"][0].update(rows=1, gene_sets=1)
    result["groups"][1]["rows"] = 1
    print_evaluation(result)
    said = " ".join(capsys.readouterr().out.split())
    assert "test: 1 row, 1 gene set (95 % interval)" in said
    # A heading of the terminal may be broken anywhere.
    assert "(1 row) |" in markdown_evaluation(result)


def test_names_are_shown_and_not_interpreted(evaluation, capsys):
    result = json.loads(json.dumps(evaluation.to_json()).replace("shuffled", "[red]x|y"))
    print_evaluation(result)
    assert "[red]x|y (" in capsys.readouterr().out
    text = markdown_evaluation(result)
    assert "| \\[red\\]x\\|y | " in text


def test_the_terminal_has_all_verdicts_and_the_calibration_of_the_best(evaluation, capsys):
    print_evaluation(evaluation.to_json())
    said = " ".join(capsys.readouterr().out.split())
    assert all(verdict.sentence in said for verdict in evaluation.verdicts)
    assert "calibration of good" in said
    assert "calibration of additive" not in said


def test_the_terminal_shows_what_it_is_given(evaluation, capsys):
    result = evaluation.to_json()
    result["groups"][0]["scores"]["additive"]["pearson"].update(value=0.7777, low=None)
    print_evaluation(result)
    shown = capsys.readouterr().out
    assert "0.778" in shown
    assert "Pearson by number of unseen genes (95 % interval)" in shown
    assert evaluation.positives["sentence"][:60] in shown
