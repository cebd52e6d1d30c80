"""Importing a folder: what it may be called, and what stops it."""

from __future__ import annotations

import os

import pytest

from deltacell import Cell, Screen
from deltacell.errors import InputError
from deltacell.screen.import_folder import Imported, import_folder


@pytest.mark.parametrize("name", ["../x", "../../x", "/proc/x", "a/b", "..", ".", ""])
def test_the_name_of_a_screen_leads_nowhere_else(tmp_path, name):
    cell = Cell.synthetic("demo")
    imported = Imported(cell, {name: Screen.synthetic(cell, n=100)})
    with pytest.raises(InputError, match="cannot be the name of a screen"):
        imported.save(tmp_path / "deep" / "out")
    assert not list(tmp_path.iterdir())


def test_a_subfolder_that_cannot_be_read_is_not_passed_over(tmp_path, monkeypatch):
    (tmp_path / "mine.tsv").write_text("YAL001C\tYAL002W\n")
    (tmp_path / "closed").mkdir()
    listed = os.scandir

    def refused(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return listed(path)

    monkeypatch.setattr(os, "scandir", refused)
    with pytest.raises(InputError, match=r"closed: the folder cannot be read: Permission denied"):
        import_folder(tmp_path)


def test_hidden_files_and_folders_are_not_read(tmp_path):
    (tmp_path / "mine.tsv").write_text("YAL001C\tYAL002W\n")
    (tmp_path / ".other.tsv").write_text("YAL001C\tYAL003W\n")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "more.tsv").write_text("YAL001C\tYAL004W\n")
    imported = import_folder(tmp_path)
    assert list(imported.cell.relations) == ["mine"]
    assert not imported.left_alone


def test_scores_that_were_read_as_a_network_are_spoken_of(tmp_path):
    (tmp_path / "ppi.csv").write_text("gene1,gene2,weight\nYAL001C,YAL002W,0.5\n")
    (tmp_path / "screen.csv").write_text("name1,name2,score\nYAL001C,YAL002W,-0.5\n")
    (tmp_path / "triples.csv").write_text("a,b,c,score\nYAL001C,YAL002W,YAL003W,-0.5\n")
    imported = import_folder(tmp_path)
    (note,) = [note for note in imported.notes if "weights are below 0" in note]
    assert note.startswith("screen.csv was read as a network")
    (left,) = imported.left_alone
    assert left.file == "triples.csv"
    assert "docs/how-to/screen.md" in left.why


def test_a_table_of_scores_is_a_screen_and_not_a_network(tmp_path):
    (tmp_path / "ppi.csv").write_text("gene1,gene2,weight\nYAL001C,YAL002W,0.5\n")
    (tmp_path / "pairs.csv").write_text("gene1,gene2,score\nYAL001C,YAL002W,-0.5\n")
    (tmp_path / "triples.tsv").write_text("Query\tArray\tepsilon\nYAL001C+YAL002W\tYAL003W\t0.5\n")
    imported = import_folder(tmp_path, phenotype="fitness")
    assert list(imported.cell.relations) == ["ppi"]
    assert list(imported.screens) == ["pairs", "triples"]
    assert imported.screens["pairs"].column("score").tolist() == [-0.5]
    assert imported.screens["triples"].stats()["kinds"] == {"trigenic": 1}
    assert not imported.left_alone
    said = [note.split(" was read")[0] for note in imported.notes if "read as a screen" in note]
    assert said == ["pairs.csv", "triples.tsv"]


def test_a_file_whose_name_is_not_text_is_refused(tmp_path):
    try:
        (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("YAL001C\tYAL002W\n")
    except OSError:
        pytest.skip("the file system takes no such names")
    with pytest.raises(InputError, match="name is not text"):
        import_folder(tmp_path)
