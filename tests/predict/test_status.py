"""Measured, tested or untested, linked, and the evidence, as a slow look at each set finds them."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.counts import Counts, Source
from deltacell.predict import status as module
from deltacell.predict.status import (
    COLUMNS,
    LINKED,
    STATUSES,
    UNKNOWN,
    UNLINKED,
    Evidence,
    Linkage,
    Statuses,
)
from deltacell.screen import Genotypes, Screen
from deltacell.screen.coverage import Coverage, StudyCoverage

GENES = Genes([f"Y{i}" for i in range(8)])
COVERAGE = Coverage(
    (
        StudyCoverage("a", np.array([0, 1, 2, 3]), np.array([0, 1, 2, 4]), np.array([4, 5]), True),
        StudyCoverage("b", np.array([6]), np.array([0, 1]), np.array([0]), True),
    )
)
ROWS = [[4, 0], [0, 4], [4, 2, 3], [6, 7], [1, 5], [7]]
SCREEN = Screen.build(
    GENES,
    Genotypes.of(ROWS),
    coverage=COVERAGE,
    score=[-0.5, -0.3, 0.2, 9.0, float("nan"), 0.9],
    phenotype=["interaction"] * 3 + ["fitness"] + ["interaction", "fitness"],
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sets(st.integers(0, 7), min_size=1, max_size=7), min_size=1, max_size=20))
def test_the_status_agrees_with_rows_and_coverage(sets):
    statuses = Statuses([SCREEN], ["interaction"])
    for one in sets:
        row = sorted(one)
        crossed = COVERAGE.tested(np.array(row), np.array([0, len(row)]), 8)[0]
        # A row of another phenotype, or without a score: the strain was made.
        there = any(sorted(r) == row for r in ROWS)
        expected = "measured" if there else "tested" if crossed else "untested"
        assert STATUSES[statuses.of(np.array([row]))[0]] == expected


@pytest.mark.parametrize(
    ("genes", "score"),
    [([0, 4], -0.4), ([2, 3, 4], 0.2), ([6, 7], None), ([1, 5], None), ([0, 5], None), ([0], None)],
)
def test_the_mean_is_of_what_the_run_learned(genes, score):
    found = Statuses([SCREEN], ["interaction"]).measured(np.array([genes]))[0]
    assert np.isnan(found) if score is None else found == pytest.approx(score)


def test_several_screens_count_together():
    hits = StudyCoverage("h", np.array([0]), np.array([0, 1]), np.array([1]), False)
    other = Screen.build(
        GENES, Genotypes.of([[4, 5], [0, 4]]), coverage=Coverage((hits,)), score=[0.1, 0.5]
    )
    one, both = Statuses([SCREEN], ["interaction"]), Statuses([SCREEN, other], ["interaction"])
    assert both.of(np.array([[4, 5], [0, 4], [1, 2]])).tolist() == [0, 0, 2]
    assert both.measured(np.array([[0, 4]]))[0] == pytest.approx((-0.5 - 0.3 + 0.5) / 3)
    assert (one.complete, both.complete) == (True, False)
    assert [one.n_measured(2, np.arange(8)), one.n_measured(4, np.arange(8))] == [3, 0]
    assert one.n_measured(2, np.array([0, 4, 5])) == 1


PLACED = Genes(
    ["A", "B", "C", "D", "E", "F", "G"],
    chromosome=["I", "I", "I", "II", "I", "", "II"],
    start=[1_000, 2_500, 9_000, 1_000, -1, -1, 1_500],
    end=[2_000, 3_000, 9_900, 2_000, -1, -1, 2_500],
)
A, B, C, D, E, F, G = range(7)


@pytest.mark.parametrize(
    ("genes", "distance", "expected"),
    [
        ([A, B], 501, LINKED),
        ([A, B], 500, UNLINKED),
        ([B, A], 501, LINKED),
        ([A, D], 10**9, UNLINKED),
        ([A, E], 10**9, UNKNOWN),
        ([D, E], 10**9, UNLINKED),
        ([A, F], 10**9, UNKNOWN),
        ([E, F], 10**9, UNKNOWN),
        ([A, C, D], 7_001, LINKED),
        ([A, C, D], 7_000, UNLINKED),
        ([A, B, F], 501, LINKED),
        ([A, C, F], 501, UNKNOWN),
        ([D, G], 1, LINKED),
        ([D, G], 0, UNLINKED),
    ],
)
def test_linked_by_the_base_pairs_between(genes, distance, expected):
    assert Linkage(PLACED, distance).of(np.array([genes]))[0] == expected


def test_how_many_are_linked():
    linkage = Linkage(PLACED, 7_001)
    assert linkage.n_pairs(np.arange(6)) == 3
    assert linkage.n_pairs(np.array([A, D])) == 0
    assert linkage.n_unplaced(np.arange(6)) == 2


N = 7
NAMES = [f"G{i}" for i in range(N)]
pairs = st.tuples(st.integers(0, N - 1), st.integers(0, N - 1))


@st.composite
def cells(draw):
    """A cell of seven genes with a directed, an undirected and a co-complex relation."""
    relations = []
    for name, directed in (("acts", True), ("binds", False), ("curated", False)):
        edges = np.array(draw(st.lists(pairs, max_size=12)), dtype=int).reshape(-1, 2).T
        relations.append(Relation.from_edges(name, *edges, n_genes=N, directed=directed))
    sources = [Source("x_CoComplex.tsv", "0", "edges", Counts(0, 0), into="curated")]
    n_reactions = draw(st.integers(0, 4))
    clause = st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True)
    rules = draw(st.lists(st.lists(clause, max_size=3), min_size=n_reactions, max_size=n_reactions))
    pathway = st.lists(st.sampled_from(["z", "a", "m"]), max_size=2, unique=True)
    metabolism = Metabolism.build(
        Genes(NAMES),
        [f"r{i}" for i in range(n_reactions)],
        ["m"],
        [],
        [" or ".join(f"({' and '.join(c)})" for c in rule) for rule in rules],
        [0] * n_reactions,
        [1] * n_reactions,
        pathways=draw(st.lists(pathway, min_size=n_reactions, max_size=n_reactions)),
    )
    return Cell(NAMES, relations, draw(st.sampled_from([metabolism, None])), sources=sources)


def slow(cell, genes):
    """Look at every edge, rule and reaction for one set."""
    links = []
    for relation in cell.relations.values():
        edges = set(zip(*(column.tolist() for column in relation.edges()[:2]), strict=True))
        for a, b in combinations(sorted(genes), 2):
            for first, second in [(a, b), (b, a)]:
                if (first, second) in edges:
                    named = {"first": NAMES[first], "second": NAMES[second]}
                    links.append(named | {"relation": relation.name})
    m = cell.metabolism
    pathways, complexes = set(), {"curated" for link in links if link["relation"] == "curated"}
    if m is not None:
        members: dict[str, set[int]] = {}
        for reaction, start, end in zip(
            m.clause_reaction, m.clause_offsets, m.clause_offsets[1:], strict=False
        ):
            clause = set(m.clause_genes[start:end].tolist())
            if len(clause & set(genes)) > 1:
                complexes.add(m.reactions[reaction])
            for name in m.pathways[reaction] if m.pathways else ():
                members.setdefault(name, set()).update(clause)
        pathways = {name for name, inside in members.items() if len(inside & set(genes)) > 1}
    return {
        "relations": list(dict.fromkeys(link["relation"] for link in links)),
        "links": links,
        "pathways": sorted(pathways),
        "complexes": sorted(complexes),
    }


@settings(max_examples=100, deadline=None)
@given(cells(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_many_sets_at_once_equal_a_slow_look_at_each(cell, size, seed):
    rng = np.random.default_rng(seed)
    sets = np.array([rng.permutation(N)[:size] for _ in range(9)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SETS_AT_ONCE", 4)
        found = Evidence(cell).columns(sets)
    assert set(found) == set(COLUMNS)
    for i, genes in enumerate(sets.tolist()):
        assert {name: column[i] for name, column in found.items()} == slow(cell, genes)
        assert Evidence(cell).of_set(genes[::-1]) == slow(cell, genes)
