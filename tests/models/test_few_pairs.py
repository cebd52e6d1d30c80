"""Pair trees on hardly any data: folds without pairs, and sets of one gene."""

import numpy as np
import pytest

from deltacell.cell import Cell, Genes, Relation
from deltacell.models.pairs import PairTrees
from deltacell.screen import Genotypes


@pytest.mark.parametrize("seed", range(3))
def test_ten_pairs_are_enough_and_a_set_may_have_one_gene(seed):
    n_genes = 20
    genes = Genes([f"G{i}" for i in range(n_genes)])
    network = Relation.from_edges("net", [0, 2], [1, 3], n_genes=n_genes, directed=False)
    cell = Cell(genes, [network])
    pairs = Genotypes.of([(2 * i, 2 * i + 1) for i in range(10)])
    scores = np.random.default_rng(seed).normal(size=10)
    trees = PairTrees(rounds=5).fit(cell, pairs, scores, seed=seed)
    alone = trees(cell, Genotypes.of([(0,), (3,)])).score.numpy()
    mixed = trees(cell, Genotypes.of([(0,), (0, 1), (3,), (0, 1, 2)])).score.numpy()
    assert np.isfinite(mixed).all()
    np.testing.assert_array_equal(mixed[[0, 2]], alone)
