"""The comparison of true, matched and missing mutants runs to its end and can be resumed."""

from __future__ import annotations

from pathlib import Path

from deltacell.bench import mutants
from deltacell.screen import Screen, Split


def test_all_arms_are_compared_and_a_rerun_trains_nothing(tmp_path: Path) -> None:
    options = {"method": "random", "seeds": [0], "epochs": 1, "genotypes": 400}
    result = mutants.run(tmp_path, **options)  # type: ignore[arg-type]
    assert [row["arm"] for row in result["rows"]] == list(mutants.ARMS)
    assert all(row["weight"] >= 0 for row in result["rows"])
    pairs = {(row["arm"], row["less"]) for row in result["differences"]}
    assert pairs == {("true", "matched"), ("true", "none"), ("true", mutants.ALONE)}
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
    assert mutants.run(tmp_path, **options)["scores"] == result["scores"]  # type: ignore[arg-type]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}


def test_a_pair_is_never_predicted_by_a_fit_that_saw_it(tmp_path: Path) -> None:
    """With other scores in one half, its own predictions by the other half stay the same."""
    cell = mutants.Cell.synthetic("redundancy")
    screen = Screen.synthetic(cell, n=400)
    split = Split.random(screen, seed=0)
    base = mutants._cross_fitted(cell, screen, split, tmp_path / "a")
    row = int(split.train[0])
    changed = screen.column("score").copy()
    changed[row] += 5
    other = screen.with_scores(changed)
    part = mutants.replace(split, screen_checksum=other.checksum)
    assert mutants._cross_fitted(cell, other, part, tmp_path / "b")[row] == base[row]
