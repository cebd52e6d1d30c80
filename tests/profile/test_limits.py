"""What limits a run: the numbers, the steps that are cut, and the sentence."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError
from deltacell.profile import PHASES, PhaseTimer, read_phases, steady_steps, summarise


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


def test_the_sentence_of_a_usual_run():
    summary = summarise(rows(*[STEP] * 10))
    assert summary.sentence == (
        "Backward takes 61 % of the time (12.1 of 19.8 ms a step, 0.19 ms a sample); "
        "waiting for data takes 0.3 %."
    )


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


def test_waiting_for_data_leads_with_advice_where_it_is_the_most():
    # The lazy pipeline of the specification: 1.138 s a step of 28 samples.
    summary = summarise(rows(*[{"data_wait": 0.763, "forward": 0.375}] * 5, samples=28))
    assert summary.sentence == (
        "Waiting for data takes 67 % of the time (0.76 of 1.14 s a step, 27.2 ms a sample), "
        "and mode=data shows the loader alone; forward takes 33 %."
    )


def test_findings_come_with_advice():
    step = {
        "forward": 30e-3,
        "backward": 20e-3,
        "data_wait": 12e-3,
        "communication": 25e-3,
        "other": 13e-3,
    }
    sentence = summarise(rows(*[step] * 5)).sentence
    assert sentence.startswith("Forward takes 30 % of the time (30.0 of 100 ms a step")
    assert "; communication of gradients takes 25 %, which a larger data.batch_size" in sentence
    assert "; what is in no named phase takes 13 %, and profiler.trace=true" in sentence
    assert sentence.endswith("; waiting for data takes 12 %, and mode=data shows the loader alone.")
    assert "\n" not in sentence


def test_findings_below_their_bounds_are_not_mentioned():
    step = {"forward": 62e-3, "data_wait": 10e-3, "communication": 19e-3, "other": 9e-3}
    assert summarise(rows(*[step] * 5)).sentence == (
        "Forward takes 62 % of the time (62.0 of 100 ms a step, 0.97 ms a sample); "
        "waiting for data takes 10 %."
    )


def test_the_time_outside_the_steps_leads_where_it_is_more():
    train = rows(*[STEP] * 10)
    end = train["begin_s"][-1] + train["wall_s"][-1]
    between = rows({"validation": 0.4, "checkpoint": 0.1}, kind="between", begin=end, first=10)
    summary = summarise(pl.concat([train, between]))
    assert summary.of("validation").run_share == pytest.approx(0.4 / 0.698)
    assert summary.of("validation").share == 0
    assert summary.adds_up
    assert summary.sentence == (
        "Validation, checkpoints and figures take 72 % of the run, and a larger "
        "trainer.validate_every makes it less; backward takes 61 % of a step (12.1 of 19.8 ms a "
        "step, 0.19 ms a sample); waiting for data takes 0.3 %."
    )


def test_the_time_outside_the_steps_follows_where_it_is_less():
    train = rows(*[STEP] * 10)
    end = train["begin_s"][-1] + train["wall_s"][-1]
    between = rows({"checkpoint": 0.08}, kind="between", begin=end, first=10)
    sentence = summarise(pl.concat([train, between])).sentence
    assert sentence.startswith("Backward takes 61 % of a step")
    assert "; validation, checkpoints and figures take 29 % of the run, and trainer." in sentence
    assert "trainer.figures_every" in sentence


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


NOTHING = "No training step was timed, so nothing can be said of what limits this run."


def test_without_training_steps_it_says_so(tmp_path):
    assert summarise(read_phases(tmp_path)).sentence == NOTHING
    summary = summarise(rows({"validation": 1.0}, kind="between"))
    assert summary.sentence == NOTHING
    assert summary.of("validation").run_share == 1
    assert summary.samples_per_s is None
    assert summarise(rows({})).sentence == NOTHING


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
    assert "(12.1 of 19.8 ms a step);" in summary.sentence


def test_the_rank_the_attempt_and_the_profiler_need_not_be_there():
    frame = rows(*[STEP] * 3)
    assert summarise(frame.drop("rank", "attempt", "profiled")) == summarise(frame)
    with pytest.raises(InputError, match="no column 'loss_s'"):
        summarise(frame.drop("loss_s"))


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        ({"forward": 50e-6}, "100 % of the time (50.0 of 50.0 µs a step, 50.0 µs a sample)"),
        ({"forward": 120.0}, "100 % of the time (120 of 120 s a step, 120 s a sample)"),
        ({"forward": 3e-4}, "100 % of the time (0.3 of 0.3 ms a step, 0.3 ms a sample)"),
    ],
)
def test_units_are_those_that_read_best(step, expected):
    assert expected in summarise(rows(*[step] * 3, samples=1)).sentence


def test_a_share_that_rounds_to_nothing_is_not_nothing():
    sentence = summarise(rows(*[{"forward": 1.0, "data_wait": 1e-6}] * 3)).sentence
    assert sentence.endswith("waiting for data takes under 0.1 %.")
    sentence = summarise(rows(*[{"forward": 1.0}] * 3)).sentence
    assert sentence.endswith("waiting for data takes 0 %.")


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
    assert summarise(read_phases(tmp_path)).sentence == (
        "Backward takes 60 % of the time (6.00 of 10.0 ms a step, 0.19 ms a sample); "
        "waiting for data takes 10 %."
    )
