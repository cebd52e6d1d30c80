"""What must not change the results of `delta`: how it is carried out."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Relation
from deltacell.propagate import Auto, Delta, Dense, Propagation, Rates, Shared
from deltacell.propagate import wild as common_entries
from deltacell.screen import Genotypes

law = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    # The cells are small as they are, and shrinking them takes minutes.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

CLOSE = {"rtol": 1e-10, "atol": 1e-10}

# Whatever things cost, the result is the same; these costs make it take every way there is.
SPARSE = Rates(entry=1.0, far_entry=1.0, flop_forward=1.0, moved=1e-9, picked=1e-9, found=1e-9)
PICKED = Rates(entry=1.0, far_entry=1.0, flop_forward=1.0, moved=1e-9, picked=1e-9, found=1e9)
LISTED = Rates(entry=1e-15, far_entry=1e-15, flop_forward=1.0, moved=1e-9, picked=1.0, found=1.0)
WHOLE = Rates(moved=1e9, picked=1e9, found=1e9)
WAYS = {"sparse": SPARSE, "picked": PICKED, "listed": LISTED, "whole": WHOLE, "typical": Rates()}

rates = st.builds(
    Rates, **{f.name: st.floats(-13, 2).map(lambda x: 10.0**x) for f in fields(Rates)}
)


def drawn_model(laws: Any, data: st.DataObject, cell: Cell) -> Any:
    return laws.model_of(
        cell,
        aggregation=data.draw(st.sampled_from(["sum", "mean"])),
        metabolism=data.draw(st.booleans()),
        combine=data.draw(st.sampled_from(["sum", "mean", "attention"])),
        residual=data.draw(st.booleans()),
        dropout=data.draw(st.sampled_from([0.0, 0.4])),
        activation=data.draw(st.sampled_from(["gelu", "relu", "silu", "tanh"])),
        gin_layers=data.draw(st.integers(1, 3)),
    )


@pytest.mark.parametrize("way", WAYS)
@law
@given(data=st.data())
def test_every_way_equals_deleting(
    laws: Any, small_cells: Any, genotypes_of: Any, way: str, data: st.DataObject
) -> None:
    cell = data.draw(small_cells)
    genotypes = data.draw(genotypes_of(cell))
    tile = data.draw(st.integers(1, len(genotypes)))
    delta = Delta(tile=tile, rates=WAYS[way])
    laws.assert_equals_deleting(delta, drawn_model(laws, data, cell), cell, genotypes)


@law
@given(data=st.data(), rates=rates)
def test_whatever_things_cost(
    laws: Any, small_cells: Any, genotypes_of: Any, data: st.DataObject, rates: Rates
) -> None:
    cell = data.draw(small_cells)
    genotypes = data.draw(genotypes_of(cell))
    delta = Delta(
        tile=data.draw(st.integers(1, len(genotypes))),
        rows_at_a_time=data.draw(st.integers(0, 7)),
        workers=data.draw(st.integers(1, 3)),
        rates=rates,
    )
    laws.assert_equals_deleting(delta, drawn_model(laws, data, cell), cell, genotypes)


@law
@given(data=st.data())
def test_entries_in_common_are_multiplied_once(
    monkeypatch: pytest.MonkeyPatch,
    laws: Any,
    small_cells: Any,
    genotypes_of: Any,
    data: st.DataObject,
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(common_entries, "WORTH", 0.01)
        patched.setattr(common_entries, "LOOKED_AT", 1)
        drawn = data.draw(small_cells)
        cell = overlapping(drawn)
        genotypes = data.draw(genotypes_of(cell))
        model = drawn_model(laws, data, cell)
        split = common_entries.in_parts(model.hops(cell)[0].aggregates)
        wanted = any(r.n_entries for r in drawn.relations.values())
        assert any(part.common is not None for part in split) == wanted
        delta = Delta(rates=data.draw(st.sampled_from([SPARSE, PICKED, WHOLE])))
        laws.assert_equals_deleting(delta, model, cell, genotypes)


def overlapping(cell: Cell) -> Cell:
    """The cell, with a relation that has all edges of another and one more."""
    relations = list(cell.relations.values())
    relation = max(relations, key=lambda r: r.n_entries)
    source, target, _ = relation.edges()
    more = Relation.from_edges(
        "more",
        np.append(source, 0),
        np.append(target, cell.n_genes - 1),
        n_genes=cell.n_genes,
        directed=relation.directed,
    )
    return Cell(cell.genes, [*relations, more], cell.metabolism, cell.features)


@law
@given(data=st.data())
def test_memory_order_and_company_do_not_matter(
    laws: Any, small_cells: Any, genotypes_of: Any, data: st.DataObject
) -> None:
    cell = data.draw(small_cells)
    genotypes = data.draw(genotypes_of(cell))
    model = drawn_model(laws, data, cell)
    expected = laws.results(model, Delta(tile=1), cell, genotypes)
    # Just enough for one genotype, so that all are computed again in the backward.
    least = Delta(tile=1).estimate(model.hops(cell), model.prepare(cell, genotypes)).least
    others = {
        "bound": Delta(tile=1, max_bytes=least),
        "bound, in threads": Delta(tile=1, max_bytes=2 * least, workers=2),
        "tile": Delta(tile=len(genotypes)),
        "shared": Shared(),
        "auto": Auto(),
    }
    for what, other in others.items():
        same(laws.results(model, other, cell, genotypes), expected, what)
    order = torch.tensor(data.draw(st.permutations(range(len(genotypes)))))
    turned = laws.results(model, Delta(tile=2), cell, genotypes.take(order))
    for name in ("score", "z", "vectors"):
        torch.testing.assert_close(turned[name], expected[name][order], **CLOSE)


def same(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor], what: str) -> None:
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, **CLOSE, msg=lambda m, n=name: f"{what}, {n}: {m}"
        )


@pytest.mark.parametrize("metabolism", [False, True])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_training_takes_the_same_course(laws: Any, dropout: float, metabolism: bool) -> None:
    cell = laws.fixed_cell(metabolism=True)
    genotypes = Genotypes.of([[0], [1, 2], [0, 1, 3], [7], [2, 4, 5, 6], [0]])
    targets = torch.linspace(-1, 1, len(genotypes), dtype=torch.float64)

    def curve(strategy: Propagation) -> torch.Tensor:
        model = laws.model_of(cell, metabolism=metabolism, dropout=dropout)
        model.propagation = strategy
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        torch.manual_seed(1)
        for step in range(20):
            some = torch.tensor([step % 6, (step + 2) % 6, 4, 5])
            score = model(cell, genotypes.take(some)).score
            loss = (score - targets[some]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return torch.stack(losses)

    expected = curve(Dense())
    assert expected.std() > 1e-3
    for strategy in (Shared(), Delta(), Delta(tile=3, workers=2, rates=SPARSE), Auto()):
        torch.testing.assert_close(curve(strategy), expected, rtol=1e-9, atol=1e-11)
