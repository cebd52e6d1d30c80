"""Fields that may be several genes: when they are split, and what is told otherwise."""

from itertools import pairwise

import pytest

from deltacell.cell.readers import networks
from deltacell.data.import_folder import import_folder
from deltacell.screen.readers import tables
from deltacell.storage.tables import ColumnNames


def rows_of(written):
    names = written.deleted["name"].to_list()
    return [names[a:b] for a, b in pairwise(written.offsets)]


@pytest.mark.parametrize("field", ["9/7/2024", "2.31E+13", "X;Y", "A B", "YAL002W+YAL003W"])
def test_a_second_column_of_genes_means_one_gene_per_field(write, field):
    path = write(f"gene1,gene2,score\n{field},YAL001C,0.5\nX,Y,1\n", "a.csv")
    [written] = tables.reader.read(path, is_known=lambda name: True)
    assert rows_of(written) == [[field, "YAL001C"], ["X", "Y"]]


@pytest.mark.parametrize("join", ["+", ";", "|", "/", "&", " ", " + "])
def test_one_column_is_split_if_all_parts_are_genes(write, join):
    rows = [f"A{join}B", f"A{join}nobody", f"C{join}D", "C", "D", f"YAL001C{join}YAL002W"]
    path = write("genes,fitness\n" + "".join(f"{row},0.5\n" for row in rows), "a.csv")
    [written] = tables.reader.read(path, is_known={"A", "B"}.__contains__)
    expected = [["A", "B"], [f"A{join}nobody"], ["C", "D"], ["C"], ["D"], ["YAL001C", "YAL002W"]]
    assert rows_of(written) == expected
    whole = {"A", "B", f"A{join}B"}
    [written] = tables.reader.read(path, is_known=whole.__contains__)
    assert rows_of(written)[0] == [f"A{join}B"]


def test_without_a_list_of_genes_it_asks_or_is_told(write, refused):
    path = write("genes,score\nA+B,0.5\nA+C,0.25\n", "a.csv")
    assert refused("bad-rows", tables.reader.read, path).line == 2
    columns = [ColumnNames.parse("genes=genes,score=score")]
    [written] = tables.reader.read(path, columns)
    assert rows_of(written) == [["A", "B"], ["A", "C"]]


def test_columns_can_say_that_a_query_has_several_genes(write):
    path = write("first,second,effect\nA+B,C,0.5\nA,C+D,0.25\n", "a.csv")
    columns = [ColumnNames.parse("genes1=first,gene2=second,score=effect")]
    [written] = tables.reader.read(path, columns)
    assert rows_of(written) == [["A", "B", "C"], ["A", "C+D"]]


def test_a_strain_id_may_have_several_orfs(write):
    rows = ["YAL001C+YDL227C_tm461,YAL003W_dma1,0.5", "X+Y_tm1,YAL003W_dma1,1"]
    path = write("\n".join(["Query strain ID,Array strain ID,tau", *rows, ""]), "a.csv")
    [written] = tables.reader.read(path)
    assert rows_of(written) == [["YAL001C", "YDL227C", "YAL003W"], ["X+Y", "YAL003W"]]


@pytest.mark.parametrize("gene_list", [True, False])
def test_names_of_several_genes_never_become_genes(tmp_path, gene_list):
    if gene_list:
        (tmp_path / "genes.csv").write_text("orf,gene name,aliases\nA,a,\nB,b,\nC,c,\n")
    (tmp_path / "screen.csv").write_text("query,array,score\nA+B,C,0.5\nA,B,1\nB,C,2\n")
    imported = import_folder(tmp_path)
    assert sorted(imported.cell.genes) == ["A", "B", "C"]
    [source] = imported.screens["screen"].sources
    assert source.counts.dropped == {"unknown gene": 1}
    assert source.notes["names_of_several_genes"] == "1: A+B"
    assert any("--columns" in note for note in imported.notes)


@pytest.mark.parametrize("repeated", ["score,score", "score,p,p"])
def test_two_columns_of_one_name_are_refused_if_they_differ(write, repeated, refused):
    n = repeated.count(",") + 1
    rows = ["A,B," + ",".join(f"0.{i + 1}" for i in range(n)), "A,C," + ",".join(["0.5"] * n)]
    path = write("\n".join([f"gene1,gene2,{repeated}", *rows, ""]), "a.csv")
    refused("repeated-column", tables.reader.read, path)
    same = write(f"gene1,gene2,{repeated}\n" + "A,B," + ",".join(["0.5"] * n) + "\n", "b.csv")
    [written] = tables.reader.read(same)
    assert written.rows["score"].to_list() == [0.5]


def test_two_columns_with_one_number_are_refused_if_they_differ(write, refused):
    path = write("gene1,gene2,gene2,score\nA,B,C,0.5\nA,C,D,1\n", "a.csv")
    refused("repeated-column", tables.reader.read, path)
    network = write("gene1\tgene2\tgene2\tweight\nA\tB\tC\t0.5\n", "net.tsv")
    refused("repeated-column", networks.edge_list.read, network)
    same = write("gene1,gene2,gene2,score\nA,B,B,0.5\n", "b.csv")
    [written] = tables.reader.read(same)
    assert rows_of(written) == [["A", "B"]]
    # Two queries without a number are the two genes of a double mutant.
    triples = write("query gene,query gene,array gene,score\nA,B,C,0.5\n", "c.csv")
    [written] = tables.reader.read(triples)
    assert rows_of(written) == [["A", "B", "C"]]


def test_a_name_without_end_is_refused(write, refused, genes):
    path = write(f"gene1,gene2,score\nA,B,0.5\n{'x' * 300},B,0.5\n", "a.csv")
    assert refused("bad-rows", tables.reader.read, path).line == 3
    refused("bad-gene-name", genes.extended, ["x" * 300])
