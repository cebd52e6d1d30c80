"""Measurements whose source is a log, and logs without a file of measurements."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_logs import SIMPLE_PROFILE, lightning_log, torch_table

from deltacell.base.errors import InputError
from deltacell.profile.explain.reconcile import reconcile
from deltacell.profile.explain.reconcile_logs import reconcile_logs
from deltacell.profile.logs import Quantity, read_log

SIDES = """
a: {name: fast, batch: 28, ranks: 1, steps_per_epoch: 200}
b: {name: slow, batch: 28, ranks: 1, steps_per_epoch: 200}
measurements:
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two logs whose steps take 0.25 and 1 s, a profile run, and two tables of a profiler."""
    warmup = [5.0] * 10
    (tmp_path / "fast.out").write_text(lightning_log(0.25, warmup=warmup))
    (tmp_path / "slow.out").write_text(lightning_log(1.0, warmup=warmup))
    (tmp_path / "profile.out").write_text(lightning_log(2.0, n_steps=11))
    (tmp_path / "profile.txt").write_text(SIMPLE_PROFILE)
    (tmp_path / "fast.txt").write_text(torch_table(250.0, 4, self_total="1.2s"))
    (tmp_path / "slow.txt").write_text(torch_table(1000.0, 8, self_total="8.8s"))
    return tmp_path


def run(folder: Path, measurements: str):
    path = folder / "measurements.yaml"
    path.write_text(SIDES + measurements)
    return reconcile(path)


def kinds(result) -> set[str]:
    return {contradiction["kind"] for contradiction in result["contradictions"]}


@pytest.mark.parametrize(
    ("measured", "times"),
    [
        ("it/s", [0.25, 1.0]),
        ("ms per step", [0.25, 1.0]),
        ("loader only", [0.25, 1.0]),
        ("saved batch", [0.25, 1.0]),
    ],
)
def test_a_log_is_the_source_of_a_reading(folder: Path, measured: str, times: list[float]) -> None:
    result = run(
        folder,
        f"- {{name: m, measured: {measured}, a: {{log: fast.out}}, b: {{log: slow.out}}}}",
    )
    (figure,) = result["measurements"]
    assert [figure[side]["step_s"] for side in "ab"] == pytest.approx(times, rel=0.1)
    assert figure["supports"] == pytest.approx(4, rel=0.1)
    assert [Path(log["file"]).name for log in result["logs"]] == ["fast.out", "slow.out"]
    assert {log["side"] for log in result["logs"]} == {"fast", "slow"}
    assert all(log["first_line"] < log["last_line"] or log["warmup"] for log in result["logs"])


@pytest.mark.parametrize(("unit", "of_a"), [("s", 80), ("epochs per day", 80)])
def test_epochs_of_a_log(folder: Path, unit: str, of_a: float) -> None:
    result = run(
        folder,
        f"- {{name: e, measured: epoch seconds, unit: {unit}, a: {{log: fast.out}},"
        " b: {log: slow.out}}",
    )
    (figure,) = result["measurements"]
    assert [figure[side]["epoch_s"] for side in "ab"] == pytest.approx([of_a, 230])


def test_sums_of_profilers_are_of_self_times_with_their_steps(folder: Path) -> None:
    result = run(folder, "- {name: t, measured: trace sum, a: {log: fast.txt}, b: {log: slow.txt}}")
    (figure,) = result["measurements"]
    assert [figure[side]["step_s"] for side in "ab"] == pytest.approx([0.3, 1.1])
    assert "unequal_windows" in kinds(result)


def test_a_figure_of_the_file_stays_and_is_found_to_be_an_average_over_warm_up(
    folder: Path,
) -> None:
    readings = run(
        folder, "- {name: m, measured: ms per step, a: {log: fast.out}, b: {log: slow.out}}"
    )["logs"]
    assert readings[0]["warmup"] > 0
    in_log = read_log(folder / "fast.out").reading(Quantity.step)
    assert in_log is not None
    mean_ms = 1e3 * sum(in_log.seconds) / len(in_log.seconds)
    result = run(
        folder,
        f"- {{name: m, measured: ms per step, a: {{log: fast.out, value: {mean_ms}}},"
        " b: {log: slow.out}}",
    )
    assert "warmup_average" in kinds(result)
    assert result["measurements"][0]["supports"] is None


def test_a_median_near_the_average_is_not_an_average_over_warm_up(folder: Path) -> None:
    many = ", ".join(["9"] * 50)
    result = run(folder, f"- {{name: m, measured: it/s, a: {{readings: [1, {many}]}}, b: 3}}")
    assert result["measurements"][0]["supports"] == pytest.approx(3)
    assert "warmup_average" in kinds(result)


@pytest.mark.parametrize("place", ["measurement", "reading"])
def test_the_batch_in_the_file_takes_precedence_over_that_of_the_log(
    folder: Path,
    place: str,
) -> None:
    """The logs say 28, as the training does, so a batch of 8 is another run."""
    of_measurement, of_reading = (
        ("batch: 8, ", "") if place == "measurement" else ("", ", batch: 8")
    )
    readings = f"a: {{log: fast.out{of_reading}}}, b: {{log: slow.out{of_reading}}}"
    result = run(folder, f"- {{name: m, measured: it/s, {of_measurement}{readings}}}")
    assert "other_conditions" in kinds(result)
    agreeing = run(folder, "- {name: m, measured: it/s, a: {log: fast.out}, b: {log: slow.out}}")
    assert "other_conditions" not in kinds(agreeing)


def test_a_log_of_a_run_with_other_steps_is_not_of_the_training(folder: Path) -> None:
    result = run(folder, "- {name: m, measured: it/s, a: {log: profile.out}, b: {log: slow.out}}")
    assert "other_conditions" in kinds(result)
    assert result["measurements"][0]["supports"] is None


@pytest.mark.parametrize(
    ("measurement", "code"),
    [
        ("{name: m, measured: it/s, a: {log: none.out}, b: 1}", "unreadable"),
        ("{name: m, measured: it/s, a: {log: measurements.yaml}, b: 1}", "no-readings-in-log"),
        ("{name: m, measured: epoch seconds, a: {log: fast.txt}, b: 1}", "not-in-log"),
        ("{name: m, measured: loader only, a: {log: profile.txt}, b: 1}", "not-of-the-loader"),
        ("{name: m, measured: it/s, a: {log: ''}, b: 1}", "not-measurements"),
        ("{name: m, measured: it/s, a: {lag: x}, b: 1}", "not-measurements"),
    ],
)
def test_logs_that_do_not_say_it(folder: Path, measurement: str, code: str) -> None:
    with pytest.raises(InputError) as error:
        run(folder, f"- {measurement}")
    assert error.value.code == code


def test_two_logs_are_the_account_of_the_file_that_they_write(folder: Path) -> None:
    result = reconcile_logs([folder / "fast.out", folder / "slow.out"], folder)
    ratios = {comparison["quantity"]: comparison["ratio"] for comparison in result["alike"]}
    assert ratios == pytest.approx({"step": 4, "epoch": 230 / 80}, rel=0.1)
    assert all(comparison["unknown"] == ["ranks"] for comparison in result["alike"])
    (folder / "written.yaml").write_text(result["yaml"])
    again = reconcile(folder / "written.yaml")
    for key in ("sentence", "measurements", "contradictions", "accounts", "comparison", "advice"):
        assert again[key] == result[key]
    assert again["comparison"]["epoch_ratio"]["epoch"] == pytest.approx(230 / 80)


def test_steps_and_epochs_of_one_log_are_of_one_run(folder: Path) -> None:
    result = reconcile_logs([folder / "fast.out", folder / "slow.out"], folder)
    assert "unexplained_rest" not in kinds(result)
    outside = [sum(account["outside_s"].values()) for account in result["accounts"]]
    assert outside == pytest.approx([30, 30], abs=5)  # the validation
    text = result["yaml"].replace('b: { log: "slow.out" }', "b: 1.0", 1)
    (folder / "by-hand.yaml").write_text(text)
    assert "unexplained_rest" in kinds(reconcile(folder / "by-hand.yaml"))


def test_logs_of_different_runs_are_compared_with_what_differs(folder: Path) -> None:
    paths = [folder / name for name in ("fast.out", "slow.out", "profile.out", "fast.txt")]
    result = reconcile_logs(paths, folder)
    assert result["comparison"] is None
    pairs = {(comparison["b"], comparison["quantity"]) for comparison in result["alike"]}
    assert ("slow", "step") in {(Path(b).stem, quantity) for b, quantity in pairs}
    others = [c for c in result["alike"] if "profile" in c["b"] and c["quantity"] == "step"]
    assert any("11" in difference for difference in others[0]["differences"])


def test_one_log_and_logs_with_nothing_in_common(folder: Path) -> None:
    (folder / "odd [name]: x.out").write_text((folder / "fast.out").read_text())
    result = reconcile_logs([folder / "odd [name]: x.out"], folder)
    assert result["alike"] == []
    path = folder / "one.yaml"
    path.write_text(result["yaml"])
    with pytest.raises(InputError) as error:
        reconcile(path)
    assert error.value.code == "unreadable"  # the second log is yet to be named
    path.write_text(result["yaml"].replace("OTHER.log", "slow.out"))
    assert reconcile(path)["measurements"][0]["supports"] == pytest.approx(4, rel=0.1)
