"""Bad files: an error that names the file and the line."""

from __future__ import annotations

import gzip

import openpyxl
import pytest

from deltacell.errors import InputError
from deltacell.screen import readers
from deltacell.screen.readers import costanzo2010, costanzo2016, delimited, hits, kuzmin

READ = {
    "kuzmin": kuzmin.read,
    "costanzo2016": costanzo2016.read,
    "costanzo2010": costanzo2010.read,
    "trigenic": hits.read,
    "digenic": hits.read,
}


def refused(read, path, *, line, says, **options):
    with pytest.raises(InputError) as caught:
        read(path, **options)
    assert caught.value.where == path
    assert caught.value.line == line
    assert says in str(caught.value)


@pytest.mark.parametrize("kind", READ)
def test_truncated_gzip(tmp_path, texts, kind):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(texts[kind].encode())[:-20])
    refused(READ[kind], path, line=None, says="cut off or damaged")


def test_damaged_zip(tmp_path):
    path = tmp_path / "a.xlsx"
    path.write_bytes(b"PK\x03\x04 and no more")
    for read in (kuzmin.read, readers.recognise):
        refused(read, path, line=None, says="damaged")


@pytest.mark.parametrize("kind", READ)
def test_missing_file(tmp_path, kind):
    refused(READ[kind], tmp_path / "absent", line=None, says="cannot be read")


@pytest.mark.parametrize("kind", READ)
def test_wrong_number_of_columns(write, texts, kind):
    lines = texts[kind].splitlines()
    path = write("a.txt", "\n".join([*lines, lines[-1] + "\textra"]))
    width = lines[-1].count("\t") + 1
    refused(READ[kind], path, line=len(lines) + 1, says=f"{width + 1} columns where {width}")


def test_header_where_none_belongs(write, texts):
    header = "Query\tName\tArray\tName\tepsilon\tsd\tp\n"
    path = write("a.txt", "\n" + header + texts["costanzo2010"])
    refused(costanzo2010.read, path, line=2, says="header was found where none belongs")


@pytest.mark.parametrize("kind", ["kuzmin", "costanzo2016", "trigenic"])
def test_header_that_is_missing(write, texts, kind):
    path = write("a.txt", texts[kind].split("\n", 1)[1])
    refused(READ[kind], path, line=1, says="the header lacks")


@pytest.mark.parametrize("bad", ["abc", "NaN", "inf", "-0.1.2"])
@pytest.mark.parametrize(
    ("kind", "good", "line"),
    [("kuzmin", "\t0.3\t0.5", 3), ("costanzo2016", "\t0.2\t", 3), ("costanzo2010", "\t0.125\t", 2)],
)
def test_score_that_is_no_number(write, texts, kind, good, line, bad):
    wrong = good.replace(good.split("\t")[1], bad, 1)
    path = write("a.txt", texts[kind].replace(good, wrong))
    refused(READ[kind], path, line=line, says=f"'{bad}' is not a finite number")


def test_empty_score_where_one_is_required(write, texts):
    path = write("a.txt", texts["costanzo2010"].replace("\t0.125\t", "\t\t"))
    refused(costanzo2010.read, path, line=2, says="is not a finite number")


def test_other_number_that_is_none(write, texts):
    path = write("a.txt", texts["kuzmin"].replace("\t1e-30\t", "\tsmall\t"))
    refused(kuzmin.read, path, line=2, says="column 'P-value': 'small'")


@pytest.mark.parametrize("kind", ["kuzmin", "costanzo2016", "trigenic", "digenic"])
def test_header_and_no_row(write, texts, kind):
    path = write("a.txt", texts[kind].split("\n", 1)[0] + "\n")
    refused(READ[kind], path, line=None, says="the screen is empty")


@pytest.mark.parametrize("kind", READ)
def test_empty_file(write, kind):
    refused(READ[kind], write("a.txt", ""), line=None, says="empty")


def test_no_row_has_a_score(write, texts):
    head, first, *_ = texts["kuzmin"].split("\n")
    path = write("a.txt", f"{head}\n{first.replace('-0.1', '')}\n")
    refused(kuzmin.read, path, line=None, says="the screen is empty")


def test_strain_that_is_missing(write, texts):
    path = write("a.txt", texts["costanzo2010"].replace("YAL002W_damp", ""))
    refused(costanzo2010.read, path, line=2, says="name of a gene is missing")


def test_sign_that_is_none(write, texts):
    path = write("a.txt", texts["digenic"].replace("positive\n", "upward\n"))
    refused(hits.read, path, line=3, says="'upward' is none of 'negative', 'positive', 'both'")


def test_phenotype_that_is_not_there(write, texts):
    path = write("a.txt", texts["costanzo2010"])
    refused(costanzo2010.read, path, line=None, says="no phenotype 'fitness'", phenotype="fitness")
    path = write("a.txt", texts["digenic"])
    refused(hits.read, path, line=None, says="no 'fitness'", phenotype="fitness")
    part = texts["kuzmin"].replace("Combined mutant fitness", "Fitness")
    refused(
        kuzmin.read, write("a.txt", part), line=1, says="no column 'Combined", phenotype="fitness"
    )


def test_workbook_without_the_header(tmp_path):
    book = openpyxl.Workbook()
    book.active.append(["something", "else"])
    book.save(tmp_path / "a.xlsx")
    assert readers.recognise(tmp_path / "a.xlsx") is None
    refused(kuzmin.read, tmp_path / "a.xlsx", line=None, says="'Query strain ID'")


TABLE = "a\tb\tscore\nYAL001C\tYAL002W\t0.5\nYAL001C\tYAL003W\tx\n"
GENES = {"genes": ["a", "b"]}


@pytest.mark.parametrize(
    ("columns", "options", "line", "says"),
    [
        (GENES | {"score": "eps"}, {}, 1, "no column 'eps'; there are 'a', 'b', 'score'"),
        ({"genes": ["a", "c"], "score": "score"}, {}, 1, "no column 'c'"),
        (GENES | {"score": "score"}, {}, 3, "'x' is not a finite number"),
        (GENES | {"sign": "score"}, {}, 2, "'0.5' is none of"),
        (GENES | {"sign": "b"}, {}, 2, "is none of"),
        (GENES | {"score": "score", "perturbations": ["a", "b"]}, {}, 2, "'YAL001C' is none of"),
        (GENES | {"score": "score", "alleles": "a"}, {}, 2, "1 alleles for 2 genes"),
        (GENES | {"score": "score", "phenotype": "a"}, {}, 2, "'YAL001C' is none of"),
        (GENES | {"score": "score"}, {"roles": ["query"]}, 2, "roles for 1 were given"),
    ],
)
def test_delimited(write, columns, options, line, says):
    path = write("a.tsv", TABLE)
    refused(delimited.read, path, line=line, says=says, columns=columns, **options)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"genes": "a"}, "which the score or the sign"),
        ({"score": "score"}, "which columns hold the genes"),
        (GENES | {"score": "score", "colour": "b"}, "no colour"),
        (GENES | {"score": ["a", "score"]}, "one column"),
    ],
)
def test_mapping_that_makes_no_sense(write, columns, says):
    with pytest.raises(InputError, match=says):
        delimited.read(write("a.tsv", TABLE), columns=columns)


@pytest.mark.parametrize("options", [{"phenotype": "colour"}, {"roles": ["left", "right"]}])
def test_option_that_makes_no_sense(write, options):
    text = TABLE.replace("x", "1")
    with pytest.raises(InputError, match="is none of"):
        delimited.read(write("a.tsv", text), columns=GENES | {"score": "score"}, **options)


def test_row_that_names_no_gene(write):
    path = write("a.tsv", "a\tb\tscore\nYAL001C\tYAL002W\t0.5\n\t\t0.1\n")
    refused(
        delimited.read, path, line=3, says="no value in a, b", columns=GENES | {"score": "score"}
    )
