"""`deltacell reconcile` on logs as typed."""

from __future__ import annotations

import json
from pathlib import Path

from training_logs import lightning_log

YAML = """
a: {name: fast, batch: 28, ranks: 1, steps_per_epoch: 200}
b: {name: slow, batch: 28, ranks: 1, steps_per_epoch: 200}
measurements:
- {name: steps, measured: it/s, a: {log: logs/fast.out}, b: 1.0}
"""


def test_a_yaml_that_names_a_log(deltacell, tmp_path: Path) -> None:
    (tmp_path / "here" / "logs").mkdir(parents=True)
    (tmp_path / "here" / "logs" / "fast.out").write_text(lightning_log(0.25))
    (tmp_path / "here" / "m.yaml").write_text(YAML)
    deltacell("reconcile", "here/m.yaml", "--json", "r.json", "--markdown", "r.md")
    result = json.loads((tmp_path / "r.json").read_text())
    (log,) = result["logs"]
    assert (log["measurement"], log["side"], log["batch"]) == ("steps", "fast", 28)
    assert {cut["reason"] for cut in log["cuts"]} >= {"sanity check"}
    assert "fast.out" in (tmp_path / "r.md").read_text()
    (tmp_path / "here" / "logs" / "fast.out").unlink()
    deltacell("reconcile", "here/m.yaml", code=2)


def test_two_logs_without_a_yaml(deltacell, tmp_path: Path) -> None:
    (tmp_path / "fast.out").write_text(lightning_log(0.25))
    (tmp_path / "slow.out").write_text("\x1b[31m[red]|<b>" + lightning_log(1.0))
    logs = ("fast.out", "slow.out")
    done = deltacell("reconcile", *logs)
    assert "\x1b" not in done.stdout
    yaml = done.stdout[done.stdout.index("# Written from logs") :]
    (tmp_path / "printed.yaml").write_text(yaml)
    (tmp_path / "folder").mkdir()
    deltacell("reconcile", *logs, "--write", "folder/w.yaml")
    results = []
    for name in ("printed.yaml", "folder/w.yaml"):
        deltacell("reconcile", name, "--json", "r.json")
        results.append(json.loads((tmp_path / "r.json").read_text()))
    assert results[0]["measurements"] == results[1]["measurements"]
    for arguments in (("printed.yaml", "fast.out"), ("printed.yaml", "--write", "x.yaml")):
        deltacell("reconcile", *arguments, code=2)
    assert not (tmp_path / "x.yaml").exists()
