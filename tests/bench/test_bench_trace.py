"""Measuring how traces are read, and the large ones made for it."""

from __future__ import annotations

import gzip
import json
import re

import pytest
import typer
from typer.testing import CliRunner

from deltacell.bench import trace as hta
from deltacell.bench import trace as trace_bench
from deltacell.bench.trace import make_trace, measure, parse_size, run
from deltacell.cli import bench as commands
from deltacell.errors import DeltacellError, InputError
from deltacell.profile.trace.read import read_trace
from deltacell.profile.trace.trace import Kind

app = typer.Typer()
app.command()(commands.trace)


@pytest.fixture
def small(tmp_path):
    """A step of a GPU program: an operator, its launch, its kernel and what joins them."""
    step, op, launch, kernel = 1000.0, 1010.5, 1020.25, 1040.125
    host, device = {"pid": 5, "tid": 5}, {"pid": 0, "tid": 7}
    events = [
        {"ph": "M", "name": "thread_name", **host, "ts": 0, "args": {"name": "main"}},
        {
            **{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#3", **host},
            **{"ts": step, "dur": 900.0, "args": {"External id": 1}},
        },
        {
            **{"ph": "X", "cat": "cpu_op", "name": "aten::mm", **host},
            **{"ts": op, "dur": 80.0, "args": {"External id": 2, "Sequence number": 4}},
        },
        {
            **{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **host},
            **{"ts": launch, "dur": 5.5, "args": {"External id": 2, "correlation": 11}},
        },
        {
            **{"ph": "X", "cat": "kernel", "name": "gemm", **device, "ts": kernel, "dur": 700.5},
            "args": {"External id": 2, "correlation": 11, "stream": 7, "device": 0},
        },
        {"ph": "s", "id": 11, "cat": "ac2g", "name": "ac2g", **host, "ts": launch},
        {"ph": "f", "id": 11, "cat": "ac2g", "name": "ac2g", **device, "ts": kernel},
        {"ph": "X", "cat": "Trace", "name": "PyTorch Profiler (0)", "ts": 0, "dur": 9999},
    ]
    path = tmp_path / "small.json.gz"
    about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100"}]}
    path.write_bytes(gzip.compress(json.dumps({**about, "traceEvents": events}).encode()))
    return path


@pytest.mark.parametrize(
    ("text", "size"),
    [("100MB", 10**8), ("1.5 gb", 15 * 10**8), ("2GiB", 2**31), ("77", 77), (" 3 kB ", 3000)],
)
def test_sizes(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "1 parsec", "1e9"])
def test_no_sizes(text):
    with pytest.raises(InputError, match="not a size"):
        parse_size(text)


@pytest.mark.parametrize("name", ["large.json", "large.json.gz"])
def test_a_repeated_trace(small, tmp_path, name):
    path = tmp_path / name
    written = make_trace(small, path, 5000)
    text = gzip.decompress(path.read_bytes()) if name.endswith("gz") else path.read_bytes()
    assert 5000 <= len(text) < 6500
    listed = json.loads(text)["traceEvents"]
    assert written == len(listed)
    copies = sum(event["name"] == "gemm" for event in listed)
    assert copies > 3
    trace = read_trace(path)
    assert (len(trace), trace.device_name) == (4 * copies, "A100")
    steps = [e["name"] for e in listed if e["name"].startswith("ProfilerStep")]
    assert steps == [f"ProfilerStep#{3 + 4 * copy}" for copy in range(copies)]
    # Each launch has a kernel, and a flow, of its own.
    launched = trace.correlation[trace.kind == Kind.runtime].tolist()
    assert launched == trace.correlation[trace.kind == Kind.kernel].tolist()
    assert len(set(launched)) == copies
    assert launched == [event["id"] for event in listed if event["ph"] == "f"]
    # Copies follow each other and do not overlap.
    begin = trace.begin[trace.kind == Kind.annotation]
    assert set(begin[1:] - begin[:-1]) == {1_000_000}


def test_what_cannot_be_repeated(small, tmp_path):
    broken = tmp_path / "broken.json"
    for text in ("", "{}", '{"traceEvents": []}', '{"traceEvents": [{"ph'):
        broken.write_text(text)
        with pytest.raises(InputError):
            make_trace(broken, tmp_path / "out.json", 10)
    with pytest.raises(InputError, match="cannot be read"):
        make_trace(tmp_path / "none.json", tmp_path / "out.json", 10)
    with pytest.raises(InputError, match="cannot be written"):
        make_trace(small, tmp_path / "no" / "folder" / "out.json", 10)
    assert not (tmp_path / "out.json").exists()


def test_what_is_measured(small):
    row = measure(str(small), tell=lambda said: None)
    assert row["events"] == 5
    assert row["mb"] == pytest.approx(len(gzip.decompress(small.read_bytes())) / 1e6)
    assert 0 < row["read_s"] < row["explain_s"]
    assert 1 < row["read_mib"] <= row["peak_mib"]


def test_no_file(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        run([tmp_path / "none.json"])
    with pytest.raises(InputError, match="no trace was named"):
        run([])


def test_the_command(small, tmp_path):
    large, out = tmp_path / "large.json", tmp_path / "out.json"
    made = CliRunner().invoke(
        app, [str(large), "--make", "20kB", "--from", str(small)], catch_exceptions=False
    )
    assert re.search(r"large\.json: \d+ events, 0\.0 MB, small\.json\.gz repeated", made.output)
    told = CliRunner().invoke(app, [str(large), "--json", str(out)])
    assert told.exit_code == 0, told.output
    result = json.loads(out.read_text())
    assert set(result) >= {"events", "mb", "read_s", "explain_s", "peak_mib"}
    assert [row["name"] for row in result["rows"]] == ["large.json"]


def test_several_files_are_added_up_and_one_that_is_no_trace_is_a_sentence(
    small, tmp_path, monkeypatch
):
    def here(function, settings, told):
        assert function == "deltacell.bench.trace:measure"
        return measure(**settings, tell=told)

    monkeypatch.setattr(trace_bench, "in_own_process", here)
    result = run([small, small])
    assert result["events"] == 10
    assert result["explain_s"] == sum(row["explain_s"] for row in result["rows"])
    assert result["peak_mib"] == max(row["peak_mib"] for row in result["rows"])
    (tmp_path / "x.json").write_text("hello")
    with pytest.raises(InputError, match="not a trace"):
        run([tmp_path / "x.json"])


def test_the_other_program_is_asked_in_its_own_environment(small, tmp_path):
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho log\necho \'{"load_s": 1, "total_s": 2, "peak_mib": 3}\'\n')
    python.chmod(0o755)
    assert hta.measure_hta(small, python)["total_s"] == 2
    python.write_text("#!/bin/sh\necho oh no >&2\nexit 3\n")
    with pytest.raises(DeltacellError, match="oh no"):
        hta.measure_hta(small, python)
