"""Gene sets as people write them down."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from deltacell.cell import Genes
from deltacell.errors import GeneNameError, InputError
from deltacell.predict.request import GeneNames, gene_texts, read_genes, read_sets, sets_checksum

GENES = Genes(
    ["YDL227C", "YFL026W", "YCR040W", "YHR152W", "YBR053C"],
    ["HO", "STE2", "MATALPHA1", "SPO12", None],
    [["ENDO"], [], [], ["SAME"], ["SAME"]],
)
NAMES = GeneNames(GENES)


def written(tmp_path, text):
    path = tmp_path / "sets.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_names_of_any_kind_with_anything_between(tmp_path):
    text = (
        "\ufeffGene1\tGene2\r\n# a comment\r\n\r\nHO, ste2\r\nYFL026W;endo # the same\r\n"
        '"HO"\t"MATALPHA1"\tYBR053C\r\n'
    )
    pairs, triples = read_sets(written(tmp_path, text), NAMES)
    assert pairs.tolist() == [[0, 1]]
    assert triples.tolist() == [[0, 2, 4]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "there is no gene set in the file"),
        ("# nothing\n\n", "there is no gene set in the file"),
        ("HO STE2\nHO STE3\n", r"line 2: no gene is called 'STE3'\n  Did you mean STE2\?"),
        ("HO STE2\nHO same\n", "line 2: 'same' is ambiguous"),
        ("HO STE2\n\nHO ENDO\n", r"line 3: the set names the gene YDL227C \(HO\) twice"),
        ("first second\nHO STE2\n", "line 1: .*\n.*names of columns begins with #"),
        (b"HO \xff\xfe\n", "not text in UTF-8"),
        (b"HO\0STE2\n", "zero bytes"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(tmp_path, text, said):
    with pytest.raises(InputError, match=said):
        read_sets(written(tmp_path, text), NAMES)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match="there is no such file"):
        read_sets(tmp_path / "none.txt", NAMES)


def test_a_parquet_file_as_the_command_writes_it(tmp_path):
    path = tmp_path / "sets.parquet"
    pq.write_table(pa.table({"genes": [["YFL026W", "YDL227C"], ["HO", "STE2"]]}), path)
    assert [s.tolist() for s in read_sets(path, NAMES)] == [[[0, 1]]]
    pq.write_table(pa.table({"gene": ["HO"]}), path)
    with pytest.raises(InputError, match="no column 'genes'; it has gene"):
        read_sets(path, NAMES)
    pq.write_table(pa.table({"genes": [1, 2]}), path)
    with pytest.raises(InputError, match="must hold lists of gene names"):
        read_sets(path, NAMES)
    pq.write_table(pa.table({"genes": [["HO"], []]}), path)
    with pytest.raises(InputError, match="a set of the file has no gene"):
        read_sets(path, NAMES)
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(InputError, match="cannot be read"):
        read_sets(path, NAMES)


def test_genes_each_once(tmp_path):
    assert read_genes(written(tmp_path, "gene\nSTE2\nHO\nYDL227C\n"), NAMES).tolist() == [0, 1]
    with pytest.raises(InputError, match="there is no gene in the file"):
        read_genes(written(tmp_path, "\n"), NAMES)


def test_the_checksum_is_of_the_sets():
    pairs, triples = np.array([[0, 1]]), np.array([[0, 1, 2]])
    assert sets_checksum([pairs, triples]) == sets_checksum([triples, pairs])
    assert sets_checksum([pairs]) != sets_checksum([triples])
    assert sets_checksum([pairs]) != sets_checksum([np.array([[0, 2]])])


def test_a_gene_that_the_run_was_trained_without():
    names = GeneNames(GENES.take([0, 1]), GENES)
    with pytest.raises(GeneNameError, match=r"YHR152W \(SPO12\) is not among the 2 .*trained"):
        names.index("SPO12")
    with pytest.raises(GeneNameError, match="no gene is called 'XYZ'\n  Give systematic"):
        names.index("XYZ")


def test_genes_given_once():
    assert NAMES.indices(["STE2", "HO"]).tolist() == [1, 0]
    with pytest.raises(GeneNameError, match=r"YDL227C \(HO\) was given twice"):
        NAMES.indices(["HO", "ENDO"])


def test_the_name_that_people_use():
    assert gene_texts(GENES) == ["HO", "STE2", "MATALPHA1", "SPO12", "YBR053C"]
