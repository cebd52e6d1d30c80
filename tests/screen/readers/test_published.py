"""Published formats are recognised by content and read right, and bad files name their line."""

import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import openpyxl
import polars as pl
import pytest

from deltacell.screen.readers import SCREEN_READERS
from deltacell.screen.readers.joined import Joins
from deltacell.screen.readers.written import GeneColumn, deleted_genes
from deltacell.storage.tables import File, Table

HEADER_2018 = (
    *("Query strain ID", "Query allele name", "Array strain ID", "Array allele name"),
    *("Combined mutant type", "Raw genetic interaction score (epsilon)"),
    *("Adjusted genetic interaction score (epsilon or tau)", "P-value"),
    *("Query single/double mutant fitness", "Array single mutant fitness"),
    *("Combined mutant fitness", "Combined mutant fitness standard deviation"),
)
HEADER_2020 = (
    *HEADER_2018[:-2],
    *("Double/triple mutant fitness", "Double/triple mutant fitness standard deviation"),
)
KUZMIN_ROWS = (
    # A trigenic cross, a digenic one, one without a score, and the control alone.
    "YAL001C+YAL002W_tm1|a-1+bΔ|YAL003W_dma1|efb1Δ|trigenic|-0.2|-0.1|1e-30|0.9|0.8|0.6|0.05",
    "YDL227C+YAL002W_tm2|hoΔ+vps8Δ|YAL004W_tsa2|c-2|digenic|0.3|0.3|0.5||0.7|1.0|0.02",
    "YAL001C+YDL227C_tm3|tfc3Δ+hoΔ|YAL003W_dma1|efb1Δ|digenic|||0.2|0.9|0.8|0.7|0.01",
    "YDL227C+YDL227C_tm4|hoΔ+hoΔ|YAL003W_dma1|efb1Δ|digenic|0.01|0.01|0.9|1.0|0.8|0.8|0.03",
)
HEADER_2016 = (
    *("Query Strain ID", "Query allele name", "Array Strain ID", "Array allele name"),
    *("Arraytype/Temp", "Genetic interaction score (ε)", "P-value"),
    *("Query single mutant fitness (SMF)", "Array SMF"),
    *("Double mutant fitness", "Double mutant fitness standard deviation"),
)
COSTANZO2016_ROWS = (
    "YAL001C_tsq1|a-1|YAL003W_dma1|efb1|DMA26|-0.1|0.01||0.9|0.8|0.05",
    "YAL002W_S3|b-supp1|YAL004W_dma2|d|DMA30|0.2|0.02|0.7|0.9|0.9|0.02",
    "YAL002W_sn4|vps8|YAL001C_tsa3|a-2|TSA26||0.5|0.7|0.9|0.6|0.01",
    "YAL003W_sn5|efb1|YAL001C_tsa3|a-2|TSA30|0.05|0.5|0.7|0.9|0.6|0.01",
)
COSTANZO2010_ROWS = (
    "YAL001C_tsq5|tfc3-1|YAL003W|EFB1|-0.25|0.01|1e-05",
    "YAL002W_damp|VPS8_damp|YAL004W|YAL004W|0.125|0.02|0.04",
    "YAL002W|VPS8|YAL001C|TFC3|-0.5|0.03|0.001",
)
KINDS = {
    **{name: name for name in ("kuzmin", "costanzo2016", "costanzo2010")},
    **dict.fromkeys(("trigenic", "digenic"), "hits"),
}


@pytest.fixture
def texts():
    """The contents of a good file of each format."""

    def tabs(header, rows):
        lines = [] if header is None else ["\t".join(header)]
        return "\n".join([*lines, *(row.replace("|", "\t") for row in rows)]) + "\n"

    return {
        "kuzmin": tabs(HEADER_2018, KUZMIN_ROWS),
        "costanzo2016": tabs(HEADER_2016, COSTANZO2016_ROWS),
        "costanzo2010": tabs(None, COSTANZO2010_ROWS),
        "trigenic": tabs(
            ("orf1", "orf2", "orf3", "allele1", "allele2", "allele3", "n_rows"),
            ("YAL001C|YAL002W|YAL003W|tfc3Δ|b-ph|efb1-ts|1",),
        ),
        "digenic": tabs(
            ("orf1", "orf2", "allele1", "allele2", "n_negative_rows", "n_positive_rows", "sign"),
            (
                "YAL001C|YAL002W|tfc3Δ|b-1|2|0|negative",
                "YAL001C|YAL003W|tfc3Δ|efb1Δ|0|1|positive",
                "YAL002W|YAL003W|vps8Δ|efb1Δ|1|1|both",
            ),
        ),
    }


def read(path, **options):
    file = File(path)
    reader = next((r for r in SCREEN_READERS if r.find(file)), SCREEN_READERS[0])
    [written] = reader.read(path, **options)
    return written


def rows_of(written):
    names = written.deleted["name"].to_list()
    return [names[a:b] for a, b in pairwise(written.offsets)]


def values(written, column):
    return written.rows[column].to_list()


def per_gene(written, column):
    return written.deleted[column].to_list()


@pytest.mark.parametrize("kind", KINDS)
def test_recognised_by_content_and_by_one_reader_only(write, texts, kind, reader_of):
    for ending in ("txt", "txt.gz"):
        path = write(name=f"a.{ending}", text=texts[kind])
        assert reader_of(path) == read(path).reader == KINDS[kind]
        found = [bool(reader.find(File(path))) for reader in SCREEN_READERS[:5]]
        assert sum(found) == 1


def test_kuzmin_2018(write, texts):
    written = read(write(name="s1.tsv", text=texts["kuzmin"]))
    assert rows_of(written) == [["YAL001C", "YAL002W", "YAL003W"], ["YAL002W", "YAL004W"]]
    assert per_gene(written, "role") == ["query", "query", "array", "query", "array"]
    perturbations = ["allele", "deletion", "deletion", "deletion", "ts"]
    assert per_gene(written, "perturbation") == perturbations
    assert per_gene(written, "allele") == ["a-1", "bΔ", "efb1Δ", "vps8Δ", "c-2"]
    assert values(written, "score") == [-0.1, 0.3]
    assert values(written, "p_value") == [1e-30, 0.5]
    assert "standard_deviation" not in written.rows
    np.testing.assert_array_equal(written.rows["query_fitness"], [0.9, np.nan])
    assert values(written, "line") == [2, 3]
    assert (written.study, written.complete_coverage) == ("kuzmin2018", True)
    assert written.dropped == {"no score": 1, "control locus alone as query": 1}


def test_kuzmin_fitness_on_request_keeps_the_single_mutant_of_a_control_cross(write, texts):
    written = read(write(name="s1.tsv", text=texts["kuzmin"]), phenotype="fitness")
    assert rows_of(written)[2:] == [["YAL001C", "YAL003W"], ["YAL003W"]]
    assert values(written, "score") == [0.6, 1.0, 0.7, 0.8]
    assert values(written, "standard_deviation") == [0.05, 0.02, 0.01, 0.03]
    assert set(values(written, "phenotype")) == {"fitness"}
    assert sum(written.dropped.values()) == 0
    part = write(
        name="slice.tsv",
        text="\tQuery strain ID\tArray strain ID\tP-value\tCombined mutant fitness\tg1\n"
        "381092\tYKL051W+YDL227C_tm3059\tYDR108W_dma909\t0.5\t0.835\tx\n",
    )
    written = read(part)
    assert rows_of(written) == [["YKL051W", "YDR108W"]]
    assert (values(written, "phenotype"), values(written, "score")) == (["fitness"], [0.835])


def test_the_control_is_dropped_whatever_the_case_of_the_header(write, reader_of):
    header = ("Query Strain ID", "Array Strain ID", HEADER_2018[6].upper(), *HEADER_2020[-2:])
    rows = (
        "YAL001C+YDL227C_tm3\tYAL003W_dma1\t-0.2\t0.7\t0.01",
        "YAL001C+YAL002W_tm1\tYAL003W_dma1\t-0.1\t0.6\t0.05",
    )
    path = write(name="tau.tsv", text="\n".join(["\t".join(header), *rows]) + "\n")
    assert reader_of(path) == "kuzmin"
    written = read(path)
    assert rows_of(written) == [["YAL001C", "YAL003W"], ["YAL001C", "YAL002W", "YAL003W"]]
    assert per_gene(written, "role") == ["query", "array", "query", "query", "array"]
    assert values(written, "score") == [-0.2, -0.1]
    assert written.study == "kuzmin2020"
    fitness = read(path, phenotype="fitness")
    assert values(fitness, "score") == [0.7, 0.6]
    assert values(fitness, "standard_deviation") == [0.01, 0.05]


@pytest.mark.parametrize("packed", ["plain", "zip of one", "zip of many"])
def test_kuzmin_2020_workbook(tmp_path, packed, reader_of):
    """A title above the header, numbers as numbers and as texts."""
    book = openpyxl.Workbook()
    book.active.append(["Table S1. Raw genetic interaction dataset."])
    book.active.append(HEADER_2020)
    for row in KUZMIN_ROWS:
        fields = row.split("|")
        book.active.append([*fields[:5], *(float(f) if f else None for f in fields[5:])])
    texts = [0.2, "0.2", "4.50E-01", "NaN", 0.5, 0.25, 0.1]
    book.active.append([*KUZMIN_ROWS[1].split("|")[:5], *texts])
    path = tmp_path / "aaz5667-Table-S1.xlsx"
    book.save(path)
    if packed != "plain":
        workbook, path = path.read_bytes(), tmp_path / "tables.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("aaz5667-Table-S1.xlsx", workbook)
            if packed == "zip of many":
                archive.writestr("aaz5667-Table-S13.xlsx", b"not read")
                archive.writestr("__MACOSX/._aaz5667-Table-S1.xlsx", b"not read")
    assert reader_of(path) == "kuzmin"
    written = read(path)
    assert written.study == "kuzmin2020"
    assert rows_of(written)[0] == ["YAL001C", "YAL002W", "YAL003W"]
    assert values(written, "score") == [-0.1, 0.3, 0.2]
    # A p-value of 1e-30 beside one that is text must not become 0.
    assert values(written, "p_value") == [1e-30, 0.5, 0.45]
    assert values(written, "line") == [3, 4, 7]


def test_costanzo_2016(write, texts, genes):
    path = write(name="sga.txt", text=texts["costanzo2016"])
    written = read(path)
    pairs = [["YAL001C", "YAL003W"], ["YAL002W", "YAL004W"], ["YAL003W", "YAL001C"]]
    assert rows_of(written) == pairs
    perturbations = ["ts", "deletion", "allele", "deletion", "deletion", "ts"]
    assert per_gene(written, "perturbation") == perturbations
    assert values(written, "score") == [-0.1, 0.2, 0.05]
    assert (written.dropped, written.study) == ({"no score": 1}, "costanzo2016")
    # What was crossed with the deletion array was not crossed with the other one.
    studies = written.on(genes).stats()["coverage"]
    assert [(c["queries"], c["array_genes"]) for c in studies] == [(2, 2), (1, 1)]
    fitness = read(path, phenotype="fitness")
    assert values(fitness, "score") == [0.8, 0.9, 0.6, 0.6]
    assert fitness.on(genes).column("sign").tolist() == [0, 0, 0, 0]


def test_costanzo_2010(write, texts, genes):
    written = read(write(name="sga.txt", text=texts["costanzo2010"]))
    pairs = [["YAL001C", "YAL003W"], ["YAL002W", "YAL004W"], ["YAL002W", "YAL001C"]]
    assert rows_of(written) == pairs
    perturbations = ["ts", "deletion", "damp", "deletion", "deletion", "deletion"]
    assert per_gene(written, "perturbation") == perturbations
    assert per_gene(written, "allele") == ["tfc3-1", "", "VPS8_damp", "", "", ""]
    assert values(written, "standard_deviation") == [0.01, 0.02, 0.03]
    assert values(written, "p_value") == [1e-5, 0.04, 0.001]
    assert values(written, "line") == [1, 2, 3]
    screen = written.on(genes)
    assert screen.column("sign").tolist() == [-1, 1, -1]
    (coverage,) = screen.stats()["coverage"]
    covered = {"study": "costanzo2010", "queries": 2, "array_genes": 3, "complete": False}
    assert coverage == covered


def test_hits(write, texts, genes):
    screen = read(write(name="a.tsv", text=texts["trigenic"])).on(genes)
    assert (screen.kind, screen.column("sign").tolist()) == (["trigenic"], [-1])
    assert np.isnan(screen.column("score")).all()
    assert screen.column("perturbation").tolist() == ["deletion", "allele", "ts"]
    assert set(screen.column("role")) == {"unknown"}
    assert not screen.coverage.studies
    screen = read(write(name="a.tsv", text=texts["digenic"])).on(genes)
    assert screen.column("sign").tolist() == [-1, 1, 0]
    assert screen.column("replicates").tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("strain", "allele", "genes", "perturbations"),
    [
        ("YKL051W+YDL227C_tm3059", "", "YKL051W YDL227C", "deletion deletion"),
        ("YBL041W+YDL227C_tm2790", "pre7-5001+hoΔ", "YBL041W YDL227C", "allele deletion"),
        ("YBL041W+YHL002W_tm2", "cdc60-ts2+hse1delta", "YBL041W YHL002W", "ts deletion"),
        ("YNR016C_tsq2276", "acc1-5009-supp1", "YNR016C", "ts"),
        ("YFL034C-B_tsa609", "mob2-11", "YFL034C-B", "ts"),
        ("YAL043C_damp5001", "", "YAL043C", "damp"),
        ("YBR282W_S253", "mrpl27-supp1", "YBR282W", "allele"),
        ("YAL063C_new7", "flo9-3", "YAL063C", "allele"),
        ("YAL063C_new7", "yal063c", "YAL063C", "deletion"),
    ],
)
def test_strain_tells_genes_and_perturbations(strain, allele, genes, perturbations):
    table = Table(pl.DataFrame({"strain": [strain], "allele": [allele]}), np.ones(1), Path(), "")
    deleted = deleted_genes(table, [GeneColumn("strain", "query", True, "allele", Joins.always)])
    assert deleted["name"].to_list() == genes.split()
    assert deleted["perturbation"].to_list() == perturbations.split()


def test_allele_name_tells_perturbation():
    for perturbation, alleles in {
        "deletion": ("", "ost3Δ", "ost3∆", "iml3delta", "rpl26a", "arg5,6", "yfl034c-b"),
        "allele": ("act1-129", "SPP381-ph", "sec26-F856AW860A"),
        "ts": ("gaa1-ts", "nse5-ts4"),
        "damp": ("PTA1_damp",),
    }.items():
        frame = pl.DataFrame({"gene": ["YAL063C"] * len(alleles), "allele": alleles})
        table = Table(frame, np.arange(len(alleles)), Path(), "")
        deleted = deleted_genes(table, [GeneColumn("gene", alleles="allele")])
        assert set(deleted["perturbation"]) == {perturbation}


@pytest.mark.parametrize("kind", KINDS)
def test_files_that_are_empty_or_ragged(write, texts, kind, refused):
    lines = texts[kind].splitlines()
    ragged = write(name="a.txt", text="\n".join([*lines, lines[-1] + "\textra"]))
    error = refused("bad-rows", read, ragged)
    assert (error.where, error.line) == (ragged, len(lines) + 1)
    if kind != "costanzo2010":
        refused("empty-screen", read, write(name="b.txt", text=lines[0] + "\n"))


@pytest.mark.parametrize(
    ("kind", "old", "new", "line"),
    [
        ("kuzmin", "\t0.3\t0.5", "\tabc\t0.5", 3),
        *(("costanzo2016", "\t0.2\t", f"\t{x}\t", 3) for x in ("inf", "-0.1.2")),
        *(("costanzo2010", "\t0.125\t", f"\t{x}\t", 2) for x in ("", "NaN")),
        ("costanzo2010", "YAL001C_tsq5", "Q\tN\tA\tN\tepsilon\tsd\tp\nYAL001C_tsq5", 1),
        ("costanzo2010", "YAL002W_damp", "", 2),
        ("costanzo2010", "\t0.02\t", "\t-0.02\t", 2),
        *(("kuzmin", "\t1e-30\t", f"\t{x}\t", 2) for x in ("small", "2")),
        ("digenic", "positive\n", "upward\n", 3),
    ],
)
def test_bad_lines_are_named(write, texts, kind, old, new, line, refused):
    path = write(name="a.txt", text=texts[kind].replace(old, new))
    assert refused("bad-rows", read, path).line == line


def test_phenotype_that_is_not_there(write, texts, refused):
    for kind in ("costanzo2010", "digenic", "kuzmin"):
        path = write(name="a.txt", text=texts[kind].replace("Combined mutant fitness", "Fitness"))
        refused("missing-phenotype", read, path, phenotype="fitness")


def test_triples_with_seven_columns_are_not_costanzo2010(write):
    # The second column is another gene, and not the name of the first one.
    rows = "YAL001C,YAL002W,YAL003W,train,0.5,0.4,1.8\nYAL002W,YAL003W,YAL004W,test,-0.2,0.01,0.3\n"
    written = read(write("gene1,gene2,gene3,split,tau,p_value,prediction\n" + rows))
    assert written.reader == "table"
    assert rows_of(written) == [
        ["YAL001C", "YAL002W", "YAL003W"],
        ["YAL002W", "YAL003W", "YAL004W"],
    ]
    assert values(written, "score") == [0.5, -0.2]
    assert values(written, "part") == ["train", "test"]


def test_a_gene_without_a_name_has_its_orf_in_costanzo2010(write):
    written = read(write("YAL001C_tsq5\tYAL001C\tYAL002W\tYOR1\t0.5\t0.1\t0.01\n"))
    assert written.reader == "costanzo2010"


def test_words_of_a_header_in_prose_are_no_screen(write):
    prose = "the genes interaction was\n" + "of YAL001C|YAL002W\n" * 6
    file = File(write(prose))
    assert not any(reader.find(file) for reader in SCREEN_READERS)
