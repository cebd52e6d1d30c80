"""What is found for many sets at once is what a slow look at each set finds."""

from __future__ import annotations

from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.counts import Counts, Source
from deltacell.predict import status as module
from deltacell.predict.status import COLUMNS, Evidence

N = 7
NAMES = [f"G{i}" for i in range(N)]
pairs = st.tuples(st.integers(0, N - 1), st.integers(0, N - 1))


@st.composite
def cells(draw):
    """A cell of seven genes with a directed, an undirected and a co-complex relation."""
    relations = [
        Relation.from_edges(name, *zip(*edges, strict=True), n_genes=N, directed=directed)
        if (edges := draw(st.lists(pairs, max_size=12)))
        else Relation.from_edges(name, [], [], n_genes=N, directed=directed)
        for name, directed in (("acts", True), ("binds", False), ("curated", False))
    ]
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


def slow(cell: Cell, genes: list[int]) -> dict[str, list]:
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


@settings(max_examples=150, deadline=None)
@given(cells(), st.integers(1, 4), st.integers(0, 2**32 - 1))
def test_many_sets_at_once_equal_a_slow_look_at_each(cell, size, seed):
    rng = np.random.default_rng(seed)
    sets = np.array([rng.permutation(N)[:size] for _ in range(9)])
    found = Evidence.of(cell).columns(sets)
    assert list(found) == list(COLUMNS)
    for i, genes in enumerate(sets.tolist()):
        assert {name: column[i] for name, column in found.items()} == slow(cell, genes)


@pytest.fixture(scope="module")
def demo():
    return Cell.synthetic("demo")


def test_the_order_of_genes_does_not_matter(demo):
    evidence = Evidence.of(demo)
    a, b = (int(column[0]) for column in demo.relation("physical").edges()[:2])
    found = [evidence.of_set(order) for order in permutations([a, b, 7])]
    assert "physical" in found[0]["relations"]
    assert all(one == found[0] for one in found)


def test_pieces_of_many_sets_are_put_together(demo, monkeypatch):
    sets = np.array([[i, (i + 1) % 300, (i + 150) % 300] for i in range(300)])
    whole = Evidence.of(demo).columns(sets)
    monkeypatch.setattr(module, "_ROWS_AT_ONCE", 7)
    assert Evidence.of(demo).columns(sets) == whole
    assert any(whole["pathways"])
    assert Evidence.of(demo).columns(sets[:0]) == {name: [] for name in COLUMNS}


def test_a_co_complex_relation_is_known_by_its_name_or_its_file():
    edge = {"n_genes": 2, "directed": False}
    relations = [Relation.from_edges(name, [0], [1], **edge) for name in ("Complexes", "binds")]
    assert Evidence.of(Cell(["A", "B"], relations)).of_set([1, 0])["complexes"] == ["Complexes"]
    source = Source("cocomplex.tsv", "0", "edges", Counts(0, 0), into="binds")
    cell = Cell(["A", "B"], relations[1:], sources=[source])
    assert Evidence.of(cell).of_set([0, 1])["complexes"] == ["binds"]
