from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.models.baselines.gene_sets import GeneOrder
from deltacell.screen.genotypes import Genotypes

NAMES = Genes(["YBR2", "yal1", "YCL9", "YAR5"])

gene_sets = st.lists(st.lists(st.integers(0, 3), min_size=1, unique=True), max_size=8)


def test_order_of_names():
    order = GeneOrder(NAMES)
    assert order.names == ["YAL1", "YAR5", "YBR2", "YCL9"]
    assert order.gene.tolist() == [1, 3, 0, 2]
    assert order.place.tolist() == [2, 0, 3, 1]


@given(gene_sets)
def test_sets_pairs_and_indicators(given_sets):
    order = GeneOrder(NAMES)
    sets = order.sets(Genotypes.of(given_sets))
    expected = [sorted(order.place[s]) for s in given_sets]
    assert [list(part) for part in np.split(sets.genes, sets.offsets[1:-1])][
        : len(given_sets)
    ] == expected
    pairs = sets.pairs()
    found = list(zip(pairs.first.tolist(), pairs.second.tolist(), strict=True))
    assert found == [pair for s in expected for pair in combinations(s, 2)]
    assert np.diff(pairs.offsets).tolist() == [len(s) * (len(s) - 1) // 2 for s in expected]
    indicators = sets.indicators(4).toarray()
    assert [np.flatnonzero(row).tolist() for row in indicators] == expected


@given(gene_sets.filter(bool), st.data())
def test_take_and_slice(given_sets, data):
    sets = GeneOrder(NAMES).sets(Genotypes.of(given_sets))
    rows = data.draw(st.lists(st.integers(0, len(given_sets) - 1)))
    taken = sets.take(np.array(rows, dtype=np.int64))
    assert [sets.genes[sets.offsets[r] : sets.offsets[r + 1]].tolist() for r in rows] == [
        taken.genes[taken.offsets[i] : taken.offsets[i + 1]].tolist() for i in range(len(rows))
    ]
    start = data.draw(st.integers(0, len(given_sets)))
    stop = data.draw(st.integers(start, len(given_sets)))
    one, other = sets.slice(start, stop), sets.take(np.arange(start, stop))
    np.testing.assert_array_equal(one.genes, other.genes)
    np.testing.assert_array_equal(one.offsets, other.offsets)
