"""What the demonstration does, and where it refuses to."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from deltacell import Cell, Screen
from deltacell.cli.app import app
from deltacell.demo.steps import clear, steps
from deltacell.errors import InputError
from deltacell.screen.import_folder import Imported


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
    assert "directory=demo/pairs" in plain


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


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    """A folder as a demonstration that was stopped near its end leaves it, without its runs."""
    folder = tmp_path / "demo"
    app(list(steps(folder, seed=0)[0].command), standalone_mode=False)
    for name in ("evaluation.json", "ranking.parquet", "index.html", ".ranking.html.abc.tmp"):
        (folder / name).write_text("of before")
    (folder / "figures").mkdir()
    (folder / "ranking.parquet.partial").mkdir()
    return folder


def test_an_earlier_one_is_filled_anew(filled: Path) -> None:
    clear(filled)
    kept = {"cell", "screens", "manifest.json", "account.json"}
    assert {entry.name for entry in filled.iterdir()} == kept
    app(list(steps(filled, seed=1)[0].command), standalone_mode=False)


def test_nothing_is_taken_away_where_something_else_is_too(filled: Path) -> None:
    (filled / "thesis.txt").write_text("years of work")
    before = sorted(entry.name for entry in filled.iterdir())
    with pytest.raises(InputError, match="not of a demo"):
        clear(filled)
    assert sorted(entry.name for entry in filled.iterdir()) == before


def test_what_is_called_like_a_run_and_is_none_is_left_alone(filled: Path) -> None:
    (filled / "dango").mkdir()
    (filled / "dango" / "notes").write_text("more of it")
    with pytest.raises(InputError):
        clear(filled)
    assert (filled / "dango" / "notes").exists()
    assert (filled / "index.html").exists()


def test_data_of_ones_own_are_not_replaced(tmp_path: Path) -> None:
    cell = Cell.synthetic("demo")
    Imported(cell, {"kuzmin2018": Screen.synthetic(cell, n=60)}).save(tmp_path / "data")
    with pytest.raises(InputError, match="not of a demo"):
        clear(tmp_path / "data")


def test_a_folder_that_is_not_there_or_empty_is_fine(tmp_path: Path) -> None:
    clear(tmp_path / "new")
    clear(tmp_path)
