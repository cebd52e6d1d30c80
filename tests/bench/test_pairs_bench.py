"""The bench of pair messages runs, and its rows have what is promised."""

from __future__ import annotations

import json
from pathlib import Path

from typer.testing import CliRunner

from deltacell.cli.app import app


def test_rows_of_a_quick_run(tmp_path: Path) -> None:
    file = tmp_path / "pairs.json"
    result = CliRunner().invoke(app, ["bench", "pairs", "--quick", "--json", str(file)])
    assert result.exit_code == 0, result.output
    written = json.loads(file.read_text())
    assert [row["name"] for row in written["rows"]] == ["columns", "train", "score_all_pairs"]
    for row in written["rows"]:
        assert set(row) == {"name", "seconds", "pairs", "peak_mib"}
        assert row["pairs"] > 0
    assert written["bars"] == {}
