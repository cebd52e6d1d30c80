"""One measured step is enough: its repeated calls tell the noise, and some things are certain."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from traces import Event, make_trace

from deltacell.profile.explain import Explanation, explain
from deltacell.profile.explain.causes import BusyTime, OtherOperations
from deltacell.profile.explain.noise import Pace, difference
from deltacell.profile.trace.repeats import spread_of_repeats
from deltacell.profile.trace.trace import NOTHING
from deltacell_dev.bench.simulate import Program, write

# The profiler starts in the first step, so one of two counts.
GPU = Program(steps=2, layers=12)
HOST = replace(GPU, device=None, attention=900.0, gemm=1100.0)


def explained(folder: Path, a: Program, b: Program, seed: int = 3) -> Explanation:
    return explain(write(a, folder / "one", seed), write(b, folder / "two", seed + 1))


def calls(times: list[int], n_kinds: int = 2) -> float | None:
    """Return the spread of calls one after the other, of some kinds in turns."""
    events = []
    begin = 0
    for place, time in enumerate(times):
        events.append(Event(f"aten::{place % n_kinds}", begin, time * (1 + place % n_kinds)))
        begin += 1000
    trace = make_trace(events)
    rows = np.arange(len(trace))
    return spread_of_repeats(trace, rows, np.full(len(rows), NOTHING, dtype=np.int32))


def test_the_spread_of_repeated_calls_contains_a_load_that_changes_slowly() -> None:
    assert calls([100] * 64) == pytest.approx(0.0)
    rising = calls([100 + place for place in range(64)])
    alternating = calls([100, 100, 163, 163] * 16)
    assert rising is not None
    assert alternating is not None
    assert rising > 0.03
    assert alternating < 1e-9


def test_the_spread_of_few_calls_or_of_calls_of_many_kinds_is_unknown() -> None:
    assert calls([100] * 31) is None
    assert calls([100] * 64, n_kinds=32) is None


def test_steady_repeated_calls_make_one_step_more_certain() -> None:
    plain = difference([1.0], [1.2])
    steady = difference([1.0], [1.2], Pace("device", 0.002, 0.002))
    unsteady = difference([1.0], [1.2], Pace("device", 0.2, 0.2))
    assert plain is not None
    assert not plain.is_beyond
    assert steady is not None
    assert steady.is_beyond
    assert unsteady is not None
    assert not unsteady.is_beyond


def test_one_step_tells_a_slower_kernel(tmp_path: Path) -> None:
    found = explained(tmp_path, GPU, replace(GPU, attention=450.0))
    assert found.noise is not None
    assert found.noise.steps == (1, 1)
    assert found.noise.is_beyond
    assert "attention" in found.sentence


@pytest.mark.parametrize("program", [GPU, HOST], ids=["device", "host"])
@pytest.mark.parametrize("seed", range(6))
def test_one_step_of_one_program_is_no_difference(
    tmp_path: Path,
    program: Program,
    seed: int,
) -> None:
    found = explained(tmp_path, program, program, seed)
    assert found.noise is not None
    assert not found.noise.is_beyond
    assert found.certain == []


def test_the_device_computes_longer_in_steps_of_one_length(tmp_path: Path) -> None:
    # The loader takes most of a step, so its length says nothing about the kernels.
    slow_loader = replace(GPU, steps=6, loader=200_000.0, workers=False)
    found = explained(tmp_path, slow_loader, replace(slow_loader, attention=400.0))
    assert found.noise is not None
    assert not found.noise.is_beyond
    (busy,) = found.certain
    assert isinstance(busy, BusyTime)
    assert busy.seconds_b > 1.1 * busy.seconds_a
    assert "computes" in found.sentence


def test_other_kernels_are_other_kernels_whatever_the_noise(tmp_path: Path) -> None:
    found = explained(tmp_path, GPU, replace(GPU, compiled=True))
    assert found.noise is not None
    assert not found.noise.is_beyond
    (others,) = found.certain
    assert isinstance(others, OtherOperations)
    assert others.what == "kernels"
    assert {one.name for one in others.only_b} == {"triton_mm_fused_0", "triton_mm_fused_1"}
    assert "different kernels" in found.sentence
