"""What limits a run: the numbers, the steps that are cut, the sentence, and uneven steps."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError
from deltacell.profile.phase_rows import PHASES, read_phases, steady_steps, summarise, unevenness
from deltacell.profile.phases import PhaseTimer


def rows(*steps, samples=64, kind="train", rank=0, attempt=0, begin=0.0, first=1, profiled=()):
    """Make a frame of steps, each given as the seconds of its phases."""
    made = []
    for number, step in enumerate(steps, start=first):
        seconds = dict.fromkeys(PHASES, 0.0) | step
        wall = sum(seconds.values())
        made.append(
            {
                "rank": rank,
                "attempt": attempt,
                "epoch": 0,
                "step": number,
                "kind": kind,
                "samples": samples,
                "profiled": number in profiled,
                "begin_s": begin,
                "wall_s": wall,
                **{f"{phase}_s": value for phase, value in seconds.items()},
            }
        )
        begin += wall
    return pl.DataFrame(made)


STEP = {"forward": 7.6e-3, "backward": 12.1e-3, "data_wait": 0.06e-3, "other": 0.04e-3}


def test_the_numbers():
    summary = summarise(rows(*[STEP] * 10))
    assert (summary.steps, summary.warmup_steps, summary.samples) == (9, 1, 9 * 64)
    assert summary.wall_s == pytest.approx(9 * 19.8e-3)
    assert summary.ms_per_step == pytest.approx(19.8)
    assert summary.us_per_sample == pytest.approx(19800 / 64)
    backward = summary.of("backward")
    assert backward.seconds == pytest.approx(9 * 12.1e-3)
    assert backward.share == pytest.approx(12.1 / 19.8)
    assert backward.ms_per_step == pytest.approx(12.1)
    assert backward.us_per_sample == pytest.approx(12100 / 64)
    assert backward.run_seconds == pytest.approx(10 * 12.1e-3)
    assert backward.device_ms_per_step is None
    assert sum(time.share for time in summary.phases) == pytest.approx(1)
    assert sum(time.run_share for time in summary.phases) == pytest.approx(1)
    assert summary.residual == 0
    assert summary.adds_up
    rate = summary.samples_per_s
    assert rate.low == rate.median == rate.high == pytest.approx(64 / 19.8e-3)


def end_of(frame):
    return frame["begin_s"][-1] + frame["wall_s"][-1]


MIXED = {
    "forward": 0.03,
    "backward": 0.02,
    "data_wait": 0.012,
    "communication": 0.025,
    "other": 0.013,
}
BELOW = {"forward": 62e-3, "data_wait": 10e-3, "communication": 19e-3, "other": 9e-3}


@pytest.mark.parametrize(
    ("step", "between", "samples", "clauses"),
    [
        (
            STEP,
            None,
            64,
            ["Backward 61 12.1 ms of 19.8 ms per step, 189 µs per sample", "waiting 0.3"],
        ),
        # The lazy pipeline of the specification: 1.138 s per step of 28 samples.
        (
            {"data_wait": 0.763, "forward": 0.375},
            None,
            28,
            ["Waiting 67 27.2 ms mode=data", "forward 33"],
        ),
        (
            MIXED,
            None,
            64,
            [
                "Forward 30",
                "communication 25 batch_size",
                "what 13 profiler.trace",
                "waiting 12 mode=data",
            ],
        ),
        # Findings below their bounds are not mentioned.
        (BELOW, None, 64, ["Forward 62", "waiting 10"]),
        # The time outside the steps leads where it is more, and follows where it is less.
        (
            STEP,
            {"validation": 0.4, "checkpoint": 0.1},
            64,
            ["Validation 72 trainer.validate_every", "backward 61 step", "waiting 0.3"],
        ),
        (
            STEP,
            {"checkpoint": 0.08},
            64,
            ["Backward 61 step", "validation 29 figures_every", "waiting"],
        ),
        ({"forward": 50e-6}, None, 1, ["Forward 100 50.0 µs of 50.0 µs", "waiting 0 %"]),
        ({"forward": 1.0, "data_wait": 1e-6}, None, 1, ["Forward 100", "waiting under 0.1 %"]),
        (STEP, None, 0, ["Backward (12.1 ms of 19.8 ms per step)", "waiting"]),
    ],
)
def test_the_sentence(step, between, samples, clauses):
    frame = rows(*[step] * 10, samples=samples)
    if between is not None:
        begin = end_of(frame)
        frame = pl.concat([frame, rows(between, kind="between", begin=begin, first=10)])
    summary = summarise(frame)
    assert summary.adds_up
    said = summary.sentence.removesuffix(".").split("; ")
    assert len(said) == len(clauses)
    for clause, words in zip(said, clauses, strict=True):
        assert clause.startswith(words.split()[0])
        assert [word for word in words.split() if word not in clause] == []


def steady(*steps):
    return rows(*steps).select(pl.exclude("begin_s"))


def slow(seconds: float) -> dict[str, float]:
    return {"forward": seconds}


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
    frame = rows(*[slow(wall) for wall in walls])
    summary = summarise(frame)
    assert (summary.warmup_steps, summary.steps) == (cut, len(walls) - cut)
    assert steady_steps(frame)["wall_s"].to_list() == pytest.approx(walls[cut:])


def test_each_attempt_has_a_warmup_of_its_own():
    frame = pl.concat(
        [
            rows(slow(9), slow(1), slow(1), slow(1)),
            rows(slow(9), slow(9), slow(1), slow(1), attempt=1, first=5),
            rows(slow(9), attempt=2, first=9),
        ]
    )
    summary = summarise(frame)
    assert summary.warmup_steps == 1 + 2 + 1
    assert summary.ms_per_step == pytest.approx(1000)


def test_the_only_step_is_never_cut():
    summary = summarise(rows(STEP))
    assert (summary.steps, summary.warmup_steps) == (1, 0)
    assert summary.sentence.endswith("waiting for data takes 0.3 %; this is from one step only.")


def test_steps_with_a_profiler_on_are_left_out_where_there_are_others():
    steps = [slow(2), slow(1), slow(50), slow(50), slow(1), slow(1), slow(1), slow(1)]
    summary = summarise(rows(*steps, profiled=(3, 4)))
    assert (summary.warmup_steps, summary.profiled_steps, summary.steps) == (1, 2, 5)
    assert summary.ms_per_step == pytest.approx(1000)
    summary = summarise(rows(*[slow(1)] * 4, profiled=(1, 2, 3, 4)))
    assert (summary.warmup_steps, summary.profiled_steps, summary.steps) == (1, 0, 3)
    # A first step without the profiler is still no measure of the rest.
    summary = summarise(rows(slow(9), *[slow(1)] * 4, profiled=(2, 3, 4, 5)))
    assert (summary.warmup_steps, summary.profiled_steps, summary.steps) == (1, 0, 4)


def test_ranks_share_a_step():
    frame = pl.concat(
        [
            rows(*[{"backward": 3e-3, "communication": 1e-3}] * 4, rank=0, samples=8),
            rows(*[{"backward": 1e-3, "communication": 3e-3}] * 4, rank=1, samples=8),
        ]
    )
    summary = summarise(frame)
    assert (summary.steps, summary.samples) == (3, 3 * 16)
    assert summary.ms_per_step == pytest.approx(4)
    assert summary.of("backward").ms_per_step == pytest.approx(2)
    assert summary.us_per_sample == pytest.approx(4000 / 16)
    assert summary.run_s == pytest.approx(16e-3)
    assert summary.adds_up


def test_a_gap_and_a_sum_that_is_off_are_seen():
    frame = rows(*[STEP] * 10)
    gap = frame.with_columns(begin_s=pl.col("begin_s") + pl.when(pl.col("step") > 5).then(0.05))
    gap = gap.with_columns(pl.col("begin_s").fill_null(frame["begin_s"]))
    assert summarise(gap).residual == pytest.approx(0.05 / 0.248)
    assert "beware, the phases are off by 20 %" in summarise(gap).sentence
    # A gap of one rank is not made good by an overlap of another.
    overlap = frame.with_columns(begin_s=2 * frame["begin_s"] - gap["begin_s"], rank=pl.lit(1))
    both = pl.concat([gap, overlap.cast(gap.schema)])
    assert summarise(both).residual == pytest.approx(0.1 / (0.248 + 0.148))
    off = frame.with_columns(backward_s=pl.col("backward_s") * 2)
    assert not summarise(off).adds_up


def test_device_times_are_averaged_where_they_are_known():
    frame = rows(*[STEP] * 5).with_columns(
        device_forward_s=pl.Series([1.0, 0.002, 0.004, None, None]),
        device_loss_s=pl.Series([None] * 5, dtype=pl.Float64),
    )
    summary = summarise(frame)
    assert summary.of("forward").device_ms_per_step == pytest.approx(3)
    assert summary.of("loss").device_ms_per_step is None


NOTHING = "No training step was timed"


def test_without_training_steps_it_says_so(tmp_path):
    assert summarise(read_phases(tmp_path)).sentence.startswith(NOTHING)
    summary = summarise(rows({"validation": 1.0}, kind="between"))
    assert summary.sentence.startswith(NOTHING)
    assert summary.of("validation").run_share == 1
    assert summary.samples_per_s is None
    assert summarise(rows({})).sentence.startswith(NOTHING)


def test_rows_that_cannot_be_read_are_counted_and_left_out():
    nothing = math.nan
    bad = rows(*[STEP] * 3, first=11).with_columns(
        wall_s=pl.Series([nothing, math.inf, None]), samples=pl.lit(None, dtype=pl.Int64)
    )
    frame = pl.concat([rows(*[STEP] * 10), bad.cast(rows(STEP).schema)])
    frame = frame.with_columns(
        pl.when(pl.col("step") == 4).then(nothing).otherwise(pl.col("loss_s")).alias("loss_s")
    )
    summary = summarise(frame)
    assert summary.unreadable_rows == 3
    assert summary.steps == 9
    assert summary.sentence.startswith("Backward takes 61 %")


def test_no_samples_are_no_division():
    summary = summarise(rows(*[STEP] * 3, samples=0))
    assert summary.us_per_sample == 0
    assert summary.samples_per_s is None


def test_the_rank_the_attempt_and_the_profiler_need_not_be_there():
    frame = rows(*[STEP] * 3)
    assert summarise(frame.drop("rank", "attempt", "profiled")) == summarise(frame)
    with pytest.raises(InputError, match="no column 'loss_s'"):
        summarise(frame.drop("loss_s"))


def test_the_interval_holds_the_median_and_narrows():
    def rate(n):
        return summarise(rows(*[slow(1 + 0.1 * (i % 7)) for i in range(n)])).samples_per_s

    few, many = rate(8), rate(400)
    assert few.low <= few.median <= few.high
    assert many.high - many.low < few.high - few.low


def test_the_median_rate_and_the_median_time_are_of_the_same_step():
    # Of two steps in the middle, one fast and one slow, neither is a mean of both.
    walls = [1, *[0.008] * 10, *[0.512] * 10]
    summary = summarise(rows(*[slow(wall) for wall in walls], samples=64))
    assert summary.steps == 20
    assert summary.median_s == pytest.approx(0.512)
    assert summary.samples_per_s.median == pytest.approx(64 / summary.median_s)
    assert summary.ms_per_step == pytest.approx(260)
    odd = summarise(rows(*[slow(wall) for wall in [*walls, 0.008]], samples=64))
    assert (odd.median_s, odd.samples_per_s.median) == pytest.approx((0.008, 8000))
    assert summarise(rows({"validation": 1.0}, kind="between")).median_s == 0


seconds = st.one_of(st.floats(0, 1e3), st.sampled_from([math.nan, math.inf, 0.0]), st.none())


@settings(max_examples=60, deadline=None)
@given(
    table=st.lists(
        st.fixed_dictionaries(
            {
                "rank": st.integers(0, 2),
                "attempt": st.integers(0, 2),
                "epoch": st.integers(0, 1),
                "step": st.integers(0, 5),
                "kind": st.sampled_from(["train", "between"]),
                "samples": st.one_of(st.none(), st.integers(0, 100)),
                "profiled": st.booleans(),
                "begin_s": seconds,
                "wall_s": seconds,
                **{f"{phase}_s": seconds for phase in PHASES},
            }
        ),
        max_size=8,
    )
)
def test_any_frame_gives_one_line(tmp_path_factory, table):
    schema = read_phases(tmp_path_factory.mktemp("empty")).schema
    summary = summarise(pl.DataFrame(table, schema=schema))
    assert summary.sentence.endswith(".")
    assert "\n" not in summary.sentence
    assert "nan" not in summary.sentence
    assert all(math.isfinite(time.share) for time in summary.phases)


def test_a_timer_and_its_summary_agree(tmp_path):
    now = [0]
    timer = PhaseTimer(clock=lambda: now[0])
    for step in range(5):
        for phase, ticks in (("data_wait", 1), ("forward", 3), ("backward", 6)):
            timer.switch(phase)
            now[0] += ticks * 1_000_000
        timer.end_step(0, step, 32)
    timer.flush(tmp_path, 0, 0)
    summary = summarise(read_phases(tmp_path))
    assert summary.of("backward").ms_per_step == pytest.approx(6)
    assert summary.us_per_sample == pytest.approx(10_000 / 32)


FAST = {"forward": 3.0, "backward": 4.0, "loss": 0.1, "optimizer": 1.0}
SLOW = {phase: 10 * seconds for phase, seconds in FAST.items()}


def test_a_change_in_every_large_phase():
    found = unevenness(steady(*[FAST] * 50, *[SLOW] * 50))
    assert found.is_everywhere
    assert (found.fast_s, found.slow_s) == pytest.approx((8.1, 81))
    assert (found.fast_steps, found.slow_steps) == ((1, 10), (51, 60))
    # The loss is a small part and is not looked at.
    assert found.changed == ("forward", "backward", "optimizer")
    assert found.unchanged == ()


def test_it_may_also_become_faster():
    found = unevenness(steady(*[SLOW] * 50, *[FAST] * 50))
    assert found.is_everywhere
    assert (found.fast_steps, found.slow_steps) == ((51, 60), (1, 10))


@pytest.mark.parametrize("still", ["forward", "backward", "optimizer"])
def test_a_large_phase_that_stays_is_the_programs_own_doing(still):
    found = unevenness(steady(*[FAST] * 50, *[SLOW | {still: FAST[still]}] * 50))
    assert not found.is_everywhere
    assert found.unchanged == (still,)


def test_a_phase_that_becomes_all_of_the_step_is_not_every_part():
    # The others are small in the slow part, and were large in the fast one.
    found = unevenness(steady(*[FAST] * 50, *[FAST | {"data_wait": 1000.0}] * 50))
    assert found.changed == ("data_wait",)
    assert not found.is_everywhere


def test_the_only_phase_is_not_every_part():
    found = unevenness(steady(*[{"data_wait": 1.0}] * 30, *[{"data_wait": 9.0}] * 30))
    assert not found.is_everywhere


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
def test_what_is_even(given):
    assert unevenness(steady(*given)) is None


def test_few_steps_are_cut_into_fewer_parts():
    found = unevenness(steady(*[FAST] * 3, *[SLOW] * 3))
    assert (found.fast_steps, found.slow_steps) == ((1, 3), (4, 6))
    assert found.is_everywhere
