"""Text in one encoding, without characters that nobody sees."""

import polars as pl
import pytest

from deltacell.base.plain_text import PlainText, plain_text
from deltacell.cell import Genes
from deltacell.data.import_folder import import_folder
from deltacell.ranking.source import read_sets
from deltacell.storage.tables import File, Table

HIDDEN = "\u00ad\u061c\u180e\u200b\u200c\u200d\u200e\u200f\u202a\u202e\u2060\u2066\u2069\ufeff"
CONTROLS = "\x01\x07\x0e\x1b\x1f\x7f"
ACCENTED = "B\u00e9"
DECOMPOSED = "Be\u0301"  # which looks the same


@pytest.mark.parametrize("mark", [*HIDDEN, "\u034f", "\ufe0f", *CONTROLS])
def test_invisible_characters_are_removed_and_counted(mark):
    assert plain_text(f"a{mark}b{mark}\n".encode()) == PlainText(b"ab\n", n_invisible=2)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("rad52\u0394".encode(), PlainText("rad52\u0394".encode())),
        (b"\xef\xbb\xbfa\r\nb\rc", PlainText(b"a\nb\nc")),
        ("a\n".encode("utf-16"), PlainText(b"a\n")),
        (b"caf\xe9 \x80", PlainText("caf\u00e9 \u20ac".encode())),
        (
            "rad52\u0394\n".encode() + b"caf\xe9\n",
            PlainText("rad52\u0394\ncaf\u00e9\n".encode(), n_other_encoding=1),
        ),
        (b"a\x81b", PlainText("a\ufffdb".encode(), n_unreadable=1)),
    ],
)
def test_text_of_every_encoding_is_read_and_utf8_stays(data, expected):
    assert plain_text(data) == expected
    assert plain_text(expected.utf8).utf8 == expected.utf8


@pytest.mark.parametrize("kind", ["csv", "parquet", "xlsx"])
def test_no_table_has_ghosts_of_genes(kind, tmp_path):
    frame = pl.DataFrame(
        {"gene\u200b1": ["A", "A\ufeff", "\u202aA"], "gene2": ["B", "C", "D"], "score": [1, 2, 3]},
    )
    path = tmp_path / f"screen.{kind}"
    if kind == "xlsx":
        openpyxl = pytest.importorskip("openpyxl")
        book = openpyxl.Workbook()
        for row in (frame.columns, *frame.iter_rows()):
            book.active.append(row)
        book.save(path)
    else:
        getattr(frame, f"write_{kind}")(path)
    imported = import_folder(tmp_path)
    assert sorted(imported.cell.genes) == ["A", "B", "C", "D"]
    [screen] = imported.screens.values()
    assert screen.sources[0].notes["invisible_characters_removed"] >= 2
    assert any("invisible" in note for note in imported.notes)


def test_a_frame_in_memory_has_no_ghosts_either():
    table = Table.from_memory(pl.DataFrame({"a": ["x\u200b", "y"], "b": [1, 2]}), "name")
    assert table.frame["a"].to_list() == ["x", "y"]
    assert table.notes == {"invisible_characters_removed": 1}


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_a_letter_with_an_accent_is_one_letter_however_it_is_written(kind, tmp_path):
    frame = pl.DataFrame(
        {"gene1": [ACCENTED, DECOMPOSED], "gene2": ["C", "D"], "score": [1.0, 2.0]},
    )
    getattr(frame, f"write_{kind}")(tmp_path / f"screen.{kind}")
    imported = import_folder(tmp_path)
    assert sorted(imported.cell.genes) == [ACCENTED, "C", "D"]
    [screen] = imported.screens.values()
    assert screen.sources[0].notes["letters_composed"] == 1
    assert imported.cell.genes.index(DECOMPOSED) == imported.cell.genes.index(ACCENTED)
    sets = tmp_path / "sets.txt"
    sets.write_text(f"{DECOMPOSED} C\n", encoding="utf-8")
    [pairs] = read_sets(sets, imported.cell.genes)
    assert len(pairs) == 1


def test_genes_of_a_cell_keep_the_spelling_that_a_program_gave_them():
    genes = Genes([DECOMPOSED, "C"])
    assert genes.index(DECOMPOSED) == 0


def test_a_file_in_two_encodings_keeps_both(tmp_path, genes):
    path = tmp_path / "a.csv"
    path.write_bytes("gene1,gene2,score\nrad52\u0394,HO,1\n".encode() + b"HO,caf\xe9,2\n")
    table = File(path).lines()
    assert table.frame["text"].to_list()[1:] == ["rad52\u0394,HO,1", "HO,caf\u00e9,2"]
    assert table.notes == {"characters_in_another_encoding": 1}
