"""Costanzo 2010 is a list of hits, and is evaluated as one."""

from __future__ import annotations

import pytest

from deltacell.cell import Cell
from deltacell.cell.readers import sgd_features
from deltacell.evaluate import Bootstrap, baselines, evaluate
from deltacell.screen import Split
from deltacell.screen.grid import lists_only_hits
from deltacell.screen.readers import costanzo2010, kuzmin

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def genes(shared_data):
    return sgd_features.read(shared_data / "genes" / "SGD_features.tab.gz")[0]


def test_signs_among_hits_the_additive_baseline_and_the_ceiling(shared_data, genes):
    file = "sgadata_costanzo2009_intermediateCutoff_101120.txt.gz"
    raw = costanzo2010.read(shared_data / "screens" / file).on(genes, "drop")
    screen = raw.merge("mean")
    assert lists_only_hits(raw)
    cell, split = Cell(genes, []), Split.random(screen, seed=0)
    given = baselines(cell, screen, split, ["additive"])
    result = evaluate(cell, screen, split, given, repeats=raw, bootstrap=Bootstrap(50))
    assert result.positives["among"] == "hits"
    assert "lists only significant interactions" in result.positives["sentence"]
    assert result.test.labelled == pytest.approx(16_559, abs=20)
    scores = result.test.scores["additive"]
    assert scores["pearson"].value == pytest.approx(0.23, abs=0.02)
    assert scores["auroc"].value == pytest.approx(0.615, abs=0.02)
    assert 0.95 < result.ceiling.pearson.value < 1
    assert "too high" in result.ceiling.sentence
    labels = {group.label for group in result.by("perturbation")}
    assert labels == {"deletion", "deletion + ts", "deletion + damp"}


def test_a_slice_of_fitness_is_no_list_of_hits(shared_data, genes):
    file = shared_data / "screens" / "kuzmin2018_fitness_slice.tsv.gz"
    assert not lists_only_hits(kuzmin.read(file).on(genes, "drop"))
