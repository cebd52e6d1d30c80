"""Measured, tested or untested, linked, and the evidence, as a slow look at each set finds them."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.ranking.evidence import Evidence
from deltacell.ranking.filter import STATUSES, Statuses, phenotypes_of
from deltacell.screen import Genotypes, Screen
from deltacell.screen.coverage import Coverage, StudyCoverage
from deltacell.storage.provenance import Counts, Source

GENES = Genes([f"Y{i}" for i in range(8)])
COVERAGE = Coverage(
    (
        StudyCoverage("a", np.array([0, 1, 2, 3]), np.array([0, 1, 2, 4]), np.array([4, 5]), True),
        StudyCoverage("b", np.array([6]), np.array([0, 1]), np.array([0]), True),
    ),
)
ROWS = [[4, 0], [0, 4], [4, 2, 3], [6, 7], [1, 5], [7]]
SCREEN = Screen.build(
    GENES,
    Genotypes.of(ROWS),
    coverage=COVERAGE,
    score=[-0.5, -0.3, 0.2, 9.0, float("nan"), 0.9],
    phenotype=["interaction"] * 3 + ["fitness"] + ["interaction", "fitness"],
)


def test_the_status_agrees_with_rows_and_coverage():
    statuses = Statuses([SCREEN], ["interaction"])
    for row in (one for size in range(1, 8) for one in combinations(range(8), size)):
        crossed = any(
            array not in query and {*query.tolist(), array} == set(row)
            for study in COVERAGE.studies
            for query in np.split(study.query_genes, study.query_offsets[1:-1])
            for array in study.array_genes.tolist()
        )
        # A row of another phenotype, or without a score: the strain was made.
        there = any(sorted(r) == list(row) for r in ROWS)
        expected = "measured" if there else "tested" if crossed else "untested"
        assert STATUSES[statuses.of(np.array([row]))[0]] == expected
    assert phenotypes_of(SCREEN) == {"interaction", "fitness"}


def test_several_screens_count_together():
    hits = StudyCoverage("h", np.array([0]), np.array([0, 1]), np.array([1]), False)
    other = Screen.build(
        GENES,
        Genotypes.of([[4, 5], [0, 4]]),
        coverage=Coverage((hits,)),
        score=[0.1, 0.5],
    )
    one, both = Statuses([SCREEN], ["interaction"]), Statuses([SCREEN, other], ["interaction"])
    assert both.of(np.array([[4, 5], [0, 4], [1, 2]])).tolist() == [0, 0, 2]
    assert both.measured(np.array([[0, 4]]))[0] == pytest.approx((-0.5 - 0.3 + 0.5) / 3)
    assert (one.complete, both.complete) == (True, False)


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
    written = [" or ".join(f"({' and '.join(c)})" for c in rule) for rule in rules]
    metabolism = Metabolism.build(
        *(Genes(NAMES), [f"r{i}" for i in range(n_reactions)], ["m"], []),
        *(written, [0] * n_reactions, [1] * n_reactions),
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
            m.clause_reaction,
            m.clause_offsets,
            m.clause_offsets[1:],
            strict=False,
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
    found = Evidence(cell).columns(sets)
    assert set(found) == {"relations", "links", "pathways", "complexes"}
    for i, genes in enumerate(sets.tolist()):
        assert {name: column[i] for name, column in found.items()} == slow(cell, genes)
