"""Comparisons of two trainings by trials: planted causes, what is kept, and what is refused."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated_trials import SimulatedRunner, side, step_seconds

from deltacell.base.errors import DeltacellError, InputError
from deltacell.models.variation import VariationKind
from deltacell.train.comparing.arms import ALL, arms_of, base_arm
from deltacell.train.comparing.compare import compare_trainings
from deltacell.train.comparing.differences import differences
from deltacell.train.comparing.result import REST, TOGETHER, StepPart, TriedComparison
from deltacell.train.comparing.schedule import run_arms
from deltacell.train.comparing.sides import TriedSide, read_sides
from deltacell.train.comparing.table import FILE, TrialTable
from deltacell.train.comparing.trials import TrialRow, words_of
from deltacell.train.config.compose import compose

# What differs between A and B, and the kind of the cause.
PLANTED = {
    "batch": (("data.batch_size=4", "model.propagation=auto"), VariationKind.batch),
    "threads": (("trainer.threads=1",), VariationKind.threads),
    "relations": (("model.relations=[physical]",), VariationKind.relations),
    "gather": (("loss.gather_interval=0",), VariationKind.gather),
    "propagation": (("model.propagation=subgraph",), VariationKind.propagation),
    "metabolism": (("model.metabolism=true",), VariationKind.metabolism),
    "width": (("model.hidden=32",), VariationKind.width),
    "ranks": (("trainer.devices=4",), VariationKind.ranks),
    "delay": ((), StepPart.data),
}
_SAME = {"batch": ("model.propagation=auto",), "gather": ("trainer.devices=4",)}

Compared = Callable[..., TriedComparison]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """A function that compares two trainings by simulated trials."""

    def run(
        a: TriedSide, b: TriedSide, runner: SimulatedRunner | None = None, **options
    ) -> TriedComparison:
        simulated = SimulatedRunner() if runner is None else runner
        return compare_trainings(a, b, tmp_path / "compared", run=simulated, **options)

    return run


@pytest.mark.parametrize(
    ("name", "is_swapped"),
    [*((name, False) for name in PLANTED), ("batch", True), ("propagation", True)],
)
def test_the_planted_cause_is_named(compared, name, is_swapped):
    words, kind = PLANTED[name]
    same = _SAME.get(name, ())
    a = side("plain", *same)
    b = side("changed", *same, *words)
    delay = step_seconds(a.config, "train") * 1.5 if name == "delay" else 0.0
    if is_swapped and not delay:
        a, b = b, a
    result = compared(a, b, SimulatedRunner(delay_of_b=delay), turns=1)
    assert max(result.ratio, 1 / result.ratio) >= 1.5
    assert result.cause is not None
    assert result.cause.kind is kind
    assert result.cause.share > 0.8
    per_sample = step_seconds(b.config, "train", delay=delay) / b.config.data.batch_size
    per_sample /= step_seconds(a.config, "train") / a.config.data.batch_size
    assert result.low < per_sample < result.high
    for fall in (result.changes, result.parts):
        total = math.fsum(bar.change for bar in fall)
        assert total == pytest.approx(result.gap.seconds, abs=1e-12)


def test_of_several_changes_each_has_its_share_and_what_they_make_together(compared):
    a = side("plain")
    b = side("changed", "model.propagation=subgraph", "model.hidden=32", "optimizer.lr=0.5")
    result = compared(a, b, turns=1)
    kinds = {effect.difference.kind for effect in result.effects}
    assert kinds == {VariationKind.propagation, VariationKind.width}
    shares = {bar.part: bar.share for bar in result.changes}
    assert {*shares} == {"model.propagation", "model.hidden", TOGETHER, REST}
    assert result.cause is not None
    assert result.cause.kind is VariationKind.propagation
    assert abs(shares[REST]) < 0.1
    for effect in result.effects:
        assert effect.in_a is not None
        assert effect.in_b is not None
        # The product of two factors is more than their sum, so the last change gives more.
        assert effect.in_b.seconds > effect.in_a.seconds


def test_another_model_is_one_change_and_variations_of_the_slower_one_are_tried(compared):
    a = side("plain")
    b = side("slow", "model.propagation=subgraph", "data.batch_size=8")
    result = compared(a, b, turns=1)
    best = {v.settings: v for v in result.variations if v.side == "b"}["model.propagation=auto"]
    assert best.is_same_model
    assert best.low < best.speedup < best.high
    expected = step_seconds(b.config, "train")
    auto = side("auto", "model.propagation=auto", "data.batch_size=8").config
    assert best.low < expected / step_seconds(auto, "train") < best.high
    assert any("model.propagation=auto" in text for text in result.to_json()["advice"])
    hetero = compose(["experiment=demo_hetero"])
    dango = compose(["experiment=demo"])
    kinds = [change.kind for change in differences(dango, hetero)]
    assert kinds[0] is VariationKind.model
    assert not {VariationKind.loss, VariationKind.width} & {*kinds}
    (change, *_) = differences(dango, hetero)
    assert change.made_in(dango, hetero, to_b=True).model == hetero.model


def test_the_cost_of_a_step_follows_from_trials_with_two_batches(compared):
    b = side("changed", "data.batch_size=8")
    result = compared(side("plain"), b)
    cost = result.costs["b"]
    exact = step_seconds(b.config, "train")
    assert cost.seconds(8) == pytest.approx(exact, rel=0.1)
    assert cost.fixed == pytest.approx(0.012, rel=0.4)


def test_equal_trainings_have_no_cause(compared):
    result = compared(side("plain"), side("again", "seed=7", "trainer.epochs=3"))
    assert not result.is_beyond_noise
    assert result.cause is None
    assert not result.effects


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TriedComparison]:
    """A finished comparison and its result."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, compare_trainings(*RESUMED, folder, run=SimulatedRunner(), turns=2)


RESUMED = (side("plain"), side("changed", "data.batch_size=8"))


@pytest.mark.parametrize("after", [0, 7, 30])
def test_a_comparison_that_was_killed_resumes_to_the_same_trials(tmp_path, uninterrupted, after):
    folder, whole = uninterrupted
    stopped = SimulatedRunner(stops_after=after)
    with pytest.raises(KeyboardInterrupt):
        compare_trainings(*RESUMED, tmp_path, run=stopped, turns=2)
    rest = SimulatedRunner()
    again = compare_trainings(*RESUMED, tmp_path, run=rest, turns=2)
    assert again.to_json() == whole.to_json()
    assert (tmp_path / FILE).read_text() == (folder / FILE).read_text()
    # No trial was run twice.
    assert not {*stopped.ran} & {*rest.ran}
    assert len(stopped.ran) == after


@settings(max_examples=20, deadline=None)
@given(st.floats(0.05, 5.0), st.integers(1, 4))
def test_no_trial_begins_that_is_expected_to_end_after_the_budget(
    tmp_path_factory,
    minutes,
    turns,
):
    arms = [replace(base_arm("a", RESUMED[0].config), name=name) for name in "abcdef"]
    runner = SimulatedRunner()
    table = TrialTable(tmp_path_factory.mktemp("budget"), {})
    budget = 60 * minutes
    run_arms(
        arms,
        table,
        runner,
        turns=turns,
        budget_s=budget,
        steps=30,
        progress=lambda what, done, total: None,
    )
    assert runner.ran[:2] == [("a", 0), ("b", 0)]
    assert len({*runner.ran}) == len(runner.ran)
    longest = max(row.seconds for row in table.rows)
    required = sum(row.seconds for row in table.rows[:2])
    assert table.seconds <= max(budget + longest, required)
    if table.seconds + longest < budget:
        assert len(runner.ran) == turns * len(arms)


def test_a_table_of_another_comparison_or_that_was_edited_is_refused(tmp_path):
    a = side("plain")
    b = side("changed", "data.batch_size=8")
    compare_trainings(a, b, tmp_path, run=SimulatedRunner(), turns=1)
    with pytest.raises(InputError) as other:
        compare_trainings(a, side("c", "model.hidden=8"), tmp_path, run=SimulatedRunner())
    assert other.value.code == "other-comparison"
    table = json.loads((tmp_path / FILE).read_text())
    table["trials"][0]["seconds"] = 1.0
    (tmp_path / FILE).write_text(json.dumps(table))
    with pytest.raises(InputError) as edited:
        compare_trainings(a, b, tmp_path, run=SimulatedRunner())
    assert edited.value.code == "broken-seal"


def test_a_variant_that_fails_is_told_and_a_training_that_fails_is_an_error(tmp_path):
    a = side("plain")
    b = side("changed", "data.batch_size=8", "model.hidden=32")

    def failing(prefix: str):
        simulated = SimulatedRunner()

        def run(arm, turn, steps):
            if arm.name.startswith(prefix):
                return TrialRow(arm.name, turn, 1.0, error="out of memory\nat 0x1")
            return simulated(arm, turn, steps)

        return run

    result = compare_trainings(a, b, tmp_path / "one", run=failing("a with data"), turns=2)
    failed = {arm.arm for arm in result.failed}
    assert failed == {arm.name for arm in arms_of(a, b)[1] if arm.name.startswith("a with data")}
    assert {arm.error.splitlines()[0] for arm in result.failed} == {"out of memory"}
    effects = {effect.difference.kind: effect for effect in result.effects}
    assert effects[VariationKind.batch].in_a is None
    assert effects[VariationKind.batch].change == effects[VariationKind.batch].in_b
    with pytest.raises(DeltacellError):
        compare_trainings(a, b, tmp_path / "other", run=failing("b"), turns=1)


@pytest.mark.parametrize(
    "experiment",
    ["demo", "demo_hetero", "demo_pairs", "kuzmin2018_hetero_full", "costanzo2010_pair_cell"],
)
def test_the_words_of_a_config_compose_it_again(experiment):
    config = compose([f"experiment={experiment}", "optimizer.options={betas:[0.5,0.9]}"])
    assert compose(words_of(config)) == config


def test_a_side_is_a_run_or_overrides_and_both_have_names(runs):
    run, text = str(runs["seed0"]), "experiment=demo 'data.relations=[physical, tflink]'"
    a, b = read_sides(run, text)
    assert a.name == "seed0"
    assert b.name == "demo"
    assert b.config.data.relations == ["physical", "tflink"]
    assert [s.name for s in read_sides(text, text)] == ["A", "B"]
    for words, code in (
        ("nowhere", "not-a-config"),
        ("model=additive data.synthetic=demo", "fitted-run"),
    ):
        with pytest.raises(InputError) as error:
            read_sides(text, words)
        assert error.value.code == code


def test_with_one_change_making_it_in_a_is_all_that_is_tried(tmp_path):
    changes, arms = arms_of(side("plain"), side("changed", "data.batch_size=8"))
    assert len(changes) == 1
    assert [arm.name for arm in arms[:3]] == ["a", "b", ALL]
    assert arms[2].config.data.batch_size == 8
    assert len({arm.name for arm in arms}) == len(arms)
