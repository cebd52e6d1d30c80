from __future__ import annotations

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Feature, Relation
from deltacell.errors import InputError
from deltacell.models.gene_encoder import GeneEncoder
from deltacell.models.gene_vectors import feature_vectors


@pytest.fixture
def cell() -> Cell:
    known = np.arange(20) % 3 > 0
    values = np.random.default_rng(0).normal(size=(20, 5))
    values[4, 2] = np.nan
    relation = Relation.from_edges("a", [0], [1], n_genes=20, directed=False)
    feature = Feature("f", np.where(known[:, None], values, np.nan))
    return Cell([f"g{i}" for i in range(20)], [relation], features=[feature])


def encoder_of(cell: Cell, dropout: float = 0.0) -> GeneEncoder:
    torch.manual_seed(0)
    return GeneEncoder(cell, ["f"], 16, "gelu", dropout)


def test_features_are_added_where_they_are_known(cell: Cell) -> None:
    encoder = encoder_of(cell)
    vectors = torch.from_numpy(feature_vectors([cell.features["f"]]))
    known = torch.from_numpy(cell.features["f"].known).unsqueeze(1)
    added = encoder.features.linears[0](vectors)
    expected = encoder.embedding + torch.where(known, added, 0)
    assert torch.isfinite(encoder(cell)).all()
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


def test_features_that_are_not_there(cell: Cell) -> None:
    with pytest.raises(InputError, match="no feature 'g'; it has f"):
        GeneEncoder(cell, ["g"], 16, "gelu", 0.0)
    with pytest.raises(InputError, match="given twice: f, f"):
        GeneEncoder(cell, ["f", "f"], 16, "gelu", 0.0)
    other = cell.with_feature(Feature.of_all("f", np.ones((20, 7))))
    with pytest.raises(InputError, match="has the width 7"):
        encoder_of(cell).features.check(other)


def test_weights_of_features_that_were_not_standardised_are_refused(cell: Cell) -> None:
    encoder = encoder_of(cell)
    state = encoder.state_dict()
    encoder.load_state_dict(state)
    old = {name.replace("features.linears.", "features."): w for name, w in state.items()}
    with pytest.raises(InputError, match="before they were standardised"):
        encoder.load_state_dict(old)
