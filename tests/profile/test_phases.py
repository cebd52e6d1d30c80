"""The phase timer: its rows, its files and its ranges."""

from __future__ import annotations

import json
import math

import polars as pl
import pytest
import torch

from deltacell.errors import InputError, StoreError
from deltacell.profile.phase_rows import read_phases
from deltacell.profile.phases import NoTimer, PhaseTimer

MS = 1_000_000


class Clock:
    """A clock that goes on by a millisecond whenever it is read."""

    now = 0

    def __call__(self) -> int:
        self.now += MS
        return self.now


def a_step(timer: PhaseTimer | NoTimer, step: int, samples: int = 4) -> None:
    for phase in ("forward", "backward", "other"):
        timer.switch(phase)
    timer.end_step(0, step, samples)


def test_a_row_holds_the_time_of_each_phase_also_of_one_that_failed(tmp_path):
    timer = PhaseTimer(clock=Clock())
    timer.switch("backward")
    with pytest.raises(ZeroDivisionError), timer.phase("validation"):
        raise ZeroDivisionError
    timer.end_step(0, 1, 4)
    timer.flush(tmp_path, 3, 2)
    assert [file.name for file in tmp_path.iterdir()] == ["rank3-attempt2-part0.parquet"]
    row = read_phases(tmp_path).row(0, named=True)
    facts = {"rank": 3, "attempt": 2, "epoch": 0, "step": 1, "kind": "train", "samples": 4}
    assert facts.items() <= row.items()
    times = {name: round(1e3 * x) for name, x in row.items() if name.endswith("_s") and x}
    assert times == {"wall_s": 4, "other_s": 1, "backward_s": 2, "validation_s": 1}


def write_attempt(folder, attempt, steps, rank=0, between=()):
    timer = PhaseTimer(clock=Clock())
    for step in steps:
        a_step(timer, step)
        if step in between:
            timer.end_step(0, step, 0, kind="between")
    timer.flush(folder, rank, attempt)


def test_the_rows_of_the_later_attempt_win_though_it_has_fewer_ranks(tmp_path):
    for attempt, steps, rank in ((0, (1, 11), 0), (0, (1, 11), 1), (1, (8, 12), 0), (2, (4, 7), 0)):
        write_attempt(tmp_path, attempt, range(*steps), rank=rank, between=(3, 10))
    rows = read_phases(tmp_path).filter(kind="train")
    assert rows.filter(rank=1)["step"].to_list() == [1, 2, 3]
    assert rows.filter(rank=0)["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert rows["attempt"].to_list() == [0] * 6 + [2] * 3
    # The validation after step 3 is part of what the later attempt continued from.
    assert read_phases(tmp_path).filter(kind="between")["step"].to_list() == [3, 3]


def test_a_folder_that_is_missing_or_has_a_damaged_part(tmp_path):
    assert read_phases(tmp_path).is_empty()
    with pytest.raises(InputError) as caught:
        read_phases(tmp_path / "phases")
    assert caught.value.code == "no-phases"
    write_attempt(tmp_path, 0, range(3))
    unknown = read_phases(tmp_path).with_columns(wall_s=pl.lit(math.nan))
    bad = tmp_path / "rank0-attempt0-part1.parquet"
    bad.write_bytes(b"PAR1 and nothing more")
    for other in (pl.DataFrame({"step": [1]}), unknown, None):
        with pytest.raises(InputError) as caught:
            read_phases(tmp_path)
        assert (caught.value.code, caught.value.where) == ("damaged-phases", bad)
        if other is not None:
            other.write_parquet(bad)
    # What is half written is not read.
    bad.rename(tmp_path / f".{bad.name}.tmp")
    assert len(read_phases(tmp_path)) == 3


def test_rows_are_kept_where_they_cannot_be_written(tmp_path, monkeypatch):
    timer = PhaseTimer()
    a_step(timer, 1)

    def full(frame, path):
        path.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("polars.DataFrame.write_parquet", full)
        with pytest.raises(StoreError):
            timer.flush(tmp_path, 0, 0)
    assert list(tmp_path.iterdir()) == []
    timer.flush(tmp_path, 0, 0)
    assert len(read_phases(tmp_path)) == 1


def test_no_timer_has_all_that_the_timer_has_and_does_nothing(tmp_path):
    public = {name for name in dir(PhaseTimer) if not name.startswith("_")}
    assert public <= set(dir(NoTimer))
    timer = NoTimer()
    with timer.phase("loss"):
        a_step(timer, 1)
    assert timer.move("backward", "communication", 1.0) == 0
    assert timer.flush(tmp_path, 0, 0) is None
    assert timer.rows_since_flush == 0
    assert list(tmp_path.iterdir()) == []


def test_phases_are_ranges_of_a_trace_while_torch_profiles(tmp_path):
    timer = PhaseTimer()
    a_step(timer, 1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        a_step(timer, 2)
        timer.switch("optimizer")
    # The range of the optimizer is still open here, and the profiler is gone.
    a_step(timer, 3)
    a_step(timer, 4)
    profiler.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    ranges = [event["name"] for event in events if event["name"].startswith("phase.")]
    closed = ["phase.forward", "phase.backward", "phase.other"]
    assert [name for name in ranges if name != "phase.optimizer"] == closed
    timer.flush(tmp_path, 0, 0)
    # The step after the trace carries the profiler's own end.
    assert read_phases(tmp_path)["profiled"].to_list() == [False, True, True, False]
