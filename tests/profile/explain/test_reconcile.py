"""The case of the specification, and measurements that are wrong or incomplete."""

import json
from pathlib import Path

import pytest

from deltacell.profile.explain.reconcile import reconcile

CASE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "dango-against-hetero.yaml"
FIRST = CASE.with_name("dango-against-hetero-first.yaml")
RATE = "iterations a second, quoted as training"
EPOCHS = "real training, epochs in 24 h"


@pytest.fixture(scope="module")
def case():
    return reconcile(CASE)


def kinds(found):
    return {one["kind"] for one in found["contradictions"]}


def sentence(found, kind, about=None):
    (said,) = (
        one["sentence"]
        for one in found["contradictions"]
        if one["kind"] == kind and about in (None, one["measurement"])
    )
    return said


@pytest.mark.parametrize(
    ("name", "ratio", "per", "times"),
    [
        (EPOCHS, 40.0, "epoch", {"epoch_s": [216, 8640]}),
        (RATE, None, None, {"step_s": [0.1, 1 / 0.42], "epoch_s": [831.2, 5652.4]}),
        ("trace categories", None, None, {}),
        ("full step on one saved batch", 1.575, "sample", {}),
        ("loader only, 4 GPUs", None, None, {}),
        ("loader only, 1 GPU", 128.8, "sample", {"sample_s": [0.2117e-3, 27.26e-3]}),
        ("loader + model, 1 GPU", 44.15, "sample", {}),
    ],
)
def test_each_measurement_supports_its_ratio_and_times(case, name, ratio, per, times):
    figure = next(one for one in case["measurements"] if one["name"] == name)
    assert figure["per"] == per
    assert figure["supports"] == (None if ratio is None else pytest.approx(ratio, rel=1e-3))
    for what, expected in times.items():
        assert [figure[side][what] for side in "ab"] == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize(
    ("kind", "about", "numbers"),
    [
        ("nested_sum", None, ["875x", "6.27 times", "12 times"]),
        ("unequal_windows", None, ["1 step of DANGO", "25 steps of hetero"]),
        ("profiler_start", None, ["97.0 s"]),
        ("batch_sizes", "loader only, 1 GPU", ["64 against 28", "56x", "129x"]),
        ("other_conditions", RATE, ["batch 8", "64", "11", "1,039", "831 s", "216 s"]),
        ("unexplained_rest", RATE, ["2,374 steps of 2.38 s", "5,652 s", "8,640 s", "35 %"]),
        ("loader_longer_than_epoch", None, ["33.3 s", "79,133 s", "8,640 s"]),
        ("step_below_forward", None, ["5.10 ms", "13.4 ms"]),
        ("warmup_average", None, ["1.59 it/s of hetero", "4.93, 2.95", "12.5x is not a steady"]),
        ("other_model", None, ["669,917", "1,781,187"]),
        ("no_loader", None, ["8 where DANGO trained with 64", "with 28"]),
        ("forward_only", None, ["backward"]),
    ],
)
def test_contradictions_of_the_case_are_told_with_their_numbers(case, kind, about, numbers):
    said = sentence(case, kind, about)
    assert [number for number in numbers if number not in said] == []
    assert len(kinds(case)) == 12


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("unexplained_rest", ["1,039 steps of 100 ms", "104 s", "216 s", "112 s", "52 %"]),
        ("nested_sum", ["12.5 times the one of hetero"]),
        ("sum_below_step", ["52.2 ms", "58.9 ms", "25 steps"]),
        ("step_below_forward", ["405 µs", "708 µs"]),
        ("backward_missing", ["374 ms", "1.62 s", "23 %"]),
        ("exclude_each_other", ["29x", "129x", "50.3 ms against 13.6 ms"]),
    ],
)
def test_contradictions_of_the_first_record_are_told_with_their_numbers(kind, numbers):
    result = reconcile(FIRST)
    first = next(one["sentence"] for one in result["contradictions"] if one["kind"] == kind)
    assert [number for number in numbers if number not in first] == []


def test_the_conclusion_does_not_depend_on_the_diagnosis(case):
    first = reconcile(FIRST)
    for key in ("sentence", "evidence", "accounts", "comparison", "parts"):
        assert first[key] == case[key]
    assert "DANGO" in first["advice"][0]
    assert "hetero" in first["advice"][0]


def test_the_account_adds_up_to_the_epochs_and_holds_both_causes(case):
    for number in ("40x", "8,640 s against 216 s", "2.28", "17.5", "67 %", "33 %", "44x"):
        assert number in case["sentence"]
    epochs = case["comparison"]["waterfalls"][1]
    assert (epochs["a_s"], epochs["b_s"]) == pytest.approx((216, 8640), rel=1e-12)
    assert sum(bar["change_s"] for bar in epochs["bars"]) == pytest.approx(8424, rel=1e-12)
    assert case["comparison"]["epoch_ratio"]["epoch"] == pytest.approx(40, rel=1e-12)
    (parts,) = case["parts"]["waterfalls"]
    assert [bar["part"] for bar in parts["bars"]] == ["data loading", "forward"]
    steps = [1e3 / 16.98 / 64, 1e3 / 0.879 / 28]
    assert [1e3 * parts["a_s"], 1e3 * parts["b_s"]] == pytest.approx(steps, rel=1e-9)
    assert [bar["b_s"] * 28 for bar in parts["bars"]] == pytest.approx([0.763, 0.375], abs=1e-3)
    json.dumps(case, allow_nan=False)


HEAD = "a: {name: x, batch: 8, ranks: 1, steps_per_epoch: 10}\nb: {name: y, batch: 8, ranks: 1"
HEAD += ", steps_per_epoch: 10}\nmeasurements:\n"
TRACE = "- {name: t, measured: trace sum,%s a: {value: 10, window_steps: 2},"
TRACE += " b: {value: 60, window_steps: 3}}"
READINGS = "readings: [1, 9, 9, 9]"
EPOCH = "- {name: m, measured: epoch seconds, a: 1, b: 3}"
LOADER = "- {name: l, measured: loader only, a: 20, b: 2}"
MS = "- {name: s, measured: ms per step, a: 50, b: 500}"


def given(tmp_path, text):
    path = tmp_path / "figures.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("rows", "wrong", "supports"),
    [
        ("- {name: m, measured: ms per step, a: 10, b: 15}", set(), 1.5),
        (EPOCH, set(), 3),
        ("- {name: m, measured: loader only, a: 9, b: 3}", set(), 3),
        (f"{EPOCH.replace('3', '2')}\n{MS}", {"steps_longer_than_epoch", "unexplained_rest"}, 2),
        (f"{EPOCH}\n{LOADER}", {"loader_longer_than_epoch"}, 3),
        (TRACE % " sum: self,", {"unequal_windows"}, 4),
        (TRACE % "", {"unequal_windows"}, None),
        ("- {name: m, measured: it/s, claimed: 5, a: 9, b: 3}", {"claim_differs"}, 3),
        # Only a mean that includes the warm-up is not a steady ratio.
        (f"- {{name: m, measured: it/s, a: {{{READINGS}}}, b: 3}}", {"warmup_average"}, 3),
        (
            f"- {{name: m, measured: it/s, a: {{value: 7, {READINGS}}}, b: 3}}",
            {"warmup_average"},
            None,
        ),
    ],
)
def test_a_few_measurements_are_reconciled_with_what_they_support(tmp_path, rows, wrong, supports):
    found = reconcile(given(tmp_path, HEAD + rows))
    measured = found["measurements"]
    assert kinds(found) == wrong
    assert measured[0]["supports"] == (None if supports is None else pytest.approx(supports))
    is_of_training = any(one["mode"] == "train" and one["supports"] for one in measured)
    assert (found["comparison"] is not None) == is_of_training


def test_epochs_of_different_data(tmp_path):
    text = HEAD.replace("steps_per_epoch: 10}\nm", "steps_per_epoch: 12}\nm") + EPOCH
    assert kinds(reconcile(given(tmp_path, text))) == {"different_data"}


ROW = HEAD + "- {name: m, measured: it/s, "
SUM = (
    HEAD
    + "- {name: m, measured: trace sum, sum: self, startup_seconds: 9, window_steps: 2, a: 1, b: 1}"
)
KEY = "not-measurements"


@pytest.mark.parametrize(
    ("text", "code", "about"),
    [
        ("a: [", KEY, "line "),
        ("a: {nam: x}\n", KEY, "unknown field `nam`"),
        (HEAD, KEY, "measurements"),
        (HEAD + "- {name: m, measured: loader-only, a: 1, b: 1}", KEY, "measurements[0].measured"),
        *((f"{ROW}a: {x}, b: 1}}", KEY, "measurements[0].a") for x in ("0", ".nan", "fast")),
        (ROW + "a: {readings: []}, b: 1}", KEY, "measurements[0].a.readings"),
        (ROW + "batch: 2.5, a: 1, b: 1}", KEY, "measurements[0].batch"),
        (ROW + "a: {batch: 1}, b: 1}", "wrong-measurement", "'a'"),
        (ROW + "sum: self, a: 1, b: 1}", "wrong-measurement", "'sum'"),
        (ROW + "unit: ms, a: 1, b: 1}", "wrong-measurement", "expected it/s"),
        (ROW + "a: !!python/name:os.system , b: 1}", KEY, "line 4"),
        (SUM, "wrong-measurement", "'startup_seconds'"),
        (HEAD.replace("batch", "btach", 1) + EPOCH, KEY, "'batch'"),
        (ROW + "a: {valeu: 1}, b: 1}", KEY, "'value'"),
        (ROW + "claimd: 2, a: 1, b: 1}", KEY, "'claimed'"),
        (HEAD.replace("measurements", "measurement") + EPOCH, KEY, "'measurements'"),
        (HEAD + "- {name: m, measured: loader, a: 1, b: 1}", KEY, "loader+model, saved batch"),
        (None, KEY, ""),
        (b"\xff\xfe\x00", KEY, ""),
        (b"#" * (1 << 21), KEY, "larger than"),
    ],
)
def test_a_bad_file_of_measurements_is_refused_with_its_place(refused, tmp_path, text, code, about):
    path = tmp_path / "figures.yaml"
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    error = refused(code, reconcile, path)
    assert error.where == path
    assert about in str(error)
