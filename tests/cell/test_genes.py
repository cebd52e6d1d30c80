import numpy as np
import polars as pl
import pytest

from deltacell.cell import Genes
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN


@pytest.fixture
def genes():
    return Genes(
        ["YAL001C", "YBR002W", "YCL003C", "YDL227C"],
        ["TFC3", None, "YBR002W", "HO"],
        [("FUN24", "TSV115"), ("HO", "TSV115", "tsv115"), (), ("tfc3", "")],
        ["1", "2", "3", ""],
        [100, 200, 300, -1],
        [150, 250, 350, -1],
    )


@pytest.mark.parametrize(
    ("name", "index"),
    [
        *(("YAL001C", 0), ("yal001c", 0), (" Yal001C ", 0), ("tfc3", 0), ("fun24", 0)),
        *(("YBR002W", 1), ("ho", 3)),
    ],
)
def test_any_name_in_any_case_finds_the_gene(genes, name, index):
    # YBR002W is also a standard name of another gene, HO an alias and tfc3 too: each rank wins.
    assert genes.index(name) == index
    assert genes.resolve([name]).tolist() == [index]
    assert genes.indices([name, 2]).tolist() == [index, 2]


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("TSV115", "ambiguous-gene", "YAL001C (TFC3), YBR002W"),
        ("", "unknown-gene", "''"),
        ("TFC33", "unknown-gene", "did you mean 'TFC3'?"),
    ],
)
def test_a_name_that_does_not_resolve_says_why(genes, name, code, says, refused):
    error = refused(code, lambda: genes.index(name))
    assert says in error.message
    refused("ambiguous-gene", Genes(["A", "B"], ["X", "x "]).index, "X")


def test_many_names_resolve_and_genes_are_taken_with_all_that_is_known_of_them(genes):
    resolved = genes.resolve(pl.Series(["HO", "nobody", "tsv115", "HO", None]))
    assert resolved.tolist() == [3, UNKNOWN, AMBIGUOUS, 3, UNKNOWN]
    assert (genes.resolve([]).dtype, len(genes.resolve([]))) == (np.int64, 0)
    taken = genes.take([2, 0])
    assert (taken.systematic, taken.standard) == (("YCL003C", "YAL001C"), ("YBR002W", "TFC3"))
    assert (taken.aliases, taken.chromosome) == (((), ("FUN24", "TSV115")), ("3", "1"))
    assert (taken.start.tolist(), taken.end.tolist()) == ([300, 100], [350, 150])
    assert taken.index("FUN24") == 1
    extended = genes.extended(["new1", "yal001c", "NEW1", "new2"])
    assert extended.systematic == (*genes.systematic, "new1", "new2")
    assert extended.has_position.tolist() == [True, True, True, False, False, False]
    assert extended.take(range(4)) == genes


def test_genes_are_a_sequence_and_equal_when_all_that_is_known_is(genes):
    assert Genes.from_arrow(genes.to_arrow()) == genes
    assert hash(Genes.from_arrow(genes.to_arrow())) == hash(genes)
    assert Genes(genes.systematic) != genes
    assert (len(genes), genes[3], genes[:2]) == (4, "YDL227C", ("YAL001C", "YBR002W"))
    assert repr(genes) == "Genes(4: YAL001C, YBR002W, YCL003C, …)"
    # Genes without descriptions are stored as they were before there were any.
    assert "description" not in genes.to_arrow().column_names
    told = Genes(["A", "B"], description=["of A", ""])
    assert Genes.from_arrow(told.to_arrow()) == told


@pytest.mark.parametrize(
    ("names", "code"),
    [(["A", "a"], "duplicate-gene"), (["A", ""], "bad-gene-name"), (["A "], "bad-gene-name")],
)
def test_every_gene_has_a_name_of_its_own(names, code, refused):
    refused(code, lambda: Genes(names))
