"""The house does not grow."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_totals_stay_within_what_they_are_held_to() -> None:
    size = runpy.run_path(str(ROOT / "tools" / "size.py"))
    for folder, held in size["HELD"].items():
        files = [*(ROOT / folder).rglob("*.py")]
        lines = sum(path.read_bytes().count(b"\n") for path in files)
        found = {"lines": lines, "files": len(files)}
        assert {name: found[name] for name in held if found[name] > held[name]} == {}
    one = size["count_file"](Path(__file__))
    assert sum(one[kind] for kind in ("code", "docstring", "comment", "blank")) == one["lines"]
