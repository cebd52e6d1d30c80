"""What a run's record says of its test, and when scores are mostly one number per gene."""

import pytest

import deltacell as dc
from deltacell.profile.accuracy import Accuracy
from deltacell.profile.record import read_run
from deltacell.train.config.compose import compose
from deltacell.train.run import train


def accuracy(pearson, residual, **baselines):
    return Accuracy(
        predictor="mine",
        measurements=100,
        pearson=pearson,
        baselines=baselines,
        residual=residual,
    )


@pytest.mark.parametrize(
    ("pearson", "additive", "is_mostly_additive"),
    [
        (0.928, 0.908, True),
        (0.735, 0.45, False),
        (0.30, 0.29, True),
        (0.2, -0.2, False),
        (-0.1, 0.1, False),
        (None, 0.9, False),
    ],
)
def test_scores_are_mostly_additive_if_single_genes_explain_nearly_as_much(
    pearson, additive, is_mostly_additive
):
    result = accuracy(pearson, None, additive=additive, boosted_trees=0.1)
    assert result.is_mostly_additive is is_mostly_additive
    assert len(result.sentences) == 1 + is_mostly_additive
    offers = "data.residual=additive" in result.sentences[0]
    assert offers is is_mostly_additive
    # What is learned already is not offered.
    again = accuracy(pearson, "additive", additive=additive)
    assert "data.residual" not in again.sentences[0]


def test_the_best_baseline_is_that_with_the_highest_correlation():
    assert (
        accuracy(0.5, None, additive=0.2, low_rank=0.4, global_mean=0.0).best_baseline == "low_rank"
    )
    assert accuracy(0.5, None).best_baseline is None
    assert not accuracy(0.5, None).is_mostly_additive


def test_a_run_keeps_its_test_and_who_ranks_with_it_reads_it_first(runs, tmp_path):
    path = tmp_path / "trees"
    words = (*runs.fitted, "model=boosted_trees", "model.rounds=3", "name=trees")
    train(compose([*words, f"directory={path}"]))
    run = dc.Run(path)
    assert read_run(path).accuracy is None
    some = dc.evaluate([run], baselines=["additive"], samples=20, progress=False)
    assert some.evaluation.headline.measurements == 20
    assert read_run(path).accuracy is None
    evaluated = dc.evaluate([run], baselines=["additive"], progress=False).evaluation
    record = read_run(path)
    assert record.accuracy == evaluated.headline
    assert record.accuracy.pearson == evaluated.test.scores["trees"]["pearson"].value
    assert record.accuracy.measurements == evaluated.test.rows
    # A later test adds its baselines.
    dc.evaluate([run], baselines=["global_mean"], progress=False)
    assert read_run(path).accuracy.baselines.keys() == {"additive"}
    dc.evaluate([run], baselines=["query_pair_mean"], progress=False)
    assert read_run(path).accuracy.baselines.keys() == {"additive", "query_pair_mean"}
    ranking = dc.rank([run], top=2, out=tmp_path / "ranking.parquet", progress=False)
    assert ranking.to_json()["accuracy"] == read_run(path).accuracy.sentences
    assert read_run(path).accuracy.sentences[-1] in ranking.page(tmp_path / "page.html").read_text()
