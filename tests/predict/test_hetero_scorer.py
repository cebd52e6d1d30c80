"""HeteroCell scores sets against a wild type that is encoded once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from deltacell import Cell, Relation
from deltacell.models import HeteroCell
from deltacell.predict.scorers import HeteroScorer
from deltacell.screen import Genotypes
from deltacell.train.data import Standard

N = 20
STANDARD = Standard(-0.05, 0.15)
SETS = np.array([[0, 3, 7], [1, 2, 19], [3, 7, 11], [0, 3, 8], [4, 5, 6]])


def cell_of() -> Cell:
    rng = np.random.default_rng(0)
    return Cell(
        [f"Y{i}" for i in range(N)],
        [
            Relation.from_edges(name, *rng.integers(0, N, (2, 50)), n_genes=N, directed=name == "b")
            for name in ("a", "b")
        ],
    )


def model_of(cell: Cell, **options: Any) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=8, layers=2, local_heads=2, **options).double()


@pytest.mark.parametrize("propagation", ["auto", "delta", "shared"])
@pytest.mark.parametrize("output", ["gate", "global"])
def test_encoding_then_scoring_is_the_forward(propagation: str, output: str) -> None:
    cell = cell_of()
    model = model_of(cell, propagation=propagation, output=output)
    genotypes = Genotypes.of(SETS.tolist())
    at_once = model(cell, genotypes)
    encoded = model.encode(cell)
    for _ in range(2):
        apart = model.score(cell, encoded, genotypes)
        torch.testing.assert_close(apart.score, at_once.score, rtol=1e-12, atol=1e-12)
        assert set(apart.intermediate) == set(at_once.intermediate)


def test_scores_are_the_models_and_the_wild_type_is_encoded_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cell = cell_of()
    model = model_of(cell, propagation="delta").float()
    encoded = []
    encode = HeteroCell.encode
    monkeypatch.setattr(
        HeteroCell, "encode", lambda self, cell: (encoded.append(1), encode(self, cell))[1]
    )
    scorer = HeteroScorer(model, cell, STANDARD)
    found = scorer.scores(SETS)
    assert len(encoded) == 1
    expected = STANDARD.undo(model.double()(cell, Genotypes.of(SETS.tolist())).score)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


def test_neither_company_nor_cores_change_a_bit() -> None:
    cell = cell_of()
    scorer = HeteroScorer(model_of(cell).float(), cell, STANDARD)
    threads = torch.get_num_threads()
    try:
        found = []
        for cores in (1, 2):
            torch.set_num_threads(cores)
            found.append(scorer.scores(SETS))
            found.append(np.concatenate([scorer.scores(SETS[i : i + 1]) for i in range(5)]))
            assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


def test_the_model_is_left_as_it_is() -> None:
    cell = cell_of()
    model = model_of(cell, largest=2).float().train()
    HeteroScorer(model, cell, STANDARD).scores(SETS)
    assert model.training
    assert model.encoder.embedding.dtype == torch.float32
    assert model.local_head is not None
    assert model.local_head.largest == 2


def test_no_sets_have_no_scores() -> None:
    cell = cell_of()
    assert HeteroScorer(model_of(cell), cell, STANDARD).scores(SETS[:0]).shape == (0,)
