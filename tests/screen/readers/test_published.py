"""Published formats are recognised by content and read right, and bad files name their line."""

from __future__ import annotations

import gzip
import zipfile
from itertools import pairwise

import numpy as np
import openpyxl
import polars as pl
import pytest

from deltacell.errors import InputError
from deltacell.screen import readers
from deltacell.screen.readers import costanzo2010, costanzo2016, delimited, hits, kuzmin
from deltacell.screen.readers.published import crossed, parse_strains, perturbation_of
from deltacell.table import peek

READERS = {
    "kuzmin": kuzmin,
    "costanzo2016": costanzo2016,
    "costanzo2010": costanzo2010,
    "trigenic": hits,
    "digenic": hits,
}


def rows_of(written):
    names = written.deleted["name"].to_list()
    return [names[a:b] for a, b in pairwise(written.offsets)]


def numbers(written, name):
    return np.asarray(written.numbers[name]).tolist()


@pytest.mark.parametrize("ending", ["txt", "txt.gz", "txt.zip"])
@pytest.mark.parametrize("kind", READERS)
def test_recognised_by_content_and_by_one_reader_only(write, texts, kind, ending):
    path = write(f"a.{ending}", texts[kind])
    assert readers.recognise(path) == READERS[kind].NAME
    assert sum(r.recognise(peek(path), path.name) for r in readers.SCREEN_READERS) == 1
    assert readers.reader(READERS[kind].NAME).read(path).reader == READERS[kind].NAME


@pytest.mark.parametrize(
    "text", ["a\tb\tc\n1\t2\t3\n", "\n", "YAL001C\tYAL002W\t0.5\n", "{}", "protein1 protein2 s\n"]
)
def test_other_files_are_not_recognised(write, tmp_path, text):
    assert readers.recognise(write("a.txt", text)) is None
    np.savez(tmp_path / "features.npz", a=np.zeros(3), b=np.zeros(3))
    assert readers.recognise(tmp_path / "features.npz") is None


def test_kuzmin_2018(write, texts):
    written = kuzmin.read(write("s1.tsv", texts["kuzmin"]))
    assert rows_of(written) == [["YAL001C", "YAL002W", "YAL003W"], ["YAL002W", "YAL004W"]]
    deleted = written.deleted
    assert deleted["role"].to_list() == ["query", "query", "array", "query", "array"]
    assert deleted["perturbation"].to_list() == [
        *("allele", "deletion", "deletion", "deletion", "ts")
    ]
    assert deleted["allele"].to_list() == ["a-1", "bΔ", "efb1Δ", "vps8Δ", "c-2"]
    assert numbers(written, "score") == [-0.1, 0.3]
    assert numbers(written, "p_value") == [1e-30, 0.5]
    assert "standard_deviation" not in written.numbers
    np.testing.assert_array_equal(written.numbers["query_fitness"], [0.9, np.nan])
    assert written.lines.tolist() == [2, 3]
    assert (written.study, written.phenotype) == ("kuzmin2018", "interaction")
    assert written.dropped == {"no score": 1, "control locus alone as query": 1}
    assert written.complete_coverage
    assert not written.notes
    differs = texts["kuzmin"].replace("\ttrigenic\t", "\tdigenic\t")
    assert kuzmin.read(write("s1.tsv", differs)).notes == {"combined_type_differs": 1}


def test_kuzmin_fitness_on_request_keeps_the_single_mutant_of_a_control_cross(write, texts):
    written = kuzmin.read(write("s1.tsv", texts["kuzmin"]), phenotype="fitness", study="mine")
    assert rows_of(written)[2:] == [["YAL001C", "YAL003W"], ["YAL003W"]]
    assert numbers(written, "score") == [0.6, 1.0, 0.7, 0.8]
    assert numbers(written, "standard_deviation") == [0.05, 0.02, 0.01, 0.03]
    assert (written.study, written.phenotype) == ("mine", "fitness")
    assert sum(written.dropped.values()) == 0


def test_kuzmin_part_without_scores_is_fitness(write):
    text = (
        "\tQuery strain ID\tArray strain ID\tP-value\tCombined mutant fitness\tg1\n"
        "381092\tYKL051W+YDL227C_tm3059\tYDR108W_dma909\t0.5\t0.835\tx\n"
    )
    written = kuzmin.read(write("slice.tsv", text))
    assert rows_of(written) == [["YKL051W", "YDR108W"]]
    assert (written.phenotype, numbers(written, "score")) == ("fitness", [0.835])


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
    assert numbers(written, "score") == [-0.1, 0.3, 0.2]
    # A p-value of 1e-30 beside one that is text must not become 0.
    assert numbers(written, "p_value") == [1e-30, 0.5, 0.45]
    assert written.lines.tolist() == [3, 4, 7]


def test_costanzo_2016(write, texts, genes):
    path = write("sga.txt", texts["costanzo2016"])
    written = costanzo2016.read(path)
    assert rows_of(written) == [
        *(["YAL001C", "YAL003W"], ["YAL002W", "YAL004W"], ["YAL003W", "YAL001C"])
    ]
    assert written.deleted["perturbation"].to_list() == [
        *("ts", "deletion", "allele", "deletion", "deletion", "ts")
    ]
    assert numbers(written, "score") == [-0.1, 0.2, 0.05]
    assert (written.dropped, written.study) == ({"no score": 1}, "costanzo2016")
    # What was crossed with the deletion array was not crossed with the other one.
    coverage = written.on(genes).coverage
    assert [(c.n_queries, len(c.array_genes)) for c in coverage.studies] == [(2, 2), (1, 1)]
    fitness = costanzo2016.read(path, phenotype="fitness")
    assert numbers(fitness, "score") == [0.8, 0.9, 0.6, 0.6]
    assert fitness.on(genes).column("sign").tolist() == [0, 0, 0, 0]


def test_costanzo_2010(write, texts, genes):
    written = costanzo2010.read(write("sga.txt", texts["costanzo2010"]))
    assert rows_of(written) == [
        *(["YAL001C", "YAL003W"], ["YAL002W", "YAL004W"], ["YAL002W", "YAL001C"])
    ]
    assert written.deleted["perturbation"].to_list() == [
        *("ts", "deletion", "damp", "deletion", "deletion", "deletion")
    ]
    assert written.deleted["allele"].to_list() == ["tfc3-1", "", "VPS8_damp", "", "", ""]
    assert numbers(written, "standard_deviation") == [0.01, 0.02, 0.03]
    assert numbers(written, "p_value") == [1e-5, 0.04, 0.001]
    assert written.lines.tolist() == [1, 2, 3]
    screen = written.on(genes)
    assert screen.column("sign").tolist() == [-1, 1, -1]
    (coverage,) = screen.coverage.studies
    assert (coverage.study, coverage.complete, coverage.n_queries) == ("costanzo2010", False, 2)


def test_hits(write, texts, genes):
    screen = hits.read(write("a.tsv", texts["trigenic"])).on(genes)
    assert screen.kind == ["trigenic"]
    assert screen.column("sign").tolist() == [-1]
    assert np.isnan(screen.column("score")).all()
    assert screen.gene_column("perturbation").tolist() == ["deletion", "allele", "ts"]
    assert set(screen.gene_column("role")) == {"unknown"}
    assert not screen.coverage.studies
    screen = hits.read(write("a.tsv", texts["digenic"])).on(genes)
    assert screen.column("sign").tolist() == [-1, 1, 0]
    assert screen.column("replicates").tolist() == [2, 1, 2]


@pytest.mark.parametrize(
    ("strain", "allele", "genes", "perturbations"),
    [
        ("YKL051W+YDL227C_tm3059", "", "YKL051W YDL227C", "deletion deletion"),
        ("YBL041W+YDL227C_tm2790", "pre7-5001+hoΔ", "YBL041W YDL227C", "allele deletion"),
        ("YBL041W+YHL002W_tm2", "cdc60-ts2+hse1delta", "YBL041W YHL002W", "ts deletion"),
        ("YDR108W_dma909", "trs85", "YDR108W", "deletion"),
        ("YNR016C_tsq2276", "acc1-5009-supp1", "YNR016C", "ts"),
        ("YFL034C-B_tsa609", "mob2-11", "YFL034C-B", "ts"),
        ("YAL043C_damp5001", "", "YAL043C", "damp"),
        ("YBR282W_S253", "mrpl27-supp1", "YBR282W", "allele"),
        ("YAL063C_new7", "flo9-3", "YAL063C", "allele"),
        ("YAL063C_new7", "yal063c", "YAL063C", "deletion"),
    ],
)
def test_strain_tells_genes_and_perturbations(strain, allele, genes, perturbations):
    deleted = parse_strains(pl.Series([strain]), pl.Series([allele])).deleted
    assert deleted["name"].to_list() == genes.split()
    assert deleted["perturbation"].to_list() == perturbations.split()


@pytest.mark.parametrize(
    ("alleles", "perturbation"),
    [
        (("", "ost3Δ", "ost3∆", "iml3delta", "rpl26a", "arg5,6", "yfl034c-b"), "deletion"),
        (("act1-129", "SPP381-ph", "sec26-F856AW860A"), "allele"),
        (("gaa1-ts", "nse5-ts4"), "ts"),
        (("PTA1_damp",), "damp"),
    ],
)
def test_allele_name_tells_perturbation(alleles, perturbation):
    for allele in alleles:
        assert pl.select(perturbation_of(pl.lit(allele))).item() == perturbation


def test_crosses_put_the_query_genes_before_the_array_gene():
    query = parse_strains(pl.Series(["A+B_tm1", "C_sn2", "A+B_tm1"]), without="B")
    array = parse_strains(pl.Series(["D_tsa1", "D_tsa1", "E_dma3"]), pl.Series(["", "d+e", ""]))
    deleted, offsets = crossed(query, array, np.arange(3))
    assert deleted["name"].to_list() == ["A", "D", "C", "D", "A", "E"]
    assert deleted["role"].to_list() == ["query", "array"] * 3
    assert deleted["allele"].to_list() == [""] * 6
    assert offsets.tolist() == [0, 2, 4, 6]


def refused(read, path, *, line=None, code=None, **options):
    with pytest.raises(InputError) as caught:
        read(path, **options)
    assert (caught.value.where, caught.value.line) == (path, line)
    assert code is None or caught.value.code == code
    return caught.value


@pytest.mark.parametrize("kind", READERS)
def test_files_that_are_damaged_missing_empty_or_ragged(tmp_path, write, texts, kind):
    read = READERS[kind].read
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(texts[kind].encode())[:-20])
    refused(read, path)
    refused(read, tmp_path / "absent")
    refused(read, write("empty.txt", ""))
    lines = texts[kind].splitlines()
    ragged = write("a.txt", "\n".join([*lines, lines[-1] + "\textra"]))
    refused(read, ragged, line=len(lines) + 1)
    if kind != "costanzo2010":
        refused(read, write("b.txt", lines[0] + "\n"), code="empty-screen")


def test_damaged_zip_and_workbook_without_the_header(tmp_path):
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK\x03\x04 and no more")
    refused(kuzmin.read, path)
    refused(readers.recognise, path)
    book = openpyxl.Workbook()
    book.active.append(["something", "else"])
    book.save(path)
    assert readers.recognise(path) is None
    refused(kuzmin.read, path)


@pytest.mark.parametrize("bad", ["abc", "NaN", "inf", "-0.1.2"])
@pytest.mark.parametrize(
    ("kind", "good", "line"),
    [("kuzmin", "\t0.3\t0.5", 3), ("costanzo2016", "\t0.2\t", 3), ("costanzo2010", "\t0.125\t", 2)],
)
def test_score_that_is_not_a_number(write, texts, kind, good, line, bad):
    wrong = good.replace(good.split("\t")[1], bad, 1)
    error = refused(READERS[kind].read, write("a.txt", texts[kind].replace(good, wrong)), line=line)
    assert f"'{bad}'" in error.what


@pytest.mark.parametrize(
    ("kind", "old", "new", "line", "code"),
    [
        ("costanzo2010", "YAL001C_tsq5", "Q\tN\tA\tN\tepsilon\tsd\tp\nYAL001C_tsq5", 1, None),
        ("costanzo2010", "\t0.125\t", "\t\t", 2, None),
        ("costanzo2010", "YAL002W_damp", "", 2, "missing-gene"),
        ("kuzmin", "\t1e-30\t", "\tsmall\t", 2, None),
        ("kuzmin", "\t1e-30\t", "\t2\t", 2, "impossible-value"),
        ("kuzmin", "Query strain ID", "Strain", 1, None),
        ("digenic", "positive\n", "upward\n", 3, "unknown-value"),
    ],
)
def test_bad_lines_are_named(write, texts, kind, old, new, line, code):
    path = write("a.txt", texts[kind].replace(old, new))
    refused(READERS[kind].read, path, line=line, code=code)


def test_phenotype_that_is_not_there(write, texts):
    for kind in ("costanzo2010", "digenic"):
        path = write("a.txt", texts[kind])
        refused(READERS[kind].read, path, code="missing-phenotype", phenotype="fitness")
    part = write("a.txt", texts["kuzmin"].replace("Combined mutant fitness", "Fitness"))
    refused(kuzmin.read, part, line=1, code="missing-phenotype", phenotype="fitness")


def test_delimited_with_a_column_per_gene(write, genes):
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
    np.testing.assert_array_equal(screen.column("p_value"), [0.01, np.nan])
    assert screen.gene_column("role").tolist() == ["query", "array", "query"]
    assert written.study == "my"


@pytest.mark.parametrize(
    ("text", "joined_by"),
    [
        ("genes\tsign\talleles\nYAL001C;YAL003W\tnegative\ta-1;efb1Δ\n", None),
        ("genes\tsign\talleles\nYAL001C::YAL003W\t-\ta-1::efb1Δ\n", "::"),
    ],
)
def test_delimited_with_all_genes_in_one_column(write, genes, text, joined_by):
    columns = {"genes": "genes", "sign": "sign", "alleles": "alleles"}
    screen = delimited.read(write("a.tsv", text), columns=columns, joined_by=joined_by).on(genes)
    assert screen.to_polars()["genes"].to_list() == [["YAL001C", "YAL003W"]]
    assert screen.gene_column("perturbation").tolist() == ["allele", "deletion"]
    assert screen.column("sign").tolist() == [-1]


TABLE = "a\tb\tscore\nYAL001C\tYAL002W\t0.5\nYAL001C\tYAL003W\tx\n\t\t1\n"
GENES = {"genes": ["a", "b"]}
SCORE = GENES | {"score": "score"}


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        (GENES | {"score": "eps"}, {}, 1),
        (SCORE, {}, 4),
        (GENES | {"sign": "b"}, {}, 4),
        (SCORE | {"alleles": "a"}, {}, 4),
        ({"genes": "a"}, {}, None),
        ({"score": "score"}, {}, None),
        (SCORE | {"colour": "b"}, {}, None),
        (GENES | {"score": ["a", "score"]}, {}, None),
    ],
)
def test_delimited_mapping_or_rows_that_make_no_sense(write, columns, options, line):
    with pytest.raises(InputError) as caught:
        delimited.read(write("a.tsv", TABLE), columns=columns, **options)
    assert caught.value.line == line


@pytest.mark.parametrize(
    ("columns", "options", "line"),
    [
        ({}, {}, 3),
        ({"perturbations": ["a", "b"]}, {}, 2),
        ({"phenotype": "a"}, {}, 2),
        ({"alleles": "a"}, {}, 2),
        ({}, {"roles": ["query"]}, 2),
        ({}, {"roles": ["left", "right"]}, None),
        ({}, {"phenotype": "colour"}, None),
    ],
)
def test_delimited_values_that_make_no_sense(write, columns, options, line):
    path = write("a.tsv", TABLE.removesuffix("\t\t1\n"))
    with pytest.raises(InputError) as caught:
        delimited.read(path, columns=SCORE | columns, **options)
    assert caught.value.line == line
