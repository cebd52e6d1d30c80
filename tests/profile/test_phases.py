"""The phase timer, its rows and files; what limits a run, in numbers and a sentence."""

import json
import math
from collections.abc import Callable
from itertools import count

import polars as pl
import pytest
import torch

from deltacell.base.errors import StoreError
from deltacell.profile import row_files
from deltacell.profile.limits import limits_sentence
from deltacell.profile.phase_rows import COLUMNS, PHASES, PhaseSummary, read_phases, unevenness
from deltacell.profile.phases import NoTimer, PhaseTimer

MS = 1_000_000


def clock() -> Callable[[], int]:
    """A clock that moves by a millisecond whenever it is read."""
    return count(MS, MS).__next__


def a_step(timer: PhaseTimer, step: int, samples: int = 4) -> None:
    for phase in ("forward", "backward", "other"):
        timer.switch(phase)
    timer.end_step(0, step, samples)


def test_a_row_holds_the_time_of_each_phase_also_of_one_that_failed(tmp_path):
    timer = PhaseTimer(clock=clock())
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


def test_rows_are_added_to_a_file_until_it_is_full(tmp_path, monkeypatch):
    monkeypatch.setattr(row_files, "ROWS_OF_PART", 7)
    timer = PhaseTimer(clock=clock())
    for step in range(1, 11):
        a_step(timer, step)
        timer.flush(tmp_path, 0, 0)
        assert read_phases(tmp_path)["step"].to_list() == list(range(1, step + 1))
    a_step(timer, 1)
    timer.flush(tmp_path, 0, 1)
    names = sorted(file.name for file in tmp_path.iterdir())
    parts = ("attempt0-part0", "attempt0-part1", "attempt1-part0")
    assert names == [f"rank0-{part}.parquet" for part in parts]
    assert [len(pl.read_parquet(tmp_path / name)) for name in names] == [7, 3, 1]


def write_attempt(folder, attempt, steps, rank=0, between=()):
    timer = PhaseTimer(clock=clock())
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


def test_a_folder_that_is_missing_or_has_a_damaged_part(refused, tmp_path):
    assert read_phases(tmp_path).is_empty()
    refused("no-phases", read_phases, tmp_path / "phases")
    write_attempt(tmp_path, 0, range(3))
    unknown = read_phases(tmp_path).with_columns(wall_s=pl.lit(math.nan))
    bad = tmp_path / "rank0-attempt0-part1.parquet"
    bad.write_bytes(b"PAR1 and nothing more")
    for other in (pl.DataFrame({"step": [1]}), unknown, None):
        assert refused("damaged-phases", read_phases, tmp_path).where == bad
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
    timer.flush(tmp_path, 0, 0)
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


# --- what limits a run ---

STEP = {"forward": 7.6e-3, "backward": 12.1e-3, "data_wait": 0.06e-3, "other": 0.04e-3}
NOTHING = "No training step was timed"


def rows(*steps, samples=64, kind="train", rank=0, attempt=0, begin=0.0, first=1, profiled=()):
    """Make a frame of steps, each given as the seconds of its phases."""
    made = []
    for number, step in enumerate(steps, start=first):
        seconds = {f"{phase}_s": float(step.get(phase, 0)) for phase in PHASES}
        wall = sum(seconds.values())
        facts = {"rank": rank, "attempt": attempt, "epoch": 0, "step": number, "kind": kind}
        facts |= {"samples": samples, "profiled": number in profiled}
        made.append({**facts, "begin_s": begin, "wall_s": wall, **seconds})
        begin += wall
    return pl.DataFrame(made, schema=COLUMNS)


def slow(*walls: float, **options) -> pl.DataFrame:
    return rows(*[{"forward": wall} for wall in walls], **options)


def test_the_numbers():
    summary = PhaseSummary(rows(*[STEP] * 10))
    assert (summary.steps, summary.warmup_steps, summary.samples) == (9, 1, 9 * 64)
    assert summary.wall_s == pytest.approx(9 * 19.8e-3)
    assert summary.ms_per_step == pytest.approx(19.8)
    backward = summary.of("backward")
    assert (backward.seconds, backward.run_seconds) == pytest.approx((9 * 12.1e-3, 10 * 12.1e-3))
    assert (backward.ms_per_step, backward.us_per_sample) == pytest.approx((12.1, 12100 / 64))
    assert backward.share == pytest.approx(12.1 / 19.8)
    for share in ("share", "run_share"):
        assert sum(getattr(time, share) for time in summary.phases) == pytest.approx(1)
    assert summary.residual == 0
    assert summary.samples_per_s == pytest.approx([64 / 19.8e-3] * 3)
    told = json.loads(json.dumps(summary.to_json(), allow_nan=False))
    assert told["phases"][PHASES.index("backward")]["share"] == backward.share
    assert (told["steps"], told["uneven"], "steady" in told) == (9, None, False)


LAZY = {"data_wait": 0.763, "forward": 0.375}  # the pipeline of the specification, 28 samples
MIXED = {"forward": 30, "backward": 20, "data_wait": 12, "communication": 25, "other": 13}
BELOW = {"forward": 62, "data_wait": 10, "communication": 19, "other": 9}
OUTSIDE = {"validation": 0.4, "checkpoint": 0.1}


@pytest.mark.parametrize(
    ("step", "between", "samples", "said"),
    [
        (STEP, None, 64, "Backward 61 12.1 ms of 19.8 ms per step, 189 µs; waiting 0.3"),
        (LAZY, None, 28, "Waiting 67 27.2 ms mode=data; forward 33"),
        (
            MIXED,
            None,
            64,
            "Forward 30; communication 25 batch_size; work 13 trace; waiting 12 data",
        ),
        # Findings below their bounds are not mentioned.
        (BELOW, None, 64, "Forward 62; waiting 10"),
        # The time outside the steps leads where it is more, and follows where it is less.
        (STEP, OUTSIDE, 64, "Validation 72 validate_every; backward 61 step; waiting 0.3"),
        (STEP, {"checkpoint": 0.08}, 64, "Backward 61 step; validation 29 figures_every; waiting"),
        ({"forward": 1.0, "data_wait": 1e-6}, None, 1, "Forward 100; waiting under 0.1 %"),
        (STEP, None, 0, "Backward (12.1 ms of 19.8 ms per step); waiting"),
    ],
)
def test_the_sentence(step, between, samples, said):
    frame = rows(*[step] * 10, samples=samples)
    if between is not None:
        begin = frame["begin_s"][-1] + frame["wall_s"][-1]
        frame = pl.concat([frame, rows(between, kind="between", begin=begin, first=10)])
    clauses = limits_sentence(PhaseSummary(frame)).removesuffix(".").split("; ")
    for clause, words in zip(clauses, said.split("; "), strict=True):
        assert clause.startswith(words.split()[0])
        assert [word for word in words.split() if word not in clause] == []


@pytest.mark.parametrize(
    ("walls", "cut"),
    [
        ([1], 0),
        ([1, 1], 1),
        ([1, 1, 1], 1),
        ([9, 1, 1, 1, 1, 1], 1),
        ([9, 5, 1.4, 1, 1, 1], 2),
        ([9, 5, 1.6, 1, 1, 1, 1, 1], 3),
        # A slow step later on is part of the training.
        ([9, 1, 5, 1, 1, 1, 1, 1], 1),
        # At most half, though it may not have settled.
        ([64, 32, 16, 8, 4, 1], 3),
        # Steps that become slower are no warm-up.
        ([1, 2, 3, 4, 5, 6], 1),
    ],
)
def test_warmup_is_cut_by_the_rule(walls, cut):
    summary = PhaseSummary(slow(*walls))
    assert (summary.warmup_steps, summary.steps) == (cut, len(walls) - cut)
    assert summary.steady["wall_s"].to_list() == pytest.approx(walls[cut:])
    assert ("single step" in limits_sentence(summary)) == (summary.steps == 1)


@pytest.mark.parametrize(
    ("walls", "profiled", "counts"),
    [
        ([2, 1, 50, 50, 1, 1, 1, 1], (3, 4), (1, 2, 5)),
        ([1, 1, 1, 1], (1, 2, 3, 4), (1, 0, 3)),
        # A first step without the profiler is still no measure of the rest.
        ([9, 1, 1, 1, 1], (2, 3, 4, 5), (1, 0, 4)),
    ],
)
def test_steps_with_a_profiler_on_are_left_out_where_there_are_others(walls, profiled, counts):
    summary = PhaseSummary(slow(*walls, profiled=profiled))
    assert (summary.warmup_steps, summary.profiled_steps, summary.steps) == counts
    assert summary.ms_per_step == pytest.approx(1000)


def test_each_attempt_has_a_warmup_of_its_own_and_ranks_share_a_step():
    attempts = [slow(9, 1, 1, 1), slow(9, 9, 1, 1, attempt=1, first=5), slow(9, attempt=2, first=9)]
    summary = PhaseSummary(pl.concat(attempts))
    assert (summary.warmup_steps, summary.ms_per_step) == (1 + 2 + 1, pytest.approx(1000))
    first, second = {"backward": 3e-3, "communication": 1e-3}, {"backward": 1e-3}
    second["communication"] = 3e-3
    ranks = [rows(*[x] * 4, rank=i, samples=8) for i, x in enumerate((first, second))]
    summary = PhaseSummary(pl.concat(ranks))
    assert (summary.steps, summary.samples) == (3, 3 * 16)
    assert (summary.ms_per_step, summary.run_s) == pytest.approx((4, 16e-3))
    assert summary.of("backward").ms_per_step == pytest.approx(2)


def test_a_gap_and_a_sum_that_is_off_are_seen():
    frame = rows(*[STEP] * 10)
    late = pl.when(pl.col("step") > 5).then(0.05).otherwise(0.0)
    gap = frame.with_columns(begin_s=pl.col("begin_s") + late)
    assert PhaseSummary(gap).residual == pytest.approx(0.05 / 0.248)
    assert "the wall time by 20 %" in limits_sentence(PhaseSummary(gap))
    # A gap of one rank is not made good by an overlap of another.
    overlap = frame.with_columns(begin_s=pl.col("begin_s") - late, rank=pl.lit(1, pl.Int64))
    assert PhaseSummary(pl.concat([gap, overlap])).residual == pytest.approx(0.1 / (0.248 + 0.148))
    off = frame.with_columns(backward_s=pl.col("backward_s") * 2)
    assert PhaseSummary(off).residual > 0.01


def test_without_training_steps_it_says_so(tmp_path):
    assert limits_sentence(PhaseSummary(read_phases(tmp_path))).startswith(NOTHING)
    assert limits_sentence(PhaseSummary(rows({}))).startswith(NOTHING)
    summary = PhaseSummary(rows({"validation": 1.0}, kind="between"))
    assert limits_sentence(summary).startswith(NOTHING)
    assert (summary.of("validation").run_share, summary.median_s) == (1, 0)
    assert summary.samples_per_s is None


def test_the_median_rate_and_the_median_time_are_of_the_same_step():
    # Of two steps in the middle, one fast and one slow, neither is a mean of both.
    walls = [1, *[0.008] * 10, *[0.512] * 10]
    for more, median in (([], 0.512), ([0.008], 0.008)):
        summary = PhaseSummary(slow(*walls, *more))
        assert summary.median_s == pytest.approx(median)
        assert summary.samples_per_s[0] == pytest.approx(64 / median)


FAST = {"forward": 3.0, "backward": 4.0, "loss": 0.1, "optimizer": 1.0}
SLOW = {phase: 10 * seconds for phase, seconds in FAST.items()}


@pytest.mark.parametrize(
    ("later", "changed", "everywhere"),
    [
        # The loss is a small part and is not looked at.
        (SLOW, "forward backward optimizer", True),
        # A large phase that stays is the program's own doing.
        (SLOW | {"optimizer": FAST["optimizer"]}, "forward backward", False),
        # The others are small in the slow part, and were large in the fast one.
        (FAST | {"data_wait": 1000.0}, "data_wait", False),
    ],
)
def test_steps_that_change_halfway_are_uneven(later, changed, everywhere):
    found = unevenness(rows(*[FAST] * 50, *[later] * 50))
    assert (" ".join(found.changed), found.is_everywhere) == (changed, everywhere)
    assert (found.first, found.last) == (51, 60)
    assert found.fast_s == pytest.approx(8.1)


@pytest.mark.parametrize(
    "given",
    [
        [FAST] * 100,
        # One step in ten, wherever it is, is no part of the run.
        [*[FAST] * 4, SLOW, *[FAST] * 5] * 10,
        [*[FAST] * 99, SLOW],
        # Twice as long is within what machines do.
        [*[FAST] * 50, *[{p: 2 * s for p, s in FAST.items()}] * 50],
        # Too few to tell.
        [FAST, FAST, SLOW, SLOW, SLOW],
        [{}] * 40,
    ],
)
def test_few_or_equal_steps_are_even(given):
    assert unevenness(rows(*given)) is None
