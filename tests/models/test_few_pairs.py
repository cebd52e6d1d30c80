"""Pair trees on hardly any data: folds without pairs, and sets of one gene."""

import subprocess
import sys

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


@pytest.mark.parametrize("weight", [None, -1.0])
def test_a_network_without_a_link_between_the_genes_is_no_obstacle(weight):
    n_genes = 20
    genes = Genes([f"G{i}" for i in range(n_genes)])
    edges = ([], []) if weight is None else ([0, 2], [1, 3])
    weights = None if weight is None else np.full(2, weight, dtype=np.float32)
    network = Relation.from_edges("net", *edges, weights, n_genes=n_genes, directed=False)
    cell = Cell(genes, [network])
    pairs = Genotypes.of([(i, i + 1) for i in range(n_genes - 1)])
    scores = np.random.default_rng(0).normal(size=n_genes - 1)
    trees = PairTrees(rounds=2).fit(cell, pairs, scores, seed=0)
    assert np.isfinite(trees(cell, pairs).score.numpy()).all()


def test_two_fits_on_a_cell_with_few_links_are_one():
    n_genes = 40
    genes = Genes([f"G{i}" for i in range(n_genes)])
    network = Relation.from_edges("net", [0, 2, 4], [1, 3, 5], n_genes=n_genes, directed=False)
    cell = Cell(genes, [network])
    pairs = Genotypes.of([(i, j) for i in range(n_genes) for j in range(i)])
    scores = np.random.default_rng(0).normal(size=len(pairs))
    first, second = (PairTrees(rounds=5).fit(cell, pairs, scores, seed=0) for _ in range(2))
    np.testing.assert_array_equal(first(cell, pairs).score, second(cell, pairs).score)


FIT_TREES = """
import numpy as np
from deltacell.cell import Cell, Genes
from deltacell.models.pairs import PairTrees
from deltacell.screen import Genotypes

cell = Cell(Genes([f"G{i}" for i in range(20)]), [])
pairs = Genotypes.of([(2 * i, 2 * i + 1) for i in range(10)])
trees = PairTrees(rounds=2).fit(cell, pairs, np.arange(10.0), seed=0)
print(float(trees(cell, pairs).score.sum()).hex())
"""


@pytest.mark.slow
def test_trees_are_the_same_without_docstrings_and_assertions():
    def printed(*options):
        command = [sys.executable, *options, "-c", FIT_TREES]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert printed("-OO") == printed()
