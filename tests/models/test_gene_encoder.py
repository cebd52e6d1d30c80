from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Feature, Relation
from deltacell.errors import InputError
from deltacell.models.gene_encoder import GeneEncoder, feature_widths


@pytest.fixture
def cell() -> Cell:
    known = np.arange(20) % 3 > 0
    values = np.random.default_rng(0).normal(size=(20, 5)) * known[:, None]
    relation = Relation.from_edges("a", [0], [1], n_genes=20, directed=False)
    feature = Feature("f", values.astype(np.float32), known)
    return Cell([f"g{i}" for i in range(20)], [relation], features=[feature])


def encoder_of(cell: Cell, dropout: float = 0.0) -> GeneEncoder:
    torch.manual_seed(0)
    return GeneEncoder(cell.n_genes, feature_widths(cell, ["f"]), 16, "gelu", dropout)


def test_features_are_added_where_they_are_known(cell: Cell) -> None:
    encoder = encoder_of(cell)
    values = torch.from_numpy(cell.features["f"].values)
    known = torch.from_numpy(cell.features["f"].known).unsqueeze(1)
    expected = encoder.embedding + torch.where(known, encoder.features[0](values), 0)
    torch.testing.assert_close(encoder(cell), encoder.preprocess(expected))
    assert not torch.equal(encoder(cell), encoder.preprocess(encoder.embedding))


def test_the_two_blocks_share_a_norm(cell: Cell) -> None:
    encoder = encoder_of(cell)
    with torch.no_grad():
        encoder.norm.weight.normal_()
    x = torch.randn(20, 16)
    expected = x
    for block in encoder.blocks:
        expected = torch.nn.functional.gelu(encoder.norm(block(expected)))
    torch.testing.assert_close(encoder.preprocess(x), expected)


def test_dropout_is_for_training_only(cell: Cell) -> None:
    encoder = encoder_of(cell, dropout=0.5)
    dropped = (encoder(cell) == 0).float().mean()
    assert 0.4 < dropped < 0.6
    assert (encoder.eval()(cell) == 0).float().mean() < 0.01


def test_a_feature_that_is_not_there(cell: Cell) -> None:
    with pytest.raises(InputError, match="no feature 'g'; it has f"):
        feature_widths(cell, ["g"])
