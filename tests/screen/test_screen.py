"""A screen: building, choosing, drawing, moving to a cell, putting together."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes
from deltacell.errors import InputError
from deltacell.screen import Coverage, Genotypes, Screen, StudyCoverage

LAW = settings(max_examples=60, deadline=None)


def sets_of(screen):
    return [set(g.tolist()) for g in screen.genotypes]


def plain(n, genes=10, seed=0, **columns):
    """A screen of pairs with scores."""
    rng = np.random.default_rng(seed)
    pairs = np.array(list(combinations(range(genes), 2)))[rng.integers(0, 45, n)]
    return Screen.build(
        Genes(f"g{i}" for i in range(genes)),
        Genotypes.of(pairs.tolist()),
        **({"score": rng.normal(size=n).astype(np.float32)} | columns),
    )


def code_of(refused):
    with pytest.raises(InputError) as caught:
        refused()
    return caught.value.code


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
def test_a_number_that_no_measurement_has_is_refused(column, wrong):
    with pytest.raises(InputError) as caught:
        plain(3, **{column: [0.5, wrong, np.nan]})
    assert caught.value.fields == {"column": column, "row": 1}
    assert code_of(lambda: plain(3, **{column: wrong})) == "impossible-value"


def test_build_fills_in_signs_and_one_value_for_all(screen):
    signed = plain(4, score=[-1.0, 0.0, 2.0, np.nan], study="s", role="query")
    assert signed.column("sign").tolist() == [-1, 0, 1, 0]
    assert signed.column("study").tolist() == ["s"] * 4
    assert set(signed.gene_column("role")) == {"query"}
    assert plain(2, score=[0.5, 0.9], phenotype="fitness").column("sign").tolist() == [0, 0]
    assert screen.kind == ["digenic", "trigenic", "digenic", "single", "digenic", "digenic"]
    assert repr(screen) == "Screen(6 genotypes: 1 single, 4 digenic, 1 trigenic)"


@pytest.mark.parametrize(
    ("sets", "code"),
    [
        ([[0, 0]], "gene-twice"),
        ([[0, 9]], "gene-outside-cell"),
        ([[0], []], "empty-genotype"),
        ([], "empty-screen"),
    ],
)
def test_what_cannot_be_built(sets, code):
    assert code_of(lambda: Screen.build(Genes(["a", "b"]), Genotypes.of(sets))) == code
    assert code_of(lambda: plain(3, p_value=[0.1, 0.2])) == "column-length"
    with pytest.raises(TypeError, match="colour"):
        plain(3, colour=1)


def test_take_rows_or_a_mask(screen):
    taken = screen.take([3, 1])
    assert sets_of(taken) == [{5}, {2, 3, 4}]
    assert taken.column("score").tolist()[0] == 0.5
    assert taken.gene_column("allele").tolist() == ["x7", "x2", "x3", "x4"]
    assert taken.offsets.tolist() == [0, 1, 4]
    assert sets_of(screen.take(np.arange(6) == 1)) == [{2, 3, 4}]
    assert code_of(lambda: screen.take(np.ones(5, dtype=bool))) == "mask-length"
    assert code_of(lambda: screen.take([])) == "empty-screen"


def test_where_chooses_by_study_kind_and_phenotype(screen):
    assert len(screen.where(kind=["single", "trigenic"])) == 2
    assert len(screen.where(study="a", phenotype="interaction")) == 2
    assert [c.study for c in screen.where(study="b").coverage.studies] == ["b"]
    assert code_of(lambda: screen.where(study="c")) == "no-such-genotypes"
    assert code_of(lambda: screen.where(score="1")) == "unknown-column"


class TestSubset:
    def test_every_stratum_gives_its_share(self):
        n = 4000
        screen = plain(n, study=np.where(np.arange(n) % 4 == 0, "few", "many"))
        edges = np.quantile(screen.column("score"), np.linspace(0, 1, 11)[1:-1])

        def shares(part):
            strata = zip(
                part.column("study"),
                part.column("sign").tolist(),
                np.searchsorted(edges, part.column("score")).tolist(),
                strict=True,
            )
            return Counter(strata)

        whole, drawn = shares(screen), shares(screen.subset(400, seed=3))
        assert drawn.total() == 400
        for stratum, size in whole.items():
            assert abs(drawn[stratum] - size / 10) < 1

    def test_same_seed_same_rows_and_none_twice(self):
        screen = plain(500)
        rows = screen.subset(200, seed=1).column("source_row")
        assert len(set(rows)) == 200
        assert rows.tolist() == screen.subset(200, seed=1).column("source_row").tolist()
        assert rows.tolist() != screen.subset(200, seed=2).column("source_row").tolist()
        assert (np.diff(rows) > 0).all()

    def test_does_not_depend_on_how_the_screen_is_held(self, tmp_path):
        screen = plain(300, study=np.where(np.arange(300) % 3 == 0, "b", "a"))
        screen.take(range(1, 300)).save(tmp_path / "s")
        loaded = Screen.load(tmp_path / "s")
        assert loaded.subset(50, 7).equals(screen.take(range(1, 300)).subset(50, 7))

    def test_whole_and_too_much(self):
        screen = plain(20)
        assert screen.subset(20).equals(screen)
        for n in (0, 21):
            with pytest.raises(InputError):
                screen.subset(n)


class TestOn:
    def test_indices_become_those_of_the_cell(self, screen):
        moved = screen.on(Cell(Genes(reversed(screen.genes.systematic)), []))
        assert sets_of(moved) == [{5 - g for g in s} for s in sets_of(screen)]
        assert moved.coverage.studies[0].query_genes.tolist() == [5, 3, 2]
        assert moved.sources == screen.sources

    def test_same_genes_take_the_names_of_the_cell(self, screen):
        cell = Cell(Genes(screen.genes.systematic, ["Z"] * 6), [])
        assert screen.on(cell).genes.standard[0] == "Z"

    def test_unknown_gene_is_an_error_or_dropped_and_counted(self, screen):
        cell = Cell(Genes(["g1", "g0", "g5"]), [])
        assert code_of(lambda: screen.on(cell)) == "unknown-gene"
        moved = screen.on(cell, on_unknown="drop")
        assert sets_of(moved) == [{0, 1}, {0, 1}, {2}, {0, 1}, {0, 1}]
        assert moved.sources[-1].counts.dropped == {"unknown gene": 1}
        assert [c.n_queries for c in moved.coverage.studies] == [1, 1]

    def test_two_genes_that_are_one_in_the_cell(self, screen):
        cell = Cell(Genes(["g0", "g2", "g3", "g4", "g5"], None, [["g1"], [], [], [], []]), [])
        assert code_of(lambda: screen.on(cell)) == "gene-twice"
        moved = screen.on(cell, on_unknown="drop")
        assert sets_of(moved) == [{1, 2, 3}, {4}]
        assert moved.sources[-1].counts.dropped == {"same gene twice after aliases": 4}

    def test_query_pair_that_is_one_gene_in_the_cell_was_not_tested(self, screen):
        cell = Cell(Genes(["g0", "g1", "g2", "g4", "g5"], None, [[], [], ["g3"], [], []]), [])
        moved = screen.on(cell, on_unknown="drop")
        assert [c.query_genes.tolist() for c in moved.coverage.studies] == [[0], [1]]

    def test_no_genotype_left_is_an_error(self, screen):
        other = Cell(Genes(["other"]), [])
        assert code_of(lambda: screen.on(other, on_unknown="drop")) == "empty-screen"


class TestConcat:
    def test_rows_one_after_the_other(self, screen):
        both = Screen.concat([screen.take([0, 1]), screen.take([2, 3, 4, 5])])
        for name in ("score", "study", "phenotype", "end"):
            np.testing.assert_array_equal(both.column(name), screen.column(name))
        assert both.gene_column("allele").tolist() == screen.gene_column("allele").tolist()

    def test_two_files_of_one_study_keep_what_each_covered(self, screen):
        a = screen.where(study="a")
        assert [c.study for c in Screen.concat([a, a]).coverage.studies] == ["a", "a"]

    def test_other_genes_are_an_error(self, screen):
        assert code_of(lambda: Screen.concat([screen, plain(3)])) == "other-genes"
        assert code_of(lambda: Screen.concat([])) == "empty-screen"


class TestStats:
    def test_numbers(self, screen):
        stats = screen.stats()
        assert (stats["genotypes"], stats["distinct_genotypes"], stats["genes"]) == (6, 3, 6)
        assert stats["kinds"] == {"single": 1, "digenic": 4, "trigenic": 1}
        assert stats["studies"] == {"a": 3, "b": 3}
        assert stats["perturbations"] == {"deletion": 11, "ts": 1}
        assert stats["score"]["known"] == 5
        assert stats["score"]["negative"] == 3
        assert stats["coverage"][0] == {
            "study": "a",
            "queries": 2,
            "array_genes": 2,
            "complete": True,
        }


N = 7
gene_sets = st.lists(st.integers(0, N - 1), min_size=1, max_size=4, unique=True)
query_sets = st.lists(st.lists(st.integers(0, N - 1), min_size=1, max_size=3, unique=True))
blocks = st.lists(st.tuples(query_sets, st.lists(st.integers(0, N - 1), unique=True)), max_size=3)


def ragged(sets):
    genes = np.array([g for s in sets for g in s], dtype=np.int64)
    return genes, np.cumsum([0, *(len(s) for s in sets)])


@LAW
@given(st.lists(gene_sets, min_size=1, max_size=20), blocks)
def test_tested_is_some_query_and_an_array_gene_outside_it(sets, crossed):
    coverage = Coverage(
        tuple(
            StudyCoverage("s", *ragged(queries), np.array(arrays, dtype=np.int64), True)
            for queries, arrays in crossed
        )
    )
    expected = [
        any(
            set(query) | {gene} == set(s) and gene not in query
            for queries, arrays in crossed
            for query in queries
            for gene in arrays
        )
        for s in sets
    ]
    assert coverage.tested(*ragged(sets), N).tolist() == expected


@LAW
@given(st.lists(st.tuples(gene_sets, st.sampled_from("ab")), min_size=1, max_size=20))
def test_derived_coverage_tells_every_row_as_tested(rows):
    rows = [(s, study) for s, study in rows if len(s) > 1] or [([0, 1], "a")]
    genes, offsets = ragged([s for s, _ in rows])
    role = pl.Series([r for s, _ in rows for r in ["query"] * (len(s) - 1) + ["array"]])
    study = pl.Series([study for _, study in rows])
    coverage = Coverage.from_rows(genes, offsets, role, study, complete=True, n_genes=N)
    assert coverage.tested(genes, offsets, N).all()
    for part in coverage.studies:
        mine = [s for s, name in rows if name == part.study]
        queries = {frozenset(s[:-1]) for s in mine}
        arrays = {s[-1] for s in mine}
        found = np.split(part.query_genes, part.query_offsets[1:-1])
        assert {frozenset(q.tolist()) for q in found} == queries
        assert len(found) == len(queries)
        assert part.array_genes.tolist() == sorted(arrays)
        crosses = {(frozenset(s[:-1]), s[-1]) for s in mine}
        assert part.complete == (len(crosses) >= 0.25 * len(queries) * len(arrays))


def by_set(screen):
    return [frozenset(g.tolist()) for g in screen.genotypes]


def test_mean(screen):
    merged = screen.merge("mean")
    assert by_set(merged) == [{0, 1}, {2, 3, 4}, {5}, {0, 1}]
    np.testing.assert_allclose(merged.column("score"), [-0.125, np.nan, 0.5, 0.75])
    np.testing.assert_allclose(
        merged.column("standard_deviation"), [1.3 / 3, np.nan, 0.1, 0.2], rtol=1e-6
    )
    assert np.isnan(merged.column("p_value")).all()
    assert merged.column("sign").tolist() == [-1, -1, 1, 0]
    assert merged.column("replicates").tolist() == [3, 1, 1, 1]
    assert merged.column("phenotype").tolist() == [*["interaction"] * 3, "fitness"]
    # What cannot be averaged is the first row's.
    assert merged.column("study").tolist() == ["a", "a", "b", "a"]
    assert merged.gene_column("allele").tolist()[:2] == ["x0", "x1"]


def test_best_p_takes_the_whole_row_and_the_earlier_of_a_tie(screen):
    merged = screen.merge("best-p")
    assert by_set(merged) == [{0, 1}, {2, 3, 4}, {5}, {0, 1}]
    assert merged.column("source_row").tolist() == [2, 1, 3, 5]
    assert merged.column("score").tolist()[0] == 0.25
    assert merged.column("p_value").tolist()[0] == 0.01
    assert merged.column("replicates").tolist() == [3, 1, 1, 1]
    assert merged.gene_column("allele").tolist()[:2] == ["x5", "x6"]


def test_hits_that_disagree_have_no_sign():
    screen = Screen.build(
        Genes(["a", "b", "c"]), Genotypes.of([[0, 1], [1, 0], [0, 2], [2, 0]]), sign=[1, -1, 1, 1]
    )
    assert screen.merge("mean").column("sign").tolist() == [0, 1]


def test_missing_deviation_makes_that_of_the_mean_missing():
    screen = Screen.build(
        Genes(["a", "b"]),
        Genotypes.of([[0, 1], [0, 1]]),
        score=[1.0, 2.0],
        standard_deviation=[0.1, np.nan],
    )
    assert np.isnan(screen.merge("mean").column("standard_deviation")).all()


@st.composite
def screens(draw):
    gene = st.integers(0, 4)
    sets = draw(st.lists(st.lists(gene, min_size=1, max_size=3, unique=True), min_size=1))
    n = len(sets)
    number = st.floats(-2, 2, width=32) | st.just(float("nan"))
    column = st.lists(number, min_size=n, max_size=n)
    return Screen.build(
        Genes(f"g{i}" for i in range(5)),
        Genotypes.of(sets),
        score=draw(column),
        p_value=np.abs(draw(column)) / 2,
        standard_deviation=np.abs(draw(column)),
        phenotype=draw(
            st.lists(st.sampled_from(["interaction", "fitness"]), min_size=n, max_size=n)
        ),
        replicates=draw(st.lists(st.integers(1, 5), min_size=n, max_size=n)),
    )


@LAW
@given(screens(), st.sampled_from(["mean", "median", "best-p"]))
def test_one_row_a_set_and_phenotype_and_its_score_within_theirs(screen, how):
    merged = screen.merge(how)
    groups = list(zip(by_set(screen), screen.column("phenotype"), strict=True))
    assert list(zip(by_set(merged), merged.column("phenotype"), strict=True)) == list(
        dict.fromkeys(groups)
    )
    assert merged.column("replicates").sum() == screen.column("replicates").sum()
    score, p = screen.column("score"), screen.column("p_value")
    for row, group in enumerate(dict.fromkeys(groups)):
        mine = np.array([g == group for g in groups])
        known = score[mine & np.isfinite(score)]
        value = merged.column("score")[row]
        if how == "best-p":
            smallest = np.nanargmin(np.where(np.isnan(p), np.inf, p)[mine])
            np.testing.assert_array_equal(value, score[mine][smallest])
        elif not len(known):
            assert np.isnan(value)
        else:
            expected = np.mean(known, dtype=np.float64) if how == "mean" else np.median(known)
            assert value == pytest.approx(expected, abs=1e-6)
            assert known.min() <= value <= known.max()


@LAW
@given(screens(), st.sampled_from(["mean", "median", "best-p"]))
def test_merging_twice_is_merging_once(screen, how):
    once = screen.merge(how)
    assert once.merge(how).equals(once)
