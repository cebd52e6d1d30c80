from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from deltacell.cell import Genes
from deltacell.cell.genes import AMBIGUOUS, UNKNOWN
from deltacell.errors import GeneNameError


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
    assert genes.resolve([name]).index.tolist() == [index]
    assert genes.indices([name, 2]).tolist() == [index, 2]


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("TSV115", "ambiguous-gene", "YAL001C (TFC3), YBR002W"),
        ("nobody", "unknown-gene", "'nobody'"),
        ("", "unknown-gene", "''"),
        ("TFC33", "unknown-gene", "did you mean 'TFC3'?"),
    ],
)
def test_a_name_that_does_not_resolve_says_why(genes, name, code, says):
    with pytest.raises(GeneNameError) as caught:
        genes.index(name)
    assert caught.value.code == code
    assert says in caught.value.what


def test_two_genes_with_one_standard_name_are_ambiguous():
    with pytest.raises(GeneNameError, match=r"A \(X\), B \(x \)"):
        Genes(["A", "B"], ["X", "x "]).index("X")


def test_many_names_at_once_raise_nothing(genes):
    resolved = genes.resolve(pl.Series(["HO", "nobody", "tsv115", "HO", None]))
    assert resolved.index.tolist() == [3, UNKNOWN, AMBIGUOUS, 3, UNKNOWN]
    assert resolved.found.tolist() == [True, False, False, True, False]
    assert (genes.resolve([]).index.dtype, len(genes.resolve([]).index)) == (np.int64, 0)


def test_taking_genes_takes_all_that_is_known_of_them(genes):
    taken = genes.take([2, 0])
    assert taken.systematic == ("YCL003C", "YAL001C")
    assert taken.standard == ("YBR002W", "TFC3")
    assert taken.aliases == ((), ("FUN24", "TSV115"))
    assert taken.chromosome == ("3", "1")
    assert (taken.start.tolist(), taken.end.tolist()) == ([300, 100], [350, 150])
    assert taken.index("FUN24") == 1
    with pytest.raises(GeneNameError):
        taken.index("HO")


def test_extending_adds_each_new_gene_once_whatever_its_case(genes):
    extended = genes.extended(["new1", "yal001c", "NEW1", "new2"])
    assert extended.systematic == (*genes.systematic, "new1", "new2")
    assert extended.has_position.tolist() == [True, True, True, False, False, False]
    assert extended.take(range(4)) == genes


def test_genes_are_a_sequence_and_equal_when_all_that_is_known_is(genes):
    assert Genes.from_arrow(genes.to_arrow()) == genes
    assert hash(Genes.from_arrow(genes.to_arrow())) == hash(genes)
    assert Genes(genes.systematic) != genes
    assert genes != list(genes.systematic)
    assert (len(genes), genes[3], genes[:2]) == (4, "YDL227C", ("YAL001C", "YBR002W"))
    assert repr(genes) == "Genes(4: YAL001C, YBR002W, YCL003C, …)"


def test_descriptions_are_saved_and_genes_without_any_are_as_they_were():
    assert "description" not in Genes(["A", "B"]).to_arrow().column_names
    told = Genes(["A", "B"], description=["of A", ""])
    assert Genes.from_arrow(told.to_arrow()) == told
    assert told.extended(["C"]).description == ("of A", "", "")


@pytest.mark.parametrize(
    ("names", "code"),
    [(["A", "a"], "duplicate-gene"), (["A", ""], "bad-gene-name"), (["A "], "bad-gene-name")],
)
def test_every_gene_has_a_name_of_its_own(names, code):
    with pytest.raises(GeneNameError) as caught:
        Genes(names)
    assert caught.value.code == code
    with pytest.raises(ValueError, match="chromosome has 1 entries for 2 genes"):
        Genes(["A", "B"], chromosome=["1"])
