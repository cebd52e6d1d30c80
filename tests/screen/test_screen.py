"""A screen: building, choosing, drawing, moving to a cell, putting together; keys of gene sets."""

from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes
from deltacell.screen import Coverage, Genotypes, Screen
from deltacell.screen.gene_keys import comparable_keys, set_keys
from deltacell.screen.genotypes import repeats_a_gene

LAW = settings(max_examples=30, deadline=None)


def sets_of(screen):
    return [frozenset(g.tolist()) for g in screen.genotypes]


def plain(n, genes=10, seed=0, **columns):
    """A screen of pairs with scores."""
    rng = np.random.default_rng(seed)
    pairs = np.array(list(combinations(range(genes), 2)))[rng.integers(0, 45, n)]
    return Screen.build(
        Genes(f"g{i}" for i in range(genes)),
        Genotypes.of(pairs.tolist()),
        **({"score": rng.normal(size=n).astype(np.float32)} | columns),
    )


@pytest.mark.parametrize(
    ("column", "wrong"),
    [
        ("score", np.inf),
        ("score", -1e39),
        ("standard_deviation", -0.1),
        ("p_value", 1.5),
        ("query_fitness", -np.inf),
    ],
)
def test_a_number_that_no_measurement_has_is_refused(column, wrong, refused):
    error = refused("impossible-value", lambda: plain(3, **{column: [0.5, wrong, np.nan]}))
    assert error.fields == {"column": column, "row": 1}
    refused("impossible-value", lambda: plain(3, **{column: wrong}))


def test_build_fills_in_signs_and_one_value_for_all_or_refuses(screen, refused):
    signed = plain(4, score=[-1.0, 0.0, 2.0, np.nan], study="s", role="query")
    assert signed.column("sign").tolist() == [-1, 0, 1, 0]
    assert signed.column("study").tolist() == ["s"] * 4
    assert set(signed.column("role")) == {"query"}
    assert plain(2, score=[0.5, 0.9], phenotype="fitness").column("sign").tolist() == [0, 0]
    assert screen.kind == ["digenic", "trigenic", "digenic", "single", "digenic", "digenic"]
    assert repr(screen) == "Screen(6 genotypes: 1 single, 4 digenic, 1 trigenic)"
    for sets, code in (
        ([[0, 0]], "bad-genotypes"),
        ([[0, 9]], "bad-genotypes"),
        ([[0], []], "bad-genotypes"),
        ([], "empty-screen"),
    ):
        refused(code, lambda s=sets: Screen.build(Genes(["a", "b"]), Genotypes.of(s)))
    refused("column-length", lambda: plain(3, p_value=[0.1, 0.2]))


def test_take_rows_or_a_mask_or_where_columns_are_so(screen, refused):
    taken = screen.take([3, 1])
    assert sets_of(taken) == [{5}, {2, 3, 4}]
    assert taken.column("score").tolist()[0] == 0.5
    assert taken.column("allele").tolist() == ["x7", "x2", "x3", "x4"]
    assert taken.offsets.tolist() == [0, 1, 4]
    assert sets_of(screen.take(np.arange(6) == 1)) == [{2, 3, 4}]
    with pytest.raises(IndexError):
        screen.take(np.ones(5, dtype=bool))
    refused("empty-screen", lambda: screen.take([]))
    assert len(screen.where(kind=["single", "trigenic"])) == 2
    assert len(screen.where(study="a", phenotype="interaction")) == 2
    assert [c.study for c in screen.where(study="b").coverage.studies] == ["b"]
    refused("no-such-genotypes", lambda: screen.where(study="c"))
    refused("unknown-column", lambda: screen.where(colour="blue"))


def test_a_subset_is_the_same_for_the_same_seed(refused):
    screen = plain(300)
    some = screen.subset(50, 7)
    assert (len(some), screen.subset(50, 7).equals(some)) == (50, True)
    assert not screen.subset(50, 8).equals(some)
    assert (np.diff(some.column("source_row")) > 0).all()
    for n in (0, 301):
        refused("invalid-number", screen.subset, n)


def on(screen, names, aliases=None):
    return screen.on(Cell(Genes(names, None, aliases), []), on_unknown="drop")


def test_on_a_cell_indices_are_those_of_the_cell_and_unknown_genes_are_dropped(screen, refused):
    moved = screen.on(Cell(Genes(reversed(screen.genes.systematic)), []))
    assert sets_of(moved) == [{5 - g for g in s} for s in sets_of(screen)]
    assert moved.coverage.studies[0].query_genes.tolist() == [5, 3, 2]
    assert moved.sources == screen.sources
    cell = Cell(Genes(screen.genes.systematic, ["Z"] * 6), [])
    assert screen.on(cell).genes.standard[0] == "Z"
    refused("unknown-gene", lambda: screen.on(Cell(Genes(["g1", "g0", "g5"]), [])))
    moved = on(screen, ["g1", "g0", "g5"])
    assert sets_of(moved) == [{0, 1}, {0, 1}, {2}, {0, 1}, {0, 1}]
    assert moved.sources[-1].counts.dropped == {"unknown gene": 1}
    assert [len(c.query_offsets) for c in moved.coverage.studies] == [2, 2]
    refused("empty-screen", lambda: on(screen, ["other"]))


def test_on_a_cell_where_two_genes_are_one(screen, refused):
    names, aliases = ["g0", "g2", "g3", "g4", "g5"], [["g1"], [], [], [], []]
    refused("gene-twice", lambda: screen.on(Cell(Genes(names, None, aliases), [])))
    moved = on(screen, names, aliases)
    assert sets_of(moved) == [{1, 2, 3}, {4}]
    assert moved.sources[-1].counts.dropped == {"same gene twice after aliases": 4}
    # A query pair that is one gene in the cell was not tested.
    moved = on(screen, ["g0", "g1", "g2", "g4", "g5"], [[], [], ["g3"], [], []])
    assert [c.query_genes.tolist() for c in moved.coverage.studies] == [[0], [1]]


def test_stats(screen):
    stats = screen.stats()
    assert (stats["genotypes"], stats["distinct_genotypes"], stats["genes"]) == (6, 3, 6)
    assert stats["kinds"] == {"single": 1, "digenic": 4, "trigenic": 1}
    assert stats["studies"] == {"a": 3, "b": 3}
    assert stats["perturbations"] == {"deletion": 11, "ts": 1}
    assert (stats["score"]["known"], stats["score"]["negative"]) == (5, 3)
    covered = {"study": "a", "queries": 2, "array_genes": 2, "complete": True}
    assert stats["coverage"][0] == covered


N = 7
gene_sets = st.lists(st.integers(0, N - 1), min_size=2, max_size=4, unique=True)


def ragged(sets):
    genes = np.array([g for s in sets for g in s], dtype=np.int64)
    return genes, np.cumsum([0, *(len(s) for s in sets)])


@LAW
@given(st.lists(st.tuples(gene_sets, st.sampled_from("ab")), min_size=1, max_size=20))
def test_derived_coverage_is_every_query_with_every_array_gene(rows):
    role = pl.Series([r for s, _ in rows for r in ["query"] * (len(s) - 1) + ["array"]])
    study = pl.Series([study for _, study in rows])
    coverage = Coverage.from_rows(*ragged([s for s, _ in rows]), role, study, complete=True)
    assert [part.study for part in coverage.studies] == list(dict.fromkeys(study))
    for part in coverage.studies:
        mine = [s for s, name in rows if name == part.study]
        queries, arrays = {frozenset(s[:-1]) for s in mine}, {s[-1] for s in mine}
        found = np.split(part.query_genes, part.query_offsets[1:-1])
        assert {frozenset(q.tolist()) for q in found} == queries
        assert len(found) == len(queries)
        assert part.array_genes.tolist() == sorted(arrays)
        crosses = {(frozenset(s[:-1]), s[-1]) for s in mine}
        assert part.complete == (len(crosses) >= 0.25 * len(queries) * len(arrays))


key_sets = st.lists(st.lists(st.integers(0, 3), max_size=4, unique=True), min_size=1, max_size=15)


@LAW
# With so many genes a set of four no longer fits one integer.
@pytest.mark.parametrize("n_genes", [4, 10**6])
@given(some=key_sets, others=key_sets)
def test_keys_are_equal_exactly_when_the_sets_are(n_genes, some, others):
    some = [[g * (n_genes // 4) + n_genes // 4 - 1 for g in s] for s in some]
    others = [[g * (n_genes // 4) + n_genes // 4 - 1 for g in s] for s in others]
    keys = set_keys(*ragged(some), n_genes)
    assert (keys[:, None] == keys).tolist() == [[set(a) == set(b) for b in some] for a in some]
    mine, theirs = comparable_keys(n_genes, ragged(some), ragged(others))
    assert np.isin(mine, theirs).tolist() == [any(set(a) == set(b) for b in others) for a in some]


@LAW
@given(st.lists(st.lists(st.integers(-2, 3), max_size=5), min_size=1))
def test_repeats_are_of_genes_and_not_of_what_is_unknown(rows):
    known = [[g for g in row if g >= 0] for row in rows]
    assert repeats_a_gene(*ragged(rows)).tolist() == [len(set(k)) < len(k) for k in known]


def test_merge_by_mean_and_by_p_value(screen):
    merged = screen.merge("mean")
    assert sets_of(merged) == [{0, 1}, {2, 3, 4}, {5}, {0, 1}]
    np.testing.assert_allclose(merged.column("score"), [-0.125, np.nan, 0.5, 0.75])
    np.testing.assert_allclose(
        merged.column("standard_deviation"),
        [1.3 / 3, np.nan, 0.1, 0.2],
        rtol=1e-6,
    )
    assert np.isnan(merged.column("p_value")).all()
    assert merged.column("sign").tolist() == [-1, -1, 1, 0]
    assert merged.column("phenotype").tolist() == [*["interaction"] * 3, "fitness"]
    # What cannot be averaged is the first row's.
    assert merged.column("study").tolist() == ["a", "a", "b", "a"]
    assert merged.column("allele").tolist()[:2] == ["x0", "x1"]
    best = screen.merge("best-p")
    assert best.column("source_row").tolist() == [2, 1, 3, 5]
    assert (best.column("score")[0], best.column("p_value")[0]) == (0.25, 0.01)
    assert best.column("allele").tolist()[:2] == ["x5", "x6"]
    genes, sets = Genes(["a", "b", "c"]), Genotypes.of([[0, 1], [1, 0], [0, 2], [2, 0]])
    signs = Screen.build(genes, sets, sign=[1, -1, 1, 1]).merge("mean")
    assert signs.column("sign").tolist() == [0, 1]
    known = {"score": [1.0, 2.0, 1.0, 2.0], "standard_deviation": [0.1, np.nan, 0.3, 0.4]}
    merged = Screen.build(genes, sets, **known).merge("mean")
    np.testing.assert_allclose(merged.column("standard_deviation"), [np.nan, 0.25], rtol=1e-6)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_merged_score_that_is_rounded_to_zero_has_no_sign(sign):
    smallest = sign * float(np.finfo(np.float32).smallest_subnormal)
    sets = Genotypes.of([[0, 1], [0, 1]])
    merged = Screen.build(Genes(["a", "b"]), sets, score=[smallest, 0.0]).merge("mean")
    assert merged.column("score").tolist() == [0.0]
    assert merged.column("sign").tolist() == [0]
    assert merged.merge("mean").equals(merged)
