"""The phase timer: its rows, its files, its ranges and the device's times."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch

from deltacell.errors import InputError, StoreError
from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.profile.phases import NoTimer, PhaseTimer

MS = 1_000_000


class Clock:
    """A clock that goes on by a millisecond whenever it is read."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        self.now += MS
        return self.now


def a_step(timer: PhaseTimer | NoTimer, step: int, samples: int = 4) -> None:
    timer.switch("forward")
    timer.switch("backward")
    timer.switch("other")
    timer.end_step(0, step, samples)


def test_a_row_holds_the_time_of_each_phase(tmp_path):
    timer = PhaseTimer(clock=Clock())
    a_step(timer, 1)
    file = timer.flush(tmp_path, 3, 2)
    assert file is not None
    assert file.name == "rank3-attempt2-part0.parquet"
    row = read_phases(tmp_path).row(0, named=True)
    assert row["rank"] == 3
    assert row["attempt"] == 2
    assert (row["epoch"], row["step"], row["kind"], row["samples"]) == (0, 1, "train", 4)
    assert row["begin_s"] == 0
    assert row["wall_s"] == pytest.approx(0.004)
    assert row["other_s"] == pytest.approx(0.002)  # before the first switch, and the last
    assert row["forward_s"] == pytest.approx(0.001)
    assert row["backward_s"] == pytest.approx(0.001)
    assert row["loss_s"] == 0


def test_a_block_goes_back_to_the_phase_before_also_when_it_fails():
    timer = PhaseTimer()
    timer.switch("backward")
    with timer.phase("loss"):
        with timer.phase("loss"):
            assert timer.current == "loss"
        assert timer.current == "loss"
    assert timer.current == "backward"
    with pytest.raises(ZeroDivisionError), timer.phase("validation"):
        raise ZeroDivisionError
    assert timer.current == "backward"


def test_an_unknown_phase_changes_nothing():
    timer = PhaseTimer()
    for wrong in (
        lambda: timer.switch("forwards"),
        lambda: timer.phase("forwards").__enter__(),
        lambda: timer.move("forwards", "loss", 1.0),
        lambda: timer.move("loss", "forwards", 1.0),
    ):
        with pytest.raises(ValueError, match="unknown phase 'forwards'"):
            wrong()
    assert timer.current == "other"


def test_a_move_takes_no_more_than_there_is(tmp_path):
    clock = Clock()
    timer = PhaseTimer(clock=clock)
    timer.switch("backward")
    clock.now += 9 * MS
    # The backward is still current: what it has taken until now can be moved.
    assert timer.move("backward", "communication", 0.004) == pytest.approx(0.004)
    assert timer.move("backward", "communication", 1.0) == pytest.approx(0.007)
    timer.end_step(0, 1, 1)
    timer.flush(tmp_path, 0, 0)
    row = read_phases(tmp_path).row(0, named=True)
    assert row["communication_s"] == pytest.approx(0.011)
    assert row["backward_s"] == pytest.approx(0.001)


def test_no_amount_of_time_and_no_kind_of_row_are_refused():
    for seconds in (-1.0, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="cannot be moved"):
            PhaseTimer().move("backward", "communication", seconds)
    with pytest.raises(ValueError, match="expected train or between"):
        PhaseTimer().end_step(0, 1, 1, kind="validation")


def test_parts_follow_one_another_and_come_back_whole(tmp_path):
    timer = PhaseTimer(clock=Clock())
    files = []
    for step in range(1, 8):
        a_step(timer, step)
        if step in (3, 5):
            assert timer.rows_since_flush == (3 if step == 3 else 2)
            files.append(timer.flush(tmp_path / "phases", 0, 0))
            assert timer.flush(tmp_path / "phases", 0, 0) is None
    files.append(timer.flush(tmp_path / "phases", 0, 0))
    assert [file.name[-13:] for file in files] == [f"part{n}.parquet" for n in range(3)]
    assert sorted(tmp_path.joinpath("phases").iterdir()) == files
    rows = read_phases(tmp_path / "phases")
    assert rows["step"].to_list() == list(range(1, 8))
    assert rows["begin_s"].diff()[1:].to_list() == pytest.approx(rows["wall_s"][:-1].to_list())


def write_attempt(folder, attempt, steps, rank=0, between=()):
    timer = PhaseTimer(clock=Clock())
    for step in steps:
        a_step(timer, step)
        if step in between:
            timer.switch("validation")
            timer.end_step(0, step, 0, kind="between")
    timer.flush(folder, rank, attempt)


def test_the_rows_of_the_later_attempt_win(tmp_path):
    write_attempt(tmp_path, 0, range(1, 11), between=(5, 10))
    write_attempt(tmp_path, 1, range(6, 9))
    rows = read_phases(tmp_path).filter(pl.col("kind") == "train")
    assert rows["step"].to_list() == list(range(1, 9))
    assert rows["attempt"].to_list() == [0] * 5 + [1] * 3
    # The validation after step 5 is part of what the later attempt continued from.
    assert read_phases(tmp_path).filter(pl.col("kind") == "between")["step"].to_list() == [5]


def test_a_third_attempt_of_fewer_ranks_that_goes_back_further_wins_over_all(tmp_path):
    for rank in (0, 1):
        write_attempt(tmp_path, 0, range(1, 11), rank=rank)
    write_attempt(tmp_path, 1, range(8, 12))
    write_attempt(tmp_path, 2, range(4, 7))
    rows = read_phases(tmp_path)
    assert rows.filter(pl.col("rank") == 1)["step"].to_list() == [1, 2, 3]
    assert rows.filter(pl.col("rank") == 0)["step"].to_list() == [1, 2, 3, 4, 5, 6]
    assert rows["attempt"].to_list() == [0] * 6 + [2] * 3


def test_an_attempt_that_did_no_step_takes_nothing_away(tmp_path):
    write_attempt(tmp_path, 0, range(1, 4))
    timer = PhaseTimer()
    timer.end_step(0, 1, 0, kind="between")
    timer.flush(tmp_path, 0, 1)
    assert read_phases(tmp_path)["attempt"].to_list() == [0, 0, 0, 1]


def test_no_parts_are_no_rows_and_no_folder_is_an_error(tmp_path):
    assert read_phases(tmp_path).is_empty()
    assert "communication_s" in read_phases(tmp_path).columns
    with pytest.raises(InputError) as caught:
        read_phases(tmp_path / "phases")
    assert caught.value.code == "no-phases"


def test_a_damaged_part_is_named(tmp_path):
    write_attempt(tmp_path, 0, range(3))
    bad = tmp_path / "rank0-attempt0-part1.parquet"
    bad.write_bytes(b"PAR1 and nothing more")
    for _ in range(2):
        with pytest.raises(InputError) as caught:
            read_phases(tmp_path)
        assert (caught.value.code, caught.value.where) == ("damaged-phases", bad)
        pl.DataFrame({"step": [1]}).write_parquet(bad)
    # What is half written is not read.
    bad.rename(tmp_path / f".{bad.name}.tmp")
    assert len(read_phases(tmp_path)) == 3


def test_rows_are_kept_where_they_cannot_be_written(tmp_path, monkeypatch):
    timer = PhaseTimer()
    a_step(timer, 1)

    def full(table, path, **options):
        path.write_bytes(b"PAR1")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("deltacell.profile.phases.pq.write_table", full)
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


def test_nvtx_ranges_are_balanced(monkeypatch):
    stack, seen = [], []

    def push(name):
        stack.append(name)
        seen.append(name)

    monkeypatch.setattr(torch.cuda.nvtx, "range_push", push)
    monkeypatch.setattr(torch.cuda.nvtx, "range_pop", stack.pop)
    timer = PhaseTimer(nvtx=True)
    a_step(timer, 1)
    with timer.phase("loss"):
        assert stack == ["phase.loss"]
    timer.close()
    timer.close()
    assert stack == []
    assert seen[1:4] == ["phase.forward", "phase.backward", "phase.other"]


def test_nvtx_without_nvtx_is_said(monkeypatch):
    def missing(name):
        raise RuntimeError("NVTX functions not installed")

    monkeypatch.setattr(torch.cuda.nvtx, "range_push", missing)
    with pytest.raises(InputError) as caught:
        PhaseTimer(nvtx=True)
    assert caught.value.code == "no-nvtx"


class FakeEvent:
    """An event of a device that is a millisecond a mark, and as far as it is told."""

    made = 0
    recorded = 0
    passed = 0

    def __init__(self, enable_timing):
        assert enable_timing
        type(self).made += 1
        self.at = None

    def record(self):
        type(self).recorded += 1
        self.at = type(self).recorded

    def query(self):
        return self.at <= type(self).passed

    def elapsed_time(self, other):
        assert self.query()
        assert other.query()
        return float(other.at - self.at)


@pytest.fixture
def device(monkeypatch):
    class Event(FakeEvent):
        pass

    monkeypatch.setattr(torch.cuda, "Event", Event)
    return Event


def test_device_times_are_null_until_the_device_has_passed(tmp_path, device):
    timer = PhaseTimer(device="cuda:0")  # mark 1
    a_step(timer, 1)  # marks 2, 3, 4, and 5 at the end
    a_step(timer, 2)  # ... 9
    device.passed = 8
    timer.flush(tmp_path, 0, 0)
    device.passed = 100
    a_step(timer, 3)
    timer.flush(tmp_path, 0, 0)
    rows = read_phases(tmp_path)
    assert rows["device_forward_s"].to_list() == [0.001, None, 0.001]
    assert rows["device_other_s"].to_list() == [0.002, None, 0.002]
    assert rows["device_loss_s"].to_list() == [0.0, None, 0.0]


def test_events_are_used_again(tmp_path, device):
    device.passed = 10**9
    timer = PhaseTimer(device="cuda")
    for step in range(50):
        a_step(timer, step)
    assert device.recorded == 1 + 4 * 50
    assert device.made < 10
    timer.flush(tmp_path, 0, 0)
    columns = [f"device_{phase}_s" for phase in PHASES]
    assert read_phases(tmp_path).select(columns).sum_horizontal().to_list() == pytest.approx(
        [0.004] * 50
    )


def test_parts_with_and_without_device_times_are_read_together(tmp_path, device):
    device.passed = 10**9
    timer = PhaseTimer(device="cuda")
    a_step(timer, 1)
    timer.flush(tmp_path, 0, 0)
    write_attempt(tmp_path, 1, [2])
    assert read_phases(tmp_path)["device_forward_s"].to_list() == [0.001, None]
