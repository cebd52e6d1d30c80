"""Runs of this program explained, one and two, where the truth is known."""

from __future__ import annotations

import json

import pytest

import deltacell
from deltacell.errors import InputError
from deltacell.profile.explain import explain
from deltacell.profile.explain.subject import CATEGORY_OF
from deltacell.profile.phase_rows import PHASES
from deltacell.profile.record import Status
from deltacell.profile.trace.categories import Category

STEP = {"data_wait": 0.001, "forward": 0.008, "backward": 0.010, "other": 0.001}
BETWEEN = {"validation": 0.06, "checkpoint": 0.04}


def test_phases_and_traces_have_the_same_categories():
    assert tuple(CATEGORY_OF) == PHASES
    assert list(CATEGORY_OF.values()) == [category.title for category in Category]


def test_one_run(make_run):
    found = explain(make_run("usual", STEP, between=BETWEEN))
    assert found.sentence.startswith(
        "Backward takes 50 % of a step (10.0 of 20.0 ms a step, 0.16 ms a sample); validation, "
        "checkpoints and figures take 33 % of the run"
    )
    account = found.accounts[0]
    assert account.step_s == pytest.approx(0.020)
    assert account.epoch_s == pytest.approx(0.3)
    assert account.outside == pytest.approx({"validation": 0.06, "checkpoints and figures": 0.04})
    rows = {row["category"]: row for row in found.table("categories").to_dicts()}
    assert rows["backward"]["ms per step"] == pytest.approx(10)
    assert rows["backward"]["µs per sample"] == pytest.approx(10_000 / 64)
    assert rows["validation"]["share of an epoch"] == pytest.approx(0.2)
    assert sum(row["share of a step"] for row in rows.values()) == pytest.approx(1)
    assert sum(row["share of an epoch"] for row in rows.values()) == pytest.approx(1)
    assert found.confidence == "high"
    assert any("trainer.validate_every" in advice for advice in found.advice)


def test_a_slow_loader_is_the_cause(make_run):
    a = make_run("before", STEP, samples=50)
    b = make_run("after", STEP | {"data_wait": 0.021}, samples=50)
    found = explain(a, b)
    assert found.sentence == (
        "after takes 2.0x as long per sample as before (800 µs against 400 µs): data loading is "
        "+400 µs, 100 % of the gap."
    )
    fall = found.comparison.steps
    assert fall.gap == pytest.approx(0.020 / 50)
    assert [bar.part for bar in fall.bars if abs(bar.change) > 1e-12] == ["data loading"]
    assert found.comparison.unequal == ()
    assert found.advice[0].startswith("data loading: ")


def test_a_share_above_all_of_the_gap_is_said_as_such(make_run):
    a = make_run("before", {"data_wait": 0.001, "forward": 0.130})
    b = make_run("after", {"data_wait": 0.069, "forward": 0.105})
    sentence = explain(a, b).sentence
    assert "158 % of the gap, which is more than all of it; the other parts are -" in sentence


def test_a_faster_one(make_run):
    found = explain(make_run("before", STEP), make_run("after", STEP | {"backward": 0.005}))
    assert "0.75x as long" in found.sentence
    assert "backward is -78.1 µs, 100 % of the gap" in found.sentence
    assert found.advice == ()


def test_what_lies_outside_the_steps(make_run):
    a = make_run("before", STEP)
    b = make_run("after", STEP, between=BETWEEN)
    found = explain(a, b)
    assert "no difference beyond noise" in found.sentence
    assert "Per epoch it is 1.5x" in found.sentence
    assert "most of that lies outside the steps: validation" in found.sentence
    ratio = found.comparison.epoch_ratio
    assert (ratio.steps, ratio.step, ratio.outside) == pytest.approx((1, 1, 1.5))


def test_what_is_not_equal_is_named(make_run):
    a = make_run("before", STEP)
    b = make_run(
        "after",
        STEP,
        steps=26,
        samples=32,
        per_epoch=20,
        precision="bf16-mixed",
        device="cuda:0",
        versions={"torch": "2.6.0"},
        world_size=4,
    )
    said = explain(a, b).comparison.unequal
    for name in ("steps of an epoch", "samples of a step", "batch", "ranks", "precision", "device"):
        assert any(one.startswith(f"{name}: ") for one in said), name
    assert "torch: 2.13.0 against 2.6.0" in said
    assert "steps measured: 19 against 25" in said


def test_threads_are_compared_and_named_beside_the_cause(make_run):
    slower = {phase: 3 * seconds for phase, seconds in STEP.items()}
    found = explain(make_run("one", STEP, threads=1), make_run("four", slower, threads=4))
    assert found.comparison.unequal == ("threads of a process: 1 against 4",)
    assert found.sentence.endswith(
        " four computed with 4 threads a process and one with 1, which can change every part."
    )
    assert found.advice[0].startswith("threads: Train both with the same trainer.threads")
    assert [facts["threads of a process"] for facts in found.facts] == [1, 4]


def test_threads_that_are_equal_or_not_recorded_are_not_blamed(make_run):
    paths = [make_run(f"run{i}", STEP, threads=threads) for i, threads in enumerate((2, 2, None))]
    record = json.loads((paths[2] / "run.json").read_text())
    del record["threads"]
    (paths[2] / "run.json").write_text(json.dumps(record))
    equal, old = explain(*paths[:2]), explain(*paths[1:])
    assert equal.comparison.unequal == ()
    assert old.comparison.unequal == ("threads of a process: known of run1 only (2)",)
    for found in (equal, old):
        assert "thread" not in " ".join([found.sentence, *found.advice])


EVEN = {"forward": 0.003, "backward": 0.004, "optimizer": 0.001}


def test_a_run_that_becomes_slower_in_every_part_is_doubted(make_run):
    quiet = make_run("quiet", EVEN, steps=100)
    busy = make_run("busy", EVEN, steps=100, slow_after=50, slower=12.5)
    doubt = (
        "Confidence is low: the steps of busy took 8.00 ms from step 2 to 11 and 100 ms from step "
        "52 to 61, in every large part (forward, backward and optimizer): something outside of "
        "the program, or the machine, changed."
    )
    for found in (explain(quiet, busy), explain(busy, quiet), explain(busy)):
        assert found.confidence == "low"
        assert found.warnings[0] == doubt
        assert any(one.startswith("the machine: ") for one in found.advice)
    assert explain(quiet, busy).sentence.endswith(
        " Within busy the time of a step changed in every large part, so it may be the machine."
    )
    assert "the steps took from 8.00 ms to 100 ms over the run" in explain(busy).sentence


def test_a_run_that_becomes_slower_in_one_part_is_told_and_not_doubted(make_run):
    leaks = make_run("leaks", EVEN, steps=100, slow_after=50, slower={"forward": 20.0})
    found = explain(make_run("usual", EVEN, steps=100), leaks)
    assert found.confidence == "high"
    assert "machine" not in " ".join([found.sentence, *found.advice])
    (said,) = (one for one in found.warnings if one.startswith("leaks: Its steps took"))
    assert said.endswith("and 65.0 ms from step 52 to 61; what took longer is forward.")


def test_runs_that_are_even_are_not_doubted(make_run):
    found = explain(make_run("a", EVEN, steps=100), make_run("b", EVEN, slow_after=10, slower=1.5))
    assert found.confidence == "high"
    assert "steps took" not in " ".join([found.sentence, *found.warnings])


def test_counts_of_one_are_singular(make_run):
    said = " ".join(explain(make_run("one", STEP, steps=2)).warnings)
    assert "Only 1 steady step was timed." in said
    assert "1 steps" not in said


def test_advice_on_figures_is_right_for_every_setting(make_run):
    found = explain(make_run("one", STEP, between={"checkpoint": 0.2}))
    for said in (found.sentence, *(a for a in found.advice if a.startswith("checkpoints"))):
        assert "trainer.figures_every=0 draws no figures" in said
        assert "larger trainer.figures_every" not in said


def test_the_rank_that_the_others_wait_for(make_run):
    late = {"data_wait": 0.041, "forward": 0.008, "communication": 0.001}
    found = explain(make_run("ranks", [{**STEP, "communication": 0.030}, late]))
    assert found.sentence.startswith(
        "Rank 1 arrives last at the exchange of gradients, 29.0 ms a step after the others, and "
        "spends 40.0 ms more than they do in data loading. "
    )
    assert found.table("ranks")["rank"].to_list() == [0, 1]


def test_ranks_that_arrive_together_are_not_named(make_run):
    assert "arrives last" not in explain(make_run("ranks", [STEP, STEP])).sentence


def test_a_run_against_itself(make_run):
    path = make_run("one", STEP, between=BETWEEN, samples=50)
    found = explain(path, path)
    assert found.sentence.startswith("There is no difference beyond noise between B and A")
    assert not found.noise.is_beyond
    assert all(bar.change == 0 for bar in found.comparison.steps.bars)
    assert found.comparison.epoch_ratio.epoch == 1


def test_the_chosen_propagation_and_why(make_run):
    propagation = {
        "name": "auto",
        "choice": {"choice": {"strategy": "delta"}},
        "why": "delta, 8 at a time.\nshared would take longer.",
    }
    found = explain(make_run("one", STEP, propagation=propagation))
    assert "propagation delta (by auto): delta, 8 at a time." in found.evidence
    assert "shared would take longer." in found.evidence


def test_another_mode_and_a_run_that_goes_on_are_said(make_run):
    path = make_run("one", {"data_wait": 0.01}, mode="data", status=Status.running)
    said = " ".join(explain(path).warnings)
    assert "mode 'data'" in said
    assert "is running" in said
    other = explain(make_run("two", STEP), path)
    assert other.confidence == "low"
    assert other.warnings[0].startswith("Confidence is low")
    assert "the gap is a marginal cost" in other.warnings[0]


def test_all_of_it_is_json(make_run):
    found = explain(make_run("a", STEP), make_run("b", STEP | {"loss": 0.01}, between=BETWEEN))
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["sentence"] == found.sentence
    keys = {table["key"] for table in again["tables"]}
    assert keys >= {"waterfall_sample", "waterfall_epoch", "categories_a", "categories_b"}
    with pytest.raises(KeyError, match="there is no table 'x'"):
        found.table("x")


def test_it_is_at_the_top_of_the_package():
    assert deltacell.explain is explain


def test_a_run_without_phases(make_run):
    path = make_run("one", STEP)
    for part in (path / "phases").iterdir():
        part.unlink()
    with pytest.raises(InputError, match="no training step of this run was timed"):
        explain(path)
    (path / "traces").mkdir()
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 9}
    trace = json.dumps({"schemaVersion": 1, "traceEvents": [event]})
    (path / "traces" / "trace-rank0-window0.json").write_text(trace)
    found = explain(path)
    assert found.accounts[0].source == "trace"
    assert found.facts[0]["mode"] == "train"
    assert found.facts[0]["torch"] == "2.13.0"


def test_nothing_there(tmp_path):
    with pytest.raises(InputError, match="there is nothing here"):
        explain(tmp_path / "none")
