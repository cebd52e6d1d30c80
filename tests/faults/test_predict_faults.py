"""A ranking that is killed or interrupted, for real, whenever it happens: the file is the same."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# The command as it is, saving after every block in place of every ten seconds, with blocks and
# parts so small that there are many, and that take long enough to be hit.
OFTEN = """
import os
import time
import deltacell.predict.kept as kept
import deltacell.predict.request as request
import deltacell.predict.search as search
from deltacell.cli import main
from deltacell.predict.ensemble import Ensemble

search.SAVED_EVERY, kept.HELD = 0.0, 700
request.SETS_PER_BLOCK["dango"] = 8**3
candidates = Ensemble.candidates

def slowly(self, *words):
    time.sleep(float(os.environ["PAUSE"]))
    return candidates(self, *words)

Ensemble.candidates = slowly
main()
"""
PATIENCE = 240


def start(folder: Path, *words: str, pause: float = 0.0) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", OFTEN, *words],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1", "OMP_NUM_THREADS": "1", "PAUSE": str(pause)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        out, err = process.communicate(timeout=PATIENCE)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return process.returncode, out + err


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    words = ["experiment=demo", "data.synthetic_genotypes=400", "trainer.epochs=1"]
    quiet = ["trainer.figures_every=0", "loggers.tensorboard=false", "trainer.progress=false"]
    done = subprocess.run(
        [sys.executable, "-m", "deltacell", "train", *words, *quiet, f"directory={path}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.mark.parametrize(
    ("number", "words"),
    [
        pytest.param(signal.SIGKILL, ["--top", "300"], id="SIGKILL-top"),
        pytest.param(signal.SIGKILL, ["--below", "9"], id="SIGKILL-all"),
        pytest.param(signal.SIGINT, ["--top", "300"], id="SIGINT-top"),
        pytest.param(signal.SIGTERM, ["--below", "9"], id="SIGTERM-all"),
    ],
)
def test_the_file_is_the_same_whenever_it_was_stopped(
    run: Path, tmp_path: Path, words: list[str], number: signal.Signals
) -> None:
    command = ["predict", str(run), "--sets", "triples", *words]
    code, said = ended(start(tmp_path, *command, "--out", "whole.parquet"))
    assert code == 0, said
    pause = random.Random(0)
    went_on = 0
    for _ in range(3):
        process = start(tmp_path, *command, "--out", "killed.parquet", pause=0.03)
        # It begins to score when it says how much there is.
        assert process.stderr is not None
        line = process.stderr.readline()
        assert "to score" in line, line + process.stderr.read()
        went_on += "resuming" in line
        time.sleep(pause.uniform(0.1, 0.7))
        process.send_signal(number)
        code, said = ended(process)
        assert code == (-number if number == signal.SIGKILL else 128 + number), said
        assert not (tmp_path / "killed.parquet").exists()
        if number != signal.SIGKILL:
            assert "rerun the command to resume" in said
    assert went_on, "no attempt went on from another"
    code, said = ended(start(tmp_path, *command, "--out", "killed.parquet"))
    assert code == 0, said
    whole, killed = tmp_path / "whole.parquet", tmp_path / "killed.parquet"
    assert killed.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["killed.parquet", "whole.parquet"]
