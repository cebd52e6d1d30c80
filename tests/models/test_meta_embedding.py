"""The meta-embedding."""

from __future__ import annotations

import torch

from deltacell.models.meta_embedding import MetaEmbedding


def test_it_is_the_formula_gene_by_gene() -> None:
    meta = MetaEmbedding(6).double()
    networks = torch.randn(3, 5, 6, dtype=torch.float64)
    genes, attention = meta(networks)
    assert attention.shape == (5, 3)
    for gene in range(5):
        share = torch.cat([meta.scorer(networks[k, gene]) for k in range(3)]).softmax(0)
        torch.testing.assert_close(attention[gene], share)
        torch.testing.assert_close(genes[gene], share @ networks[:, gene])


def test_parameters() -> None:
    assert sum(p.numel() for p in MetaEmbedding(64).parameters()) == 2_113
