from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltacell.cell import Annotation, Cell, Feature
from deltacell.cell.annotation import enrichment, shared_terms

GENES = [f"g{i}" for i in range(8)]
TERMS = ("repair", "cytoplasm", "lonely", "empty")


@st.composite
def annotations(draw, name="go"):
    pairs = draw(st.sets(st.tuples(st.integers(0, 7), st.integers(0, 3)), max_size=32))
    gene, term = zip(*sorted(pairs), strict=True) if pairs else ((), ())
    return Annotation.from_pairs(name, gene, term, TERMS, n_genes=8, ids=("GO:1", "", "GO:3", ""))


def cell_of(*given):
    return Cell(GENES, [], annotations=given)


@pytest.fixture
def cell():
    pairs = [(0, 0), (1, 0), (0, 0), *((g, 1) for g in range(6)), (5, 2)]
    gene, term = zip(*pairs, strict=True)
    complexes = Annotation.from_pairs("complexes", [0, 1, 2], [0, 0, 0], ["Rad51"], n_genes=8)
    return cell_of(Annotation.from_pairs("go", gene, term, TERMS, n_genes=8), complexes)


def test_an_annotation_is_a_feature_of_its_name_and_part_of_the_checksum(cell):
    feature = cell.feature("go")
    assert feature.columns == ("repair", "cytoplasm")
    assert feature.values[[0, 5]].tolist() == [[1, 1], [0, 1]]
    assert np.isnan(feature.values[6]).all()
    assert Cell(GENES, []).checksum == cell_of().checksum != cell.checksum
    assert enrichment(cell_of(), [["g0", "g1"]]).height == 0
    # Genes outside the background are not counted.
    assert enrichment(cell, [["g0", "g5"]], background=["g0", "g1"])["drawn"].to_list() == [1] * 3


def one(n_genes=1):
    return Annotation.from_pairs("x", [0], [0], ["a"], n_genes=n_genes)


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: Annotation.from_pairs("x", [], [], ["a", "a"], n_genes=2), "bad-shape"),
        (lambda: cell_of(one()), "other-genes"),
        (lambda: Cell(["g"], [], annotations=[one(), one()]), "duplicate-name"),
        (
            lambda: Cell(["g"], [], features=[Feature("x", [[1.0]])], annotations=[one()]),
            "duplicate-name",
        ),
        (lambda: one(8).feature, "no-feature"),
        (lambda: cell_of(one(8)).feature("y"), "unknown-feature"),
    ],
)
def test_mistakes_are_errors(make, code, refused):
    refused(code, make)


@given(annotations(), st.sets(st.integers(0, 7), min_size=1, max_size=4), st.integers(0, 8))
def test_shared_terms_are_those_of_every_gene_the_smallest_first(annotation, genes, most):
    common = annotation.matrix.toarray()[sorted(genes)].all(axis=0)
    found = shared_terms(cell_of(annotation), sorted(genes))
    assert {term.term for term in found} == {TERMS[i] for i in np.flatnonzero(common)}
    sizes = annotation.matrix.toarray().sum(axis=0)
    assert [t.size for t in found] == sorted(sizes[TERMS.index(t.term)] for t in found)
    small = shared_terms(cell_of(annotation), sorted(genes), max_genes=most)
    assert small == [term for term in found if term.size <= most]


@given(
    annotations(),
    st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=3), min_size=1, max_size=4),
)
def test_the_p_value_counts_the_draws_that_have_as_many_genes(annotation, sets):
    table = enrichment(cell_of(annotation), sets)
    known = np.flatnonzero(annotation.known).tolist()
    drawn = [g for g in known if any(g in one for one in sets)]
    assert (table["q_value"] >= table["p_value"]).all()
    for row in table.iter_rows(named=True):
        has_term = annotation.matrix.toarray()[:, TERMS.index(row["term"])]
        members = set(np.flatnonzero(has_term).tolist())
        draws = list(combinations(known, len(drawn)))
        as_many = sum(len(members & set(draw)) >= row["genes"] for draw in draws)
        assert row["genes"] == len(members & set(drawn))
        assert row["p_value"] == pytest.approx(as_many / len(draws))
