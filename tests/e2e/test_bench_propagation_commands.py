"""The commands that measure propagation, as a user runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_bench_propagation(deltacell: Any, tmp_path: Path) -> None:
    done = deltacell(
        "bench", "propagation", "--quick", "--batch", "2", "--layers", "1", "--repeats", "1",
        "--strategies", "subgraph,shared", "--json", "out.json", "--figure", "out.svg",
    )  # fmt: skip
    assert "subgraph" in done.stdout
    assert "roofline" in done.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert [row["strategy"] for row in result["rows"]] == ["subgraph", "shared", "wild_type"]
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
    assert "there is no propagation 'fast'; there are shared" in wrong.stderr
    wrong = deltacell("bench", "scaling", "--figure", "a.pdf", code=2)
    assert "a figure is written as .png or .svg" in wrong.stderr
