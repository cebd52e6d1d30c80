"""Importing a folder: what it may be called, and what stops it."""

from __future__ import annotations

import gzip
import os
import zipfile

import numpy as np
import openpyxl
import polars as pl
import pytest

from deltacell import Cell, Screen
from deltacell.cell import readers as cell_readers
from deltacell.errors import InputError
from deltacell.screen import readers as screen_readers
from deltacell.screen.import_folder import Imported, import_folder, why_unread


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


def test_weights_below_zero_are_spoken_of(tmp_path):
    (tmp_path / "ppi.csv").write_text("gene1,gene2,weight\nYAL001C,YAL002W,0.5\n")
    (tmp_path / "screen.csv").write_text("gene1,gene2,weight\nYAL001C,YAL002W,-0.5\n")
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


SGD = "S1\tORF\tVerified\t{}\t{}\t{}\tchromosome 5\t\t5\t1\t9\tW\t\t\t\t\n"


def mixed(folder):
    (folder / "ppi.csv").write_text("gene1,gene2,weight\nyer095w,RAD52,0.5\nRAD51,YML032C,0.2\n")
    (folder / "mine.csv").write_text(
        "gene1,gene2,score\nYER095W,RAD52,0.1\nRAD51,RAD54,-0.2\nYER095W,RAD51,-0.3\n"
    )
    return folder


def test_names_of_two_kinds_without_a_file_of_genes_are_spoken_of(tmp_path):
    imported = import_folder(mixed(tmp_path))
    assert set(imported.cell.genes) == {"YER095W", "YML032C", "RAD51", "RAD52", "RAD54"}
    note = imported.notes[0]
    assert "2 by a systematic name (such as YER095W) and 3 by another (such as RAD51)" in note
    assert "counts as two" in note
    assert "deltacell data get sgd-features" in note
    assert "--unknown has nothing to act on" in note


def test_with_a_file_of_genes_two_names_are_one_gene(tmp_path):
    orfs = {"YER095W": "RAD51", "YML032C": "RAD52", "YGL163C": "RAD54"}
    text = "".join(SGD.format(orf, name, "") for orf, name in orfs.items())
    (mixed(tmp_path) / "SGD_features.tab").write_text(text)
    imported = import_folder(tmp_path)
    assert imported.notes[0] == "The genes are those of SGD_features.tab."
    assert list(imported.cell.genes) == list(orfs)
    (source,) = imported.screens["mine"].sources
    assert source.counts.dropped == {"same gene twice after aliases": 1}


FITNESS = [["YAL001C_tsq1", 0.5, None], ["YAL001C_dma2", 0.7, 1.0], ["YAL002W_sn1", 0.9, 0.25]]


def write_fitness(path):
    header = ["Strain ID", "26", "30"]
    if path.suffix == ".xlsx":
        book = openpyxl.Workbook()
        for row in [header, *FITNESS]:
            book.active.append(row)
        book.save(path)
    elif path.suffix == ".parquet":
        pl.DataFrame(FITNESS, schema=header, orient="row").write_parquet(path)
    else:
        separator = ";" if path.suffix == ".csv" else "\t"
        rows = [["" if x is None else str(x).replace(".", ",") for x in row] for row in FITNESS]
        text = "\n".join(separator.join(row) for row in [header, *rows]) + "\n"
        data = ("\ufeff" + text).encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


@pytest.mark.parametrize("ending", ["csv", "tsv", "tsv.gz", "xlsx", "parquet"])
def test_a_feature_in_any_form_is_part_of_the_cell_on_disk(tmp_path, ending):
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "ppi.tsv").write_text("YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.5\n")
    write_fitness(folder / f"fitness.{ending}")
    import_folder(folder).save(tmp_path / "out")
    imported = Imported.load(tmp_path / "out")
    feature = imported.cell.features["fitness"]
    assert feature.columns == ("26", "30")
    expected = np.array([[0.6, 1], [0.9, 0.25], [np.nan, np.nan]], dtype=np.float32)
    assert np.array_equal(feature.values, expected, equal_nan=True)
    assert list(imported.cell.relations) == ["ppi"]
    (source,) = [s for s in imported.cell.sources if s.into == "fitness"]
    assert (source.counts.read, source.counts.kept) == (3, 2)
    assert not imported.left_alone


def test_the_same_feature_twice_is_kept_once_and_another_of_its_name_is_renamed(tmp_path):
    (tmp_path / "ppi.tsv").write_text("YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.5\n")
    for name in ("fitness.csv", "fitness.xlsx"):
        write_fitness(tmp_path / name)
    (tmp_path / "fitness.txt").write_text("orf\tx\nYAL001C\t1\nYAL002W\t2\n")
    imported = import_folder(tmp_path)
    assert list(imported.cell.features) == ["fitness", "fitness_2"]
    assert imported.cell.features["fitness_2"].columns == ("x",)
    assert [s.into for s in imported.cell.sources if s.reader == "features_table"] == [
        "fitness",
        "fitness_2",
    ]
    (left,) = imported.left_alone
    assert left.file == "fitness.xlsx"
    assert "fitness.csv" in left.why
    assert any("fitness.xlsx holds the same feature" in note for note in imported.notes)
    assert any("'fitness_2'" in note for note in imported.notes)


def test_a_table_without_a_known_gene_is_left_alone_with_a_notice(tmp_path):
    (tmp_path / "ppi.tsv").write_text("YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.5\n")
    (tmp_path / "human.csv").write_text("gene,x\nP53,1\nBRCA1,2\n")
    imported = import_folder(tmp_path)
    assert not imported.cell.features
    (left,) = imported.left_alone
    assert left.file == "human.csv"
    assert "'P53'" in left.why
    assert any(note.startswith("human.csv holds no feature") for note in imported.notes)
    with pytest.raises(InputError, match="P53"):
        import_folder(tmp_path, on_unknown="error")


def test_text_among_the_numbers_of_a_feature_stops_the_import(tmp_path):
    (tmp_path / "ppi.tsv").write_text("YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.5\n")
    (tmp_path / "fitness.csv").write_text("gene,x\nYAL001C,1\nYAL002W,2\nYAL003W,high\n")
    with pytest.raises(InputError, match="'high'") as caught:
        import_folder(tmp_path)
    assert (caught.value.where, caught.value.line) == (tmp_path / "fitness.csv", 4)


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
