"""The benchmark of propagation: what it reports, and that it sees a strategy that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deltacell.bench import propagation
from deltacell.bench.propagation import roofline
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import STRATEGIES, Deleted, Delta, Shared
from deltacell.propagate.ladder import EdgeMask

SETTINGS: dict[str, Any] = {"cell": "demo", "batch": 3, "layers": 2, "max_bytes": None, "seed": 0}


@pytest.mark.parametrize("mutant_layers", [None, 1])
def test_all_strategies_give_the_same(mutant_layers: int | None) -> None:
    # `late` is for one layer.
    left_out = ("dense", "late") if mutant_layers is None else ("dense",)
    names = [name for name in STRATEGIES if name not in left_out]
    told: list[dict[str, Any]] = []
    found = propagation.measure_times(
        **SETTINGS, mutant_layers=mutant_layers, strategies=names, repeats=1, tell=told.append
    )
    assert list(found["rows"]) == [*names, "wild_type"]
    assert len(told) == 2 * len(found["rows"])
    for name in names:
        row = found["rows"][name]
        assert row["score_diff_over_std"] < 1e-2
        assert row["grad_rel_diff"] < 0.05
        assert row["forward_s"] >= row["preparation_s"] > 0
        assert row["s_per_genotype"] * 3 == pytest.approx(row["forward_s"] + row["backward_s"])
    assert found["rows"]["subgraph"]["score_diff_over_std"] == 0
    sent = {name: found["rows"][name]["loader_bytes_per_genotype"] for name in names}
    assert sent["shared"] == sent["device_mask"] < sent["stored_edges"] < sent["stored_masks"]
    assert sent["stored_masks"] == sent["edge_mask"] < sent["subgraph"]
    assert found["rows"]["wild_type"]["score_diff_over_std"] is None


class KeepsEdges(EdgeMask):
    def prepare(self, hops: Any, deleted: Deleted) -> Any:
        found = super().prepare(hops, deleted)
        return replace(found, tensors=tuple(torch.ones_like(m) for m in found.tensors))


def test_a_wrong_strategy_is_seen() -> None:
    bench = propagation._Bench(cell="demo", batch=6, layers=2)
    right, wrong = (
        bench.step("edge_mask", way, bench.genotypes) for way in (EdgeMask(), KeepsEdges())
    )
    reference = bench.step("shared", Shared(), bench.genotypes)
    assert propagation._differences(right, reference)["score_diff_over_std"] < 1e-3
    assert propagation._differences(wrong, reference)["score_diff_over_std"] > 1e-2
    assert propagation._differences(wrong, reference)["grad_rel_diff"] > 0.05
    # Far above rounding, or the comparison would say nothing.
    assert reference.score.std() > 0.1 * reference.score.abs().max()


@pytest.mark.parametrize("name", ["stored_masks", "wild_type"])
def test_memory_of_a_step(name: str) -> None:
    found = propagation.measure_memory(**SETTINGS, name=name, tell=lambda news: None)
    assert list(found) == ["peak_mib"]
    assert found["peak_mib"] >= 0


def test_a_budget_goes_to_those_who_take_one(tmp_path: Path) -> None:
    bench = propagation._Bench(cell="demo", batch=2, layers=1)
    assert bench.way("delta", tmp_path, 2**30) == Delta(max_bytes=2**30)
    assert bench.way("shared", tmp_path, 2**30) == Shared()


def test_bars_need_their_strategies() -> None:
    row = {
        "times_roofline": 2.0,
        "s_per_genotype": 1.0,
        "peak_mib": 10.0,
        "score_diff_over_std": 0.0,
    }
    rows = [
        {"strategy": "subgraph", **row, "s_per_genotype": 30.0},
        {"strategy": "shared", **row},
        {"strategy": "wild_type", **row, "s_per_genotype": 0.1, "score_diff_over_std": None},
    ]
    ratios = propagation._ratios(rows)
    assert ratios == {
        "best": "shared",
        "best_times_faster_than_subgraph": 30.0,
        "largest_score_diff_over_std": 0.0,
        "best_times_roofline": 2.0,
    }
    assert propagation._held_against({"at_least": 12.0}, 30.0)["met"]
    assert not propagation._held_against({"at_most": 0.01}, 0.02)["met"]


def test_the_roofline_counts_what_a_mutant_takes() -> None:
    cell = Cell.synthetic("demo")
    model = HeteroCell(cell, hidden=16, layers=2, output="global")
    found = roofline(model, cell, repeats=1)
    n, h, relations = 300, 16, 9
    # Two linear layers a relation, and the readout; a product and its two gradients each.
    gin = 2 * relations * 2 * (2 * n * h * h)
    pool = 2 * n * (h * h // 2 + h // 2 + h * h)
    assert found["flop"] == 3 * (gin + pool)
    entries = sum(r.n_entries for r in cell.relations.values())
    assert found["entries"] == 2 * 2 * entries
    seconds = found["flop"] / found["gemm_flop_per_s"]
    seconds += found["entries"] * h / found["csr_entries_hidden_per_s"]
    assert found["s_per_genotype"] == pytest.approx(seconds)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"batch": 0}, "out-of-range"),
        ({"layers": 0}, "out-of-range"),
        ({"repeats": 0}, "out-of-range"),
        ({"strategies": []}, "unknown-propagation"),
        ({"strategies": ["fast"]}, "unknown-propagation"),
    ],
)
def test_bad_input(options: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        propagation.run(**options)
    assert caught.value.code == code
