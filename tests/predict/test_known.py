"""Predicted against measured, by the part of the split that a set was in."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from deltacell.cell import Cell, Relation
from deltacell.predict.measured import against_measured, distinct_measured
from deltacell.predict.scorers import Scored
from deltacell.predict.subject import screen_genes, trained_genes, trained_sizes
from deltacell.screen import Genotypes, Screen

N = 12
CELL = Cell(
    [f"Y{i:02d}" for i in range(N)], [Relation.from_edges("a", [0], [1], n_genes=N, directed=False)]
)
SETS = [[0, 1], [1, 0], [1, 2], [2, 3], [3, 4, 5], [4, 5], [5, 6], [9, 8], [7, 8, 9]]
SCREEN = Screen.build(
    CELL.genes, Genotypes.of(SETS), score=[0.0, 0.5, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
)


def run(train, validation, test, screen=SCREEN):
    """What a ranking takes of a run."""
    parts = {"train": train, "validation": validation, "test": test}
    split = SimpleNamespace(**{name: np.array(rows, dtype=int) for name, rows in parts.items()})
    return SimpleNamespace(data=SimpleNamespace(cell=CELL, screen=screen, split=split))


class Sum:
    def score(self, sets):
        score = sets.sum(axis=1).astype(np.float32)
        return Scored(sets, score, np.zeros_like(score))


ONE = run([0, 1, 2, 4], [3, 5], [6, 8])
OTHER = run([6], [0, 1], [2, 3, 4, 5, 8])


def parts_of(found):
    return {tuple(one["genes"]): one["part"] for one in found.measured}


def test_of_the_sizes_that_were_asked_for_the_test_part_first():
    found = against_measured([ONE], Sum(), [2])
    assert [one["part"] for one in found.measured] == [
        "test",
        *["validation"] * 2,
        *["training"] * 2,
    ]
    assert parts_of(found) == {
        ("Y05", "Y06"): "test",
        ("Y02", "Y03"): "validation",
        ("Y04", "Y05"): "validation",
        ("Y00", "Y01"): "training",
        ("Y01", "Y02"): "training",
    }
    # Repeats are one set, with their mean; a row in no part is left out.
    first = next(one for one in found.measured if one["genes"] == ["Y00", "Y01"])
    assert (first["measured"], first["predicted"]) == (0.25, 1.0)


def test_what_any_run_was_trained_on_is_not_called_test():
    found = parts_of(against_measured([ONE, OTHER], Sum(), [2, 3]))
    assert found[("Y05", "Y06")] == "training"
    assert found[("Y07", "Y08", "Y09")] == "test"
    assert found[("Y02", "Y03")] == "validation"
    assert found[("Y03", "Y04", "Y05")] == "training"


def test_a_run_of_another_screen_counts_by_its_sets():
    screen = Screen.build(CELL.genes, Genotypes.of([[10, 11], [6, 5]]), score=[1.0, 1.0])
    found = parts_of(against_measured([ONE, run([1], [], [0], screen)], Sum(), [2]))
    assert found[("Y05", "Y06")] == "training"
    assert ("Y10", "Y11") not in found


def test_how_near_by_part():
    found = against_measured([ONE], Sum(), [2, 3])
    by_part = {one["part"]: one for one in found.agreement}
    assert by_part["test"] == {"part": "test", "sets": 2, "pearson": None}
    sums, measured = [1, 3, 12], [0.25, 1.0, 3.0]
    assert by_part["training"]["pearson"] == pytest.approx(np.corrcoef(sums, measured)[0, 1])


def test_no_set_of_the_size_was_measured():
    assert against_measured([ONE], Sum(), [4]) == ([], [])


def test_as_many_as_asked_for_and_the_same_for_a_seed():
    found = against_measured([ONE], Sum(), [2, 3], most=4)
    assert len(found.measured) == 4
    assert [one["part"] for one in found.measured] == ["test", "test", "validation", "training"]
    assert found == against_measured([ONE], Sum(), [2, 3], most=4)


def test_distinct_sets_have_a_row_each():
    rows, mean, part = distinct_measured([ONE])
    assert sorted(rows.tolist()) == [0, 2, 3, 4, 5, 6, 7, 8]
    assert dict(zip(rows.tolist(), mean.tolist(), strict=True))[0] == 0.25
    assert dict(zip(rows.tolist(), part.tolist(), strict=True))[7] == -1


def test_what_runs_were_trained_on():
    assert trained_sizes([ONE]) == {2, 3}
    assert trained_sizes([ONE, OTHER]) == {2}
    assert np.flatnonzero(trained_genes([ONE])).tolist() == [0, 1, 2, 3, 4, 5]
    assert np.flatnonzero(trained_genes([ONE, OTHER])).tolist() == [5]
    assert screen_genes([ONE]).tolist() == list(range(10))
