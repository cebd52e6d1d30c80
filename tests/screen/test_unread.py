"""Why a file is left alone: the reason that is told is the one that is there."""

from __future__ import annotations

import gzip
import zipfile

import openpyxl
import pytest

from deltacell.cell import readers as cell_readers
from deltacell.screen import readers as screen_readers
from deltacell.screen.unread import why_unread


def left_alone(path):
    assert screen_readers.recognise(path) is None
    assert cell_readers.recognise(path) is None
    return why_unread(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a,b,strength,by\nRAD51,RAD52,0.5,me\n", "gene1,gene2,score (a screen),"),
        ("RAD51,0.5\nRAD52,1.5\n", "genes and numbers and no header"),
        ("Notes of 2025, and 1,5 more things\n", "gene1,gene2,score (a screen),"),
    ],
)
def test_the_reason_is_told(tmp_path, text, reason):
    path = tmp_path / "a.csv"
    path.write_text(text)
    why = left_alone(path)
    assert reason in why
    assert why.endswith("docs/how-to/screen.md")
    packed = tmp_path / "a.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert left_alone(packed) == why


def test_a_workbook_names_its_sheets_and_other_spreadsheets_are_to_be_saved(tmp_path):
    book = openpyxl.Workbook()
    book.active.title = "remarks"
    book.active.append(["something", "else"])
    book.save(tmp_path / "a.xlsx")
    (tmp_path / "b.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500))
    assert "sheets (remarks)" in left_alone(tmp_path / "a.xlsx")
    assert "save it as xlsx" in left_alone(tmp_path / "b.xls")


def test_what_is_no_table_is_called_so(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "a.json").write_text('{"gene1": "RAD51"}\n')
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "a")
        archive.writestr("b.txt", "b")
    assert left_alone(tmp_path / "a.bin").startswith("it is not text")
    assert left_alone(tmp_path / "a.json").startswith("it is JSON")
    assert left_alone(tmp_path / "a.zip").startswith("it is a zip of several files")
