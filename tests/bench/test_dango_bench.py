"""The benchmark of DANGO's loss: what it reports, and that both variants are the same loss."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from deltacell import Cell, DeltacellError, InputError
from deltacell.bench import dango
from deltacell.bench.process import in_own_process
from deltacell.models import STRING_RELATIONS, Dango
from deltacell.models.reconstruction import dense_loss
from deltacell.propagate.product import SparseMatrix


@pytest.mark.slow
def test_a_quick_run() -> None:
    told: list[tuple[str, int, int]] = []
    result = dango.run(batch=5, steps=2, quick=True, progress=lambda *news: told.append(news))
    assert [row["variant"] for row in result["rows"]] == ["dense", "closed_form"]
    for row in result["rows"]:
        assert {"variant", "step_s", "peak_mib", "loss"} <= set(row)
        assert row["step_s"] > 0
        assert row["peak_mib"] > 0
        assert len(row["step_s_of_each"]) == 2
    assert result["ratios"]["relative_difference_of_loss"] < 1e-5
    assert set(result["ratios"]) == set(dango.BARS)
    assert result["bars"] == {}
    done = [d for _, d, _ in told]
    assert done == sorted(done)
    assert done[-1] < told[-1][2] == 8


def test_the_dense_variant_is_the_dense_loss() -> None:
    cell = Cell.synthetic("demo")
    model = Dango(cell, hidden=8)
    loss = dango._dense(model, cell)
    matrix = SparseMatrix.of(cell.relation(STRING_RELATIONS[3]))
    z, weight, bias = torch.randn(300, 8), torch.randn(300, 8), torch.randn(300)
    torch.testing.assert_close(
        loss(z, weight, bias, matrix, 0.1), dense_loss(z, weight, bias, matrix, 0.1)
    )


def test_bars() -> None:
    assert dango._held_against({"at_least": 10.0}, 12.0)["met"]
    assert not dango._held_against({"at_least": 10.0}, 9.0)["met"]
    assert dango._held_against({"at_most": 0.2}, 0.1)["met"]
    assert not dango._held_against({"at_most": 0.2}, 0.3)["met"]


def test_peak_memory_sees_what_was_given_back() -> None:
    # In a process of its own: in this one, memory of other tests may come back meanwhile.
    code = (
        "import torch; from deltacell.bench.process import PeakMemory; memory = PeakMemory(); "
        "block = torch.ones(64 * 2**18); del block; print(memory.mib())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 200


def test_a_process_that_fails_says_why() -> None:
    with pytest.raises(DeltacellError, match="nonsense"):
        in_own_process(
            "deltacell.bench.dango:measure",
            {"variant": "dense", "cell": "nonsense", "batch": 1, "steps": 1, "seed": 0},
            lambda news: None,
        )


def test_bad_input() -> None:
    with pytest.raises(InputError, match="batch is 0 and steps 5"):
        dango.run(batch=0)
