"""Measuring how traces are read, and the large ones made for it."""

from __future__ import annotations

import gzip
import json
from importlib.resources import files
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
    """Three steps of a GPU program, with flows from launches to kernels."""
    whole = json.loads(files("deltacell.bench").joinpath("samples", "trace.txt").read_bytes())
    for event in [e for e in whole["traceEvents"] if e.get("cat") in ("cuda_runtime", "kernel")]:
        ends = {"ph": "sf"[event["cat"] == "kernel"], "id": event["args"]["correlation"]}
        flow = {key: event[key] for key in ("pid", "tid", "ts")}
        whole["traceEvents"].append({**flow, **ends, "cat": "ac2g", "name": "ac2g"})
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return path


def test_a_repeated_trace(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    written = make_trace(small, path, 20_000)
    text = path.read_bytes()
    assert 20_000 <= len(text) < 26_000
    listed = json.loads(text)["traceEvents"]
    assert written == len(listed)
    steps = [e["name"] for e in listed if e["name"].startswith("ProfilerStep")]
    assert steps == [f"ProfilerStep#{number}" for number in range(len(steps))]
    assert len(steps) > 9
    trace = read_trace(path)
    assert (len(trace), trace.device_name) == (6 * len(steps), "A100")
    # Each launch has a kernel, and a flow, of its own.
    launched = trace.correlation[trace.kind == Kind.kernel].tolist()
    assert set(launched) < set(trace.correlation[trace.kind == Kind.runtime].tolist())
    assert len(set(launched)) == len(steps)
    assert launched == [event["id"] for event in listed if event["ph"] == "f"]
    # Copies follow each other and do not overlap.
    begin = trace.begin[trace.named(lambda name: name.startswith("ProfilerStep"))]
    assert set(begin[1:] - begin[:-1]) == {1_000_000}


def test_what_cannot_be_repeated(tmp_path: Path) -> None:
    broken, out = tmp_path / "broken.json", tmp_path / "out.json"
    for text in ("", "{}", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph'):
        broken.write_text(text)
        with pytest.raises(InputError) as caught:
            make_trace(broken, out, 10)
        assert caught.value.code == "not-a-trace"
    assert not out.exists()


def test_the_command_makes_and_measures(small: Path, tmp_path: Path) -> None:
    large, out = tmp_path / "large.json", tmp_path / "out.json"
    words = ["bench", "trace", str(large)]
    made = CliRunner().invoke(app, [*words, "--make", "0.02", "--from", str(small)])
    assert made.exit_code == 0, made.output
    told = CliRunner().invoke(app, [*words, str(small), "--json", str(out)])
    assert told.exit_code == 0, told.output
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["large.json", "small.json.gz"]
    assert rows[1]["events"] == 18
    assert rows[1]["mb"] == pytest.approx(len(gzip.decompress(small.read_bytes())) / 1e6)
    assert 0 < rows[1]["read_s"] < rows[1]["explain_s"]
    assert 1 < rows[1]["read_mib"] <= rows[1]["peak_mib"]
    without = CliRunner().invoke(app, [*words, "--make", "0.02"])
    assert getattr(without.exception, "code", None) == "one-file"
    (tmp_path / "x.json").write_text("hello")
    for file in ("x.json", "none.json"):
        with pytest.raises(InputError):
            run([tmp_path / file])
