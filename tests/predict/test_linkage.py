"""Which genes are too near to be combined by a cross."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.cell import Genes
from deltacell.predict.status import LINKED, UNKNOWN, UNLINKED, Linkage

GENES = Genes(
    ["A", "B", "C", "D", "E", "F"],
    chromosome=["I", "I", "I", "II", "I", ""],
    start=[1_000, 2_500, 9_000, 1_000, -1, -1],
    end=[2_000, 3_000, 9_900, 2_000, -1, -1],
)
A, B, C, D, E, F = range(6)


@pytest.mark.parametrize(
    ("genes", "distance", "expected"),
    [
        ([A, B], 501, LINKED),
        ([A, B], 500, UNLINKED),
        ([B, A], 501, LINKED),
        ([A, D], 10**9, UNLINKED),
        ([A, E], 10**9, UNKNOWN),
        ([D, E], 10**9, UNLINKED),
        ([A, F], 10**9, UNKNOWN),
        ([E, F], 10**9, UNKNOWN),
        ([A, C, D], 7_001, LINKED),
        ([A, C, D], 7_000, UNLINKED),
        ([A, B, F], 501, LINKED),
        ([A, C, F], 501, UNKNOWN),
    ],
)
def test_by_the_base_pairs_between(genes, distance, expected):
    assert Linkage(GENES, distance).of(np.array([genes]))[0] == expected


def test_genes_that_overlap_have_nothing_between():
    genes = Genes(["A", "B"], chromosome=["I", "I"], start=[0, 50], end=[100, 150])
    assert Linkage(genes, 1).of(np.array([[0, 1]]))[0] == LINKED
    assert Linkage(genes, 0).of(np.array([[0, 1]]))[0] == UNLINKED


def test_how_many():
    linkage = Linkage(GENES, 7_001)
    assert linkage.n_pairs(np.arange(6)) == 3
    assert linkage.n_pairs(np.array([A, D])) == 0
    assert linkage.n_unplaced(np.arange(6)) == 2
