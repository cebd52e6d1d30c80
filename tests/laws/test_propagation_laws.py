"""Every propagation equals deleting the genes, and a check that cannot fail is no check."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Relation
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import (
    GENE,
    Deleted,
    Dense,
    Hop,
    Mutants,
    Propagation,
    Readout,
    Shared,
    WildType,
)
from deltacell.propagate.hop import State
from deltacell.propagate.shared import _Tile
from deltacell.screen import Genotypes

SHARED = [
    Shared(),
    Shared(tile=1, rows_at_a_time=3),
    Shared(tile=3, rows_at_a_time=7),
    Shared(tile=100, rows_at_a_time=0),
]


law = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    # The cells are small as they are, and shrinking them takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@law
@given(data=st.data())
def test_shared_equals_deleting(
    laws: Any, small_cells: Any, genotypes_of: Any, data: st.DataObject
) -> None:
    cell = data.draw(small_cells)
    genotypes = data.draw(genotypes_of(cell))
    model = laws.model_of(
        cell,
        aggregation=data.draw(st.sampled_from(["sum", "mean"])),
        metabolism=data.draw(st.booleans()),
        features=data.draw(st.sampled_from([(), ("f",)])),
        residual=data.draw(st.booleans()),
        combine=data.draw(st.sampled_from(["sum", "mean", "attention", "pairwise"])),
        output=data.draw(st.sampled_from(["mean", "gate", "global"])),
        z_norm=data.draw(st.sampled_from(["scale", "norm", "none"])),
        dropout=data.draw(st.sampled_from([0.0, 0.4])),
    )
    laws.assert_equals_deleting(data.draw(st.sampled_from(SHARED)), model, cell, genotypes)


@pytest.mark.parametrize("seed", range(3))
def test_shared_equals_a_smaller_cell(laws: Any, seed: int) -> None:
    """Not only `dense`: a model of the subset of the cell has the same vectors."""
    rng = np.random.default_rng(seed)
    cell = laws.fixed_cell(metabolism=False)
    model = laws.model_of(cell, aggregation=["sum", "mean"][seed % 2], propagation=Shared(tile=2))
    genotypes = Genotypes.of(
        [rng.choice(cell.n_genes, size=k, replace=False).tolist() for k in (1, 2, 3)]
    )
    vectors = model.mutant_vectors(cell, genotypes)
    pool = model(cell, genotypes).intermediate["pool"]
    z = model(cell, genotypes).intermediate["z"]
    for b, deleted in enumerate(genotypes):
        living = np.setdiff1d(np.arange(cell.n_genes), deleted.numpy())
        smaller = cell.subset(living.tolist())
        other = laws.model_of(smaller, aggregation=model.aggregation)
        weights = model.state_dict()
        weights["encoder.embedding"] = weights["encoder.embedding"][living]
        other.load_state_dict(weights)
        alone = other(smaller, Genotypes.of([])).intermediate
        torch.testing.assert_close(
            vectors[b, living], alone["genes"], rtol=laws.EXACT, atol=laws.EXACT
        )
        torch.testing.assert_close(z[b], pool - alone["pool"], rtol=laws.EXACT, atol=laws.EXACT)


@pytest.mark.parametrize("metabolism", [False, True])
@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_wrong_strategies_are_rejected(laws: Any, aggregation: str, metabolism: bool) -> None:
    cell = laws.fixed_cell(metabolism=True)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3]])
    model = laws.model_of(cell, aggregation=aggregation, metabolism=metabolism)
    laws.assert_equals_deleting(Shared(), model, cell, genotypes)
    for wrong in (KeepsEdges(), ForgetsLaterLayers(), StaleWildType()):
        with pytest.raises(AssertionError):
            laws.assert_equals_deleting(wrong, model, cell, genotypes)


def test_lost_reactions_that_live_on_are_rejected(laws: Any) -> None:
    cell = laws.fixed_cell(metabolism=True)
    model = laws.model_of(cell, metabolism=True)
    with pytest.raises(AssertionError):
        laws.assert_equals_deleting(KeepsReactions(), model, cell, Genotypes.of([[0]]))


def test_single_precision_is_exact_enough() -> None:
    """The spread over genotypes is what a difference is measured by."""
    cell = random_cell(400, 4, 6000)
    torch.manual_seed(0)
    model = HeteroCell(cell, hidden=16, output="global")
    rng = np.random.default_rng(0)
    genotypes = Genotypes.of([rng.choice(400, 3, replace=False).tolist() for _ in range(12)])

    def scores(strategy: Propagation) -> torch.Tensor:
        model.propagation = strategy
        with torch.no_grad():
            return model(cell, genotypes).score

    reference = scores(Dense())
    for good in (Shared(), Shared(tile=5)):
        assert (scores(good) - reference).abs().max() < 1e-2 * reference.std()
    assert (scores(KeepsEdges()) - reference).abs().max() > 1e-2 * reference.std()


def random_cell(n_genes: int, n_relations: int, n_edges: int) -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(
            f"r{i}",
            rng.integers(0, n_genes, n_edges),
            rng.integers(0, n_genes, n_edges),
            n_genes=n_genes,
            directed=i == 0,
        )
        for i in range(n_relations)
    ]
    return Cell([f"g{i}" for i in range(n_genes)], relations)


class KeepsEdges(Shared):
    """Deletes genes from the pool, and leaves them in the graph."""

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        return super().mutants([], WildType((wild_type.last,)), deleted, readout, vectors=vectors)


class ForgetsLaterLayers(Shared):
    """Deletes genes before the first layer, and lets them come back to life in it."""

    def _after(self, hop: Hop, state: State, tile: _Tile) -> dict[str, torch.Tensor]:
        kept, tile.deleted = tile.deleted, {}
        try:
            return super()._after(hop, state, tile)
        finally:
            tile.deleted = kept


class KeepsReactions(Shared):
    """Deletes genes, and none of the reactions that need them."""

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        return Deleted(deleted.genotypes, {GENE: deleted.nodes[GENE]})


class StaleWildType(Shared):
    """Computes the wild type once and for all."""

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        if "kept" not in self.__dict__:
            found = super().wild_type(hops, state)
            states = tuple({k: x.detach() for k, x in s.items()} for s in found.states)
            self.__dict__["kept"] = WildType(states)
        kept: WildType = self.__dict__["kept"]
        return kept
