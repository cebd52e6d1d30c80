from __future__ import annotations

import hashlib

import pytest

from deltacell.cell.readers import recognise, string_adjacency
from deltacell.errors import InputError

GENES = "YAL001C\nYAL002W\nYAL003W\n"


def test_numbers_are_lines_of_the_gene_list(write):
    listed = write(GENES, "yeast_string_genes.txt")
    path = write("1\t2\t0.5\n2\t1\t0.5\n3\t1\t0.25\n", "yeast_string_neighborhood_adjacency.txt.gz")
    [edges] = string_adjacency.read(path)
    assert edges.name == "string_neighborhood"
    assert not edges.directed
    assert list(edges.source) == ["YAL001C", "YAL002W", "YAL003W"]
    assert list(edges.target) == ["YAL002W", "YAL001C", "YAL001C"]
    assert list(edges.weight) == [0.5, 0.5, 0.25]
    assert list(edges.lines) == [1, 2, 3]
    assert edges.notes == {
        "gene list": "yeast_string_genes.txt",
        "gene list sha256": hashlib.sha256(listed.read_bytes()).hexdigest(),
    }


def test_other_file_names_give_the_relation_their_stem(write):
    write(GENES, "genes.txt")
    [edges] = string_adjacency.read(write("1\t2\t0.5\n", "mine.v1.tsv.gz"))
    assert edges.name == "mine.v1"


def test_a_gene_list_may_be_named(write):
    write(GENES, "genes.txt")
    other = write("Q0010\nQ0017\n", "other.txt")
    [edges] = string_adjacency.read(write("1\t2\t0.5\n", "net.tsv"), other)
    assert (list(edges.source), list(edges.target)) == (["Q0010"], ["Q0017"])


def test_no_gene_list_beside(write):
    path = write("1\t2\t0.5\n", "net.tsv")
    write(b"\x1f\x8b broken", "broken.gz")
    with pytest.raises(InputError, match="there is none beside") as caught:
        string_adjacency.read(path)
    assert caught.value.where == path
    assert caught.value.fix


def test_several_gene_lists_beside(write):
    write(GENES, "a.txt")
    write(GENES, "b.txt.gz")
    with pytest.raises(InputError, match=r"2 of them: 'a\.txt', 'b\.txt\.gz'"):
        string_adjacency.read(write("1\t2\t0.5\n", "net.tsv"))


@pytest.mark.parametrize("number", ["0", "4", "-1"])
def test_number_out_of_range(number, write):
    write(GENES, "genes.txt")
    for row in (f"{number}\t1\t0.5", f"1\t{number}\t0.5"):
        path = write(f"1\t2\t0.5\n\n{row}\n", "net.tsv")
        with pytest.raises(InputError, match=f"{number} is out of range.* 1 to 3") as caught:
            string_adjacency.read(path)
        assert caught.value.where == path
        assert caught.value.line == 3


def test_header_where_none_belongs(write):
    write(GENES, "genes.txt")
    path = write("i\tj\tscore\n1\t2\t0.5\n", "yeast_string_fusion_adjacency.txt")
    assert recognise(path) == "string_adjacency"
    with pytest.raises(InputError, match="header where none belongs") as caught:
        string_adjacency.read(path)
    assert caught.value.line == 1


def test_what_is_not_a_whole_number(write):
    write(GENES, "genes.txt")
    with pytest.raises(InputError, match=r"'1\.5' is not a line number") as caught:
        string_adjacency.read(write("1\t2\t0.5\n1.5\t2\t0.5\n", "net.tsv"))
    assert caught.value.line == 2
