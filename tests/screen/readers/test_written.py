"""Looking up the names of a written screen: policies, counts, coverage."""

from __future__ import annotations

import pytest

from deltacell.cell import Genes
from deltacell.errors import GeneNameError, InputError
from deltacell.screen.readers import delimited


@pytest.fixture
def read(write):
    def _read(*rows: str, **options):
        text = "a\tb\tscore\n" + "".join(row.replace("|", "\t") + "\n" for row in rows)
        columns = {"genes": ["a", "b"], "score": "score"}
        return delimited.read(
            write("screen.tsv", text), columns=columns, roles=["query", "array"], **options
        )

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
    assert (source.file, source.reader, source.into) == ("screen.tsv", "delimited", "screen")


def test_all_unknown_and_ambiguous_names_are_reported_at_once(read, genes):
    rows = [f"YAL001C|{name}|1" for name in ("A", "B", "C", "D", "E", "F", "b", "SHARED")]
    written = read("YAL001C|YAL002W|1", *rows)
    with pytest.raises(GeneNameError) as caught:
        written.on(genes)
    error = caught.value
    assert (error.code, error.line, error.where.name) == ("unknown-gene", 3, "screen.tsv")
    assert error.fields == {
        "rows": 8,
        "unknown_genes": "B, A, C, D, E and 1 more",
        "ambiguous_gene_names": "SHARED",
    }
    assert "B, A, C, D, E and 1 more" in error.what


def test_dropped_rows_are_counted_by_reason(read, genes):
    screen = read(
        "YAL001C|YAL002W|1", "YAL001C|NOPE|2", "SHARED|YAL001C|3", "TFC3|OLD1|4", "NOPE|SHARED|5"
    ).on(genes, "drop")
    assert screen.column("score").tolist() == [1]
    assert screen.column("source_row").tolist() == [2]
    counts = screen.sources[0].counts
    assert (counts.read, counts.resolved, counts.kept) == (5, 2, 1)
    assert counts.dropped == {
        "unknown gene": 2,
        "ambiguous gene name": 1,
        "same gene twice after aliases": 1,
    }
    notes = screen.sources[0].notes
    assert (notes["unknown_genes"], notes["ambiguous_gene_names"]) == ("NOPE", "SHARED")


def test_unknown_names_count_as_themselves_after_aliases(read, genes):
    written = read("YAL001C|NOPE|1", "TFC3|nope|2", "TFC3|ELSE|3", "TFC3|OLD1|4", "TFC3|VPS8|5")
    assert written.on(genes, "drop").sources[0].notes == {
        "distinct_sets_as_written": 5,
        "genes_as_written": 6,
        "distinct_sets": 3,
        "genes": 4,
        "unknown_genes": "NOPE, ELSE",
    }


def test_unknown_genes_can_be_added(read, genes):
    written = read("YAL001C|NEW1|1", "new1|tfc3|2")
    missing = [name for name in written.gene_names if name in ("NEW1", "new1")]
    screen = written.on(genes.extended(missing))
    assert screen.genotypes.genes.tolist() == [0, 5, 5, 0]
    assert screen.sources[0].notes["distinct_sets"] == 1


def test_same_gene_twice_is_an_error_with_its_line_or_dropped_and_counted(read, genes):
    written = read("YAL001C|YAL002W|1", "YAL003W|yal003w|2", "OLD1|TFC3|3", "YAL001C|tfc3 |4")
    with pytest.raises(InputError) as caught:
        written.on(genes)
    assert (caught.value.code, caught.value.line) == ("gene-twice", 3)
    screen = written.on(genes, "drop")
    assert screen.column("score").tolist() == [1]
    (source,) = screen.sources
    assert source.counts.dropped == {"same gene twice": 1, "same gene twice after aliases": 2}
    assert source.notes["distinct_sets_as_written"] == 3
    assert source.notes["distinct_sets"] == 1


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_one_gene_has_no_interaction_and_has_a_fitness(read, genes, policy):
    rows = ("YAL001C|YAL002W|1", "YAL001C||2", "|NOPE|3")
    (source,) = read(*rows).on(genes, policy).sources
    assert (source.counts.read, source.counts.kept) == (3, 1)
    assert source.counts.dropped == {"one gene has no interaction": 2}
    screen = read(*rows[:2], phenotype="fitness").on(genes, policy)
    assert screen.stats()["kinds"] == {"digenic": 1, "single": 1}


def test_nothing_left_is_an_error_with_the_reasons(read, genes):
    with pytest.raises(InputError) as caught:
        read("YAL001C|YAL002W|1").on(Genes(["YBR001C"]), "drop")
    assert caught.value.code == "empty-screen"
    assert caught.value.fix == "unknown genes: YAL001C, YAL002W"
    with pytest.raises(InputError, match="1 same gene twice"):
        read("YAL003W|YAL003W|1").on(genes, "drop")


def test_coverage_is_every_query_with_every_array_gene(read, genes):
    screen = read("YAL001C|YAL002W|1", "YAL003W|YAL004W|2").on(genes)
    (coverage,) = screen.coverage.studies
    assert coverage.query_genes.tolist() == [0, 2]
    assert coverage.array_genes.tolist() == [1, 3]
    assert not coverage.complete
