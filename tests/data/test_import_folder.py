"""Importing a folder: what it may be called, and what stops it."""

import os
import zipfile

import openpyxl
import pytest

from deltacell import Cell, Screen
from deltacell.data.import_folder import Imported, import_folder, open_screen

EDGES = "YAL001C\tYAL002W\t0.5\nYAL002W\tYAL003W\t0.5\n"


@pytest.fixture
def folder(tmp_path):
    """A function that writes files into a folder and returns it."""

    def write(**files):
        (tmp_path / "in").mkdir(exist_ok=True)
        for name, text in files.items():
            (tmp_path / "in" / name.replace("__", ".")).write_text(text)
        return tmp_path / "in"

    return write


@pytest.mark.parametrize("name", ["../x", "/proc/x", "a/b", "..", ".", ""])
def test_the_name_of_a_screen_leads_nowhere_else(tmp_path, name, refused):
    cell = Cell.synthetic("demo")
    imported = Imported(cell, {name: Screen.synthetic(cell, n=100)})
    refused("screen-name", imported.save, tmp_path / "deep" / "out")
    assert not list(tmp_path.iterdir())


def test_a_subfolder_that_cannot_be_read_is_not_passed_over(folder, monkeypatch, refused):
    path = folder(mine__tsv=EDGES)
    (path / "closed").mkdir()
    scandir = os.scandir

    def scan(path):
        if os.fspath(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", os.fspath(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", scan)
    refused("unreadable-folder", import_folder, path)


def test_hidden_files_and_folders_are_not_read(folder):
    path = folder(mine__tsv=EDGES, __other__tsv="YAL001C\tYAL003W\n")
    (path / ".git").mkdir()
    (path / ".git" / "more.tsv").write_text("YAL001C\tYAL004W\n")
    imported = import_folder(path)
    assert list(imported.cell.relations) == ["mine"]
    assert not imported.left_alone


def test_a_table_of_scores_is_a_screen_and_not_a_network(folder, tmp_path, refused):
    path = folder(
        ppi__csv="gene1,gene2,weight\nYAL001C,YAL002W,0.5\n",
        pairs__csv="gene1,gene2,score\nYAL001C,YAL002W,-0.5\n",
        triples__tsv="Query 1\tQuery 2\tArray\tepsilon\nYAL001C\tYAL002W\tYAL003W\t0.5\n",
    )
    imported = import_folder(path)
    assert list(imported.cell.relations) == ["ppi"]
    assert list(imported.screens) == ["pairs", "triples"]
    assert imported.screens["pairs"].column("score").tolist() == [-0.5]
    assert imported.screens["triples"].stats()["kinds"] == {"trigenic": 1}
    assert not imported.left_alone
    imported.save(tmp_path / "out")
    assert open_screen(tmp_path / "out", "pairs").equals(imported.screens["pairs"])
    assert len(open_screen(tmp_path / "out" / "screens" / "pairs")) == 1
    for name in (None, "other"):
        refused("unknown-screen", open_screen, tmp_path / "out", name)


def test_a_screen_without_the_requested_phenotype_is_not_read_as_another(folder, refused):
    path = folder(
        pairs__csv="gene1,gene2,score\nYAL001C,YAL002W,-0.5\n",
        others__tsv="Query\tArray\tepsilon\nYAL001C\tYAL003W\t0.5\n",
    )
    error = refused("missing-phenotype", import_folder, path, phenotype="fitness")
    assert error.fields["phenotypes"] == ("interaction",)
    both = "gene1,gene2,score,fitness\nYAL001C,YAL002W,-0.5,0.25\n"
    (path / "both.csv").write_text(both)
    imported = import_folder(path, phenotype="fitness")
    assert list(imported.screens) == ["both"]
    assert imported.screens["both"].column("score").tolist() == [0.25]
    assert set(imported.left_alone) == {"pairs.csv", "others.tsv"}
    assert list(import_folder(path).screens) == ["both", "others", "pairs"]


def test_a_file_whose_name_is_not_text_is_refused(tmp_path, refused):
    try:
        (tmp_path / os.fsdecode(b"a\xff.txt")).write_text("YAL001C\tYAL002W\n")
    except OSError:
        pytest.skip("the file system takes no such names")
    refused("file-name", lambda: import_folder(tmp_path))


def test_without_a_file_of_genes_a_gene_with_two_names_is_two(folder):
    path = folder(
        ppi__csv="gene1,gene2,weight\nyer095w,RAD52,0.5\nRAD51,YML032C,0.2\n",
        mine__csv="gene1,gene2,score\nYER095W,RAD52,0.1\nRAD51,RAD54,-0.2\nYER095W,RAD51,-0.3\n",
    )
    imported = import_folder(path)
    assert set(imported.cell.genes) == {"YER095W", "YML032C", "RAD51", "RAD52", "RAD54"}
    assert "count as two" in imported.notes[0]
    orfs = {"YER095W": "RAD51", "YML032C": "RAD52", "YGL163C": "RAD54"}
    row = "S1\tORF\tVerified\t{}\t{}\t\tchromosome 5\t\t5\t1\t9\tW\t\t\t\t\n"
    folder(SGD_features__tab="".join(row.format(*names) for names in orfs.items()))
    imported = import_folder(path)
    assert "SGD_features.tab" in imported.notes[0]
    assert list(imported.cell.genes) == list(orfs)
    (source,) = imported.screens["mine"].sources
    assert source.counts.dropped == {"same gene twice after aliases": 1}


def test_the_same_feature_twice_is_kept_once_and_another_of_its_name_is_renamed(folder):
    table = "Strain ID;26;30\nYAL001C_tsq1;0,5;\nYAL001C_dma2;0,7;1,0\nYAL002W_sn1;0,9;0,25\n"
    rounded = table.replace(";", "\t").replace(",", ".").replace("0.7", "0.7000001")
    other = "orf\tx\nYAL001C\t1\nYAL002W\t2\n"
    path = folder(ppi__tsv=EDGES, fitness__csv=table, fitness__tab=rounded, fitness__txt=other)
    imported = import_folder(path)
    assert list(imported.cell.features) == ["fitness", "fitness_2"]
    assert imported.cell.features["fitness_2"].columns == ("x",)
    into = [s.into for s in imported.cell.sources if s.reader == "features_table"]
    assert into == ["fitness", "fitness_2"]
    why = "it is the same feature as fitness.csv."
    assert imported.left_alone == {"fitness.tab": why}
    assert f"fitness.tab: {why}" in imported.notes
    assert any("'fitness_2'" in note for note in imported.notes)


def test_a_feature_of_no_known_gene_is_left_alone_and_one_with_text_refused(folder, refused):
    path = folder(ppi__tsv=EDGES, human__csv="gene,x\nP53,1\nBRCA1,2\n")
    imported = import_folder(path)
    assert not imported.cell.features
    assert "'P53'" in imported.left_alone["human.csv"]
    assert any(note.startswith("human.csv: none of its 2 rows") for note in imported.notes)
    refused("unknown-gene", import_folder, path, on_unknown="error")
    folder(fitness__csv="gene,x\nYAL001C,1\nYAL002W,2\nYAL003W,high\n")
    error = refused("bad-rows", import_folder, path)
    assert (error.where, error.line) == (path / "fitness.csv", 4)


def test_why_a_file_is_left_alone(folder):
    path = folder(ppi__tsv=EDGES, a__csv="a,b,strength,by\nRAD51,RAD52,0.5,me\n", empty__txt="")
    book = openpyxl.Workbook()
    book.active.title = "remarks"
    book.active.append(["something", "else"])
    book.save(path / "a.xlsx")
    with zipfile.ZipFile(path / "a.zip", "w") as archive:
        archive.writestr("a.txt", "a")
        archive.writestr("b.txt", "b")
    (path / "b.xls").write_bytes(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(500))
    (path / "a.bin").write_bytes(bytes(range(256)))
    left = import_folder(path).left_alone
    assert left.pop("empty.txt") == "it is empty"
    assert left.keys() == {"a.xlsx", "a.zip", "b.xls", "a.bin", "a.csv"}
    assert all("gene1,gene2,score (a screen)" in why for why in left.values())
