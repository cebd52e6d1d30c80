"""What limits a run: the numbers, the steps that are cut, the sentence, and uneven steps."""

from __future__ import annotations

import json

import polars as pl
import pytest

from deltacell.profile.phase_rows import (
    COLUMNS,
    PHASES,
    PhaseSummary,
    read_phases,
    steady_steps,
    unevenness,
)

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
            "Forward 30; communication 25 batch_size; what 13 trace; waiting 12 data",
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
    clauses = PhaseSummary(frame).sentence.removesuffix(".").split("; ")
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
    assert steady_steps(slow(*walls))["wall_s"].to_list() == pytest.approx(walls[cut:])
    assert ("this is from one step only" in summary.sentence) == (summary.steps == 1)


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
    assert "beware, the phases are off by 20 %" in PhaseSummary(gap).sentence
    # A gap of one rank is not made good by an overlap of another.
    overlap = frame.with_columns(begin_s=pl.col("begin_s") - late, rank=pl.lit(1, pl.Int64))
    assert PhaseSummary(pl.concat([gap, overlap])).residual == pytest.approx(0.1 / (0.248 + 0.148))
    off = frame.with_columns(backward_s=pl.col("backward_s") * 2)
    assert PhaseSummary(off).residual > 0.01


def test_without_training_steps_it_says_so(tmp_path):
    assert PhaseSummary(read_phases(tmp_path)).sentence.startswith(NOTHING)
    assert PhaseSummary(rows({})).sentence.startswith(NOTHING)
    summary = PhaseSummary(rows({"validation": 1.0}, kind="between"))
    assert summary.sentence.startswith(NOTHING)
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
    ("later", "changed", "unchanged"),
    [
        # The loss is a small part and is not looked at.
        (SLOW, "forward backward optimizer", ""),
        # A large phase that stays is the program's own doing.
        (SLOW | {"optimizer": FAST["optimizer"]}, "forward backward", "optimizer"),
        # The others are small in the slow part, and were large in the fast one.
        (FAST | {"data_wait": 1000.0}, "data_wait", "forward backward optimizer"),
    ],
)
def test_what_is_uneven(later, changed, unchanged):
    found = unevenness(rows(*[FAST] * 50, *[later] * 50))
    assert (" ".join(found.changed), " ".join(found.unchanged)) == (changed, unchanged)
    assert found.is_everywhere == (not unchanged)
    assert (found.fast_steps, found.slow_steps) == ((1, 10), (51, 60))
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
def test_what_is_even(given):
    assert unevenness(rows(*given)) is None
