"""Runs of this program explained, one and two, where the truth is known; and conditions on them."""

import json

import pytest

import deltacell
from deltacell.profile.explain import Account, Explanation, compare, explain
from deltacell.profile.explain.condition import read_condition
from deltacell.profile.record import Status

STEP = {"data_wait": 0.001, "forward": 0.008, "backward": 0.010, "other": 0.001}
BETWEEN = {"validation": 0.06, "checkpoint": 0.04}
EVEN = {"forward": 0.003, "backward": 0.004, "optimizer": 0.001}


def test_one_run_is_explained_by_its_phases_and_its_time_outside_steps(make_run):
    found = explain(make_run("usual", STEP, between=BETWEEN))
    assert found.sentence.startswith("Backward takes 50 % of a step (10.0 ms of 20.0 ms per step, ")
    account = found.accounts[0]
    assert (account.step_s, account.epoch_s) == pytest.approx((0.020, 0.3))
    assert account.outside == pytest.approx({"validation": 0.06, "checkpoints and figures": 0.04})
    rows = {row["category"]: row for row in found.table("categories").to_dicts()}
    assert rows["backward"]["ms per step"] == pytest.approx(10)
    assert rows["backward"]["µs per sample"] == pytest.approx(10_000 / 64)
    assert rows["validation"]["share of an epoch"] == pytest.approx(0.2)
    for share in ("share of a step", "share of an epoch"):
        assert sum(row[share] for row in rows.values()) == pytest.approx(1)
    assert found.confidence == "high"
    assert any("trainer.validate_every" in advice for advice in found.advice)
    assert deltacell.explain is explain


def test_a_slow_loader_is_the_cause(make_run):
    a = make_run("before", STEP, samples=50)
    found = explain(a, make_run("after", STEP | {"data_wait": 0.021}, samples=50))
    assert found.sentence == (
        "after takes 2.0x as long per sample as before (800 µs against 400 µs): data loading "
        "accounts for +400 µs, 100 % of the gap."
    )
    fall = found.comparison.steps
    assert fall.gap == pytest.approx(0.020 / 50)
    assert [bar.part for bar in fall.bars if abs(bar.change) > 1e-12] == ["data loading"]
    assert found.comparison.unequal == ()
    assert found.advice[0].startswith("data loading: ")


@pytest.mark.parametrize(
    ("a", "b", "said", "advised"),
    [
        (
            {"data_wait": 1e-3, "forward": 0.13},
            {"data_wait": 0.069, "forward": 0.105},
            "all other parts together for -",
            1,
        ),
        (STEP, STEP | {"backward": 0.005}, "0.75x as long", 0),
    ],
)
def test_parts_that_cancel_and_a_faster_one(make_run, a, b, said, advised):
    found = explain(make_run("before", a), make_run("after", b))
    assert said in found.sentence
    assert len(found.advice) == advised


def test_a_slower_validation_is_a_cause_outside_the_steps(make_run):
    found = explain(make_run("before", STEP), make_run("after", STEP, between=BETWEEN))
    assert not found.noise.is_beyond
    assert found.causes[0].evidence.part.part == "outside the steps: validation"
    assert found.causes[0].seconds == pytest.approx(0.06)
    ratio = found.comparison.epoch_ratio
    assert (ratio.steps, ratio.time_per_step, ratio.outside) == pytest.approx((1, 1, 1.5))
    again = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert again["sentence"] == found.sentence
    assert [fall["per"] for fall in again["waterfalls"]] == ["sample", "epoch"]
    assert [table["key"] for table in again["tables"]] == ["categories_a", "categories_b"]
    with pytest.raises(KeyError, match="'x'"):
        found.table("x")


def test_a_run_that_becomes_slower_in_every_part_is_doubted_and_in_one_is_said(make_run):
    quiet = make_run("quiet", EVEN, steps=100)
    slower = dict.fromkeys(EVEN, 12.5)
    busy = make_run("busy", EVEN, steps=100, slow_after=50, slower=slower)
    for found in (explain(quiet, busy), explain(busy, quiet), explain(busy)):
        assert found.confidence == "low"
        for text in ("8.00 ms", "100 ms from step 52 to 61", "machine"):
            assert text in found.doubts[0]
        assert any(one.startswith("the machine: ") for one in found.advice)

    leaks = make_run("leaks", EVEN, steps=100, slow_after=50, slower={"forward": 20.0})
    found = explain(quiet, leaks)
    assert found.confidence == "high"
    assert "machine" not in " ".join([found.sentence, *found.advice])
    (said,) = (one for one in found.warnings if one.startswith("leaks: Its steps took"))
    assert "65.0 ms from step 52 to 61" in said


def test_the_rank_that_the_others_wait_for(make_run):
    late = {"data_wait": 0.041, "forward": 0.008, "communication": 0.001}
    found = explain(make_run("ranks", [{**STEP, "communication": 0.030}, late]))
    first = found.sentence.partition(". ")[0]
    for said in ("Rank 1", "29.0 ms per step", "40.0 ms more", "data loading"):
        assert said in first
    assert found.table("ranks")["rank"].to_list() == [0, 1]
    assert "arrives last" not in explain(make_run("together", [STEP, STEP])).sentence


def test_another_mode_and_an_unfinished_run_are_said(make_run):
    path = make_run("one", {"data_wait": 0.01}, mode="data", status=Status.running, steps=2)
    other = explain(make_run("two", STEP), path)
    assert "mode 'data'" in other.doubts[0]
    for words in ("mode 'data'", "is running", "Only 1 steady step was timed."):
        assert words in " ".join(explain(path).warnings)


def test_a_run_without_phases(refused, make_run):
    path = make_run("one", STEP)
    for part in (path / "phases").iterdir():
        part.unlink()
    refused("no-timed-step", explain, path)


def two(a: Account, b: Account) -> Explanation:
    return Explanation(sentence="", accounts=(a, b), comparison=compare(a, b))


A = Account("a", "run", {"forward": 1.0}, 10, 10)
B = Account("b", "run", {"forward": 1.1, "data loading": 0.1}, 8, 10, {"validation": 8.0})
TRACE = Account("t", "trace", {"forward": 1.0})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        *(("slower > 49.9%", True), ("slower > 50.1%", False), ("slower per sample<50.1%", True)),
        *(("slower per step > 19 %", True), ("slower per step > 21%", False)),
        *(("  SLOWER  per  epoch >= 1 ", True), ("slower per epoch > 1.99x", True)),
        *(("slower per epoch > 2.01x", False), ("slower <= -5%", False)),
        *(("data loading > 8%", True), ("data_loading > 9%", False), ("validation > 0%", False)),
    ],
)
def test_a_condition_holds_or_not_as_the_ratio_says(text, holds):
    assert read_condition(text).check(two(A, B))[0] is holds
    assert read_condition("slower  > 10%").check(two(A, B))[1] == "slower > 10%: it is 50 %"


ONE = Explanation(sentence="", accounts=(A,))
FORMS = ("", "slower", "slower > ", "slower > ten", "> 10%", "slower == 1", "slower > 1e9999")


@pytest.mark.parametrize(
    ("text", "of", "code"),
    [
        *((text, ONE, "form") for text in (*FORMS, "slower > 10% and more", "__import__('os')")),
        ("data loading > 2x", ONE, "form"),
        ("slowr > 10%", ONE, "about"),
        ("slower > 1%", ONE, "unknown"),
        ("slower per sample > 1%", two(TRACE, TRACE), "unknown"),
        ("slower per epoch > 1%", two(TRACE, TRACE), "unknown"),
    ],
)
def test_conditions_that_cannot_be_read_or_name_nothing_are_refused(refused, text, of, code):
    refused(f"condition-{code}", lambda: read_condition(text).check(of))
    assert read_condition("forward > 99%").check(of)[0]
