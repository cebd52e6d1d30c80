"""Every strategy that has a name equals really removing the genes, whatever way it goes."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import (
    STRATEGIES,
    Aggregate,
    Deleted,
    Hop,
    Mutants,
    Propagation,
    Readout,
    SparseMatrix,
    WildType,
)
from deltacell.propagate.hop import State
from deltacell.propagate.ladder import EdgeMask
from deltacell.propagate.ladder.masks import Masks, Stored
from deltacell.screen import Genotypes

# `late` is for one layer, and has laws of its own.
NAMES = [name for name in STRATEGIES if name not in ("dense", "late")]
CURVE = {"rtol": 1e-9, "atol": 1e-11}
# The cells are small as they are, and shrinking them takes minutes.
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]


@contextmanager
def made(name: str, model: HeteroCell, cell: Cell, genotypes: Genotypes) -> Iterator[Propagation]:
    """The strategy of a name, with its store filled where it has one."""
    if not issubclass(STRATEGIES[name], Stored):  # type: ignore[arg-type]
        yield STRATEGIES[name]()
        return
    with tempfile.TemporaryDirectory() as folder:
        strategy = STRATEGIES[name](store=Path(folder) / "store")
        # The check takes a step on gene 0 alone first.
        everything = Genotypes.of([*(s.tolist() for s in genotypes), [0]])
        metabolism = model.reactions is not None
        strategy.fill(model.hops(cell), Deleted.of(cell, everything, metabolism=metabolism))
        yield strategy


@st.composite
def with_five(draw: Any, genotypes: Genotypes, n_genes: int) -> Genotypes:
    """The same, and one of five genes where that leaves any."""
    five = st.lists(st.integers(0, n_genes - 1), min_size=5, max_size=5, unique=True)
    more = [draw(five)] if n_genes > 5 else []
    return Genotypes.of([*(s.tolist() for s in genotypes), *more])


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck), phases=PHASES)
@given(data=st.data())
def test_it_equals_deleting(
    laws: Any, small_cells: Any, genotypes_of: Any, name: str, data: st.DataObject
) -> None:
    cell = data.draw(small_cells)
    genotypes = data.draw(with_five(data.draw(genotypes_of(cell)), cell.n_genes))
    model = laws.model_of(
        cell,
        aggregation=data.draw(st.sampled_from(["sum", "mean"])),
        metabolism=data.draw(st.booleans()),
        residual=data.draw(st.booleans()),
        dropout=data.draw(st.sampled_from([0.0, 0.4])),
        output=data.draw(st.sampled_from(["mean", "global"])),
    )
    with made(name, model, cell, genotypes) as strategy:
        laws.assert_equals_deleting(strategy, model, cell, genotypes)


@pytest.mark.parametrize("metabolism", [False, True])
@pytest.mark.parametrize("aggregation", ["sum", "mean"])
def test_wrong_ways_are_rejected(laws: Any, aggregation: str, metabolism: bool) -> None:
    cell = laws.fixed_cell(metabolism=True)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3]])
    model = laws.model_of(cell, aggregation=aggregation, metabolism=metabolism)
    laws.assert_equals_deleting(EdgeMask(), model, cell, genotypes)
    for wrong in (KeepsEdges(), ForgetsLayerTwo(), StaleWildType()):
        with pytest.raises(AssertionError, match=r"^(score|z|vectors|gradient of \S+): "):
            laws.assert_equals_deleting(wrong, model, cell, genotypes)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_takes_the_same_course(laws: Any, dropout: float) -> None:
    cell = laws.fixed_cell(metabolism=True)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3], [7], [2, 4, 5, 6]])
    targets = torch.linspace(-1, 1, len(genotypes), dtype=torch.float64)

    def curve(name: str) -> torch.Tensor:
        model = laws.model_of(cell, metabolism=True, dropout=dropout)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        torch.manual_seed(1)
        with made(name, model, cell, genotypes) as model.propagation:
            for step in range(20):
                some = torch.tensor([step % 5, (step + 2) % 5, 4])
                score = model(cell, genotypes.take(some)).score
                loss = (score - targets[some]).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.detach())
        return torch.stack(losses)

    expected = curve("dense")
    assert expected.std() > 1e-3
    for name in NAMES:
        torch.testing.assert_close(
            curve(name), expected, **CURVE, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("name", NAMES)
def test_a_batch_of_none(laws: Any, name: str) -> None:
    cell = laws.fixed_cell(metabolism=True)
    model = laws.model_of(cell, metabolism=True)
    none = Genotypes.of([])
    with made(name, model, cell, none) as model.propagation:
        assert model(cell, none).score.shape == (0,)
        assert model.mutant_vectors(cell, none).shape == (0, cell.n_genes, 8)


class KeepsEdges(EdgeMask):
    """Clears no bit of the masks: deleted genes leave the pool alone."""

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Masks:
        found = super().prepare(hops, deleted)
        return Masks(found.genotypes, found.nodes, tuple(torch.ones_like(m) for m in found.masks))


class ForgetsLayerTwo(EdgeMask):
    """Masks the first layer, and lets deleted genes take part in all that follow."""

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        assert isinstance(deleted, Masks)
        later = [replace(h, aggregates=_copied(h)) for h in hops[1:]]
        kept = KeepsEdges().prepare(later, deleted).masks
        masks = Masks(deleted.genotypes, deleted.nodes, _first(hops, deleted.masks) + kept)
        return super().mutants([hops[0], *later], wild_type, masks, readout, vectors=vectors)


class StaleWildType(EdgeMask):
    """Computes the wild type in the first step and never again."""

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        if "kept" not in self.__dict__:
            found = super().wild_type(hops, state)
            states = tuple({k: x.detach() for k, x in s.items()} for s in found.states)
            self.__dict__["kept"] = WildType(states)
        kept: WildType = self.__dict__["kept"]
        return kept


def _copied(hop: Hop) -> tuple[Aggregate, ...]:
    """Its aggregates over other objects, so that they have masks of their own."""
    return tuple(
        Aggregate(
            a.source,
            SparseMatrix(
                a.matrix.indptr, a.matrix.indices, a.matrix.values, n_columns=a.matrix.shape[1]
            ),
            a.mean,
        )
        for a in hop.aggregates
    )


def _first(hops: Sequence[Hop], masks: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return masks[: len(hops[0].aggregates)]
