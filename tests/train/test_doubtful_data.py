"""Inputs that contain the answer, and scores beyond any scale, are named before any score."""

import numpy as np
import polars as pl
import pytest

import deltacell as dc
from deltacell.cell import Relation
from deltacell.cell.annotation import Feature
from deltacell.models.fitted.gene_sets import GeneSets
from deltacell.profile.record import read_run
from deltacell.screen.outliers import beyond_any_scale
from deltacell.train.leaks import likely_leaks

N_GENES = 40


def screen_of(scores):
    """Return a cell without networks and a screen of the first pairs of its genes."""
    cell = dc.Cell(dc.Genes([f"G{i:02}" for i in range(N_GENES)]), [])
    pairs = np.stack(np.triu_indices(N_GENES, 1), axis=1)[: len(scores)]
    names = np.array(cell.genes.systematic)[pairs]
    rows = {"gene1": names[:, 0], "gene2": names[:, 1], "score": scores}
    return cell, dc.Screen.from_pandas(pl.DataFrame(rows), cell), pairs


def normal(n, seed=0):
    return np.random.default_rng(seed).normal(size=n)


@pytest.mark.parametrize("kind", ["weight", "order", "size", "part", "hits", "noise"])
def test_a_network_made_of_the_score_is_a_leak(kind):
    scores = normal(400)
    cell, _, pairs = screen_of(scores)
    given = {
        "weight": (slice(None), scores),
        "order": (slice(None), np.exp(3 * scores)),
        "size": (slice(None), np.abs(scores)),
        "part": (slice(0, 400, 4), 2 - scores[::4]),
        "hits": (slice(None), (scores > 0) * 1.0),
        "noise": (slice(None), normal(400, 1)),
    }
    rows, weight = given[kind]
    if kind == "hits":
        scores = np.where(scores > 0, 1.0, -1.0) + 0.01 * scores
    ends = pairs[rows]
    relation = Relation.from_edges("net", *ends.T, weight, n_genes=N_GENES, directed=False)
    cell = dc.Cell(cell.genes, [relation])
    sets = GeneSets(pairs.ravel(), np.arange(0, 801, 2))
    leaks = likely_leaks(cell, sets, scores)
    assert [leak.what for leak in leaks] == ["the weight of relation 'net'"] * (kind != "noise")
    assert all(abs(leak.correlation) >= 0.95 for leak in leaks)
    assert all((leak.target == "the absolute score") == (kind == "size") for leak in leaks)


def test_a_column_made_of_the_score_is_a_leak_whatever_is_missing():
    values = normal(N_GENES * 3).reshape(N_GENES, 3)
    values[::7, 1] = np.nan
    pairs = np.stack(np.triu_indices(N_GENES, 1), axis=1)
    scores = np.nan_to_num(values[pairs, 1].sum(axis=1)) + 0.01 * normal(len(pairs))
    feature = Feature("f", values, ("a", "b", "c"))
    cell = dc.Cell(dc.Genes([f"G{i:02}" for i in range(N_GENES)]), [], None, [feature])
    sets = GeneSets(pairs.ravel(), np.arange(0, 2 * len(pairs) + 1, 2))
    [leak] = likely_leaks(cell, sets, scores)
    assert "column 'b' of feature 'f'" in leak.what
    assert likely_leaks(cell, sets, normal(len(pairs), 3)) == []
    assert likely_leaks(cell, sets.take(np.arange(10)), scores[:10]) == []


def test_a_leak_is_said_before_any_score_and_recorded(tmp_path):
    scores = normal(300)
    cell, screen, pairs = screen_of(scores)
    relation = Relation.from_edges("net", *pairs.T, scores, n_genes=N_GENES, directed=False)
    cell = dc.Cell(cell.genes, [relation])
    with pytest.warns(UserWarning, match="relation 'net'"):
        run = dc.fit("additive", cell, screen, directory=tmp_path / "run", progress=False)
    [sentence] = read_run(run.path).warnings
    assert "leak" in sentence
    with pytest.warns(UserWarning, match="relation 'net'"):
        found = dc.evaluate([run], progress=False)
    assert sentence in found.evaluation.notes


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_only_what_no_scale_explains_is_beyond_it(scale):
    scores = scale * normal(400)
    assert not beyond_any_scale(scores).any()
    assert not beyond_any_scale(scale * np.random.default_rng(0).standard_cauchy(300)).any()
    scores[[7, 9]] = 1e5 * scale, -1e30
    assert np.flatnonzero(beyond_any_scale(scores)).tolist() == [7, 9]
    scores[3] = np.nan
    assert np.flatnonzero(beyond_any_scale(scores)).tolist() == [7, 9]


def test_scores_that_are_mostly_equal_have_a_scale():
    scores = np.zeros(400)
    scores[:30] = normal(30)
    assert not beyond_any_scale(scores).any()
    scores[50] = 1e30
    assert np.flatnonzero(beyond_any_scale(scores)).tolist() == [50]
    assert not beyond_any_scale(np.zeros(9)).any()
    assert not beyond_any_scale(np.array([np.nan, 1e30])).any()
    assert not beyond_any_scale(np.zeros(0)).any()


def test_an_outlier_is_named_and_left_out(tmp_path):
    scores = normal(400)
    scores[17] = 1e30
    cell, screen, _ = screen_of(scores)
    with pytest.warns(UserWarning, match=r"1e\+30 of G00 G18"):
        run = dc.fit("additive", cell, screen, directory=tmp_path / "run", progress=False)
    split = run.loaded.data.split
    assert split.dropped.tolist() == [17]
    assert 17 not in np.concatenate([split.train, split.validation, split.test])
    assert "1e+30" in read_run(run.path).warnings[0]
    ranking = dc.rank(run, "pairs", top=5, status="any", progress=False)
    assert ranking.to_pandas()["score"].abs().max() < 10
