"""The house does not grow."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_totals_are_within_the_limits() -> None:
    size = runpy.run_path(str(ROOT / "tools" / "size.py"))
    for folder, limits in size["LIMITS"].items():
        files = [*(ROOT / folder).rglob("*.py")]
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        found = {"lines": lines, "files": len(files)}
        assert {name: found[name] for name in limits if found[name] > limits[name]} == {}
    one = size["count_file"](Path(__file__))
    assert sum(one[kind] for kind in ("code", "docstring", "comment", "blank")) == one["lines"]
