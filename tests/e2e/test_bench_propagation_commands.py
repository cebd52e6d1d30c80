"""The commands that measure propagation, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

COLUMNS = {
    "strategy",
    "batch",
    "forward_s",
    "backward_s",
    "s_per_genotype",
    "peak_mib",
    "score_diff_over_std",
    "grad_rel_diff",
    "loader_bytes_per_genotype",
}


@pytest.mark.slow
def test_bench_propagation(
    deltacell: Any, told: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    done = deltacell(
        "bench", "propagation", "--quick", "--batch", "3", "--layers", "2", "--repeats", "2",
        "--strategies", "subgraph,shared", "--json", "out.json", "--figure", "out.svg",
    )  # fmt: skip
    assert "subgraph" in done.stdout
    assert "roofline" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["strategy"] for row in result["rows"]] == ["subgraph", "shared", "wild_type"]
    for row in result["rows"]:
        assert set(row) >= COLUMNS
        assert row["s_per_genotype"] > 0
        assert row["peak_mib"] > 0
    assert result["bars"] == {}
    assert result["ratios"]["best_times_faster_than_subgraph"] > 0
    assert result["roofline_s_per_genotype"] > 0
    steps = [at for _, at, _ in told]
    assert steps == sorted(steps)
    assert steps[-1] < told[-1][2] == 12
    assert (tmp_path / "out.svg").stat().st_size > 1000


@pytest.mark.slow
def test_bench_scaling(deltacell: Any, tmp_path: Path) -> None:
    done = deltacell(
        "bench", "scaling", "--quick", "--strategies", "shared", "--json", "s.json",
        "--figure", "s.png",
    )  # fmt: skip
    assert "exponent" in done.stdout
    assert json.loads((tmp_path / "s.json").read_text())["fits"]
    assert (tmp_path / "s.png").stat().st_size > 1000


def test_what_cannot_be_measured_is_said_at_once(deltacell: Any) -> None:
    wrong = deltacell("bench", "propagation", "--strategies", "shared,fast", code=2)
    assert "unknown propagation 'fast'" in wrong.stderr
    wrong = deltacell("bench", "scaling", "--figure", "a.pdf", code=2)
    assert "a figure is written as .png or .svg" in wrong.stderr
