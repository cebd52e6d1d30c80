"""`deltacell reconcile` as it is typed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

Run = Callable[..., "subprocess.CompletedProcess[str]"]

CASE = Path(__file__).resolve().parents[1] / "profile" / "explain" / "case.yaml"


def test_the_case(deltacell: Run, tmp_path: Path) -> None:
    done = deltacell("reconcile", CASE, "--json", "r.json", "--markdown", "r.md")
    said = " ".join(done.stdout.split())
    assert said.startswith("An epoch of hetero takes 40x as long as one of DANGO")
    assert "predict 54x per epoch where 40x was observed" in said
    result = json.loads((tmp_path / "r.json").read_text())
    assert {one["kind"] for one in result["contradictions"]} >= {"nested_sum", "warmup_average"}
    text = (tmp_path / "r.md").read_text()
    assert text.startswith("**An epoch of hetero")
    assert "| trace categories | 875x |" in text


def test_names_are_shown_as_they_are(deltacell: Run, tmp_path: Path) -> None:
    text = CASE.read_text().replace("name: hetero", 'name: "[red]|<b>\\e[31m"')
    (tmp_path / "hostile.yaml").write_text(text)
    done = deltacell("reconcile", "hostile.yaml", "--markdown", "r.md")
    assert "[red]|<b>\\x1b[31m" in done.stdout
    assert "\x1b" not in done.stdout
    assert "<b>" not in (tmp_path / "r.md").read_text()
