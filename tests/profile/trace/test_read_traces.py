"""Reading the traces of several ranks."""

from __future__ import annotations

import gzip
import json

import pytest

from deltacell.errors import InputError
from deltacell.profile.trace.read import listed, read_traces


@pytest.fixture
def write(tmp_path):
    def written(name, rank=None, world_size=None, ts=0):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        about = (
            {} if rank is None else {"distributedInfo": {"rank": rank, "world_size": world_size}}
        )
        events = [{"ph": "X", "cat": "cpu_op", "name": "a", "pid": 1, "tid": 1, "ts": ts, "dur": 1}]
        text = json.dumps({**about, "traceEvents": events}).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return written


def test_ranks_are_in_order_and_complete(write, tmp_path):
    for rank in (10, 2, 0, 1, *range(3, 10)):
        write(f"worker{rank}.json.gz", rank, 11)
    traces = read_traces(tmp_path)
    assert [trace.rank for trace in traces] == list(range(11))
    assert all(trace.warnings == () for trace in traces)


def test_missing_ranks_are_named(write, tmp_path):
    for rank in (0, 1, 5):
        write(f"rank{rank}.json", rank, 128)
    traces = read_traces(tmp_path)
    said = "Of 128 ranks only 0, 1, 5 are here; missing: 2 to 4, 6 to 127."
    assert [trace.warnings for trace in traces] == [(said,)] * 3


def test_a_rank_missing_between_others_by_name_alone(write, tmp_path):
    for rank in (0, 2):
        write(f"rank{rank}.json")
    assert "missing: 1." in read_traces(tmp_path)[0].warnings[0]


def test_one_file_of_two_ranks(write):
    (trace,) = read_traces(write("a.json", 0, 2))
    assert trace.warnings == ("Of 2 ranks only 0 is here; missing: 1.",)


def test_one_file_without_a_rank(write):
    (trace,) = read_traces(write("a.json"))
    assert trace.warnings == ()


def test_the_windows_of_a_run_are_cycles_of_one_trace_a_rank(write, tmp_path):
    write("run/config.json")
    for rank, window in [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2)]:
        write(f"run/traces/trace-rank{rank}-window{window}.json.gz", ts=1000 * window)
    write("run/traces/.trace-rank1-window2.json.gz.plain.tmp")
    traces = read_traces(tmp_path / "run")
    assert [trace.rank for trace in traces] == [0, 1]
    assert [len(trace.cycles) for trace in traces] == [3, 2]
    assert traces[0].cycles == (0, 10**6, 2 * 10**6)
    single = read_traces(tmp_path / "run", window=2)
    assert [trace.origin for trace in single] == [2 * 10**6]
    assert len(traces[0]) == 3 * len(single[0])
    assert "3 profiler cycles were read as one trace." in traces[0].warnings
    with pytest.raises(InputError, match="window 7"):
        read_traces(tmp_path / "run", window=7)


def test_a_file_that_is_no_trace_is_left_out_and_named(write, tmp_path):
    write("rank0.json", 0, 2)
    write("rank1.json", 1, 2)
    (tmp_path / "notes.json").write_text('{"a": 1}')
    traces = read_traces(tmp_path)
    assert len(traces) == 2
    assert traces[0].warnings[0].startswith("notes.json was left out: this is not a trace")


@pytest.mark.parametrize(
    ("files", "said"),
    [
        ([("a.json", None, None), ("b.json", None, None)], "a.json, b.json have no rank"),
        ([("a.json", 0, 2), ("b.json", 0, 2)], "a.json, b.json are all of rank 0"),
        ([("a.json", 0, 2), ("b.json", 1, 4)], "there were 2 and 4 ranks"),
    ],
)
def test_traces_of_different_runs_are_refused(write, tmp_path, files, said):
    for file in files:
        write(*file)
    with pytest.raises(InputError, match="not one run's") as error:
        read_traces(tmp_path)
    assert said in str(error.value)


def test_no_trace_at_all(tmp_path):
    with pytest.raises(InputError, match="no trace in this directory"):
        read_traces(tmp_path)
    (tmp_path / "a.json").write_text("x")
    with pytest.raises(InputError, match="not a trace"):
        read_traces(tmp_path)
    (tmp_path / "b.json").write_text("x")
    with pytest.raises(InputError, match="none of its 2 files"):
        read_traces(tmp_path)
    with pytest.raises(InputError, match="no such file"):
        read_traces(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ([], ""),
        ([3], "3"),
        ([1, 0], "0, 1"),
        ([0, 1, 2, 9], "0 to 2, 9"),
        (range(0, 40, 2), "0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_numbers_as_text(numbers, text):
    assert listed(numbers) == text
