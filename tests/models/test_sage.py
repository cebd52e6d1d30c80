"""GraphSAGE with mean aggregation."""

from __future__ import annotations

import torch

from deltacell import Relation
from deltacell.models.sage import SAGE, SAGELayer
from deltacell.propagate.product import SparseMatrix


def test_it_is_the_formula_gene_by_gene() -> None:
    relation = Relation.from_edges("r", [1, 2, 0, 3], [0, 0, 1, 2], n_genes=5, directed=True)
    layer = SAGELayer(3, 4).double()
    x = torch.randn(5, 3, dtype=torch.float64)
    sources = {0: [1, 2], 1: [0], 2: [3], 3: [], 4: []}
    expected = []
    for gene, of in sources.items():
        mean = x[of].mean(0) if of else torch.zeros(3, dtype=torch.float64)
        own = layer.own.weight @ x[gene]
        expected.append((layer.neighbours.weight @ mean + layer.neighbours.bias + own).relu())
    torch.testing.assert_close(layer(SparseMatrix.of(relation), x), torch.stack(expected))


def test_layers_follow_each_other() -> None:
    relation = Relation.from_edges("r", [1, 2], [0, 1], n_genes=3, directed=False)
    matrix = SparseMatrix.of(relation)
    sage = SAGE(4)
    x = torch.randn(3, 4)
    first, second = sage.layers
    assert torch.equal(sage(matrix, x), second(matrix, first(matrix, x)))


def test_bias_on_the_neighbours_side_only() -> None:
    layer = SAGELayer(64, 64)
    assert layer.own.bias is None
    assert sum(p.numel() for p in layer.parameters()) == 8_256
