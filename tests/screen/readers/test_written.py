"""Looking up the names of a written screen: policies, counts, coverage."""

from __future__ import annotations

import pytest

from deltacell.cell import Genes
from deltacell.errors import GeneNameError, InputError
from deltacell.screen.readers import tables


@pytest.fixture
def read(write):
    def _read(*rows, **options):
        text = "query\tarray\tscore\n" + "".join(row.replace("|", "\t") + "\n" for row in rows)
        text = text.replace("score", "fitness") if "phenotype" in options else text
        [written] = tables.reader.read(write(name="screen.tsv", text=text), **options)
        return written

    return _read


def test_names_of_every_kind_resolve(read, genes):
    screen = read("tfc3|YAL003W|1", "OLD1|vps8|2", "YAL001C|efb1|3").on(genes)
    assert screen.genotypes.genes.tolist() == [0, 2, 0, 1, 0, 2]
    (source,) = screen.sources
    assert source.counts.to_json() == {"read": 3, "resolved": 3, "kept": 3, "dropped": {}}
    assert source.notes == {
        "distinct_sets_as_written": 3,
        "genes_as_written": 6,
        "distinct_sets": 2,
        "genes": 3,
    }
    assert (source.file, source.reader, source.into) == ("screen.tsv", "table", "screen")


def test_all_unknown_and_ambiguous_names_are_reported_at_once(read, genes):
    rows = [f"YAL001C|{name}|1" for name in ("A", "B", "C", "D", "E", "F", "b", "SHARED")]
    with pytest.raises(GeneNameError) as caught:
        read("YAL001C|YAL002W|1", *rows).on(genes)
    error = caught.value
    assert (error.code, error.line, error.where.name) == ("unknown-gene", 3, "screen.tsv")
    assert error.fields == {
        "unknown_genes": "B, A, C, D, E and 1 more",
        "ambiguous_gene_names": "SHARED",
    }


def test_dropped_rows_are_counted_by_reason(read, genes):
    rows = ["YAL001C|NOPE|2", "SHARED|YAL001C|3", "TFC3|OLD1|4", "NOPE|SHARED|5", "EFB1|efb1|6"]
    screen = read("YAL001C|YAL002W|1", *rows).on(genes, "drop")
    assert screen.column("score").tolist() == [1]
    assert screen.column("source_row").tolist() == [2]
    (source,) = screen.sources
    assert (source.counts.read, source.counts.resolved, source.counts.kept) == (6, 3, 1)
    assert source.counts.dropped == {
        "unknown gene": 2,
        "ambiguous gene name": 1,
        "same gene twice": 1,
        "same gene twice after aliases": 1,
    }
    # Names that are not known count as themselves, also after aliases.
    assert source.notes == {
        "distinct_sets_as_written": 5,
        "genes_as_written": 7,
        "distinct_sets": 4,
        "genes": 5,
        "unknown_genes": "NOPE",
        "ambiguous_gene_names": "SHARED",
    }


def test_same_gene_twice_is_an_error_with_its_line(read, genes):
    for again in ("YAL003W|yal003w|2", "OLD1|TFC3|3", "YAL001C|tfc3 |4"):
        with pytest.raises(InputError) as caught:
            read("YAL001C|YAL002W|1", again).on(genes)
        assert (caught.value.code, caught.value.line) == ("gene-twice", 3)


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_one_gene_has_no_interaction_and_has_a_fitness(read, genes, policy):
    rows = ("YAL001C|YAL002W|1", "YAL001C||2", "|NOPE|3")
    (source,) = read(*rows).on(genes, policy).sources
    assert (source.counts.read, source.counts.kept) == (3, 1)
    assert source.counts.dropped == {"one gene has no interaction": 2}
    screen = read(*rows[:2], phenotype="fitness").on(genes, policy)
    assert screen.stats()["kinds"] == {"digenic": 1, "single": 1}


def test_nothing_left_is_an_error_with_the_reasons(read, genes, refused):
    written = read("YAL001C|YAL002W|1")
    error = refused("empty-screen", written.on, Genes(["YBR001C"]), "drop")
    assert error.fix == "unknown genes: YAL001C, YAL002W"
