"""Profilers of the host: what they write, and that they never harm a training."""

from __future__ import annotations

import sys
import tracemalloc

import polars as pl
import pytest
import torch

from deltacell.errors import InputError, MissingExtraError
from deltacell.profile.host_profilers import host_profiler

HELD: list[bytearray] = []


def work(n: int) -> int:
    total = 0
    for number in range(n):
        total += number
    return total


def a_step() -> int:
    return work(50) + work(50)


class Model(torch.nn.Module):
    def forward(self, x: int) -> int:
        return x + 1


@pytest.fixture(autouse=True)
def _nothing_is_left_on():
    HELD.clear()
    yield
    assert not tracemalloc.is_tracing()
    assert sys.getprofile() is None


def files_of(folder) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


def make(kind, folder, rank=0):
    functions = (work, Model()) if kind == "lines" else ()
    return host_profiler(kind, folder, rank, functions)


def test_cprofile_writes_calls_and_self_times(tmp_path):
    profiler = host_profiler("cprofile", tmp_path / "traces", rank=0)
    profiler.start()
    for _ in range(3):
        a_step()
        profiler.step()
    profiler.stop()
    assert files_of(tmp_path / "traces") == ["cprofile-rank0.parquet", "cprofile-rank0.pstats.txt"]
    calls = pl.read_parquet(tmp_path / "traces" / "cprofile-rank0.parquet")
    mine = calls.filter(pl.col("file") == __file__)
    counted = dict(mine.select("function", "calls").iter_rows())
    assert (counted["work"], counted["a_step"]) == (6, 3)
    step = mine.filter(pl.col("function") == "a_step").row(0, named=True)
    assert 0 <= step["self_s"] < step["total_s"]
    assert calls["self_s"].is_sorted(descending=True)
    text = (tmp_path / "traces" / "cprofile-rank0.pstats.txt").read_text()
    assert "Ordered by: internal time" in text
    assert "(work)" in text


def test_lines_are_counted_in_the_functions_that_were_given(tmp_path):
    model = Model()
    profiler = host_profiler("lines", tmp_path, 2, (work, model))
    profiler.start()
    a_step()
    model(1)
    profiler.stop()
    work(1000)
    assert files_of(tmp_path) == ["lines-rank2.parquet", "lines-rank2.txt"]
    lines = pl.read_parquet(tmp_path / "lines-rank2.parquet")
    hits = {row["text"].strip(): row["hits"] for row in lines.iter_rows(named=True)}
    assert hits["total += number"] == 100
    assert hits["return total"] == 2
    assert hits["return x + 1"] == 1
    assert not any("work(50)" in text for text in hits)
    assert lines["seconds"].min() >= 0
    assert "total += number" in (tmp_path / "lines-rank2.txt").read_text()


def test_what_cannot_be_profiled_is_refused(tmp_path):
    for kind, functions, code in (
        ("lines", [], "no-function"),
        ("lines", [len], "no-lines"),
        ("cprofil", [], "unknown-profiler"),
    ):
        with pytest.raises(InputError) as caught:
            host_profiler(kind, tmp_path, functions=functions)
        assert caught.value.code == code


def test_lines_without_the_extra_say_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "line_profiler", None)
    with pytest.raises(MissingExtraError, match=r"deltacell\[lines\]"):
        host_profiler("lines", tmp_path, functions=[work])


def test_memory_is_seen_step_by_step_and_line_by_line(tmp_path):
    profiler = host_profiler("memory", tmp_path)
    profiler.start()
    for step in range(4):
        if step in (1, 3):
            HELD.append(bytearray(3_000_000))  # this line holds it
        if step == 2:
            bytearray(5_000_000)
        profiler.step()
    profiler.stop()
    assert files_of(tmp_path) == [
        "memory-rank0.txt",
        "memory_lines-rank0.parquet",
        "memory_steps-rank0.parquet",
    ]
    steps = pl.read_parquet(tmp_path / "memory_steps-rank0.parquet")
    assert steps["step"].to_list() == [0, 1, 2, 3]
    traced, peak = steps["traced_bytes"], steps["traced_peak_bytes"]
    assert 2.9e6 < traced[1] - traced[0] < 3.5e6
    assert peak[2] - traced[2] > 4.5e6
    assert peak[3] - traced[3] < 1e6
    assert steps["peak_rss_bytes"].is_sorted()
    if sys.platform == "linux":
        assert (steps["rss_bytes"] > 10e6).all()
    lines = pl.read_parquet(tmp_path / "memory_lines-rank0.parquet")
    held = lines.filter(pl.col("file") == __file__).row(0, named=True)
    assert held["bytes"] > 6e6
    assert held["grown_bytes"] > 6e6
    assert f"{__file__}:{held['line']}" in (tmp_path / "memory-rank0.txt").read_text()


def test_tracing_that_was_on_stays_on(tmp_path):
    tracemalloc.start()
    try:
        with host_profiler("memory", tmp_path):
            pass
        assert tracemalloc.is_tracing()
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["cprofile", "lines", "memory"])
def test_it_may_be_stopped_at_any_time(tmp_path, kind):
    profiler = make(kind, tmp_path)
    profiler.stop()
    profiler.step()
    assert files_of(tmp_path) == []
    profiler.start()
    profiler.start()
    profiler.stop()
    written = files_of(tmp_path)
    profiler.stop()
    profiler.step()
    assert files_of(tmp_path) == written
    assert len(written) == len(profiler.files) >= 2
    assert profiler.notices == []


def fail(profiler) -> None:
    with profiler:
        a_step()
        profiler.step()
        raise ZeroDivisionError


@pytest.mark.parametrize("kind", ["cprofile", "lines", "memory"])
def test_an_error_of_the_training_goes_through_and_what_was_seen_is_written(tmp_path, kind):
    profiler = make(kind, tmp_path)
    with pytest.raises(ZeroDivisionError):
        fail(profiler)
    assert len(profiler.files) >= 2


@pytest.mark.parametrize("kind", ["cprofile", "lines", "memory"])
def test_what_cannot_be_written_is_a_notice(tmp_path, kind):
    (tmp_path / "traces").write_text("a file in the way")
    profiler = make(kind, tmp_path / "traces")
    profiler.start()
    a_step()
    profiler.step()
    profiler.stop()
    assert profiler.files == []
    assert len(profiler.notices) == 1
    assert "did not end well" in profiler.notices[0]
