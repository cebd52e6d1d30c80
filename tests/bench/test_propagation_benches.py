"""The benchmarks of propagation: what they report, and that a wrong strategy is seen."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from deltacell.bench import propagation, scaling
from deltacell.cell import Cell
from deltacell.cli.app import app
from deltacell.errors import InputError
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import STRATEGIES, Shared
from deltacell.propagate.ladder import EdgeMask

SETTINGS: dict[str, Any] = {"cell": "demo", "batch": 3, "layers": 2}


@pytest.mark.parametrize("mutant_layers", [None, 1])
def test_all_strategies_give_the_same(mutant_layers):
    # `late` is for one layer.
    left_out = ("late",) if mutant_layers is None else ()
    names = [name for name in STRATEGIES if name not in left_out]
    found = propagation.measure_times(
        **SETTINGS, mutant_layers=mutant_layers, strategies=names, repeats=1
    )
    rows = {row["strategy"]: row for row in found["rows"]}
    assert list(rows) == [*names, "wild_type"]
    for name in names:
        row = rows[name]
        assert row["score_diff_over_std"] < 1e-2
        assert row["grad_rel_diff"] < 0.05
        assert row["forward_s"] >= row["preparation_s"] > 0
        assert row["s_per_genotype"] * 3 == pytest.approx(row["forward_s"] + row["backward_s"])
    assert rows["subgraph"]["score_diff_over_std"] == 0
    sent = {name: row["loader_bytes_per_genotype"] for name, row in rows.items()}
    assert sent["shared"] == sent["device_mask"] < sent["stored_edges"] < sent["stored_masks"]
    assert sent["stored_masks"] == sent["edge_mask"] < sent["subgraph"]
    assert rows["wild_type"]["score_diff_over_std"] is sent["wild_type"] is None


class KeepsEdges(EdgeMask):
    def prepare(self, hops, deleted):
        found = super().prepare(hops, deleted)
        return replace(found, plan=tuple((torch.ones_like(m),) for (m,) in found.plan))


def test_a_wrong_strategy_is_seen():
    bench = propagation.Bench(Cell.synthetic("demo"), batch=6, layers=2)
    right, wrong, reference = (
        bench.step(way, bench.genotypes) for way in (EdgeMask(), KeepsEdges(), Shared())
    )
    assert propagation.differences(right, reference)["score_diff_over_std"] < 1e-3
    assert propagation.differences(wrong, reference)["score_diff_over_std"] > 1e-2
    assert propagation.differences(wrong, reference)["grad_rel_diff"] > 0.05
    # Far above rounding, or the comparison would say nothing.
    assert reference.score.std() > 0.1 * reference.score.abs().max()


def test_the_roofline_counts_what_a_mutant_takes():
    cell = Cell.synthetic("demo")
    model = HeteroCell(cell, hidden=16, layers=2, output="global")
    found = propagation.roofline(model, cell, repeats=1)
    n, h, relations = 300, 16, 9
    # Two linear layers per relation, and the readout; a product and its two gradients each.
    gin = 2 * relations * 2 * (2 * n * h * h)
    pool = 2 * n * (h * h // 2 + h // 2 + h * h)
    assert found["flop"] == 3 * (gin + pool)
    assert found["entries"] == 2 * 2 * sum(r.n_entries for r in cell.relations.values())
    seconds = found["flop"] / found["gemm_flop_per_s"]
    seconds += found["entries"] * h / found["csr_entries_hidden_per_s"]
    assert found["s_per_genotype"] == pytest.approx(seconds)
    assert all(p.grad is None for p in model.parameters())


@pytest.mark.slow
def test_the_command_in_processes_of_its_own(tmp_path):
    out = tmp_path / "out.json"
    words = ["--quick", "--batch", "3", "--layers", "1", "--repeats", "1", "--json", str(out)]
    done = CliRunner().invoke(
        app, ["bench", "propagation", "--strategies", "subgraph,shared", *words]
    )
    assert done.exit_code == 0, done.output
    result = json.loads(out.read_text())
    assert [row["strategy"] for row in result["rows"]] == ["subgraph", "shared", "wild_type"]
    for row in result["rows"]:
        assert row["s_per_genotype"] > 0
        # A step of this size may fit into memory that the process holds already.
        assert row["peak_mib"] >= 0
    assert result["bars"] == {}
    assert result["ratios"]["best_times_faster_than_subgraph"] > 0
    assert result["roofline_s_per_genotype"] > 0


@pytest.mark.parametrize(
    ("run", "options", "code"),
    [
        (propagation.run, {"repeats": 0}, "out-of-range"),
        (propagation.run, {"strategies": []}, "unknown-propagation"),
        (scaling.run, {"strategies": ["fast"]}, "unknown-propagation"),
    ],
)
def test_what_cannot_be_measured(run, options, code):
    with pytest.raises(InputError) as caught:
        run(**options)
    assert caught.value.code == code


def test_a_quick_run_of_scaling():
    result = scaling.run(["shared"], quick=True)
    assert list(dict.fromkeys(row["sweep"] for row in result["rows"])) == list(scaling.SWEEPS)
    assert [(fit["sweep"], fit["strategy"]) for fit in result["fits"]] == [
        (sweep, "shared") for sweep in scaling.SWEEPS
    ]
    for row in result["rows"]:
        assert row["s_per_step"] == pytest.approx(row["s_per_genotype"] * row["batch"])
    assert [row["size"] for row in result["rows"] if row["sweep"] == "batch"] == [1, 2, 4]
    facts = {"sweep": "s", "strategy": "a"}
    (fit,) = scaling.fits_of([{**facts, "size": x, "s_per_step": 3 * x**1.5} for x in (1, 4, 50)])
    assert (fit["exponent"], fit["factor"]) == (pytest.approx(1.5), pytest.approx(3.0))


def test_full_sweeps_grow_up_to_a_human_cell():
    last = scaling.points(quick=False)[-1][2]
    assert (last["genes"], last["edges"]) == (20_000, 12_000_000)
    cell = scaling.random_cell(500, 20_000)
    edges = {name: r.n_edges for name, r in cell.relations.items()}
    assert abs(sum(edges.values()) - 20_000) < 10
    assert [name for name, r in cell.relations.items() if r.directed] == ["regulatory", "tflink"]
    degree = cell.relation("string_coexpression").in_degree
    assert degree.max() > 4 * np.median(degree)
    assert cell.equals(scaling.random_cell(500, 20_000))
