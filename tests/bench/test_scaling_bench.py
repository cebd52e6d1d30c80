"""The benchmark of growth: its cells, its rows and its fits."""

from __future__ import annotations

import numpy as np
import pytest

from deltacell.bench import scaling
from deltacell.errors import InputError


def test_a_quick_run() -> None:
    told: list[tuple[str, int, int]] = []
    result = scaling.run(lambda *news: told.append(news), True, strategies=["shared"], repeats=1)
    sweeps = ["batch", "edges", "layers", "deleted genes", "cell"]
    assert list(dict.fromkeys(row["sweep"] for row in result["rows"])) == sweeps
    assert [(fit["sweep"], fit["strategy"]) for fit in result["fits"]] == [
        (sweep, "shared") for sweep in sweeps
    ]
    for row in result["rows"]:
        assert row["s_per_step"] == pytest.approx(row["s_per_genotype"] * row["batch"])
    assert [row["size"] for row in result["rows"] if row["sweep"] == "batch"] == [1, 2, 4]
    assert len(told) == 11 == told[-1][2]


def test_the_fit_finds_the_exponent() -> None:
    rows = [
        {"sweep": "s", "strategy": "a", "size": x, "s_per_step": 3 * x**1.5} for x in (1, 4, 50)
    ]
    (fit,) = scaling._fits(rows, ["s"], ["a"])
    assert fit["exponent"] == pytest.approx(1.5)
    assert fit["factor"] == pytest.approx(3.0)


def test_full_sweeps_reach_a_human_cell() -> None:
    sweeps = scaling._sweeps(quick=False)
    last = sweeps["cell"][-1]
    assert (last.genes, last.edges) == (20_000, 12_000_000)
    for sweep, points in sweeps.items():
        sizes = [getattr(p, scaling._SIZE_OF[sweep]) for p in points]
        assert sizes == sorted(set(sizes))
        assert len(sizes) > 3


def test_random_cells() -> None:
    cell = scaling.random_cell(500, 20_000)
    edges = {name: r.n_edges for name, r in cell.relations.items()}
    assert abs(sum(edges.values()) - 20_000) < 10
    assert [name for name, r in cell.relations.items() if r.directed] == ["regulatory", "tflink"]
    assert edges["coexpression"] == round(20_000 * 1_002_538 / 2_423_370)
    degree = cell.relation("coexpression").in_degree
    assert degree.max() > 4 * np.median(degree)
    assert cell.equals(scaling.random_cell(500, 20_000))
    with pytest.raises(InputError, match="too many for a relation over 10 genes"):
        scaling.random_cell(10, 1_000)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="repeats is 0"):
        scaling.run(repeats=0)
    with pytest.raises(InputError, match="unknown propagation 'fast'"):
        scaling.run(strategies=["fast"])
