"""The benchmark of DANGO's loss: what it reports, and how a process is measured."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deltacell import DeltacellError, InputError
from deltacell.bench import dango
from deltacell.bench.process import in_own_process


@pytest.mark.slow
def test_a_quick_run() -> None:
    told: list[tuple[str, int, int]] = []
    result = dango.run(batch=5, steps=2, quick=True, progress=lambda *news: told.append(news))
    assert [row["variant"] for row in result["rows"]] == ["dense", "closed_form"]
    for row in result["rows"]:
        assert {"variant", "step_s", "peak_mib", "loss"} <= set(row)
        assert len(row["step_s_of_each"]) == 2
    assert result["ratios"]["relative_difference_of_loss"] < 1e-5
    assert set(result["ratios"]) == set(dango.BARS)
    assert result["bars"] == {}
    done = [d for _, d, _ in told]
    assert done == sorted(done)
    assert done[-1] < told[-1][2] == 8


def test_bars_and_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"dense": (12.0, 100.0, 1.0), "closed_form": (1.0, 30.0, 1.0)}

    def measured(function: str, settings: dict, told: object) -> dict:
        return dict(zip(("step_s", "peak_mib", "loss"), rows[settings["variant"]], strict=True))

    monkeypatch.setattr(dango, "in_own_process", measured)
    bars = dango.run()["bars"]
    met = {name: bar["met"] for name, bar in bars.items()}
    assert list(met.values()) == [True, False, True]
    assert bars["part_of_the_memory"] == {"at_most": 0.2, "measured": 0.3, "met": False}
    with pytest.raises(InputError) as caught:
        dango.run(batch=0)
    assert caught.value.code == "out-of-range"


def test_peak_memory_sees_what_was_given_back() -> None:
    # In a process of its own: in this one, memory of other tests may come back meanwhile.
    code = (
        "import numpy; from deltacell.bench.process import PeakMemory; memory = PeakMemory(); "
        "block = numpy.ones(8 * 2**20); del block; print(memory.mib())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 200


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(DeltacellError, match="No module named 'nonsense'"):
        in_own_process("nonsense:measure", {}, lambda news: None)
