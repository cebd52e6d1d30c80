"""Names that a spreadsheet has changed: they are recognised, counted, and never become genes."""

from collections import Counter

import pytest

from deltacell.cell import Genes
from deltacell.cell.readers.damage import damaged_names, likely_genes, note_on_damage
from deltacell.data.import_folder import import_folder

LIKELY = {
    "7-Sep": ["SEPT7"],
    "07-Sep-24": ["SEPT7"],
    "Sep-07": ["SEPT7"],
    "1-Mar": ["MARCH1"],
    "2024-10-01": ["OCT1"],
    "2024-10-01 00:00:00": ["OCT1"],
    "9/7/2024": ["SEPT7"],
    "3/9/2024": ["MARCH9", "SEPT3"],
    "45542": ["SEPT7"],
    "5-May": [],
    "TRUE": [],
    "#REF!": [],
    "#NAME?": [],
    "2.31E+13": [],
}
NAMES = ("SEPT7", "MARCH1", "OCT1", "sep-1", "MAR1", "dec-1", "YAL001C", "A-1", "HLA-A", "1-SST")


@pytest.mark.parametrize("name", LIKELY)
def test_damage_is_told_from_names(name):
    assert damaged_names({name: 1, **dict.fromkeys(NAMES, 1)}) == Counter({name: 1})
    assert likely_genes(name) == LIKELY[name]


def test_a_column_of_numbers_has_identifiers():
    assert not damaged_names({"5551": 3, "45542": 1, "HO": 1})
    assert damaged_names({"5551": 1, "HO": 2}) == {"5551": 1}


def test_the_likely_gene_is_one_of_the_cell():
    genes = Genes(["SEPTIN7", "MARC1"], ["x", "y"])
    assert likely_genes("7-Sep", genes) == ["SEPTIN7"]
    assert likely_genes("1-Mar", genes) == ["MARC1"]
    assert likely_genes("2-Mar", genes) == ["MARCH2"]


@pytest.mark.parametrize("gene_list", [True, False])
def test_an_import_counts_and_names_the_damage(tmp_path, gene_list):
    if gene_list:
        text = "orf,gene name,aliases\nA1,SEPT7,\nB1,b,\nC1,c,\nD1,d,\n"
        (tmp_path / "genes.csv").write_text(text)
    rows = "A1,B1,0.1\nB1,C1,0.2\n7-Sep,B1,0.3\nTRUE,C1,0.4\nC1,9/7/2024,0.5\nD1,A1,0.6\n"
    (tmp_path / "screen.csv").write_text(f"gene1,gene2,score\n{rows}")
    edges = ["A1,B1", "B1,C1", "A1,C1", "#REF!,D1", "C1,D1"]
    network = "".join(f"{edge},0.5\n" for edge in edges)
    (tmp_path / "net.csv").write_text(f"gene1,gene2,weight\n{network}")
    imported = import_folder(tmp_path)
    assert sorted(imported.cell.genes.systematic) == ["A1", "B1", "C1", "D1"]
    [source] = imported.screens["screen"].sources
    assert source.counts.dropped == {"unknown gene": 3}
    assert source.notes["spreadsheet_damage"].startswith("3: ")
    assert source.notes["spreadsheet_damage"].count("(probably SEPT7)") == 2
    [network] = [s for s in imported.cell.sources if s.file == "net.csv"]
    assert network.notes["spreadsheet_damage"] == "1: #REF!"
    assert sum("spreadsheet" in note for note in imported.notes) == 2


def test_a_note_names_the_most_frequent_ones():
    many = Counter({f"{day}-Sep": day for day in range(1, 15)})
    note = note_on_damage(many)["spreadsheet_damage"]
    assert note.startswith("105: 14-Sep (probably SEPT14), 13-Sep")
    assert note.endswith(" and 4 more")
