"""Why a file is left alone: the reason that is told is the one that is there."""

from __future__ import annotations

import gzip
import zipfile

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltacell.cell import readers as cell_readers
from deltacell.screen import readers as screen_readers
from deltacell.screen.readers import headed
from deltacell.screen.unread import why_unread


def left_alone(path):
    assert screen_readers.recognise(path) is None
    assert cell_readers.recognise(path) is None
    return why_unread(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gene1;gene2;score\nRAD51;RAD52;-0,1\n", "decimal commas"),
        ('"gene1","gene2","score"\n"RAD51","RAD52","-0,1"\n', "decimal commas"),
        ("RAD51\tRAD52\t0,5\nRAD52\tHO\t1,5\n", "decimal commas"),
        ("gene1;gene2;weight\nRAD51;RAD52;0,5\n", "decimal commas; write them with points, and"),
        ("RAD51;RAD52;0.5\nRAD52;HO;1.5\n", "separated by semicolons"),
        ("My screen\ngene1,gene2,score\nRAD51,RAD52,0.5\n", "begins at line 2"),
        ("# made in May\n\nRAD51,RAD52,0.5\nRAD52,HO,0.5\n", "begins at line 3"),
        ("gene1,gene2,strength,by\nRAD51,RAD52,0.5,me\n", "genes and no score or weight"),
        ("a,b,strength,by\nRAD51,RAD52,0.5,me\n", "gene1,gene2,score (a screen),"),
        ("gene1,gene2,weight,by\nRAD51,RAD52,0.5,me\n", "further columns"),
        ("gene1,gene2,weight\nRAD51,RAD52,\n", "column 'weight' holds no number"),
        ("gene1,gene2,Score,by\nRAD51,RAD52,high,me\n", "column 'Score' holds no number"),
        ("gene1,gene2,epsilon,tau\nRAD51,RAD52,1,2\n", "two scores, 'epsilon' and 'tau'"),
        ("orf1,gene1,orf2,gene2,score\nA,B,C,D,1\n", "'orf1' and 'gene1' are of one gene"),
        ("gene1,gene2,weight\n851,852,0.5\n", "its genes are numbers"),
        ("RAD51,0.5\nRAD52,1.5\n", "genes and numbers and no header"),
        ("My table\ngene,fitness\nRAD51,0.5\n", "begins at line 2"),
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


def test_a_spreadsheet_is_to_be_saved_as_csv(tmp_path):
    book = openpyxl.Workbook()
    for row in (["gene1", "gene2", "score"], ["RAD51", "RAD52", 0.5]):
        book.active.append(row)
    book.save(tmp_path / "a.xlsx")
    (tmp_path / "b.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500))
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.write(tmp_path / "a.xlsx", "a.xlsx")
    for name in ("a.xlsx", "b.xls", "c.zip"):
        assert left_alone(tmp_path / name).startswith("it is a spreadsheet")


def test_what_is_no_table_is_called_so(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(range(256)))
    (tmp_path / "a.json").write_text('{"gene1": "RAD51"}\n')
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "a")
        archive.writestr("b.txt", "b")
    assert left_alone(tmp_path / "a.bin").startswith("it is not text")
    assert left_alone(tmp_path / "a.json").startswith("it is JSON")
    assert left_alone(tmp_path / "a.zip").startswith("it is a zip of several files")


@given(st.lists(st.text(max_size=40) | st.just("gene1,gene2,score,weight"), max_size=4))
def test_any_header_lacks_something_or_nothing_without_an_error(lines):
    assert headed.why_not(lines) is None or not headed.recognise(lines, "a.txt")
