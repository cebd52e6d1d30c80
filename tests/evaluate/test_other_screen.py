"""Another screen as the test of a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Genes
from deltacell.counts import UNKNOWN_GENE
from deltacell.errors import InputError
from deltacell.evaluate.runs import (
    IN_TRAINING,
    NO_INTERACTION,
    TOO_LARGE,
    screen_directory,
    untrained,
)
from deltacell.screen import Genotypes, Screen, Split
from deltacell.train.data import Standard, TrainingData


@pytest.fixture(scope="module")
def data() -> TrainingData:
    """Pairs of 12 genes, 40 of them listed, split at random."""
    cell = Cell([f"g{i}" for i in range(12)], [])
    sets = [[i, j] for i in range(12) for j in range(i + 1, 12)][:40]
    screen = Screen.build(cell.genes, Genotypes.of(sets), score=np.linspace(-1, 1, 40))
    return TrainingData(cell, screen, Split.random(screen, 0, 0.2, 0.2), Standard())


def test_every_set_that_was_trained_on_is_left_out_whatever_the_order_of_its_genes(data):
    n = len(data.screen)
    # The same sets the other way round, over genes in another order, with one the run lacks.
    genes = Genes([*[f"g{i}" for i in reversed(range(12))], "other"])
    turned = [[11 - int(b), 11 - int(a)] for a, b in data.screen.genotypes]
    more = [[11, 10, 9], [0, 12], [0, 1]]
    score = np.array([*np.zeros(n), 0.5, 0.5, 0.5])
    screen = Screen.build(genes, Genotypes.of([*turned, *more]), score=score)
    found, split, counts = untrained(screen, data)
    kept = {
        frozenset(found.genotypes.genes[found.offsets[r] : found.offsets[r + 1]].tolist())
        for r in split.test
    }
    test = data.screen.genotypes.take(torch.tensor(data.split.test))
    expected = {frozenset(s.tolist()) for s in test} | {frozenset((10, 11))}
    assert kept == expected
    trained = len(data.split.train) + len(data.split.validation)
    assert counts.dropped == {UNKNOWN_GENE: 1, TOO_LARGE: 1, IN_TRAINING: trained}
    assert counts.kept == len(split.test)
    assert counts.read == n + 3


def test_genes_that_training_did_not_have_are_counted(data):
    trained = data.screen.genotypes.take(torch.tensor(data.split.train))
    seen = set(trained.genes.tolist())
    found, split, _ = untrained(
        Screen.build(data.cell.genes, Genotypes.of([[9, 10], [0, 11], [10, 11]]), score=0.1), data
    )
    sets = [s.tolist() for s in found.genotypes.take(torch.tensor(split.test))]
    assert split.unseen.tolist() == [len(set(s) - seen) for s in sets]


@pytest.mark.parametrize("columns", [{"score": 0.9, "phenotype": "fitness"}, {"score": np.nan}])
def test_a_screen_without_interaction_scores_is_refused(data, columns):
    screen = Screen.build(data.cell.genes, Genotypes.of([[9, 10], [10, 11]]), **columns)
    with pytest.raises(InputError) as caught:
        untrained(screen, data)
    assert caught.value.code == "no-interactions"


def test_rows_of_fitness_are_left_out_and_counted(data):
    screen = Screen.build(
        data.cell.genes,
        Genotypes.of([[9, 10], [10, 11], [9, 11]]),
        score=[0.9, 0.1, 0.2],
        phenotype=["fitness", "interaction", "interaction"],
    )
    _, split, counts = untrained(screen, data)
    assert counts.dropped[NO_INTERACTION] == 1
    assert len(split.test) == 2


def test_nothing_left_and_no_gene_in_common_are_errors(data):
    row = data.screen.take(data.split.train[:1])
    foreign = Screen.build(Genes(["x", "y"]), Genotypes.of([[0, 1]]), score=0.1)
    for screen, code in ((row, "nothing-to-test"), (foreign, "other-genes")):
        with pytest.raises(InputError) as caught:
            untrained(screen, data)
        assert caught.value.code == code


def test_where_a_screen_is(tmp_path: Path, data: TrainingData) -> None:
    data.screen.save(tmp_path / "screens" / "a")
    assert screen_directory(tmp_path) == screen_directory(tmp_path / "screens" / "a")
    data.screen.save(tmp_path / "screens" / "b")
    with pytest.raises(InputError, match="2 screens: a, b") as error:
        screen_directory(tmp_path)
    assert str(tmp_path / "screens" / "a") in error.value.fix
    with pytest.raises(InputError):
        screen_directory(tmp_path / "nothing")
