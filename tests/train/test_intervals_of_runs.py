"""Intervals of runs: saved with a fit, kept by a refit, shown, and checked by evaluations."""

import numpy as np
import pytest

import deltacell as dc
from deltacell.ranking.why import explain_set
from deltacell.report.evaluate import markdown_evaluation
from deltacell.report.predict import ranking_page
from deltacell.train.intervals import GeneDistances
from deltacell.train.loaded_runs import load_run

QUICK = {"rounds": 10, "progress": False}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trees on a synthetic screen, of which every part has rows enough."""
    cell = dc.Cell.synthetic("demo")
    screen = dc.Screen.synthetic(cell, n=1_600)
    screen = screen.take(np.diff(screen.offsets) == 2).merge("mean")
    split = dc.Split.random(screen, validation=0.3, test=0.3)
    place = tmp_path_factory.mktemp("intervals") / "run"
    return dc.fit("pairs", cell, screen, split, directory=place, **QUICK)


def ends_of(loaded, genotypes):
    prediction = loaded.predict(genotypes)
    return prediction.low.numpy(), prediction.high.numpy()


def test_a_run_has_the_same_intervals_when_it_is_loaded_again(run):
    genotypes = run.screen.genotypes
    again = load_run(run.path)
    assert again.saved_intervals is not None
    for end, end_again in zip(
        ends_of(run.loaded, genotypes), ends_of(again, genotypes), strict=True
    ):
        assert np.array_equal(end, end_again)
    # As they would be calibrated now.
    fresh = load_run(run.path)
    object.__setattr__(fresh, "saved_intervals", None)
    assert fresh.intervals.to_json() == run.loaded.intervals.to_json()


def test_an_evaluation_reports_the_share_within_intervals(run):
    result = dc.evaluate(run, baselines=(), progress=False)
    [whole, *_] = result.evaluation.intervals
    rows = run.split.test
    genotypes, score = run.loaded.data.part(rows)
    low, high = ends_of(run.loaded, genotypes)
    assert whole.rows == len(rows)
    assert whole.share == pytest.approx(((low <= score) & (score <= high)).mean())
    assert whole.width == pytest.approx((high - low).mean())
    assert 0.8 < whole.share < 0.98
    assert f"{whole.share:.1%}" in markdown_evaluation(result.to_json())


def test_a_refit_keeps_the_intervals_and_knows_more_genes(run, tmp_path):
    refitted = run.refit(tmp_path / "refitted", progress=False)
    assert refitted.loaded.intervals.to_json() == run.loaded.intervals.to_json()
    before, after = GeneDistances.of(run.loaded.data), GeneDistances.of(refitted.loaded.data)
    assert (after.is_seen >= before.is_seen).all()


def test_predictions_rankings_pages_and_explanations_have_them(run, tmp_path):
    names = run.cell.genes
    genes = [2, 7]
    table = run.predict([[names[gene] for gene in genes]])
    low, high = table["low"][0], table["high"][0]
    assert low < table["score"][0] < high
    explained = explain_set([run.loaded], genes)
    assert (explained.low, explained.high) == pytest.approx((low, high))
    ranking = dc.rank(run, "pairs", top=5, out=tmp_path / "pairs.parquet", progress=False)
    rows = ranking.to_pandas()
    predicted = run.predict(list(rows["genes"]))
    for end in ("low", "high"):
        assert list(rows[end]) == pytest.approx(list(predicted[end]), rel=1e-5)
    assert '"interval"' in ranking_page(ranking.page_data())


def test_a_run_without_validation_rows_has_none(run, tmp_path):
    split = dc.Split.random(run.screen, validation=0.02, test=0.3)
    place = tmp_path / "without"
    without = dc.fit("pairs", run.cell, run.screen, split, directory=place, **QUICK)
    assert without.loaded.intervals is None
    assert "low" not in without.predict([[run.cell.genes[2], run.cell.genes[7]]])
