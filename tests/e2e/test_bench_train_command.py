"""`deltacell bench train`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_a_quick_bench_has_what_the_full_one_has(
    deltacell: Any, told: list[tuple[str, int, int]], tmp_path: Path
) -> None:
    words = ("--quick", "--steps", "2", "--repeats", "2", "--json", "out.json")
    done = deltacell("bench", "train", *words)
    # A narrow terminal folds the names in the table, and the sentence too.
    assert "times as long as one of DANGO" in " ".join(done.stdout.split())
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["command"] == "deltacell bench train --steps 2 --repeats 2 --quick"
    assert [row["model"] for row in result["rows"]] == [
        "dango",
        "hetero_cell",
        "hetero_cell_late",
        "hetero_cell_epistasis",
    ]
    for row in result["rows"]:
        assert row["samples_per_s"] > 0
        assert 0 <= row["data_wait_share"] < 1
        assert isinstance(row["phase_overhead"], float)
        assert len(row["phase_overhead_of_each_pair"]) == 2
        assert row["peak_mib"] > 100
    assert len(result["ratios"]) == 3
    assert result["ratios"]["hetero_cell_late_over_dango_s_per_sample"] > 0
    chosen = {row["model"]: row["model_facts"]["propagation"] for row in result["rows"]}
    assert chosen["hetero_cell_late"] == "auto: late"
    assert result["bars"] == {}
    assert told[0][0] == "dango with phases, turn 1"
    assert len(told) == 16


def test_a_bench_of_nothing_is_refused(deltacell: Any) -> None:
    assert "expected at least 2 and 1" in deltacell("bench", "train", "--steps", "0", code=2).stderr
