"""`deltacell bench train`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.slow
def test_bench_train(deltacell: Any, tmp_path: Path) -> None:
    words = ("--quick", "--steps", "2", "--repeats", "1", "--json", "out.json")
    done = deltacell("bench", "train", *words)
    # A narrow terminal folds the names in the table, and the sentence too.
    assert "times one of DANGO" in " ".join(done.stdout.split())
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["command"] == "deltacell bench train --steps 2 --repeats 1 --quick"
    assert [row["model"] for row in result["rows"]] == ["dango", "hetero_cell"]
    for row in result["rows"]:
        assert {"model", "samples_per_s", "data_wait_share", "phase_overhead"} <= set(row)


def test_a_bench_of_nothing_is_refused(deltacell: Any) -> None:
    assert "expected at least 2 and 1" in deltacell("bench", "train", "--steps", "0", code=2).stderr
