"""Pairs of runs that were really trained: what differs between them, and which setting is named.

Their times are replaced by given ones, so that what else runs on the machine does not decide.
"""

import re
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import polars as pl
import pytest

from deltacell.profile.explain import Explanation, explain
from deltacell.profile.explain.causes import CauseKind, NoSetting, OtherSettings, OtherWork
from deltacell.profile.explain.runs import OtherSamples, OutsideSteps, SlowSteps
from deltacell.profile.explain.settings import SettingKind
from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.profile.record import Messages, read_run
from deltacell.report.explain import print_explanation
from deltacell.train.config.compose import compose
from deltacell.train.run import train

SHORT = (
    *("data.synthetic_genotypes=120", "trainer.epochs=1", "trainer.figures_every=0"),
    *("trainer.progress=false", "loggers.tensorboard=false", "trainer.threads=1"),
)
DANGO = ("experiment=demo", "data.batch_size=16", "model.hidden=8", *SHORT)
HETERO = ("experiment=demo_hetero", "data.batch_size=16", "model.hidden=8", *SHORT)
WITHOUT_LATE = "model.propagation=delta"
RUNS = {
    "dango": DANGO,
    "dango_wide": (*DANGO, "model.hidden=16"),
    "dango_factor": (*DANGO, "loss.factor=0.01"),
    "hetero": (*HETERO, WITHOUT_LATE),
    "hetero_auto": HETERO,
    "subgraph": (*HETERO, "model.propagation=subgraph"),
    "edge_mask": (*HETERO, "model.propagation=edge_mask"),
    "shared": (*HETERO, "model.propagation=shared"),
    "small_batch": (*HETERO, WITHOUT_LATE, "data.batch_size=4"),
    "accumulated": (*HETERO, WITHOUT_LATE, "optimizer.accumulate=4"),
    "one_relation": (*HETERO, WITHOUT_LATE, "model.relations=[physical]"),
    "other_loss": (*HETERO, WITHOUT_LATE, "loss=point_distribution_contrast"),
    "wide": (*HETERO, WITHOUT_LATE, "model.hidden=16"),
}
FAST = {"forward": 0.004, "loss": 0.001, "backward": 0.005, "optimizer": 0.001}
SLOW = {name: 3 * seconds for name, seconds in FAST.items()}

Trained = Callable[[str], Path]
Pair = Callable[..., Explanation]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    """A function that returns a run of `RUNS`, trained when it is first asked for."""
    folder = tmp_path_factory.mktemp("pairs")
    known: dict[str, Path] = {}

    def run(name: str) -> Path:
        if name not in known:
            known[name] = train(compose([*RUNS[name], f"directory={folder / name}"])).path
        return known[name]

    return run


@pytest.fixture
def pair(trained: Trained) -> Pair:
    """A function that explains two runs, each with the given seconds per step by phase."""

    def explained(
        a: str,
        b: str,
        step_a: Mapping[str, float] = FAST,
        step_b: Mapping[str, float] = SLOW,
    ) -> Explanation:
        first = trained(a)
        second = trained(b)
        give_times(first, step_a)
        give_times(second, step_b)
        return explain(first, second)

    return explained


def give_times(run: Path, step: Mapping[str, float]) -> None:
    """Replace the seconds of every step of a run, and those outside the steps by none."""
    rows = read_phases(run / "phases").filter(kind="train")
    columns = {f"{phase}_s": pl.lit(float(step.get(phase, 0.0))) for phase in PHASES}
    rows = rows.with_columns(**columns, wall_s=pl.lit(float(sum(step.values()))))
    rows = rows.with_columns(begin_s=pl.col("wall_s").cum_sum() - pl.col("wall_s"))
    for part in (run / "phases").iterdir():
        part.unlink()
    rows.write_parquet(run / "phases" / "rank0-attempt0-part0.parquet")


def kinds(explanation: Explanation) -> list[SettingKind]:
    return [change.kind for change in explanation.changes]


def n_lines(explanation: Explanation) -> int:
    return len(textwrap.wrap(explanation.sentence, 100))


def test_a_setting_that_does_not_explain_a_gap_is_not_advised(pair: Pair) -> None:
    forward = {**FAST, "forward": 0.04}
    found = pair("accumulated", "hetero", FAST, forward)
    (cause,) = found.causes
    assert isinstance(cause.evidence, NoSetting)
    assert kinds(found) == [SettingKind.accumulated]
    assert not any("optimizer.accumulate" in advice for advice in found.advice)
    assert n_lines(found) <= 2


@pytest.mark.parametrize("is_reversed", [False, True])
def test_models_of_which_one_has_a_graph_for_every_mutant(pair: Pair, is_reversed: bool) -> None:
    names = ("subgraph", "dango") if is_reversed else ("dango", "subgraph")
    times = (SLOW, FAST) if is_reversed else (FAST, SLOW)
    found = pair(*names, *times)
    assert kinds(found)[:3] == [SettingKind.model, SettingKind.propagation, SettingKind.loss]
    assert kinds(found) == sorted(kinds(found), key=list(SettingKind).index)
    values = {change.kind: (change.a, change.b) for change in found.changes}
    if is_reversed:
        values = {kind: (b, a) for kind, (a, b) in values.items()}
    assert values[SettingKind.model] == ("dango", "hetero_cell")
    assert values[SettingKind.propagation] == (None, "subgraph")
    assert values[SettingKind.loss] == ("dango", "log_cosh")
    (cause,) = found.causes
    assert cause.kind is CauseKind.model
    work = cause.evidence
    assert isinstance(work, OtherWork)
    assert (work.slow.messages, work.fast.messages) == (
        Messages.graph_per_mutant,
        Messages.wild_type,
    )
    assert (work.slow.model, work.slow.propagation) == ("hetero_cell", "subgraph")
    assert "propagation=auto" in found.advice[0]
    assert n_lines(found) <= 2


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("subgraph", Messages.graph_per_mutant),
        ("edge_mask", Messages.masked_edges),
        ("shared", Messages.whole_products),
    ],
)
def test_propagations_of_one_model(pair: Pair, name: str, messages: Messages) -> None:
    found = pair("hetero", name)
    assert kinds(found) == [SettingKind.propagation]
    (cause,) = found.causes
    assert cause.kind is CauseKind.propagation
    assert isinstance(cause.evidence, OtherWork)
    assert cause.evidence.slow.messages is messages
    assert cause.evidence.fast.messages is Messages.changes
    assert "propagation=auto" in found.advice[0]
    assert n_lines(found) <= 2


def test_a_strategy_that_auto_chose_is_the_same_as_that_strategy(trained: Trained) -> None:
    facts = read_run(trained("hetero_auto")).model
    assert facts is not None
    assert facts.messages is Messages.changes
    assert facts.relations == ("physical", "string_coexpression", "string_database")
    assert read_run(trained("dango")).config()["model"]["hidden"] == 8


@pytest.mark.parametrize(
    ("a", "b", "kind", "values"),
    [
        ("one_relation", "hetero", SettingKind.relations, None),
        ("hetero", "other_loss", SettingKind.loss, ("log_cosh", "point_distribution_contrast")),
        ("hetero", "wide", SettingKind.option, (8, 16)),
        ("dango", "dango_factor", SettingKind.option, (0.001, 0.01)),
    ],
)
def test_a_pair_of_runs_that_differ_in_one_setting_is_explained_by_it(
    pair: Pair,
    a: str,
    b: str,
    kind: SettingKind,
    values: tuple[object, object] | None,
) -> None:
    found = pair(a, b)
    assert set(kinds(found)) <= {kind, SettingKind.parameters}
    (change,) = (change for change in found.changes if change.kind is kind)
    if values is not None:
        assert (change.a, change.b) == values
    (cause,) = found.causes
    assert isinstance(cause.evidence, OtherSettings)
    assert cause.evidence.changes == (change,)
    assert cause.evidence.ratio == pytest.approx(3)
    assert n_lines(found) <= 2


def test_another_batch_is_compared_per_sample(pair: Pair) -> None:
    found = pair("hetero", "small_batch", FAST, FAST)
    assert found.comparison is not None
    assert found.comparison.steps.per == "sample"
    # A step takes as long, and has a quarter of the samples.
    assert found.comparison.steps.ratio == pytest.approx(4, rel=0.2)
    assert kinds(found) == [SettingKind.batch]
    assert [cause.kind for cause in found.causes] == [CauseKind.batch]
    assert any("data.batch_size=16" in advice for advice in found.advice)


def test_a_batch_that_cannot_make_the_gap_is_not_blamed(pair: Pair) -> None:
    found = pair("hetero", "small_batch", FAST, {name: 9 * s for name, s in FAST.items()})
    assert kinds(found) == [SettingKind.batch]
    (cause,) = found.causes
    assert cause.kind is CauseKind.no_setting
    # Nor is a larger one, whose samples take longer.
    (cause,) = pair("small_batch", "hetero", FAST, {k: 9 * s for k, s in FAST.items()}).causes
    assert cause.kind is CauseKind.no_setting


def test_accumulated_batches(pair: Pair) -> None:
    four = {"forward": 0.016, "loss": 0.004, "backward": 0.020, "optimizer": 0.001}
    found = pair("accumulated", "hetero", four, FAST)
    assert kinds(found) == [SettingKind.accumulated]
    assert (found.changes[0].a, found.changes[0].b) == (4, 1)
    assert [cause.kind for cause in found.causes] in ([], [CauseKind.accumulated])
    # A slow forward has nothing to do with it.
    slow = FAST | {"forward": 0.1}
    assert [cause.kind for cause in pair("accumulated", "hetero", four, slow).causes] == [
        CauseKind.no_setting,
    ]


def test_a_loader_is_not_blamed_on_the_model(pair: Pair) -> None:
    found = pair("dango", "dango_wide", FAST, FAST | {"data_wait": 0.1})
    assert kinds(found)[:1] == [SettingKind.parameters]
    (cause,) = found.causes
    assert cause.kind is CauseKind.no_setting
    assert isinstance(cause.evidence, NoSetting)
    assert cause.evidence.part.part == "data loading"
    assert cause.evidence.changes


def test_the_first_screen_has_one_ratio(
    pair: Pair,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    print_explanation(pair("dango", "subgraph").to_json())
    screen = capsys.readouterr().out
    assert len(screen.splitlines()) <= 25
    measured = screen.partition("what to try")[0]
    assert len(set(re.findall(r"\d[\d.]*x", measured))) == 1
    for name in ("model", "propagation", "loss", "parameters"):
        assert f" {name} (" in " ".join(measured.split())


def test_runs_that_do_not_differ(pair: Pair) -> None:
    found = pair("dango", "dango", FAST, FAST)
    assert (found.changes, found.causes) == ((), [])
    assert found.noise is None or not found.noise.is_beyond
    assert n_lines(found) <= 2
    # Another time with the same settings.
    assert found.reasons == ()


def test_settings_that_only_one_of_which_can_matter_are_not_guessed(pair: Pair) -> None:
    found = pair("one_relation", "wide")
    (cause,) = found.causes
    assert cause.kind is CauseKind.settings
    assert isinstance(cause.evidence, OtherSettings)
    assert {change.kind for change in cause.evidence.changes} == {
        SettingKind.relations,
        SettingKind.option,
    }


STEP = {"forward": 0.008, "backward": 0.012}


def test_a_slow_step_is_why_medians_differ(make_run) -> None:
    usual = make_run("usual", STEP, steps=40)
    slow = make_run("slow", STEP, steps=40, slow_after=39, slower={"forward": 200.0})
    found = explain(usual, make_run("other", {k: 2 * s for k, s in STEP.items()}, steps=40))
    assert found.reasons == ()
    found = explain(make_run("half", {k: s / 2 for k, s in STEP.items()}, steps=40), slow)
    (reason,) = found.reasons
    assert isinstance(reason, SlowSteps)
    assert (reason.run, reason.count, reason.first) == ("slow", 1, 40)
    assert reason.share == pytest.approx(1.612 / (1.612 + 38 * 0.02), rel=0.01)


def test_epochs_lead_if_only_they_differ(make_run) -> None:
    found = explain(make_run("a", STEP), make_run("b", STEP, between={"checkpoint": 0.2}))
    assert found.lead == "epoch"
    (cause,) = found.causes
    assert isinstance(cause.evidence, NoSetting)
    assert cause.evidence.part.part == "outside the steps: checkpoints and figures"
    assert any("checkpoint" in advice for advice in found.advice)


def test_epochs_do_not_lead_if_they_hardly_differ(make_run) -> None:
    faster = {name: 0.98 * seconds for name, seconds in STEP.items()}
    found = explain(make_run("a", STEP), make_run("b", faster, between={"checkpoint": 0.021}))
    ratio = found.comparison.epoch_ratio
    assert 1.07 < ratio.epoch < 1.1
    assert any(isinstance(reason, OutsideSteps) for reason in found.reasons)
    assert found.lead == "sample"
    assert found.causes == []


def test_why_epochs_differ(make_run) -> None:
    twice = {k: 2 * s for k, s in STEP.items()}
    found = explain(make_run("a", STEP, between={"validation": 0.6}), make_run("b", twice))
    (reason,) = found.reasons
    assert reason == OutsideSteps("a", pytest.approx(0.75), "validation")
    found = explain(make_run("c", STEP), make_run("d", twice, per_epoch=5))
    (reason,) = found.reasons
    assert reason == OtherSamples("c", "d", 640, 320)


def test_a_run_that_only_its_record_describes(make_run) -> None:
    found = explain(make_run("one", STEP, world_size=1), make_run("two", STEP, n_parameters=3))
    assert (found.changes, found.causes) == ((), [])
    assert "settings" not in found.sentence
    records = ({"accumulate": 1}, {"accumulate": 2, "threads": 1, "n_parameters": 7})
    ranks = make_run("ranks", [STEP, STEP], **records[1])
    changes = explain(make_run("alone", STEP, threads=2, **records[0]), ranks).changes
    assert [(change.name, change.a, change.b) for change in changes] == [
        ("ranks", 1, 2),
        ("accumulated batches", 1, 2),
        ("threads of a process", 2, 1),
    ]


def test_a_damaged_config_is_an_error(make_run, refused) -> None:
    path = make_run("run", STEP)
    (path / "config.yaml").write_text("model: [")
    refused("no-config", explain, path)
