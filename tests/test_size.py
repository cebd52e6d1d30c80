"""The house does not grow."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_totals_stay_within_what_they_are_held_to() -> None:
    size = runpy.run_path(str(ROOT / "tools" / "size.py"))
    for folder, held in size["HELD"].items():
        total = size["count_tree"](ROOT / folder)["total"]
        assert {name: total[name] for name in held if total[name] > held[name]} == {}
        kinds = ("code", "docstring", "comment", "blank")
        assert sum(total[kind] for kind in kinds) == total["lines"]
