"""Tables of one's own: which headers are understood, what becomes of the rows and names."""

import csv
import io
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Genes
from deltacell.screen.readers import SCREEN_READERS, tables
from deltacell.storage.tables import MISSING, File, is_number


def read(path, **options):
    [written] = tables.reader.read(path, **options)
    return written


def rows_of(written):
    names = written.deleted["name"].to_list()
    return [names[a:b] for a, b in pairwise(written.offsets)]


AB = [(["A1", "B1"], 0.5)]
HEADERS = {
    "gene1,gene2,score\nA1,B1,0.5\n": AB,
    "gene_1\tgene_2\tEpsilon\nA1\tB1\t5e-1\n": AB,
    "ORF A;ORF B;TAU\nA1;B1;0,5\n": AB,
    "geneID-a   GeneB   interaction\nA1   B1   0.5\n": AB,
    "Gene A, Gene B, ε\nA1, B1, 0.5\n": AB,
    "gene1,gene2,interaction,epsilon,score\nA1,B1,negative,0.1,0.5\n": AB,
    "Query gene,Query ORF,Query strain ID,Array ORF,SGA score\nx,A,A1_tsq5,B1,0.5\n": AB,
    '"","gene1","gene2","score"\n\n"1","ARG5,6","HO",-0.5\n': [(["ARG5,6", "HO"], -0.5)],
    f'gene1,gene2,score,remark\nA1,B1,0.5,"{"long " * 40_000}"\n': AB,
    "Array,Query_1,Query_2,tau\nA1,Q1,Q2,0.5\nA2,,Q3,0.25\nA3,Q4+Q5,NA,1\n": [
        *((["A1", "Q1", "Q2"], 0.5), (["A2", "Q3"], 0.25), (["A3", "Q4+Q5"], 1.0)),
    ],
    **{
        f"gene1,gene2,score\n{name},B1,0.5\n": [([gene, "B1"], 0.5)]
        for gene, names in {
            "rad52": "rad52Δ rad52∆ rad52-delta rad52delta rad52Δ::kanMX Δrad52",
            "YAL001C": "YAL001C_dma12",
            "HLA_B": "HLA_B",
            "PRKCD": "PRKCD",
        }.items()
        for name in names.split()
    },
}


@pytest.mark.parametrize("text", HEADERS)
def test_headers_and_names_are_understood(write, text, reader_of):
    path = write(name="a.txt", text=text)
    assert reader_of(path) == "table"
    written = read(path)
    found = list(zip(rows_of(written), written.rows["score"].to_list(), strict=True))
    assert found == HEADERS[text]


def test_roles_and_perturbations_are_those_of_the_columns(write):
    text = (
        "sd\tArray\tQuery_1\tQuery strain ID 2\ttau\tP.Value\n.5\tA1\tQ1\tYAL001C_tsq2\t1\t0.25\n"
    )
    written = read(write(name="a.tsv", text=text + "\tA2\t\tQ3\t2\tNA\n"))
    assert written.deleted["role"].to_list() == ["array", "query", "query", "array", "query"]
    perturbations = ["deletion", "deletion", "ts", "deletion", "deletion"]
    assert written.deleted["perturbation"].to_list() == perturbations
    np.testing.assert_array_equal(written.rows["standard_deviation"], [0.5, np.nan])
    np.testing.assert_array_equal(written.rows["p_value"], [0.25, np.nan])


@pytest.mark.parametrize(
    "text",
    [
        "gene1,gene2,weight\nYAL001C,YAL002W,0.5\n",
        "source,target,score\nYAL001C,YAL002W,0.5\n",
        "protein1\tprotein2\tscore\nYAL001C\tYAL002W\t0.5\n",
        "gene1\tgene2\nYAL001C\tYAL002W\n",
        "YAL001C,YAL002W,0.5\nYAL001C,YAL003W,0.5\n",
    ],
)
def test_networks_stay_networks(write, text, reader_of):
    assert reader_of(write(name="a.txt", text=text)) == "edge_list"


@pytest.mark.parametrize(
    "text",
    [
        "gene1,score\nYAL001C,0.5\n",
        "genes,score\nYAL001C,0.5\n",
        "gene1,gene2,interaction\nYAL001C,YAL002W,physical\n",
        "gene1,gene2,epsilon,tau\nYAL001C,YAL002W,0.5,0.2\n",
        "gene1,gene2,epsilon,tau,fitness\nYAL001C,YAL002W,0.5,0.2,0.9\n",
        "gene1,gene2,dmf,tmf\nYAL001C,YAL002W,0.5,0.2\n",
    ],
)
def test_tables_whose_meaning_would_be_a_guess_are_refused(write, text, refused):
    path = write(name="a.txt", text=text)
    assert not any(reader.find(File(path)) for reader in SCREEN_READERS)
    refused("other-format", lambda: read(path))


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("A1,B1,zero,0.5", "column 'score' is not a finite number"),
        ("A1,B1,inf,0.5", "column 'score' is not a finite number"),
        ("A1,B1,0.5,low", "column 'p' is not a finite number"),
        (",NA,0.5,0.5", "no gene in gene1, gene2"),
        ("A1,B1,0.5,1.5", "column 'p' is not between 0 and 1"),
        ("A1,B1,0.5,-1e-9", "column 'p' is not between 0 and 1"),
        ("A1,B1,0,5,0.5", "other than 4 columns"),
    ],
)
def test_a_bad_line_is_named(write, row, kind, reader_of, refused):
    path = write(name="a.csv", text=f"gene1,gene2,score,p\nA1,B1,0.5,0.5\n\n{row}\n")
    assert reader_of(path) == "table"
    error = refused("bad-rows", read, path)
    assert (error.line, error.where, error.fields["kinds"]) == (4, path, {kind: 1})


def test_all_bad_rows_are_told_at_once_with_three_examples_of_each_kind(write, refused):
    rows = ["A1,B1,0.5,0.5", "A1,B1,x,0.5", "A1,B1,0.5", "A1,C1,y,2", "A1,D1,z,-1", "A1,E1,?,0.1"]
    path = write(name="a.csv", text="\n".join(["gene1,gene2,score,p", *rows]) + "\n")
    error = refused("bad-rows", read, path)
    assert error.fields["kinds"] == {
        "other than 4 columns": 1,
        "column 'score' is not a finite number": 4,
        "column 'p' is not between 0 and 1": 2,
    }
    assert "(line 3: 'x'; line 5: 'y'; line 6: 'z', …)" in error.message
    assert error.line == 3


@given(st.lists(st.text(max_size=40) | st.just('"gene1","gene2","score'), max_size=4))
@settings(deadline=None)
def test_any_text_is_recognised_or_not_without_an_error(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        forms, reason = judged(path)
        assert reason is None or not forms
        # The same bytes are judged the same twice.
        assert judged(path) == (forms, reason)


def judged(path):
    """Return the columns of each screen that is found in a file, and why none is."""
    forms = tables.reader.find(File(path)) or []
    columns = [(form.header_row, form.genes, form.scores, form.others) for form in forms]
    return columns, tables.unclear(File(path))


def test_a_fitness_is_taken_where_there_is_no_score_or_where_it_is_asked_for(write):
    alone = read(write(name="a.csv", text="gene1,gene2,Fitness\nA1,B1,0.75\n"))
    assert alone.rows.select("phenotype", "score").rows() == [("fitness", 0.75)]
    both = write(name="b.csv", text="gene1,gene2,double_mutant_fitness,epsilon\nA1,B1,0.75,-0.5\n")
    for asked, phenotype, score in (
        (None, "interaction", -0.5),
        ("interaction", "interaction", -0.5),
        ("fitness", "fitness", 0.75),
    ):
        written = read(both, phenotype=asked)
        assert written.rows.select("phenotype", "score").rows() == [(phenotype, score)]


NAMES = st.text("ABCXYZabc019-,()", min_size=1, max_size=8).filter(
    lambda name: name.lower() not in MISSING and not is_number(name),
)
NUMBERS = st.floats(-1e38, 1e38)
GENOTYPES = st.lists(
    st.tuples(st.lists(NAMES, min_size=1, max_size=4), NUMBERS, st.none() | NUMBERS.map(abs)),
    min_size=1,
    max_size=30,
)


@given(GENOTYPES, st.sampled_from([",", ";", "\t"]), st.sampled_from(["\n", "\r\n"]), st.booleans())
@settings(deadline=None)
def test_genotypes_read_equal_those_written(genotypes, separator, end, joined):
    out = io.StringIO()
    writer = csv.writer(out, delimiter=separator, lineterminator=end)
    columns = ["genes"] if joined else [f"gene{i}" for i in range(1, 5)]
    writer.writerow([*columns, "sd", "score"])
    if joined:
        genotypes = [(["A", "B"], 0.5, None), *genotypes]
    for names, score, deviation in genotypes:
        written = ["+".join(names)] if joined else [*names, *[""] * (4 - len(names))]
        writer.writerow([*written, "" if deviation is None else deviation, score])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_text(out.getvalue(), encoding="utf-8", newline="")
        known = {name for names, _, _ in genotypes for name in names}
        result = read(path, is_known=known.__contains__)
    assert rows_of(result) == [names for names, _, _ in genotypes]
    assert result.rows["score"].to_list() == [score for _, score, _ in genotypes]
    deviations = [np.nan if d is None else d for _, _, d in genotypes]
    np.testing.assert_array_equal(result.rows["standard_deviation"], deviations)


@pytest.fixture
def written(write):
    def make(*rows, **options):
        text = "query\tarray\tscore\n" + "".join(row.replace("|", "\t") + "\n" for row in rows)
        text = text.replace("score", "fitness") if "phenotype" in options else text
        return read(write(name="screen.tsv", text=text), **options)

    return make


def test_names_of_every_kind_resolve(written, genes):
    screen = written("tfc3|YAL003W|1", "OLD1|vps8|2", "YAL001C|efb1|3").on(genes)
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


def test_genes_unknown_ambiguous_or_there_twice_are_errors_with_lines(written, genes, refused):
    rows = [f"YAL001C|{name}|1" for name in ("A", "B", "C", "D", "E", "F", "b", "SHARED")]
    error = refused("unknown-gene", written("YAL001C|YAL002W|1", *rows).on, genes)
    assert (error.line, error.where.name) == (3, "screen.tsv")
    assert error.fields == {
        "unknown_genes": "B, A, C, D, E and 1 more",
        "ambiguous_gene_names": "SHARED",
    }
    for again in ("YAL003W|yal003w|2", "OLD1|TFC3|3", "YAL001C|tfc3 |4"):
        assert refused("gene-twice", written("YAL001C|YAL002W|1", again).on, genes).line == 3
    screen = written("YAL001C|YAL002W|1")
    error = refused("empty-screen", screen.on, Genes(["YBR001C"]), "drop")
    assert error.fix == "unknown genes: YAL001C, YAL002W"


def test_a_table_whose_scores_are_all_missing_is_not_called_empty(written, refused):
    error = refused("no-scores", written, "YAL001C|YAL002W|", "YAL001C|YAL003W|NA")
    assert "2 rows" in error.message


def test_dropped_rows_are_counted_by_reason(written, genes):
    rows = ["YAL001C|NOPE|2", "SHARED|YAL001C|3", "TFC3|OLD1|4", "NOPE|SHARED|5", "EFB1|efb1|6"]
    screen = written("YAL001C|YAL002W|1", *rows).on(genes, "drop")
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


@pytest.mark.parametrize("policy", ["error", "drop"])
def test_one_gene_has_no_interaction_and_has_a_fitness(written, genes, policy):
    rows = ("YAL001C|YAL002W|1", "YAL001C||2", "|NOPE|3")
    (source,) = written(*rows).on(genes, policy).sources
    assert (source.counts.read, source.counts.kept) == (3, 1)
    assert source.counts.dropped == {"one gene has no interaction": 2}
    screen = written(*rows[:2], phenotype="fitness").on(genes, policy)
    assert screen.stats()["kinds"] == {"digenic": 1, "single": 1}
