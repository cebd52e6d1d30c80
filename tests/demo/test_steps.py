"""What the demonstration does, and where it refuses to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltacell.cli.app import app
from deltacell.demo.steps import clear, steps
from deltacell.errors import InputError


def test_every_step_is_a_command_there_is(tmp_path: Path) -> None:
    for step in steps(tmp_path / "demo", seed=1):
        words = [word for word in step.command if not word.startswith("-")]
        command = words[:2] if words[0] == "data" else words[:1]
        assert CliRunner().invoke(app, [*command, "--help"]).exit_code == 0, step.command
        assert step.title
        assert step.words.endswith(".")


def test_a_folder_with_a_blank_is_quoted(tmp_path: Path) -> None:
    train = steps(tmp_path / "my demo", seed=0)[1].command
    assert f"data.folder='{tmp_path / 'my demo'}'" in train
    plain = steps("demo", seed=0)[1].command
    assert "data.folder=demo" in plain
    assert "directory=demo/dango" in plain


def test_what_is_no_demo_is_left_alone(tmp_path: Path) -> None:
    kept = tmp_path / "thesis.txt"
    kept.write_text("years of work")
    with pytest.raises(InputError, match="not of a demo"):
        clear(tmp_path)
    (tmp_path / "cell").mkdir()
    (tmp_path / "dango").mkdir()
    (tmp_path / "dango" / "notes").write_text("more of it")
    with pytest.raises(InputError):
        clear(tmp_path)
    assert kept.exists()
    assert (tmp_path / "dango" / "notes").exists()


def test_a_folder_that_is_not_there_or_empty_is_fine(tmp_path: Path) -> None:
    clear(tmp_path / "new")
    clear(tmp_path)
