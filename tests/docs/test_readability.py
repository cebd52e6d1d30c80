"""The tool that measures readability counts correctly."""

import ast
import textwrap
from pathlib import Path

import pytest

from deltacell_dev import readability

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = '''
from typing import Any


def documented(rows: Any) -> int:
    """Return a number."""
    first, second = len(rows), 2
    return first + second


def undocumented(rows: list[list[int]]) -> list[int]:
    found = [value for row in rows for value in row]
    low, high = (min(row) for row in rows)
    return [low, high, *found]


def _private() -> None:
    pass
'''


def test_every_measure_counts_its_construct_once() -> None:
    reading = readability.Reading()
    reading.add(ast.parse(textwrap.dedent(SAMPLE)))
    assert reading.counts == {
        "tuples": 1,
        "unpacked": 1,
        "nested": 1,
        "vague": 1,
        "documented": 1,
        "Any": 1,
    }
    assert reading.n_public == 2
    assert reading.n_statements == 11
    # first, second, found, value, row, low, high and the row of the generator
    assert reading.n_bound_names == 8
    measures = reading.measures()
    assert measures["documented"] == 50
    assert measures["tuples"] == pytest.approx(1000 / 11)
    assert measures["vague"] == pytest.approx(100 / 8)


def test_a_limit_that_is_not_kept_is_named() -> None:
    kept = {name: float(limit) for name, limit in readability.LIMITS.items()}
    assert list(readability.beyond_limits(kept)) == []
    for name in readability.LIMITS:
        worse = -1.0 if name == "documented" else 1.0
        lines = list(readability.beyond_limits({**kept, name: kept[name] + worse}))
        assert len(lines) == 1
        assert lines[0].startswith(f"{name}:")


def test_functions_are_counted_by_their_local_variables(tmp_path: Path) -> None:
    body = "\n".join(f"    name_{number} = {number}" for number in range(17))
    (tmp_path / "many.py").write_text(f"def many() -> None:\n{body}\n")
    assert readability.functions_with_locals(tmp_path, 15) == ["many.py:1"]
    assert readability.functions_with_locals(tmp_path, 17) == []


def test_the_source_keeps_the_limits() -> None:
    measures = readability.read_tree(ROOT / "src")["all"].measures()
    assert list(readability.beyond_limits(measures)) == []
    with_many_locals = readability.functions_with_locals(ROOT / "src", readability.MANY_LOCALS)
    assert len(with_many_locals) <= readability.MOST_FUNCTIONS_WITH_MANY_LOCALS
    assert readability.functions_with_locals(ROOT / "src", readability.MOST_LOCALS) == []


def test_class_names_are_unique() -> None:
    """One name means one thing, so that a search for it finds one class."""
    places: dict[str, list[str]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 300
    assert {name: files for name, files in places.items() if len(files) > 1} == {}
