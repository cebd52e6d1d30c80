"""Small random cells and genotypes, for laws that hold on all of them."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.screen import Genotypes

# The cells are small as they are, and shrinking them takes minutes.
settings.register_profile(
    "small cells",
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

RULES = ("{a}", "{a} and {b}", "{a} or {b}", "({a} and {b}) or {c}", "")


@st.composite
def _relations(draw, n_genes):
    gene = st.integers(0, n_genes - 1)
    relations = []
    for i in range(draw(st.integers(1, 3))):
        edges = draw(st.lists(st.tuples(gene, gene), max_size=3 * n_genes))
        source, target = zip(*edges, strict=True) if edges else ((), ())
        directed = draw(st.booleans())
        relations.append(
            Relation.from_edges(f"r{i}", source, target, n_genes=n_genes, directed=directed)
        )
    return relations


@st.composite
def _metabolisms(draw, genes):
    n_reactions, n_metabolites = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    gene = st.integers(0, len(genes) - 1).map(lambda i: f"g{i}")
    rules = [
        draw(st.sampled_from(RULES)).format(a=draw(gene), b=draw(gene), c=draw(gene))
        for _ in range(n_reactions)
    ]
    pairs = draw(
        st.sets(
            st.tuples(st.integers(0, n_reactions - 1), st.integers(0, n_metabolites - 1)),
            max_size=8,
        )
    )
    amount = st.sampled_from([-2.0, -1.0, 0.5, 1.0, 3.0])
    return Metabolism.build(
        genes,
        [f"q{j}" for j in range(n_reactions)],
        [f"p{m}" for m in range(n_metabolites)],
        [(j, m, draw(amount)) for j, m in sorted(pairs)],
        rules,
        [0.0] * n_reactions,
        [1.0] * n_reactions,
    )


@st.composite
def _cells(draw):
    n_genes = draw(st.integers(5, 10))
    genes = Genes([f"g{i}" for i in range(n_genes)])
    values = np.random.default_rng(draw(st.integers(0, 99))).normal(size=(n_genes, 3))
    known = np.array(draw(st.lists(st.booleans(), min_size=n_genes, max_size=n_genes)))
    feature = Feature("f", np.where(known[:, None], values, np.nan))
    return Cell(genes, draw(_relations(n_genes)), draw(_metabolisms(genes)), [feature])


@st.composite
def _genotypes(draw, cell):
    gene = st.integers(0, cell.n_genes - 1)
    sets = draw(st.lists(st.lists(gene, min_size=1, max_size=4, unique=True), max_size=4))
    # One genotype that takes all neighbours of a gene, and one that is there twice.
    hub, relation = draw(gene), draw(st.sampled_from(list(cell.relations.values())))
    neighbours = relation.indices[relation.indptr[hub] : relation.indptr[hub + 1]].tolist()
    return Genotypes.of([*sets, neighbours or [hub], *sets[:1]])


@pytest.fixture(scope="session")
def small_cells():
    """Cells with a few genes, relations of both kinds, a metabolism and a feature ``f``."""
    return _cells()


@pytest.fixture(scope="session")
def genotypes_of():
    """A function from a cell to mixed genotypes of it."""
    return _genotypes


def _assert_same_state(one, other):
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)
    elif isinstance(one, dict):
        assert list(map(repr, one)) == list(map(repr, other))
        for mine, theirs in zip(one.values(), other.values(), strict=True):
            _assert_same_state(mine, theirs)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, theirs in zip(one, other, strict=True):
            _assert_same_state(mine, theirs)
    else:
        # As text, because NaN differs from itself and -0.0 does not from 0.0.
        assert repr(one) == repr(other)


@pytest.fixture(scope="session")
def assert_same_state():
    """A function that compares what checkpoints hold, to the last bit."""
    return _assert_same_state


@pytest.fixture(scope="session")
def laws():
    """The module `deleting`: test files cannot import each other, nor what lies beside them."""
    spec = spec_from_file_location("deleting", Path(__file__).with_name("deleting.py"))
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
