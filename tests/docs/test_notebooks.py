"""The notebooks of the docs run from top to bottom, and what they end cells with can be shown."""

from __future__ import annotations

import ast
import json
from pathlib import Path
from typing import Any

import matplotlib
import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))


def code_cells(path: Path) -> list[str]:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def run_cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as Jupyter does, and return the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body[-1]
    if isinstance(last, ast.Expr):
        shown = ast.Name("_shown", ast.Store())
        tree.body[-1] = ast.Assign([shown], last.value)
    names.pop("_shown", None)
    exec(compile(ast.fix_missing_locations(tree), "<cell>", "exec"), names)
    return names.get("_shown")


def test_there_are_notebooks_without_stale_results() -> None:
    assert len(NOTEBOOKS) == 2
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert notebook["nbformat"] == 4
        assert not any(cell.get("outputs") for cell in notebook["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, request) -> None:
    if path.stem == "costanzo2010":
        sources = request.getfixturevalue("shared_data")
        monkeypatch.setenv("DELTACELL_SOURCES", str(sources))
    matplotlib.use("Agg")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    shown = 0
    for source in code_cells(path):
        value = run_cell(source, names)
        if hasattr(value, "_repr_html_"):
            shown += "<table" in value._repr_html_()
    assert shown >= 5
