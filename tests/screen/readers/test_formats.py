"""Every format is recognised by content and read right."""

from __future__ import annotations

import zipfile
from itertools import pairwise

import numpy as np
import pytest

from deltacell.screen import readers
from deltacell.screen.readers import costanzo2010, costanzo2016, delimited, hits, kuzmin
from deltacell.table import peek

FORMATS = {
    "kuzmin": "kuzmin",
    "costanzo2016": "costanzo2016",
    "costanzo2010": "costanzo2010",
    "trigenic": "hits",
    "digenic": "hits",
}


def rows_of(written):
    names, offsets = written.names.to_list(), written.offsets
    return [names[a:b] for a, b in pairwise(offsets)]


@pytest.mark.parametrize("ending", ["txt", "txt.gz", "txt.zip"])
@pytest.mark.parametrize("kind", FORMATS)
def test_recognised_by_content_and_by_one_reader_only(write, texts, kind, ending):
    path = write(f"a.{ending}", texts[kind])
    assert readers.recognise(path) == FORMATS[kind]
    assert sum(r.recognise(peek(path), path.name) for r in readers.SCREEN_READERS) == 1
    assert readers.reader(FORMATS[kind]).read(path).reader == FORMATS[kind]


@pytest.mark.parametrize(
    "text", ["a\tb\tc\n1\t2\t3\n", "\n", "YAL001C\tYAL002W\t0.5\n", "{}", "protein1 protein2 s\n"]
)
def test_other_files_are_not_recognised(write, text):
    assert readers.recognise(write("a.txt", text)) is None


def test_archive_of_other_things_is_not_recognised(tmp_path):
    np.savez(tmp_path / "features.npz", a=np.zeros(3), b=np.zeros(3))
    assert readers.recognise(tmp_path / "features.npz") is None


def test_kuzmin_2018(write, texts):
    written = kuzmin.read(write("s1.tsv", texts["kuzmin"]))
    assert rows_of(written) == [["YAL001C", "YAL002W", "YAL003W"], ["YAL002W", "YAL004W"]]
    assert written.role.to_list() == ["query", "query", "array", "query", "array"]
    assert written.perturbation.to_list() == ["allele", "deletion", "deletion", "deletion", "ts"]
    assert written.allele.to_list() == ["a-1", "bΔ", "efb1Δ", "vps8Δ", "c-2"]
    assert written.score.tolist() == [-0.1, 0.3]
    assert written.p_value.tolist() == [1e-30, 0.5]
    assert np.isnan(written.standard_deviation)
    np.testing.assert_array_equal(written.query_fitness, [0.9, np.nan])
    assert written.array_fitness.tolist() == [0.8, 0.7]
    assert written.lines.tolist() == [2, 3]
    assert (written.study, written.phenotype) == ("kuzmin2018", "interaction")
    assert written.dropped == {"no score": 1, "control locus alone as query": 1}
    assert written.complete_coverage
    assert not written.notes


def test_kuzmin_fitness_on_request_keeps_the_single_mutant_of_a_control_cross(write, texts):
    written = kuzmin.read(write("s1.tsv", texts["kuzmin"]), phenotype="fitness", study="mine")
    assert rows_of(written)[2:] == [["YAL001C", "YAL003W"], ["YAL003W"]]
    assert written.score.tolist() == [0.6, 1.0, 0.7, 0.8]
    assert written.standard_deviation.tolist() == [0.05, 0.02, 0.01, 0.03]
    assert (written.study, written.phenotype) == ("mine", "fitness")
    assert sum(written.dropped.values()) == 0


def test_kuzmin_part_without_scores_is_fitness(write):
    text = (
        "\tQuery strain ID\tArray strain ID\tP-value\tCombined mutant fitness\t"
        "Combined mutant fitness standard deviation\tg1\tg2\tg3\n"
        "381092\tYKL051W+YDL227C_tm3059\tYDR108W_dma909\t0.5\t0.835\t0.0464\tx\ty\tz\n"
    )
    written = kuzmin.read(write("slice.tsv", text))
    assert rows_of(written) == [["YKL051W", "YDR108W"]]
    assert (written.phenotype, written.score.tolist()) == ("fitness", [0.835])


def test_kuzmin_type_that_the_strains_contradict_is_noted(write, texts):
    text = texts["kuzmin"].replace("\ttrigenic\t", "\tdigenic\t")
    assert kuzmin.read(write("s1.tsv", text)).notes == {"combined_type_differs": 1}


@pytest.mark.parametrize("packed", ["plain", "zip of one", "zip of many"])
def test_kuzmin_2020_workbook(tmp_path, workbook, packed):
    path = tmp_path / "tables.xlsx"
    if packed == "plain":
        path.write_bytes(workbook)
    else:
        path = tmp_path / "tables.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("aaz5667-Table-S1.xlsx", workbook)
            if packed == "zip of many":
                archive.writestr("aaz5667-Table-S13.xlsx", b"not read")
                archive.writestr("__MACOSX/._aaz5667-Table-S1.xlsx", b"not read")
    assert readers.recognise(path) == "kuzmin"
    written = kuzmin.read(path)
    assert written.study == "kuzmin2020"
    assert rows_of(written)[0] == ["YAL001C", "YAL002W", "YAL003W"]
    assert written.score.tolist() == [-0.1, 0.3, 0.2]
    # A p-value of 1e-30 beside one that is text must not become 0.
    assert written.p_value.tolist() == [1e-30, 0.5, 0.45]
    assert written.lines.tolist() == [3, 4, 7]
    assert kuzmin.read(path, phenotype="fitness").standard_deviation.tolist() == [
        *(0.05, 0.02, 0.01, 0.03, 0.1)
    ]


def test_costanzo_2016(write, texts, genes):
    written = costanzo2016.read(write("sga.txt", texts["costanzo2016"]))
    assert rows_of(written) == [
        ["YAL001C", "YAL003W"],
        ["YAL002W", "YAL004W"],
        ["YAL003W", "YAL001C"],
    ]
    assert written.perturbation.to_list() == [
        "ts",
        "deletion",
        "allele",
        "deletion",
        "deletion",
        "ts",
    ]
    assert written.score.tolist() == [-0.1, 0.2, 0.05]
    assert written.dropped == {"no score": 1}
    assert written.study == "costanzo2016"
    screen = written.on(genes)
    # What was crossed with the deletion array was not crossed with the other one.
    assert [(c.n_queries, len(c.array_genes)) for c in screen.coverage.studies] == [(2, 2), (1, 1)]
    fitness = costanzo2016.read(write("sga.txt", texts["costanzo2016"]), phenotype="fitness")
    assert fitness.score.tolist() == [0.8, 0.9, 0.6, 0.6]
    assert fitness.on(genes).column("sign").tolist() == [0, 0, 0, 0]


def test_costanzo_2010(write, texts, genes):
    written = costanzo2010.read(write("sga.txt", texts["costanzo2010"]))
    assert rows_of(written) == [
        ["YAL001C", "YAL003W"],
        ["YAL002W", "YAL004W"],
        ["YAL002W", "YAL001C"],
    ]
    assert written.perturbation.to_list() == [
        "ts",
        "deletion",
        "damp",
        "deletion",
        "deletion",
        "deletion",
    ]
    assert written.allele.to_list() == ["tfc3-1", "", "VPS8_damp", "", "", ""]
    assert written.score.tolist() == [-0.25, 0.125, -0.5]
    assert written.standard_deviation.tolist() == [0.01, 0.02, 0.03]
    assert written.p_value.tolist() == [1e-5, 0.04, 0.001]
    assert written.lines.tolist() == [1, 2, 3]
    screen = written.on(genes)
    assert screen.column("sign").tolist() == [-1, 1, -1]
    (coverage,) = screen.coverage.studies
    assert (coverage.study, coverage.complete, coverage.n_queries) == ("costanzo2010", False, 2)


def test_trigenic_hits(write, texts, genes):
    screen = hits.read(write("a.tsv", texts["trigenic"])).on(genes)
    assert screen.kind == ["trigenic"]
    assert screen.column("sign").tolist() == [-1]
    assert np.isnan(screen.column("score")).all()
    assert screen.gene_column("perturbation").tolist() == ["deletion", "allele", "ts"]
    assert set(screen.gene_column("role")) == {"unknown"}
    assert not screen.coverage.studies


def test_digenic_hits(write, texts, genes):
    screen = hits.read(write("a.tsv", texts["digenic"])).on(genes)
    assert screen.column("sign").tolist() == [-1, 1, 0]
    assert screen.column("replicates").tolist() == [2, 1, 2]


def test_delimited_with_a_column_a_gene(write, genes):
    text = "x,first,second,eps,p,lab\n1,YAL001C,YAL003W,-0.5,0.01,A\n2,SSA1,,0.25,,B\n"
    written = delimited.read(
        write("my.table.csv", text),
        columns={"genes": ["first", "second"], "score": "eps", "p_value": "p", "study": "lab"},
        roles=["query", "array"],
        phenotype="fitness",
    )
    screen = written.on(genes)
    assert screen.to_polars()["genes"].to_list() == [["YAL001C", "YAL003W"], ["YAL005C"]]
    assert screen.column("study").tolist() == ["A", "B"]
    assert screen.column("score").tolist() == [-0.5, 0.25]
    np.testing.assert_array_equal(screen.column("p_value"), [0.01, np.nan])
    assert screen.gene_column("role").tolist() == ["query", "array", "query"]
    assert written.study == "my"


@pytest.mark.parametrize(
    ("text", "joined_by"),
    [
        ("genes\tsign\talleles\nYAL001C;YAL003W\tnegative\ta-1;efb1Δ\n", None),
        ("genes\tsign\talleles\nYAL001C + YAL003W\t-1\ta-1 + efb1Δ\n", None),
        ("genes\tsign\talleles\nYAL001C::YAL003W\t-\ta-1::efb1Δ\n", "::"),
    ],
)
def test_delimited_with_all_genes_in_one_column(write, genes, text, joined_by):
    screen = delimited.read(
        write("a.tsv", text),
        columns={"genes": "genes", "sign": "sign", "alleles": "alleles"},
        joined_by=joined_by,
        phenotype="interaction",
        study="mine",
    ).on(genes)
    assert screen.to_polars()["genes"].to_list() == [["YAL001C", "YAL003W"]]
    assert screen.gene_column("perturbation").tolist() == ["allele", "deletion"]
    assert screen.column("sign").tolist() == [-1]
    assert screen.column("study").tolist() == ["mine"]
