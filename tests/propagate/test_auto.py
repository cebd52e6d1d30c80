from __future__ import annotations

import copy
import json
import threading
from typing import Any

import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Relation
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import Auto, Choice, Delta, Rates, Shared
from deltacell.propagate import auto as auto_strategy
from deltacell.screen import Genotypes

N = 200


@pytest.fixture
def cell() -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(name, *rng.integers(0, N, (2, n)), n_genes=N, directed=False)
        for name, n in (("sparse", 150), ("more", 300))
    ]
    return Cell([f"g{i}" for i in range(N)], relations)


@pytest.fixture
def genotypes() -> Genotypes:
    return Genotypes.of([[i, i + 1, i + 2] for i in range(8)])


def model_of(cell: Cell, auto: Auto) -> HeteroCell:
    torch.manual_seed(0)
    return HeteroCell(cell, hidden=16, layers=2, output="global", propagation=auto)


def with_rates(monkeypatch: pytest.MonkeyPatch, **rates: float) -> None:
    monkeypatch.setattr(auto_strategy, "rates_here", lambda *_: Rates(**rates))


def test_work_that_can_be_left_out_is(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(monkeypatch, flop_forward=1.0, flop_backward=1.0, call=1e-9)
    auto = Auto()
    model_of(cell, auto).prepare(cell, genotypes)
    assert auto.choice is not None
    assert auto.choice.strategy == "delta"
    assert auto.choice.seconds["delta"] < auto.choice.seconds["shared"]


def test_where_calls_are_all_that_costs_there_are_few(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"entry": 1e-20, "far_entry": 1e-20, "flop_forward": 1e-20, "flop_backward": 1e-20}
    with_rates(monkeypatch, **tiny, moved=1e-20, picked=1e-20, found=1e-20, call=1.0)
    auto = Auto()
    model_of(cell, auto).prepare(cell, genotypes)
    assert auto.choice is not None
    assert (auto.choice.strategy, auto.choice.tile) == ("shared", 8)


def test_vectors_out_of_cache_make_tiles_narrow(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(monkeypatch, entry=1e-9, far_entry=1.0, call=1e-12)
    # The vectors of two mutants fit, those of four do not.
    monkeypatch.setattr("deltacell.propagate.cost.NEAR_NUMBERS", 2 * N * 16)
    auto = Auto()
    model_of(cell, auto).prepare(cell, genotypes)
    assert auto.choice is not None
    assert auto.choice.tile <= 2


def test_chosen_once(cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch) -> None:
    with_rates(monkeypatch)
    auto = Auto()
    model = model_of(cell, auto)
    assert auto.choice is None
    assert auto.explain().startswith("Nothing is chosen yet")
    model(cell, Genotypes.of([]))
    assert auto.choice is None
    model(cell, genotypes)
    chosen = auto.choice
    assert chosen is not None
    monkeypatch.setattr(auto_strategy, "choose", None)
    model(cell, Genotypes.of([[0]]))
    assert auto.choice is chosen


def test_batches_prepared_side_by_side_agree(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(monkeypatch)
    times: list[int] = []
    choose = auto_strategy.choose

    def counted(*given: Any, **options: Any) -> Choice:
        times.append(1)
        return choose(*given, **options)

    monkeypatch.setattr(auto_strategy, "choose", counted)
    auto = Auto()
    model = model_of(cell, auto)
    threads = [threading.Thread(target=model.prepare, args=(cell, genotypes)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == 1


def test_a_recorded_choice_is_used_and_nothing_measured(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(monkeypatch, flop_forward=1.0, call=1e-9)
    first = Auto()
    expected = model_of(cell, first)(cell, genotypes).score
    recorded = json.loads(json.dumps(first.to_json()))
    monkeypatch.setattr(auto_strategy, "rates_here", None)
    again = Auto.from_json(recorded)
    assert again.choice == first.choice
    assert again.explain() == first.explain()
    torch.testing.assert_close(
        model_of(cell, again)(cell, genotypes).score, expected, rtol=0, atol=0
    )
    assert again.to_json() == recorded


@pytest.mark.parametrize("strategy", ["shared", "delta"])
def test_what_is_chosen_is_what_runs(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch, strategy: str
) -> None:
    choice = Choice(strategy, 3, Rates(), {strategy: 1.0}, 8, 1, "because")
    auto = Auto(choice=choice)
    model = model_of(cell, auto)
    called: list[Any] = []
    made = {"shared": Shared, "delta": Delta}[strategy]
    mutants = made.mutants

    def spied(self: Any, *given: Any, **options: Any) -> Any:
        called.append(self)
        return mutants(self, *given, **options)

    monkeypatch.setattr(made, "mutants", spied)
    model(cell, genotypes)
    assert [s.tile for s in called] == [3]


def test_a_bound_on_memory_is_kept_by_delta(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    tiny = {"entry": 1e-20, "far_entry": 1e-20, "flop_forward": 1e-20, "flop_backward": 1e-20}
    with_rates(monkeypatch, **tiny, call=1.0)
    auto = Auto(max_bytes=2**30)
    model_of(cell, auto)(cell, genotypes)
    assert auto.choice is not None
    assert auto.choice.strategy == "delta"
    with pytest.raises(InputError, match="max_bytes is 1,000, and one genotype"):
        model_of(cell, Auto(max_bytes=1000))(cell, genotypes)


def test_the_reason_has_the_numbers(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(monkeypatch, flop_forward=1.0, call=1e-9)
    auto = Auto()
    model_of(cell, auto).prepare(cell, genotypes)
    reason = auto.explain()
    assert reason.startswith("delta, ")
    assert " s predicted for 8 genotypes" in reason
    assert "shared would take " in reason
    assert "hop 1 (gene): delta computes " in reason
    assert f" of {8 * 2 * N:,} messages" in reason
    assert "GFLOP/s" in reason


def test_the_model_can_be_copied(
    cell: Cell, genotypes: Genotypes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_rates(monkeypatch)
    model = model_of(cell, Auto())
    expected = model(cell, genotypes).score
    torch.testing.assert_close(copy.deepcopy(model)(cell, genotypes).score, expected)


@pytest.mark.parametrize(
    ("recorded", "message"),
    [
        ({}, "expected 'max_bytes' and 'choice', and there are neither"),
        ({"choice": None}, "there are 'choice'"),
        ({"max_bytes": None, "choice": {"tile": 1}}, "not a recorded choice of propagation"),
    ],
)
def test_records_that_are_none(recorded: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Auto.from_json(recorded)


def test_a_record_of_another_strategy() -> None:
    choice = Choice("subgraph", 1, Rates(), {}, 8, 1, "because")
    with pytest.raises(InputError, match="'subgraph'; expected shared or delta"):
        Auto.from_json({"max_bytes": None, "choice": choice.to_json()})
