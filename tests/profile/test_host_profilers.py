"""Profilers of the host: what they write, and that they never harm a training."""

import pstats
import re
import sys
import tracemalloc

import pytest

from deltacell.base.errors import MissingExtraError
from deltacell.profile.capture import HostProfiler

HELD: list[bytearray] = []


def work(n: int) -> int:
    total = 0
    for number in range(n):
        total += number
    return total


def a_step() -> int:
    return work(50) + work(50)


@pytest.fixture(autouse=True)
def _nothing_is_left_on():
    HELD.clear()
    yield
    assert not tracemalloc.is_tracing()
    assert sys.getprofile() is None


def files_of(folder) -> list[str]:
    return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []


def recorded(kind: str, *given, steps: int = 3, step=lambda number: a_step(), **options):
    """Return a profiler that has seen some steps."""
    profiler = HostProfiler(kind, *given, **options)
    profiler.start()
    for number in range(steps):
        step(number)
        profiler.step()
    profiler.stop()
    return profiler


def test_cprofile_writes_calls_and_self_times(tmp_path):
    recorded("cprofile", tmp_path / "traces")
    assert files_of(tmp_path / "traces") == ["cprofile-rank0.prof", "cprofile-rank0.txt"]
    stats = pstats.Stats(str(tmp_path / "traces" / "cprofile-rank0.prof")).stats
    calls = {name: x[0] for (file, _, name), x in stats.items() if file == __file__}
    assert (calls["work"], calls["a_step"]) == (6, 3)
    text = (tmp_path / "traces" / "cprofile-rank0.txt").read_text()
    assert "Ordered by: internal time" in text
    assert "(work)" in text


def test_lines_are_counted_in_the_functions_that_were_given(tmp_path, monkeypatch):
    recorded("lines", tmp_path, 2, (work,), steps=1)
    work(1000)
    assert files_of(tmp_path) == ["lines-rank2.txt"]
    text = (tmp_path / "lines-rank2.txt").read_text()
    assert re.search(r"\s100\s.*total \+= number", text)
    assert "work(50)" not in text
    monkeypatch.setitem(sys.modules, "line_profiler", None)
    with pytest.raises(MissingExtraError, match=r"deltacell\[lines\]"):
        HostProfiler("lines", tmp_path, functions=[work])


def test_memory_is_seen_step_by_step_and_line_by_line(tmp_path):
    def hold(step: int) -> None:
        if step in (1, 3):
            HELD.append(bytearray(3_000_000))  # this line holds it
        if step == 2:
            bytearray(5_000_000)

    recorded("memory", tmp_path, steps=4, step=hold)
    assert files_of(tmp_path) == ["memory-rank0.txt"]
    lines = (tmp_path / "memory-rank0.txt").read_text().splitlines()
    rows = [[float(size) for size in line.split()[:3]] for line in lines[3:7]]
    traced, peak, rss = zip(*rows, strict=True)
    assert 2.9 < traced[1] - traced[0] < 3.5
    assert peak[2] - traced[2] > 4.5
    assert peak[3] - traced[3] < 1
    assert rss[0] > 10
    assert sorted(rss) == list(rss)
    held, grown, _ = next(line for line in lines if __file__ in line).split()
    assert min(float(held), float(grown)) >= 6


@pytest.mark.parametrize("kind", ["cprofile", "lines", "memory"])
def test_a_host_profiler_may_stop_at_any_time_and_an_unwritable_folder_is_a_notice(tmp_path, kind):
    profiler = HostProfiler(kind, tmp_path, functions=(work,))
    profiler.stop()
    profiler.step()
    assert files_of(tmp_path) == []
    for _ in range(2):
        profiler.start()
    for _ in range(2):
        profiler.stop()
        profiler.step()
    assert files_of(tmp_path) == sorted(file.name for file in profiler.files) != []
    assert profiler.notices == []
    (tmp_path / "traces").write_text("a file in the way")
    profiler = recorded(kind, tmp_path / "traces", functions=(work,))
    assert (profiler.files, len(profiler.notices)) == ([], 1)
    assert "failed" in profiler.notices[0]
