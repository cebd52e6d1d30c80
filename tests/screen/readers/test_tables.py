"""Tables of one's own: which headers are understood, and what becomes of the rows."""

from __future__ import annotations

import csv
import io
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import readers as cell_readers
from deltacell.errors import InputError
from deltacell.screen import readers
from deltacell.screen.readers import tables
from deltacell.sheet import MISSING, BadRowsError, is_number

PAIRS_AND_TRIPLES = (
    "gene1,gene2,gene3,score,p_value\nYAL001C,VPS8,,-0.25,0.01\nOLD1,yal002w,EFB1,0.5,\n"
)


def read(path, **options):
    [written] = tables.read(path, **options)
    return written


def rows_of(written):
    names = written.deleted["name"].to_list()
    return [names[a:b] for a, b in pairwise(written.offsets)]


def test_pairs_and_triples(write, genes):
    path = write("my.screen.csv.gz", PAIRS_AND_TRIPLES)
    assert readers.recognise(path) == "table"
    written = read(path)
    assert (written.study, written.phenotype, written.reader) == (
        *("my.screen", "interaction", "table"),
    )
    screen = written.on(genes)
    assert screen.to_polars()["genes"].to_list() == [
        ["YAL001C", "YAL002W"],
        ["YAL001C", "YAL002W", "YAL003W"],
    ]
    assert screen.column("score").tolist() == [-0.25, 0.5]
    assert screen.column("sign").tolist() == [-1, 1]
    np.testing.assert_array_equal(screen.column("p_value"), [0.01, np.nan])
    assert np.isnan(screen.column("standard_deviation")).all()
    assert screen.column("source_row").tolist() == [2, 3]
    assert set(screen.gene_column("role")) == {"unknown"}
    assert set(screen.gene_column("perturbation")) == {"deletion"}


@pytest.mark.parametrize(
    ("separator", "score"),
    [(",", "score"), ("\t", "Epsilon"), (";", "TAU"), ("   ", "interaction"), (", ", "ε")],
)
@pytest.mark.parametrize("genes", ["gene1|gene2", "gene_1|gene_2", "ORF A|ORF B", "geneID-a|GeneB"])
def test_words_for_genes_and_scores(write, separator, genes, score):
    header = [*genes.split("|"), score]
    if separator.isspace():
        header = [name.replace(" ", "_") for name in header]
    rows = [header, ["YAL001C", "VPS8", "-0.25"], ["VPS8", "EFB1", "1e-1"]]
    path = write("a.txt", "".join(separator.join(row) + "\n" for row in rows))
    assert readers.recognise(path) == "table"
    written = read(path)
    assert rows_of(written) == [["YAL001C", "VPS8"], ["VPS8", "EFB1"]]
    assert written.numbers["score"].tolist() == [-0.25, 0.1]


@pytest.mark.parametrize(
    ("p_value", "deviation"),
    [("p", "sd"), ("pvalue", "std"), ("P.Value", "Standard_Deviation"), ("p-value", "SD")],
)
def test_words_for_p_values_and_deviations(write, p_value, deviation):
    text = f"{deviation}\tquery\tarray\tscore\t{p_value}\n0.5\tA1\tB1\t-1\t0.25\n\tA1\tC1\t2\tNA\n"
    written = read(write("a.tsv", text))
    np.testing.assert_array_equal(written.numbers["standard_deviation"], [0.5, np.nan])
    np.testing.assert_array_equal(written.numbers["p_value"], [0.25, np.nan])


def test_roles_are_those_of_the_columns_also_where_one_is_empty(write):
    text = "Array,Query_1,Query_2,tau\nA1,Q1,Q2,0.5\nA2,,Q3,0.25\nA3,Q4+Q5,NA,1\n"
    written = read(write("a.csv", text))
    assert rows_of(written) == [["A1", "Q1", "Q2"], ["A2", "Q3"], ["A3", "Q4", "Q5"]]
    assert written.deleted["role"].to_list() == [
        *("array", "query", "query"),
        *("array", "query"),
        *("array", "query", "query"),
    ]


def test_quotes_keep_a_comma_within_a_name(write):
    text = '"","gene1","gene2","score"\n\n"1","ARG5,6","HO",-0.5\n"2","A1","B1",x\n'
    path = write("r.csv", text.replace(",x", ",0.25"))
    assert readers.recognise(path) == "table"
    written = read(path)
    assert rows_of(written) == [["ARG5,6", "HO"], ["A1", "B1"]]
    assert written.lines.tolist() == [3, 4]
    with pytest.raises(BadRowsError, match="line 4: 'x'") as caught:
        read(write("r.csv", text))
    assert caught.value.line == 4


@pytest.mark.parametrize(
    "text",
    [
        "gene1,gene2,weight\nYAL001C,YAL002W,0.5\n",
        "source,target,weight\nYAL001C,YAL002W,0.5\n",
        "source,target,score\nYAL001C,YAL002W,0.5\n",
        "protein1\tprotein2\tscore\nYAL001C\tYAL002W\t0.5\n",
        "gene1\tgene2\nYAL001C\tYAL002W\n",
        "YAL001C,YAL002W,0.5\nYAL001C,YAL003W,0.5\n",
    ],
)
def test_networks_stay_networks(write, text):
    path = write("a.txt", text)
    assert readers.recognise(path) is None
    assert cell_readers.recognise(path) == "edge_list"


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
def test_what_would_be_a_guess_is_left_alone(write, text):
    path = write("a.txt", text)
    assert readers.recognise(path) is None
    with pytest.raises(InputError, match=r"does not name two columns of genes|--columns"):
        read(path)


def test_a_column_called_score_comes_before_other_words(write):
    text = "gene1,gene2,interaction,epsilon,score\nA1,B1,negative,0.5,-0.25\n"
    assert read(write("a.csv", text)).numbers["score"].tolist() == [-0.25]


def test_rows_without_a_score_and_unknown_names_are_counted(write, genes):
    text = (
        "gene1,gene2,gene3,score\nYAL001C,EFB1,,\nYAL001C,VPS8,NA,0.5\nYAL001C,EFB1,,NA\n"
        "YAL001C,NOSUCH,,0.5\nYAL001C,SHARED,,0.5\nTFC3,OLD1,,0.5\n"
    )
    screen = read(write("a.csv", text)).on(genes, "drop")
    (source,) = screen.sources
    assert screen.column("source_row").tolist() == [3]
    assert (source.counts.read, source.counts.kept) == (6, 1)
    assert source.counts.dropped == {
        "no score": 2,
        "unknown gene": 1,
        "ambiguous gene name": 1,
        "same gene twice after aliases": 1,
    }
    assert source.notes["unknown_genes"] == "NOSUCH"


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ("A1,B1,zero,0.5", "column 'score' is not a finite number"),
        ("A1,B1,inf,0.5", "column 'score' is not a finite number"),
        ("A1,B1,0.5,low", "column 'p' is not a finite number"),
        (",NA,0.5,0.5", "no gene in gene1, gene2"),
        ("A1,B1,0.5,1.5", "the p-value in column 'p' is not between 0 and 1"),
        ("A1,B1,0.5,-1e-9", "the p-value in column 'p' is not between 0 and 1"),
        ("A1,B1,0,5,0.5", "other than 4 columns"),
    ],
)
def test_a_bad_line_is_named(write, row, kind):
    path = write("a.csv", f"gene1,gene2,score,p\nA1,B1,0.5,0.5\n\n{row}\n")
    assert readers.recognise(path) == "table"
    with pytest.raises(BadRowsError) as caught:
        read(path)
    assert (caught.value.line, caught.value.where) == (4, path)
    assert caught.value.kinds == {kind: 1}


def test_all_bad_rows_are_told_at_once_with_three_examples_of_each_kind(write):
    rows = ["A1,B1,0.5,0.5", "A1,B1,x,0.5", "A1,B1,0.5", "A1,C1,y,2", "A1,D1,z,-1", "A1,E1,?,0.1"]
    path = write("a.csv", "\n".join(["gene1,gene2,score,p", *rows]) + "\n")
    with pytest.raises(BadRowsError) as caught:
        read(path)
    assert caught.value.kinds == {
        "other than 4 columns": 1,
        "column 'score' is not a finite number": 4,
        "the p-value in column 'p' is not between 0 and 1": 2,
    }
    told = str(caught.value)
    assert "line 3: 'x'; line 5: 'y'; line 6: 'z', …" in told
    assert "'?'" not in told
    assert caught.value.line == 3


def test_a_very_long_remark_in_quotes_is_no_obstacle(write):
    remark = '"' + "long " * 40_000 + '"'
    text = f"gene1,gene2,score,remark\nA1,B1,0.5,\nA1,C1,0.25,{remark}\n"
    assert rows_of(read(write("a.csv", text))) == [["A1", "B1"], ["A1", "C1"]]


@given(st.lists(st.text(max_size=40) | st.just('"gene1","gene2","score'), max_size=4))
@settings(deadline=None)
def test_any_text_is_recognised_or_not_without_an_error(lines):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.txt")
        path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
        assert tables.recognise(path) in (True, False)
        assert tables.asks(path) is None or not tables.recognise(path)


def test_of_several_names_of_a_gene_the_most_exact_counts(write):
    header = "Query gene,Query ORF,Query strain ID,Array gene,Array ORF,SGA score"
    row = "x,YAL001C,YAL001C_tsq508,VPS8,YAL002W,-0.5"
    written = read(write("a.csv", f"{header}\n{row}\n"))
    assert rows_of(written) == [["YAL001C", "YAL002W"]]
    assert written.deleted["role"].to_list() == ["query", "array"]
    assert written.deleted["perturbation"].to_list() == ["ts", "deletion"]


@pytest.mark.parametrize(
    ("name", "gene"),
    [
        ("rad52Δ", "rad52"),
        ("rad52∆", "rad52"),
        ("rad52-delta", "rad52"),
        ("rad52delta", "rad52"),
        ("rad52Δ::kanMX", "rad52"),
        ("Δrad52", "rad52"),
        ("YAL001C_dma12", "YAL001C"),
        ("HLA_B", "HLA_B"),
        ("PRKCD", "PRKCD"),
    ],
)
def test_marks_of_a_deletion_are_not_part_of_the_name(write, name, gene):
    written = read(write("a.csv", f"gene1,gene2,score\n{name},B1,0.5\n"))
    assert rows_of(written) == [[gene, "B1"]]
    assert written.deleted["perturbation"].to_list() == ["deletion", "deletion"]


def test_a_fitness_is_taken_where_there_is_no_score_or_where_it_is_asked_for(write):
    alone = read(write("a.csv", "gene1,gene2,Fitness\nA1,B1,0.75\n"))
    assert (alone.phenotype, alone.numbers["score"].tolist()) == ("fitness", [0.75])
    both = write("b.csv", "gene1,gene2,double_mutant_fitness,epsilon\nA1,B1,0.75,-0.5\n")
    for asked, phenotype, score in (
        (None, "interaction", -0.5),
        ("interaction", "interaction", -0.5),
        ("fitness", "fitness", 0.75),
    ):
        written = read(both, phenotype=asked)
        assert (written.phenotype, written.numbers["score"].tolist()) == (phenotype, [score])


NAMES = st.text("ABCXYZabc019-,()", min_size=1, max_size=8).filter(
    lambda name: name.lower() not in MISSING and not is_number(name)
)
NUMBERS = st.floats(-1e38, 1e38)
GENOTYPES = st.lists(
    st.tuples(st.lists(NAMES, min_size=1, max_size=4), NUMBERS, st.none() | NUMBERS.map(abs)),
    min_size=1,
    max_size=30,
)


@given(GENOTYPES, st.sampled_from([",", ";", "\t"]), st.sampled_from(["\n", "\r\n"]), st.booleans())
@settings(deadline=None)
def test_what_is_written_is_read(genotypes, separator, end, joined):
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
        assert readers.recognise(path) == "table"
        result = read(path)
    assert rows_of(result) == [names for names, _, _ in genotypes]
    assert result.numbers["score"].tolist() == [score for _, score, _ in genotypes]
    deviations = [np.nan if d is None else d for _, _, d in genotypes]
    np.testing.assert_array_equal(result.numbers["standard_deviation"], deviations)
