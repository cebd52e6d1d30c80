from __future__ import annotations

import errno
import math
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.errors import InputError, StoreError
from deltacell.profile.record import read_metrics
from deltacell.train.run_directory import COLUMNS, MetricsFile


def row(epoch, **values):
    return {"epoch": epoch, "step": 8 * (epoch + 1), **values}


@pytest.fixture
def file(tmp_path):
    return tmp_path / "metrics.csv"


def test_there_is_no_file_before_the_first_row(file):
    assert MetricsFile(file).rows == []
    assert not file.exists()


def test_a_row_is_in_the_file_when_append_returns(file):
    metrics = MetricsFile(file)
    metrics.append(row(0, train_loss=0.5))
    assert read_metrics(file)["train_loss"].to_list() == [0.5]
    metrics.append(row(1, train_loss=0.25, validation_pearson=math.nan))
    read = read_metrics(file)
    assert read["step"].to_list() == [8, 16]
    assert read["validation_pearson"][0] is None
    assert math.isnan(read["validation_pearson"][1])


def test_columns_grow_behind_those_that_every_run_has(file):
    metrics = MetricsFile(file)
    metrics.append(row(0, train_mse=1.0, lr=0.1))
    metrics.append(row(1, train_rank=2.0))
    assert file.read_text().splitlines()[0] == ",".join(
        [*COLUMNS, "train_mse", "train_rank", "crc32"]
    )
    assert read_metrics(file)["train_mse"].to_list() == [1.0, None]
    assert read_metrics(file)["train_rank"].to_list() == [None, 2.0]


def test_it_is_continued_where_it_is_there(file):
    MetricsFile(file).append(row(0, train_loss=0.5, other=0.1))
    again = MetricsFile(file)
    again.append(row(1, train_loss=0.25))
    assert [r["train_loss"] for r in again.rows] == [0.5, 0.25]
    assert read_metrics(file)["other"].to_list() == [0.1, None]


@pytest.mark.parametrize(("step", "left"), [(0, 0), (7, 0), (8, 1), (23, 2), (24, 3), (99, 3)])
def test_rows_after_a_step_are_dropped(file, step, left):
    metrics = MetricsFile(file)
    for epoch in range(3):
        metrics.append(row(epoch, train_loss=float(epoch)))
    MetricsFile(file).truncate_after(step)
    again = MetricsFile(file)
    assert [r["epoch"] for r in again.rows] == list(range(left))
    again.append(row(9))


def test_dropping_of_a_file_that_is_not_there_makes_none(file):
    MetricsFile(file).truncate_after(3)
    assert not file.exists()


def test_the_end_of_an_epoch_that_is_done_again_takes_the_place_of_the_first(file):
    metrics = MetricsFile(file)
    metrics.append(row(0, train_loss=0.5))
    metrics.append(row(1, train_loss=0.25))
    again = MetricsFile(file)
    again.truncate_after(16)
    again.append(row(1, train_loss=0.25, lr=0.1))
    assert [r["lr"] for r in MetricsFile(file).rows] == [None, 0.1]


@pytest.mark.parametrize("step", [8, 3])
def test_a_step_cannot_come_twice(file, step):
    metrics = MetricsFile(file)
    metrics.append({"epoch": 0, "step": 8})
    with pytest.raises(ValueError, match=f"step {step} cannot come after one of step 8"):
        metrics.append({"epoch": 1, "step": step})
    assert len(metrics.rows) == 1


def test_what_is_not_a_number_is_named(file):
    metrics = MetricsFile(file)
    with pytest.raises(TypeError, match="'train_loss' of a row of metrics has to be a number"):
        metrics.append(row(0, train_loss="low"))
    with pytest.raises(TypeError, match="'step' of a row of metrics has to be an int"):
        metrics.append({"epoch": 0, "step": 8.0})
    for name in ("", "a\nb", "\r", "crc32"):
        with pytest.raises(ValueError, match="cannot be the name of a column"):
            metrics.append(row(0, **{name: 1.0}))
    with pytest.raises(KeyError):
        metrics.append({"epoch": 0})
    assert not file.exists()


def test_rows_that_are_handed_out_are_copies(file):
    metrics = MetricsFile(file)
    given_row = row(0, train_loss=0.5)
    metrics.append(given_row)
    given_row["train_loss"] = metrics.rows[0]["train_loss"] = 9.0
    assert metrics.rows[0]["train_loss"] == 0.5


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_full_disk_leaves_the_rows_before(file, monkeypatch, at):
    metrics = MetricsFile(file)
    metrics.append(row(0, train_loss=0.5))
    before = file.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, at, full)
        with pytest.raises(StoreError, match="the metrics could not be written: No space left"):
            metrics.append(row(1, train_loss=0.25))
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]
    # The row that was not written is not there, so it may come again.
    metrics.append(row(1, train_loss=0.25))
    assert read_metrics(file)["train_loss"].to_list() == [0.5, 0.25]


def test_a_damaged_file_is_said_with_what_to_do(file):
    file.write_text("epoch,step,a\n0,8,1\n1,1")
    with pytest.raises(InputError, match=r"line 3: 2 values.*\n.*move it away to go on") as error:
        MetricsFile(file)
    assert error.value.line == 3


@pytest.mark.parametrize("old", ["0.25", "train_loss", ",crc32", "16"])
def test_an_edited_file_is_said(file, old):
    metrics = MetricsFile(file)
    for epoch in range(2):
        metrics.append(row(epoch, train_loss=0.25))
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, "8" if old == "16" else old[:-1] + "7"))
    with pytest.raises(InputError, match=r"edited or damaged|no column 'crc32'"):
        MetricsFile(file)


names = st.text(min_size=1, max_size=8).filter(lambda n: n.isprintable() and n not in COLUMNS)
rows = st.lists(
    st.dictionaries(
        names | st.sampled_from(COLUMNS[2:]),
        st.none() | st.floats() | st.integers(-9, 9),
        max_size=4,
    ),
    max_size=3,
)


@settings(max_examples=60, deadline=None)
@given(rows=rows)
def test_what_is_appended_is_read_bit_for_bit(tmp_path_factory, rows):
    file = tmp_path_factory.mktemp("law") / "metrics.csv"
    metrics = MetricsFile(file)
    for epoch, values in enumerate(rows):
        metrics.append(row(epoch, **values))
    read = MetricsFile(file).rows
    assert len(read) == len(rows)
    for epoch, (before, after) in enumerate(zip(rows, read, strict=True)):
        assert (after.pop("epoch"), after.pop("step")) == (epoch, 8 * (epoch + 1))
        kept = {name: float(value) for name, value in before.items() if value is not None}
        # As text, because NaN differs from itself and -0.0 does not from 0.0.
        assert {n: repr(v) for n, v in after.items() if v is not None} == {
            n: repr(v) for n, v in kept.items()
        }
