"""`deltacell explain --html` as it is typed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_the_page_of_a_trace_is_written_whole(deltacell: Run, tmp_path: Path) -> None:
    name = "<script>alert(1)</script>"
    event = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op"}
    events = [{**event, "name": name, "ts": 20 * i, "dur": 10} for i in range(5)]
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": events}))
    deltacell("explain", tmp_path / "trace.json", "--html", tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert page.startswith("<!doctype html>")
    assert page.rstrip().endswith("</html>")
    assert name not in page
    assert "<canvas" in page


def test_a_page_that_cannot_be_written_is_said(deltacell: Run, tmp_path: Path) -> None:
    event = {"ph": "X", "pid": 1, "tid": 1, "cat": "cpu_op", "name": "f", "ts": 0, "dur": 10}
    (tmp_path / "trace.json").write_text(json.dumps({"traceEvents": [event]}))
    (tmp_path / "file").write_text("")
    done = deltacell(
        "explain", tmp_path / "trace.json", "--html", tmp_path / "file" / "page.html", code=2
    )
    assert "the page could not be written" in done.stderr
    assert "Traceback" not in done.stderr
