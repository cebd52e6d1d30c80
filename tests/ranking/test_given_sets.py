"""Gene sets in the forms that people have them in."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from deltacell.ranking.given_sets import gene_sets_of, line_of_set, words_of_line

SETS = [["A", "B"], ["C", "D"]]
FORMS = {
    "tuples": [("A", "B"), ("C", "D")],
    "lists": SETS,
    "a generator": (tuple(names) for names in SETS),
    "pandas": pd.DataFrame({"x": ["A", "C"], "y": ["B", "D"]}),
    "polars": pl.DataFrame({"x": ["A", "C"], "y": ["B", "D"]}),
    "polars, lazy": pl.LazyFrame({"x": ["A", "C"], "y": ["B", "D"]}),
    "lists in pandas": pd.DataFrame({"genes": SETS}),
    "lists in polars": pl.DataFrame({"genes": SETS}),
    "a series of pandas": pd.Series(SETS),
    "a series of polars": pl.Series(SETS),
    "an array": np.array(SETS),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_by_rows(form):
    assert gene_sets_of(FORMS[form]) == SETS


@pytest.mark.parametrize("missing", [None, float("nan"), "", " ", pd.NA])
def test_a_row_may_have_fewer_genes_than_others(missing):
    frame = pd.DataFrame({"1": ["A", "B"], "2": ["C", "D"], "3": ["E", missing]}, dtype=object)
    assert gene_sets_of(frame) == [["A", "C", "E"], ["B", "D"]]


def test_single_genes_and_numbers_of_genes_are_sets():
    assert gene_sets_of(pl.DataFrame({"gene": ["A", "B"]})) == [["A"], ["B"]]
    assert gene_sets_of([(5551, 10)]) == [["5551", "10"]]


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        (["AB"], "not-a-set"),
        ("AB", "not-a-set"),
        ([b"AB"], "not-a-set"),
        ([("A", "B"), 3], "not-a-set"),
        (np.array(["AB", "CD"]), "not-a-set"),
        ({"gene1": ["A"]}, "not-sets"),
        (None, "not-sets"),
        ([()], "empty-set"),
        (pl.DataFrame({"gene1": ["A"], "gene2": ["B"], "score": [0.5]}), "not-a-name"),
        ([("A", True)], "not-a-name"),
        ([("A", ("B", "C"))], "not-a-name"),
    ],
)
def test_given_sets_of_another_form_are_refused(sets, code, refused):
    refused(code, gene_sets_of, sets)


@pytest.mark.parametrize("names", [["gene1"], ["gene1", "gene2"]])
def test_a_column_of_genes_is_not_lost_in_the_index_of_a_frame(names, refused):
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"gene1": ["A", "C"], "gene2": ["B", "D"], "gene3": ["E", "F"]})
    refused("named-index", gene_sets_of, frame.set_index(names))
    assert gene_sets_of(frame.set_index(names).reset_index())[0] == ["A", "B", "E"]


def test_a_line_has_names_with_any_character():
    known = {"ARG5,6", "HO", "A", "B", "A,B", "#1"}
    for line, words in {
        "HO ARG5,6": ["HO", "ARG5,6"],
        "HO,ARG5,6": ["HO", "ARG5,6"],
        "ARG5,6;HO # ARG5": ["ARG5,6", "HO"],
        "ARG5,7 HO": ["ARG5", "7", "HO"],
        "A,B": ["A", "B"],
        '"A,B" HO': ["A,B", "HO"],
        "A#1 B": ["A#1", "B"],
        "A B#2 #3": ["A", "B#2"],
        "A #1 B": ["A", "#1", "B"],
        "A #1,B # HO": ["A", "#1", "B"],
        "#1": ["#1"],
        "# 1 A": [],
        '"5""-x", \'HO\'': ['5"-x', "HO"],
        "NT5C' HO": ["NT5C", "HO"],
    }.items():
        assert words_of_line(line, known.__contains__) == words, line


@pytest.mark.parametrize("name", ["HO", "ARG5,6", 'a"b', "a b", "#1", "a;b", "it's", '"', "a\tb"])
def test_a_written_set_is_read_back(name):
    assert words_of_line(line_of_set([name, "HO"])) == [name, "HO"]


def test_many_quotation_marks_take_no_time():
    assert len(words_of_line('"' * 100_000 + "HO")) < 3
