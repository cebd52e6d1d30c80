"""What is said of contradictory measurements does not change by accident."""

from pathlib import Path

import golden
import pytest

from deltacell.profile.explain.reconcile import reconcile

HOW_TO = Path(__file__).resolve().parents[3] / "docs" / "how-to"
SIDES = """
a: {name: x, batch: 8, ranks: 1, steps_per_epoch: 10}
b: {name: y, batch: 8, ranks: 1, steps_per_epoch: %d%s}
measurements:
"""
EPOCH = "- {name: e, measured: epoch seconds, a: 1, b: %g}\n"
STEP = "- {name: s, measured: ms per step, a: 50, b: 500}\n"
CASES = {
    "steps": SIDES % (10, "") + STEP,
    "epochs": SIDES % (10, "") + EPOCH % 3,
    "steps longer than an epoch": SIDES % (10, "") + EPOCH % 2 + STEP,
    "steps and epochs": SIDES % (10, "") + EPOCH % 5.1 + STEP.replace("50,", "98,"),
    "different data": SIDES % (12, "") + EPOCH % 3,
    "unequal windows": SIDES % (10, "")
    + "- {name: t, measured: trace sum, sum: self, a: {value: 10, window_steps: 2},"
    + " b: {value: 60, window_steps: 3}}",
    "claims and warm-up": SIDES % (10, "")
    + "- {name: c, measured: it/s, claimed: 5, a: 9, b: 3}\n"
    + "- {name: w, measured: it/s, a: {readings: [1, 9, 9, 9]}, b: 3}\n"
    + "- {name: v, measured: it/s, a: {value: 7, readings: [1, 9, 9, 9]}, b: 3}\n",
    "ranks and modes": SIDES % (10, ", parameters: 1000")
    + "- {name: l, measured: loader only, a: 9, b: {value: 3, ranks: 2}}\n"
    + "- {name: m, measured: loader+model, a: 9, b: 3}\n"
    + "- {name: n, measured: loader+model, mode: step, a: 9, b: {value: 3, parameters: 5}}\n"
    + "- {name: o, measured: saved batch, a: {value: 9, batch: 2}, b: 3}\n",
}


@pytest.mark.parametrize("path", sorted(HOW_TO.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_case_of_the_docs(path: Path) -> None:
    golden.check(f"reconcile/{path.stem}", reconcile(path))


def test_reconciled_small_cases_are_as_recorded(tmp_path: Path) -> None:
    results = {}
    for name, text in CASES.items():
        path = tmp_path / "measurements.yaml"
        path.write_text(text)
        results[name] = reconcile(path)
    golden.check("reconcile/small", results)
