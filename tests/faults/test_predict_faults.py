"""A ranking that a signal stops says so, and rerun it gives the same file; laws/ has the kills."""

import os
import signal
from itertools import count

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.models import Dango
from deltacell.ranking import search

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGINT, ["--top", "300"]), (signal.SIGTERM, ["--below", "9"])],
)
def test_the_file_is_the_same_whenever_it_was_stopped(runs, tmp_path, monkeypatch, number, words):
    # It saves after every block, and blocks are so small that there are many.
    monkeypatch.setattr(search, "SAVED_EVERY", 0.0)
    monkeypatch.setattr(Dango, "sets_per_block", 8**3)
    save = search.Work.save

    def predict(out, blocks=None):
        saves = count(1)

        def counted(*given, **named):
            save(*given, **named)
            if next(saves) == blocks:
                os.kill(os.getpid(), number)

        monkeypatch.setattr(search.Work, "save", counted)
        command = ["predict", runs["seed0"], "--sets", "triples", *words, "--out", out]
        return CliRunner().invoke(app, [str(word) for word in command])

    whole, stopped = tmp_path / "whole.parquet", tmp_path / "stopped.parquet"
    assert predict(whole).exit_code == 0
    for blocks in (1, 4, 2):
        said = predict(stopped, blocks)
        assert said.exit_code == 128 + number
        assert "rerun the command to resume" in said.output
        assert not stopped.exists()
    said = predict(stopped)
    assert (said.exit_code, "resuming" in said.output) == (0, True)
    assert stopped.read_bytes() == whole.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["stopped.parquet", "whole.parquet"]
