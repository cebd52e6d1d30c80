"""Logs of each format: the times that they were made with, where they stand, what is cut."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from training_logs import (
    ADVANCED_PROFILE,
    OLD_PROFILE,
    SIMPLE_PROFILE,
    bar,
    lightning_log,
    states,
    torch_table,
)

from deltacell.base.errors import InputError
from deltacell.profile.logs import Log, LogReading, Quantity, read_log
from deltacell.profile.logs import lines as log_lines
from deltacell.profile.logs.readings import CutReason, LogSource
from deltacell.profile.logs.sentences import reading_sentence, settings_sentence


@pytest.fixture
def read(tmp_path: Path):
    """Write a log and read it."""

    def written(text: str | bytes, name: str = "slurm-1.out") -> Log:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_log(path)

    return written


def reading(log: Log, quantity: Quantity) -> LogReading:
    result = log.reading(quantity)
    assert result is not None
    return result


@pytest.mark.parametrize("line_end", ["\r", "\n", "#015", "\r\n", "\x1b[A\r"])
def test_bars_of_lightning(read, line_end: str) -> None:
    log = read(lightning_log(0.25, warmup=[3.0] * 10, line_end=line_end))
    steps = reading(log, Quantity.step)
    assert steps.source == LogSource.bar_counts
    assert steps.steady == pytest.approx(0.25, rel=0.1)
    assert steps.warmup > 0
    reasons = {cut.reason: cut.count for cut in steps.cuts}
    assert reasons[CutReason.sanity_check] == 1
    assert reasons[CutReason.evaluation] == 3
    assert reasons[CutReason.across_evaluation] == 3
    epochs = reading(log, Quantity.epoch)
    assert epochs.seconds == (80, 80)  # 200 steps and 30 s of validation, without the first
    assert [cut.reason for cut in epochs.cuts] == [CutReason.first_epoch]
    assert log.steps_per_epoch == 200
    assert log.batch == 28


def test_lines_are_those_of_an_editor(read) -> None:
    log = read("a\nb\n" + "\r".join(states("Epoch 0", [0.5] * 100, 100, 1.0)) + "\nc\n")
    steps = reading(log, Quantity.step)
    assert (steps.first_line, steps.last_line) == (3, 3)
    assert "lines 3 to 3" in reading_sentence(steps)


def test_states_on_one_line_without_ends(read) -> None:
    states_of_bar = list(states("Epoch 3", [0.5] * 100, 100, 1.0))
    assert reading(read("".join(states_of_bar)), Quantity.step).steady == pytest.approx(0.5)


def test_the_bar_of_the_documentation_of_lightning(read) -> None:
    text = "Epoch 0:  92%|█████▏| 932/1016 [00:33<00:03, 27.70it/s, v_num=0]"
    log = read(text)
    steps = reading(log, Quantity.step)
    assert steps.source == LogSource.bar_display  # a single state has no interval
    assert 1 / steps.steady == pytest.approx(27.7)
    assert log.steps_per_epoch == 1016
    assert log.reading(Quantity.epoch) is None  # the epoch is not complete


def test_the_displayed_rate_is_the_one_before_validation(read) -> None:
    epoch = [bar("Epoch 0", n, 20, n / 4) for n in range(1, 21)]
    validation = list(states("Validation DataLoader 0", [0.1] * 20, 20, 0.1))
    log = read("\r".join([*epoch, *validation, bar("Epoch 0", 20, 20, 9.0)]))
    steps = reading(log, Quantity.step)
    assert (steps.source, steps.steady) == (LogSource.bar_display, pytest.approx(0.25))
    assert {cut.reason for cut in steps.cuts} == {CutReason.evaluation}


def test_seconds_per_step_and_a_bar_without_a_total(read) -> None:
    slow = read("\r".join(states("Epoch 0", [2.4] * 50, 50, 0.1)))
    assert reading(slow, Quantity.step).steady == pytest.approx(2.4, rel=0.1)
    openly = "\r".join(f"{4 * n}it [{n // 60:02d}:{n % 60:02d},  4.00it/s]" for n in range(1, 50))
    assert reading(read(openly), Quantity.step).steady == pytest.approx(0.25)


def test_rich_bars(read) -> None:
    text = "\n".join(
        f"Epoch {epoch}/2 ━━━━━━━╸━━━━ {2 * n}/120 0:00:{n:02d} • 0:00:09 2.00it/s v_num: 0.000"
        for epoch in range(3)
        for n in range(60)
    )
    log = read(text)
    assert reading(log, Quantity.step).steady == pytest.approx(0.5)
    assert log.steps_per_epoch == 120


def test_two_processes_that_draw_the_same_bar(read) -> None:
    one = list(states("Epoch 0", [0.5] * 200, 200, 0.5))
    text = "\n".join(state for pair in zip(one[1:], one[:-1], strict=True) for state in pair)
    assert reading(read(text), Quantity.step).steady == pytest.approx(0.5, rel=0.1)


def test_other_bars_are_not_the_training(read) -> None:
    downloads = list(states("Downloading", [0.01] * 5000, 5000, 0.1))
    outer = [bar("Epochs", 1, 3, 50)]
    training = list(states("train", [0.5] * 100, 100, 0.5))
    samples = ["Map: 10%|#   | 100/1000 [00:50<00:10, 2.0ex/s]"]
    log = read("\r".join([*downloads, *outer, *training, *samples]))
    steps = reading(log, Quantity.step)
    assert steps.steady == pytest.approx(0.5, rel=0.1)
    reasons = {cut.reason for cut in steps.cuts}
    assert {CutReason.other_bar, CutReason.other_unit} <= reasons


def test_older_bars_that_count_validation_say_no_steps_per_epoch(read) -> None:
    epoch = list(states("Epoch 0", [0.5] * 80, 100, 0.5))
    validation = list(states("Validating", [0.1] * 20, 20, 0.1))
    log = read("\r".join([*epoch, *validation, bar("Epoch 0", 100, 100, 42)]))
    assert log.steps_per_epoch is None
    assert reading(log, Quantity.step).steady == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize("text", [SIMPLE_PROFILE, OLD_PROFILE, ADVANCED_PROFILE])
def test_profilers_of_lightning(read, text: str) -> None:
    log = read(text)
    steps = reading(log, Quantity.step)
    assert steps.source == LogSource.lightning
    assert steps.steady == pytest.approx(0.12)  # the batch and the wait for it
    assert steps.n_steps == 200
    assert reading(log, Quantity.loader_wait).steady == pytest.approx(0.02)
    if text is not ADVANCED_PROFILE:
        assert reading(log, Quantity.epoch).steady == pytest.approx(12.5)


def test_a_table_of_torch_profiler(read) -> None:
    log = read(f"INFO start\n{torch_table(20.0, 5, self_total='1.250s')}INFO end\n")
    steps = reading(log, Quantity.step)
    assert (steps.steady, steps.n_steps) == (pytest.approx(0.02), 5)
    assert (steps.first_line, steps.last_line) == (3, 9)
    assert reading(log, Quantity.loader_wait).steady == pytest.approx(0.002)
    assert reading(log, Quantity.self_sum).steady == pytest.approx(1.25)


@pytest.mark.parametrize(
    "header",
    [
        "epoch,_runtime,trainer/global_step,_step,train_loss",
        '"run - epoch","run - _timestamp","run - trainer/global_step","Step","run - loss"',
    ],
)
def test_a_table_of_wandb(read, header: str) -> None:
    rows = [header]
    seconds = 1_700_000_000.25
    for step in range(0, 400, 10):
        rows.append(f"{step // 100},{seconds},{step},{step // 10},0.5")
        # 0.2 s per step; 0.5 s in the first two rows; 20 s of validation after an epoch
        seconds += 5.0 if step < 20 else 2.0
        seconds += 20.0 if step % 100 == 90 else 0.0
    log = read("\n".join(rows), "wandb.csv")
    steps = reading(log, Quantity.step)
    assert steps.steady == pytest.approx(0.2)
    assert steps.warmup == 2
    assert [(cut.reason, cut.count) for cut in steps.cuts] == [(CutReason.across_epochs, 3)]
    assert reading(log, Quantity.epoch).seconds == pytest.approx((40, 40))
    assert log.steps_per_epoch == 100
    assert settings_sentence(log)


def test_rows_of_a_resumed_run_are_cut(read) -> None:
    rows = [f"{step},{step / 2}" for step in (0, 10, 20, 5, 30, 40)]
    steps = reading(read("\n".join(["step,_runtime", *rows])), Quantity.step)
    assert steps.steady == pytest.approx(0.5)
    assert [(cut.reason, cut.first_line) for cut in steps.cuts] == [(CutReason.resumed, 5)]


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "no-readings-in-log"),
        ("hello\nworld\n", "no-readings-in-log"),
        (bytes(range(256)) * 1000, "no-readings-in-log"),
        ("step,loss\n1,2\n", "no-times-in-log"),
        ("step,_runtime\n1,2\n", "no-readings-in-log"),
        ("Sanity Checking: 50%|# | 1/2 [00:01<00:01, 1.00it/s]", "no-readings-in-log"),
    ],
)
def test_a_log_without_times_is_an_error(read, text: str | bytes, code: str) -> None:
    with pytest.raises(InputError) as error:
        read(text)
    assert error.value.code == code
    assert error.value.fix


@pytest.mark.parametrize("name", [".", "missing.out"])
def test_logs_that_cannot_be_read_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError) as error:
        read_log(tmp_path / name)
    assert error.value.code == "unreadable"


def test_long_lines_are_cut_and_counted(read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_lines, "_PIECE", 7)  # line ends fall between two pieces
    longest = log_lines.LONGEST_LINE
    text = lightning_log(0.25, n_epochs=1, line_end="#015")
    log = read("x" * (3 * longest) + "\n" + text)
    assert log.n_long_lines == 1
    assert reading(log, Quantity.step).steady == pytest.approx(0.25, rel=0.1)
    assert reading(log, Quantity.step).first_line == 2


def test_a_log_with_two_batch_sizes_has_none(read) -> None:
    text = lightning_log(0.25, n_epochs=1)
    assert read("val_batch_size=7\n" + text).batch == 28
    assert read("batch_size=64\n" + text).batch is None
    assert read("Starting with 4 processes\n" + text).ranks is None
    registered = "All distributed processes registered. Starting with 4 processes\n"
    assert read(registered + text).ranks == 4
    members = "".join(
        f"Initializing distributed: GLOBAL_RANK: {rank}, MEMBER: {rank + 1}/4\n"
        for rank in range(4)
    )
    assert read(members + registered + "WORLD_SIZE=4\n" + text).ranks == 4
    assert read("world_size: 8\n" + registered + text).ranks is None
    assert read("local_world_size=8\n" + text).ranks is None


@settings(max_examples=60, deadline=None)
@given(
    step_s=st.floats(0.02, 4.0),
    slower=st.floats(2.0, 20.0),
    every_s=st.floats(0.1, 3.0),
    line_end=st.sampled_from(["\r", "\n", "#015"]),
)
def test_the_rate_is_the_one_of_the_generator(
    step_s: float, slower: float, every_s: float, line_end: str
) -> None:
    """Seconds are rounded down, so an interval of 10 s is wrong by less than a second."""
    n_steps = max(20, int(120 / step_s))
    n_warmup = n_steps // 5
    text = lightning_log(
        step_s,
        n_steps=n_steps,
        n_epochs=2,
        warmup=[slower * step_s] * n_warmup,
        every_s=every_s,
        line_end=line_end,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_text(text)
        log = read_log(path)
    steps = reading(log, Quantity.step)
    assert steps.steady == pytest.approx(step_s, rel=0.12)
    assert all(seconds > 1.25 * step_s for seconds in steps.seconds[: steps.warmup])


_PIECES = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        [
            *("Epoch 0: ", " 50%|##| 5/10 [00:10<00:10, 1.00it/s]", "9" * 15, "\r", "\n", "#01"),
            *("5it [00:10, 0e5it/s]", "step,_runtime,epoch\n", "1,2,3\n", "nan,inf,1e308\n"),
            *(
                "1,5,3\n",
                "| Action | Mean duration (s) | Num calls |",
                "|run_training_batch|1|2|3|",
            ),
            *("Self CPU  CPU total  # of Calls\n", "ProfilerStep*  1s  0ms  3\n", "1s\n"),
            *("Self CPU time total: ", "1.5s", "0/0 [0:00<?", "%|", "|", "]", "9:99:99"),
        ]
    ),
)


@settings(max_examples=300, deadline=None)
@given(pieces=st.lists(_PIECES, max_size=25))
def test_any_text_is_read_or_an_error(pieces: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "log")
        path.write_text("".join(pieces), encoding="utf-8", errors="replace")
        try:
            log = read_log(path)
        except InputError as error:
            code = error.code
        else:
            code = ""
    assert code in ("", "no-readings-in-log", "no-times-in-log")
    if code:
        return
    assert log.readings
    for in_log in log.readings:
        assert in_log.steady > 0
        assert reading_sentence(in_log)
