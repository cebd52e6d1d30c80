"""What protects the reader of a ranking: agreement with additive effects, and the gene list."""

import shutil
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

import deltacell as dc
from deltacell.profile.record import read_run, write_run
from deltacell.ranking.against_additive import (
    AgainstAdditive,
    against_additive,
    overlap_of_runs,
)
from deltacell.ranking.ensemble import scorer_of
from deltacell.train.loaded_runs import load_run


@pytest.mark.parametrize(
    ("pearson", "additive", "is_doubtful"),
    [
        (0.04, 0.15, True),
        (-0.3, 0.4, True),
        (None, 0.4, True),
        (0.05, 0.4, False),
        (0.0, 0.14, False),
        (0.0, None, False),
    ],
)
def test_a_ranking_that_disagrees_where_additive_effects_predict_is_doubtful(
    pearson, additive, is_doubtful
):
    compared = AgainstAdditive(100, pearson, additive)
    assert compared.is_doubtful is is_doubtful
    assert compared.sentences[0].startswith("Beware") is is_doubtful


def test_the_additive_run_agrees_with_itself_and_noise_does_not(runs):
    run = load_run(runs["additive"])
    genes = range(run.data.cell.n_genes)
    own = against_additive(run, scorer_of([run]), genes, 2)
    assert own.pearson > 0.999
    assert own.additive is not None
    draw = np.random.default_rng(3)
    noise = SimpleNamespace(score=lambda sets: SimpleNamespace(score=draw.normal(size=len(sets))))
    other = against_additive(run, noise, genes, 3, given=[5])
    assert abs(other.pearson) < 0.1
    assert replace(other, additive=0.3).is_doubtful


def test_the_first_sets_of_runs_are_compared(runs):
    sets = np.stack([np.zeros(20, dtype=np.int64), np.arange(1, 21)], axis=1)

    def scores(*each):
        return SimpleNamespace(score_each=lambda sets: np.array(each, dtype=float))

    up = np.arange(20)
    same = overlap_of_runs(scores(up, up + 1), "lowest", sets, first=5)
    assert (same.fewest, same.most) == (5, 5)
    other = overlap_of_runs(scores(up, -up, up), "highest", sets, first=5)
    assert (other.fewest, other.most) == (0, 5)
    assert overlap_of_runs(scores(up), "lowest", sets, first=5) is None
    assert overlap_of_runs(scores(up, up), "lowest", sets, first=20) is None


def test_a_ranking_says_how_it_relates_and_is_of_one_gene_list(runs, tmp_path, refused):
    pair = [runs["additive"], runs["trees"]]
    ranked = dc.rank(pair, top=150, out=tmp_path / "out.parquet", progress=False)
    result = ranked.to_json()
    assert any("additive prediction" in sentence for sentence in result["sentences"])
    assert sum("in common" in sentence for sentence in result["sentences"]) == 2
    checksum = ranked.runs[0].data.cell.genes.checksum
    assert result["gene_list"] == checksum
    assert checksum[:12] in ranked.page(tmp_path / "page.html").read_text()
    assert read_run(runs["trees"]).cell.genes == checksum
    ranked.about["identity"]["genes_of_cell"] = "0" * 64
    refused("other-genes", ranked.to_json)
    refused("unknown-gene", dc.rank, pair, [("nobody", "YFL0002W")], progress=False)


def test_a_run_of_another_gene_list_is_refused(runs, tmp_path, refused):
    path = tmp_path / "run"
    shutil.copytree(runs["mean"], path)
    record = read_run(path)
    write_run(path, replace(record, cell=replace(record.cell, genes="0" * 64)))
    refused("other-genes", load_run, path)
    # Runs of earlier versions did not record it.
    write_run(path, replace(record, cell=replace(record.cell, genes="")))
    assert load_run(path).is_finished
