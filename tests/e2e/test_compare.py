"""`deltacell compare` and `deltacell slurm compare`, as they are typed, with real trials."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.train.comparing import trials
from deltacell.train.comparing.table import FILE

SMALL = (
    "experiment=demo data.synthetic_genotypes=300 model.hidden=8 trainer.threads=1"
    " model.relations=[string_fusion,string_database]"
)
A = f"{SMALL} data.batch_size=32 name=large"
B = f"{SMALL} data.batch_size=4 name=small"


@pytest.fixture
def trials_here(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Trials in this process, which is faster; returns the modes that were tried."""
    modes = []

    def run(command: list[str], **options: Any) -> SimpleNamespace:
        assert command[:4] == [sys.executable, "-m", "deltacell", "train"]
        modes.extend(word for word in command if word.startswith("mode="))
        result = CliRunner().invoke(app, command[3:])
        return SimpleNamespace(
            returncode=result.exit_code,
            stdout=result.output,
            stderr=repr(result.exception or ""),
        )

    monkeypatch.setattr(trials, "subprocess", SimpleNamespace(run=run))
    return modes


@pytest.mark.slow
def test_two_configs_are_tried_and_a_rerun_adds_what_is_missing(deltacell, tmp_path, trials_here):
    files = {name: tmp_path / f"result.{name}" for name in ("json", "md", "html")}
    words = ("compare", A, B, "--steps", "6", "--out", "tried")
    first = deltacell(*words, "--minutes", "0", "--json", files["json"])
    result = json.loads(files["json"].read_text())
    assert result["names"] == ["large", "small"]
    assert trials_here == ["mode=train", "mode=train"]
    assert "all changes" in result["missing"]
    assert result["sentence"] in first.stdout.replace("\n", " ").replace("  ", " ")
    outputs = ("--json", files["json"], "--markdown", files["md"], "--html", files["html"])
    deltacell(*words, "--minutes", "30", "--turns", "1", *outputs)
    result = json.loads(files["json"].read_text())
    assert not result["missing"]
    assert not result["failed"]
    assert {"mode=data", "mode=forward", "mode=step"} < {*trials_here}
    assert [effect["kind"] for effect in result["effects"]] == ["batch"]
    for fall in result["waterfalls"]:
        total = sum(bar["change_s"] for bar in fall["bars"])
        assert total == pytest.approx(fall["gap_s"], abs=1e-12)
    assert {*result["costs"]} <= {"a", "b"}
    for name in ("md", "html"):
        assert "data.batch" in files[name].read_text()
    table = json.loads((tmp_path / "tried" / FILE).read_text())
    assert len(table["trials"]) == len(trials_here)
    # The run directories of trials are removed.
    assert {path.name for path in (tmp_path / "tried").iterdir()} == {FILE, ".lock"}


@pytest.mark.slow
def test_a_comparison_that_is_killed_keeps_its_finished_trials(deltacell, tmp_path, trials_here):
    words = ["compare", A, B, "--steps", "6", "--turns", "1", "--out", "tried"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, "-m", "deltacell", *words],
        cwd=tmp_path,
        env=environment,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    file = tmp_path / "tried" / FILE
    while not file.exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = json.loads(file.read_text())["trials"]
    assert before[0]["arm"] == "a"
    deltacell(*words, "--minutes", "0")
    after = json.loads(file.read_text())["trials"]
    assert after[: len(before)] == before
    assert {"a", "b"} <= {row["arm"] for row in after}


def test_a_job_script_that_compares(deltacell, mistake, runs):
    run = str(runs["seed0"])
    words = ("slurm", "compare", run, B, "--minutes", "60", "--mail", "me@lab.org")
    text = deltacell(*words, "--output", "logs/%x-%j.out").stdout
    for line in ("--mail-user=me@lab.org", "--output=logs/%x-%j.out", "--job-name=compare"):
        assert f"#SBATCH {line}\n" in text
    last = text.splitlines()[-1]
    assert "deltacell compare" in last
    assert "--minutes=60.0" in last
    assert Path(run).name in last
    mistake("not-a-config", "slurm", "compare", run, "nowhere")
    mistake("not-for-slurm", *words, "--output", "a b")
