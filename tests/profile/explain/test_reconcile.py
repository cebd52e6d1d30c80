"""The case of the specification, and measurements that are wrong or incomplete."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltacell.errors import InputError
from deltacell.profile.explain import read_measurements, reconcile

CASE = Path(__file__).with_name("case.yaml")
DOCS = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "dango-against-hetero.yaml"


@pytest.fixture(scope="module")
def case():
    return reconcile(CASE)


def test_the_example_of_the_docs_is_the_case():
    assert DOCS.read_text() == CASE.read_text()


def test_the_sentence(case):
    assert case.sentence == (
        "An epoch of hetero takes 40x as long as one of DANGO, 8,640 s against 216 s: 2.28 times "
        "as many steps, each 23.8 times as long, predict 54x, and the rest lies outside the steps, "
        "52 % of an epoch of DANGO and 35 % of one of hetero."
    )


@pytest.mark.parametrize(
    ("name", "ratio", "per"),
    [
        ("real training, epochs in 24 h", 40.0, "epoch"),
        ("real training, iterations a second", 54.42, "sample"),
        ("trace categories", None, None),
        ("full step on one saved batch", 1.575, "sample"),
        ("loader only, 4 GPUs", None, None),
        ("loader only, 1 GPU", 128.8, "sample"),
        ("loader + model, 1 GPU", 44.15, "sample"),
    ],
)
def test_what_each_measurement_supports(case, name, ratio, per):
    figure = case.of(name)
    assert figure.per == per
    assert figure.supports == (None if ratio is None else pytest.approx(ratio, rel=1e-3))


def test_per_step_per_sample_and_per_epoch(case):
    steps = case.of("real training, iterations a second")
    assert (steps.a.step, steps.b.step) == pytest.approx((0.1, 1 / 0.42))
    assert (steps.a.epoch, steps.b.epoch) == pytest.approx((103.9, 5652.38), rel=1e-4)
    loader = case.of("loader only, 1 GPU")
    assert loader.step_ratio == pytest.approx(56.3, rel=1e-3)
    assert (loader.a.sample, loader.b.sample) == pytest.approx((0.21e-3, 27.3e-3), rel=0.01)
    epochs = case.of("real training, epochs in 24 h")
    assert (epochs.a.epoch, epochs.b.epoch) == (216, 8640)
    assert epochs.a.step is None


def sentence_of(case, kind, about=None):
    found = [c for c in case.contradictions if c.kind == kind and about in (None, c.measurement)]
    assert len(found) == 1, (kind, found)
    return found[0].sentence


def test_the_nested_sum_behind_875x(case):
    sentence = sentence_of(case, "nested_sum")
    assert "nested events" in sentence
    assert "875x" in sentence
    assert "13 times the step of DANGO and 18 times the step of hetero" in sentence


def test_the_unequal_windows(case):
    sentence = sentence_of(case, "unequal_windows")
    assert "1 step of DANGO and 25 steps of hetero" in sentence
    assert "97.0 s of the profiler's own start" in sentence_of(case, "profiler_start")


def test_the_batch_sizes(case):
    sentence = sentence_of(case, "batch_sizes", "loader only, 1 GPU")
    assert "batch 64 against 28: 56x per batch is 129x per sample" in sentence
    sentence = sentence_of(case, "batch_sizes", "real training, iterations a second")
    assert "24x per step is 54x per sample" in sentence
    assert "1,039 against 2,374 steps" in sentence
    assert "104 s against 5,652 s" in sentence


def test_the_average_of_warmup_behind_12_5x(case):
    sentence = sentence_of(case, "warmup_average")
    assert "1.59 it/s of hetero" in sentence
    assert "the first 2 (4.93, 2.95) are warm-up" in sentence
    assert "12.5x is a ratio of the warm-up" in sentence
    assert "33.3 s a step for a part of a step that takes 2.38 s" in sentence


def test_the_smaller_model_behind_1_6x(case):
    sentence = sentence_of(case, "other_model")
    assert "669,917 parameters" in sentence
    assert "1,781,187" in sentence
    assert "no loader, no collation and no transfer" in sentence_of(case, "no_loader")


def test_the_forward_only_model(case):
    assert "returned before backward" in sentence_of(case, "forward_only")


def test_steps_predict_54x_where_40x_was_observed(case):
    sentence = sentence_of(case, "outside_the_steps")
    assert "predict 54x per epoch where 40x was observed" in sentence
    assert "52 % of an epoch of DANGO" in sentence
    assert "35 % of one of hetero" in sentence


def test_nothing_else_is_held_against_it(case):
    assert case.kinds() == {
        "batch_sizes",
        "nested_sum",
        "unequal_windows",
        "profiler_start",
        "warmup_average",
        "other_model",
        "no_loader",
        "forward_only",
        "outside_the_steps",
    }


def test_the_account_adds_up_to_the_epochs(case):
    epochs = case.comparison.epochs
    assert (epochs.a, epochs.b) == pytest.approx((216, 8640), rel=1e-12)
    assert sum(bar.change for bar in epochs.bars) == pytest.approx(8424, rel=1e-12)
    ratio = case.comparison.epoch_ratio
    assert ratio.epoch == pytest.approx(40, rel=1e-12)
    assert ratio.steps * ratio.step == pytest.approx(54.4, rel=1e-3)
    assert (ratio.outside_a, ratio.outside_b) == pytest.approx((0.519, 0.3458), rel=1e-3)
    hetero, dango = case.comparison.b.parts, case.comparison.a.parts
    assert hetero["data loading"] == pytest.approx(0.763, abs=1e-3)
    assert hetero["forward"] == pytest.approx(0.375, abs=1e-3)
    assert dango["data loading"] == pytest.approx(0.014, abs=1e-3)
    assert dango["forward"] == pytest.approx(0.045, abs=1e-3)


def test_it_is_json(case):
    again = json.loads(json.dumps(case.to_json(), allow_nan=False))
    assert again["sentence"] == case.sentence
    assert len(again["measurements"]) == 7


HEAD = "a: {name: x, batch: 8, ranks: 1, steps_per_epoch: 10}\nb: {name: y, batch: 8, ranks: 1"
HEAD += ", steps_per_epoch: 10}\nmeasurements:\n"


def given(tmp_path, text):
    path = tmp_path / "figures.yaml"
    path.write_text(text)
    return path


def test_steps_alone(tmp_path):
    path = given(tmp_path, HEAD + "- {name: m, measured: ms per step, a: 10, b: 15}\n")
    found = reconcile(path)
    assert "1.5x as long" in found.sentence
    assert "was not measured" in found.sentence
    assert found.contradictions == ()


def test_an_epoch_alone(tmp_path):
    found = reconcile(given(tmp_path, HEAD + "- {name: m, measured: epoch seconds, a: 1, b: 3}\n"))
    assert "3.0x" in found.sentence
    assert found.comparison is None
    assert any("steps a second" in advice for advice in found.advice)


def test_neither(tmp_path):
    found = reconcile(given(tmp_path, HEAD + "- {name: m, measured: loader only, a: 9, b: 3}\n"))
    assert "3.0x per sample, of the loader alone" in found.sentence
    assert "neither an epoch nor a step" in found.sentence


def test_steps_that_take_longer_than_their_epoch(tmp_path):
    text = HEAD + "- {name: e, measured: epoch seconds, a: 1, b: 2}\n"
    text += "- {name: s, measured: ms per step, a: 50, b: 500}\n"
    found = reconcile(given(tmp_path, text))
    assert found.kinds() == {"steps_longer_than_epoch"}
    assert found.comparison.epochs.b == pytest.approx(2)


def test_a_loader_that_takes_longer_than_the_step(tmp_path):
    text = HEAD + "- {name: s, measured: ms per step, a: 50, b: 500}\n"
    text += "- {name: l, measured: loader only, unit: ms, a: 20, b: 700}\n"
    assert "part_longer_than_whole" in reconcile(given(tmp_path, text)).kinds()


def test_epochs_of_different_data(tmp_path):
    text = HEAD.replace("steps_per_epoch: 10}\nm", "steps_per_epoch: 12}\nm")
    text += "- {name: m, measured: epoch seconds, a: 1, b: 3}\n"
    assert reconcile(given(tmp_path, text)).kinds() == {"different_data"}


def test_self_times_of_a_trace_are_comparable(tmp_path):
    text = HEAD + "- {name: t, measured: trace sum, sum: self, a: {value: 10, window_steps: 2},"
    text += " b: {value: 60, window_steps: 3}}\n"
    found = reconcile(given(tmp_path, text)).of("t")
    assert found.supports == pytest.approx(4)
    text = text.replace(" sum: self,", "")
    found = reconcile(given(tmp_path, text))
    assert found.of("t").supports is None
    assert "sum_not_said" in found.kinds()


def test_a_claim_that_its_own_values_do_not_make(tmp_path):
    text = HEAD + "- {name: m, measured: it/s, claimed: 5, a: 9, b: 3}\n"
    assert reconcile(given(tmp_path, text)).kinds() == {"claim_differs"}


def test_steady_readings_without_a_value(tmp_path):
    text = HEAD + "- {name: m, measured: it/s, a: {readings: [1, 9, 9, 9]}, b: 3}\n"
    found = reconcile(given(tmp_path, text))
    assert found.of("m").supports == pytest.approx(3)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("a: [", "line 1: this is not YAML"),
        ("3", "expected the keys a, b, measurements"),
        ("a: {name: x}\n", "the key 'b' is missing"),
        ("a: {nam: x}\n", "line 1: there is no key 'nam' in a; did you mean 'name'?"),
        ("a: {name: x, name: z}\n", "the key 'name' is there twice"),
        (HEAD, "the key 'measurements' is missing"),
        (HEAD + "  []", "there are no measurements"),
        (HEAD + "- {name: m}", "line 4: the key 'measured' is missing in measurements[0]"),
        (HEAD + "- {name: m, measured: loader-only, a: 1, b: 1}", "did you mean 'loader only'?"),
        (HEAD + "- {name: m, measured: it/s, a: 1}", "the key 'b' is missing"),
        (HEAD + "- {name: m, measured: it/s, a: 0, b: 1}", "expected a number above 0"),
        (HEAD + "- {name: m, measured: it/s, a: .nan, b: 1}", "expected a number above 0"),
        (HEAD + "- {name: m, measured: it/s, a: fast, b: 1}", "expected a number"),
        (HEAD + "- {name: m, measured: it/s, a: true, b: 1}", "expected a number"),
        (HEAD + "- {name: m, measured: it/s, batch: 2.5, a: 1, b: 1}", "a whole number above 0"),
        (HEAD + "- {name: m, measured: it/s, sum: self, a: 1, b: 1}", "'sum' is for a 'trace sum'"),
        (HEAD + "- {name: m, measured: it/s, unit: ms, a: 1, b: 1}", "It is one of: it/s"),
        (HEAD + "- {name: m, measured: it/s, a: {readings: []}, b: 1}", "an empty list"),
        (HEAD + "- {name: m, measured: it/s, a: {batch: 1}, b: 1}", "neither a 'value' nor"),
        (HEAD + "- {name: m, measured: it/s, a: !!python/name:os.system , b: 1}", "cannot be read"),
        (
            HEAD
            + "- {name: m, measured: trace sum, startup_seconds: 9, window_steps: 2, a: 1, b: 1}",
            "all that was measured is 0.001 s",
        ),
        (
            HEAD
            + "- {name: m, measured: it/s, a: 1, b: 1}\n- {name: m, measured: it/s, a: 1, b: 1}",
            "two measurements are called 'm'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, said):
    path = given(tmp_path, text)
    with pytest.raises(InputError) as error:
        read_measurements(path)
    assert said in str(error.value)
    assert str(path) in str(error.value)


def test_files_that_cannot_be_read(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_measurements(tmp_path / "none.yaml")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="UTF-8"):
        read_measurements(tmp_path / "bytes")
    (tmp_path / "large").write_bytes(b"#" * (1 << 21))
    with pytest.raises(InputError, match="bytes"):
        read_measurements(tmp_path / "large")
