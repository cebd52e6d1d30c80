"""Measuring how traces are read, and the large ones made for it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltacell.bench.trace import make_trace, run
from deltacell.cli.app import app
from deltacell.errors import InputError
from deltacell.profile.trace.read import read_trace
from deltacell.profile.trace.trace import Kind


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A step of a GPU program: an operator, its launch, its kernel and what joins them."""
    host, device = {"pid": 5, "tid": 5}, {"pid": 0, "tid": 7}
    joined = {"External id": 2, "correlation": 11}
    spans = [
        ("user_annotation", "ProfilerStep#3", host, 1000.0, 900.0, {"External id": 1}),
        ("cpu_op", "aten::mm", host, 1010.5, 80.0, {"External id": 2, "Sequence number": 4}),
        ("cuda_runtime", "cudaLaunchKernel", host, 1020.25, 5.5, joined),
        ("kernel", "gemm", device, 1040.125, 700.5, {**joined, "stream": 7, "device": 0}),
        ("Trace", "PyTorch Profiler (0)", {}, 0, 9999, {}),
    ]
    flow = {"id": 11, "cat": "ac2g", "name": "ac2g"}
    events = [
        {"ph": "M", "name": "thread_name", **host, "ts": 0, "args": {"name": "main"}},
        *(
            {"ph": "X", "cat": cat, "name": name, **place, "ts": ts, "dur": dur, "args": args}
            for cat, name, place, ts, dur, args in spans
        ),
        {"ph": "s", **flow, **host, "ts": 1020.25},
        {"ph": "f", **flow, **device, "ts": 1040.125},
    ]
    path = tmp_path / "small.json.gz"
    about = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "A100"}]}
    path.write_bytes(gzip.compress(json.dumps({**about, "traceEvents": events}).encode()))
    return path


def test_a_repeated_trace(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    written = make_trace(small, path, 5000)
    text = path.read_bytes()
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


def test_what_cannot_be_repeated(small: Path, tmp_path: Path) -> None:
    broken, out = tmp_path / "broken.json", tmp_path / "out.json"
    for text in ("", "{}", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph'):
        broken.write_text(text)
        with pytest.raises(InputError) as caught:
            make_trace(broken, out, 10)
        assert caught.value.code == "not-a-trace"
    with pytest.raises(InputError) as caught:
        make_trace(small, tmp_path / "no" / "folder" / "out.json", 10)
    assert caught.value.code == "not-written"
    assert not out.exists()


def test_the_command_makes_and_measures(small: Path, tmp_path: Path) -> None:
    large, out = tmp_path / "large.json", tmp_path / "out.json"
    words = ["bench", "trace", str(large)]
    made = CliRunner().invoke(app, [*words, "--make", "0.02", "--from", str(small)])
    assert made.exit_code == 0, made.output
    told = CliRunner().invoke(app, [*words, str(small), "--json", str(out)])
    assert told.exit_code == 0, told.output
    result = json.loads(out.read_text())
    rows = result["rows"]
    assert [row["name"] for row in rows] == ["large.json", "small.json.gz"]
    for key in ("events", "mb", "read_s", "read_cpu_s", "explain_s"):
        assert result[key] == pytest.approx(sum(row[key] for row in rows))
    assert result["peak_mib"] == max(row["peak_mib"] for row in rows)
    assert rows[1]["events"] == 5
    assert rows[1]["mb"] == pytest.approx(len(gzip.decompress(small.read_bytes())) / 1e6)
    assert 0 < rows[1]["read_s"] < rows[1]["explain_s"]
    assert 1 < rows[1]["read_mib"] <= rows[1]["peak_mib"]
    without = CliRunner().invoke(app, [*words, "--make", "0.02"])
    assert getattr(without.exception, "code", None) == "one-file"
    (tmp_path / "x.json").write_text("hello")
    for file in ("x.json", "none.json"):
        with pytest.raises(InputError):
            run([tmp_path / file])
