"""Anybody's predictions beside those of a run: the same rows, and errors for unusable files."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from deltacell.api.run import Run
from deltacell.cli.app import app
from deltacell.evaluation import Bootstrap
from deltacell.evaluation.given_predictions import PredictionTable
from deltacell.evaluation.rows import EvaluationOptions
from deltacell.evaluation.runs import evaluate_runs

FEW = Bootstrap(10)


def evaluated(predictors, **options):
    return evaluate_runs(predictors, options=EvaluationOptions(bootstrap=FEW, **options))


@pytest.fixture(scope="module")
def test_sets(runs):
    """The gene sets of the test part of the run, by name."""
    data = Run(runs["trees"]).loaded.data
    genotypes, _ = data.part(data.split.test)
    return [tuple(data.cell.genes[gene] for gene in genes.tolist()) for genes in genotypes]


@pytest.fixture(scope="module")
def exported(runs, test_sets):
    """The predictions of a run for its test part, as a table."""
    table = Run(runs["trees"]).predict(test_sets)
    return table.drop_duplicates([name for name in table if name.startswith("gene")])


def test_the_exported_predictions_of_a_run_are_as_good_as_the_run(runs, exported, tmp_path):
    theirs = tmp_path / "theirs.csv"
    exported.sample(frac=1, random_state=0).to_csv(theirs, index=False)
    result = evaluated([runs["trees"], theirs])
    scores = result.evaluation.test.scores
    name = next(name for name in scores if name != "theirs")
    for metric, estimate in scores[name].items():
        same = scores["theirs"][metric]
        assert (same.value, same.low, same.high) == (estimate.value, estimate.low, estimate.high)
    difference = result.evaluation.test.differences["theirs"][name]["pearson"]
    assert (difference.value, difference.low, difference.high) == (0, 0, 0)
    np.testing.assert_array_equal(result.predictions["theirs"], result.predictions[name])
    # A table in memory, whose genes are the other way round, is the same.
    turned = exported.rename(columns={"gene1": "gene2", "gene2": "gene1"})
    frames = evaluated([runs["trees"], turned, "additive"])
    assert frames.evaluation.test.scores["predictions 1"] == scores["theirs"]
    assert "additive" in frames.predictions


def test_a_function_of_names_is_a_predictor(runs, test_sets):
    asked = []

    def number_of_genes(sets):
        asked.extend(sets)
        return [len(genes) + 0.01 * len(genes[0]) for genes in sets]

    result = evaluated([runs["trees"], number_of_genes])
    assert asked == test_sets
    assert set(result.predictions["number_of_genes"]) == {
        np.float32(len(genes) + 0.01 * len(genes[0])) for genes in test_sets
    }


def test_a_table_that_covers_less_than_it_should_is_refused(runs, exported, refused):
    few = exported.iloc[: len(exported) // 2]
    error = refused("missing-predictions", evaluated, [runs["trees"], few])
    whole = evaluated([runs["trees"]])
    result = evaluated([runs["trees"], few], covers=0.3)
    n_used = result.evaluation.test.rows
    assert n_used == whole.evaluation.test.rows - error.fields["missing"]
    # All predictors are tested on the same rows.
    assert all(len(scores) == n_used for scores in result.predictions.values())
    assert any("are left out for all predictors" in note for note in result.evaluation.notes)
    refused("missing-predictions", evaluated, [runs["trees"], few], covers=0.9)
    refused("out-of-range", evaluated, [runs["trees"], few], covers=0)


def test_missing_scores_and_unknown_genes_are_counted(runs, exported):
    changed = exported.assign(score=exported["score"].astype(object))
    changed.iloc[0, changed.columns.get_loc("score")] = None
    more = pd.DataFrame({"gene1": ["nobody"], "gene2": ["nothing"], "score": [0.1]})
    result = evaluated([runs["trees"], pd.concat([changed, more])], covers=0.5)
    notes = " ".join(result.evaluation.notes)
    assert f"2 of {len(exported) + 1} rows are not used, 1 of them because of an unknown" in notes


def test_a_table_that_knows_the_training_part_too_well_is_a_warning(runs, exported):
    data = Run(runs["trees"]).loaded.data
    genotypes, score = data.part(data.split.train)
    rows = [[data.cell.genes[gene] for gene in genes.tolist()] for genes in genotypes]
    train = pd.DataFrame(rows).rename(columns=lambda i: f"gene{i + 1}").assign(score=score)
    genes = [name for name in train if name.startswith("gene")]
    train = train.groupby(genes, dropna=False, as_index=False).first()
    with pytest.warns(UserWarning, match="training rows"):
        evaluated([runs["trees"], pd.concat([exported[[*genes, "score"]], train])])
    noisy = train.assign(score=np.random.default_rng(0).normal(size=len(train)))
    result = evaluated([runs["trees"], pd.concat([exported[[*genes, "score"]], noisy])])
    assert not any("training rows" in note for note in result.evaluation.notes)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "not-predictions"),
        ("\n\n", "not-predictions"),
        ("gene1,gene2\nA,B\n", "not-predictions"),
        ("gene1,score,score\nA,1,2\n", "repeated-column"),
        ("x,y,z\n1,2,3\n", "not-predictions"),
        ("gene1,gene2,score\nA,B,high\n", "bad-rows"),
        ("gene1,gene2,score\nA,B,inf\n", "bad-rows"),
        ("gene1,gene2,score\n,,0.1\n", "bad-rows"),
        ("gene1,gene2,score\nA,B,0.1,7,8\n", "bad-rows"),
        ("gene1,gene2,score\n{a},{b},0.1\n{b},{a},0.2\n", "repeated-set"),
        ("gene1,gene2,score\nA,B,0.1\n", "missing-predictions"),
        ("gene1,gene2,score\n", "missing-predictions"),
        ("\0\1\2\xff", "not-predictions"),
        ("PK\3\4 no workbook", None),
    ],
)
def test_a_file_that_cannot_be_used_is_refused(runs, tmp_path, refused, test_sets, text, code):
    first, second = next(names for names in test_sets if len(names) == 2)
    file = tmp_path / "theirs.csv"
    file.write_bytes(text.replace("{a}", first).replace("{b}", second).encode("latin-1"))
    if code is not None:
        refused(code, evaluated, [runs["trees"], file])
        return
    with pytest.raises(Exception) as caught:  # noqa: PT011
        evaluated([runs["trees"], file])
    assert caught.value.code


def test_the_split_of_a_run_is_a_table_that_others_train_on(runs, tmp_path, refused, capsys):
    csv = tmp_path / "split.csv"
    app(["data", "split", str(runs["trees"]), "--csv", str(csv)], standalone_mode=False)
    table = pl.read_csv(csv)
    data = Run(runs["trees"]).loaded.data
    assert table.height == len(data.screen)
    assert table["part"].to_list().count("test") == len(data.split.test)
    row = int(data.split.test[0])
    names = [data.cell.genes[gene] for gene in data.part(np.array([row]))[0].genes.tolist()]
    assert [name for name in table.row(row)[: data.largest] if name] == names
    np.testing.assert_allclose(table["score"], data.screen.column("score"), rtol=1e-6)
    # The measured scores, once per gene set, are the best prediction there is.
    theirs = tmp_path / "measured.csv"
    genes = [name for name in table.columns if name.startswith("gene")]
    table.filter(pl.col("part") == "test").unique(genes).write_csv(theirs)
    words = ["evaluate", str(runs["trees"]), "--predictions", str(theirs), "--baselines", ""]
    app([*words, "--json", str(tmp_path / "e.json")], standalone_mode=False)
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured has the highest Pearson correlation" in shown
    for words, code in (
        ([str(tmp_path), "--csv", str(tmp_path / "b.csv")], "not-a-run"),
        ([str(runs["trees"]), "--csv", str(csv)], "exists"),
        ([str(runs["trees"]), "--csv", str(tmp_path / "b.xlsx")], "wrong-suffix"),
    ):
        refused(code, app, ["data", "split", *words], standalone_mode=False)


def test_both_parts_of_a_prediction_are_read_and_a_set_without_one_is_not_covered(
    runs,
    exported,
    tmp_path,
    refused,
):
    data = Run(runs["trees"]).loaded.data
    genotypes, _ = data.part(data.split.test)
    score = exported["score"].to_numpy()
    two_parts = exported.assign(score=0.25 * score, hit=0.25, given_hit=score)
    theirs = tmp_path / "theirs.csv"
    two_parts.to_csv(theirs, index=False)
    parts = PredictionTable.read(theirs, data.cell.genes).of(genotypes).parts
    assert (parts.hit == 0.25).all()
    np.testing.assert_allclose(parts.score, 0.25 * parts.given_hit, rtol=1e-6)
    np.testing.assert_array_equal(parts.among_hits, parts.given_hit)
    words = ["evaluate", str(runs["trees"]), "--predictions", str(theirs), "--baselines", ""]
    app([*words, "--json", str(tmp_path / "e.json")], standalone_mode=False)
    assert (tmp_path / "e.json").exists()
    # A score alone is not a prediction of a table with two parts.
    for part in ("hit", "given_hit"):
        two_parts.assign(**{part: np.nan}).to_csv(theirs, index=False)
        refused("missing-predictions", app, words, standalone_mode=False)
