"""Small random cells and genotypes, and what laws of propagation are checked with."""

from __future__ import annotations

import tempfile
from contextlib import contextmanager
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import nn

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.models.hetero_cell import HeteroCell
from deltacell.propagate import GENE, STRATEGIES, Deleted, Mutants, Propagation, Terms, WildType
from deltacell.propagate.base import propagate
from deltacell.propagate.ladder import Stored
from deltacell.screen import Genotypes

# The cells are small as they are, and shrinking them takes minutes.
settings.register_profile(
    "small cells",
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)

EXACT = 1e-10
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


class Dense(Propagation):
    """The definition, carried out to the letter: slow, large, and plainly right.

    For each mutant, matrices as rectangles of numbers without the rows and columns of its deleted
    nodes, message passing on them, and a pool over the genes that are left.
    """

    name = "dense"

    def wild_type(self, hops, state):
        living = {kind: torch.arange(len(x)) for kind, x in state.items()}
        return WildType(tuple(propagate(hops, state, living, _among(living))))

    def _mutants(self, batch):
        genes, first = batch.wild_type.last[GENE], batch.wild_type.first
        whole, z = _pooled(batch.readout, genes, torch.arange(len(genes))), []
        for b in range(len(batch.deleted)):
            living = {}
            for kind, x in first.items():
                kept = torch.ones(len(x), dtype=torch.bool)
                if (lost := batch.deleted.nodes.get(kind)) is not None:
                    kept[lost.nodes[lost.owner == b]] = False
                living[kind] = kept.nonzero().squeeze(1)
            z.append(whole)
            if len(living[GENE]):
                smaller = {kind: x[living[kind]] for kind, x in first.items()}
                left = propagate(batch.hops, smaller, living, _among(living))[-1][GENE]
                z[-1] = whole - _pooled(batch.readout, left, living[GENE])
        return Mutants(torch.stack(z).to(genes.dtype), whole.to(genes.dtype))


def _among(living):
    def receive(a, target, x):
        rows, columns, values = a.matrix.entries(device="cpu", dtype=x.dtype)
        matrix, edges = x.new_zeros(2, *a.matrix.shape).unbind()
        matrix[rows, columns] = values
        edges[rows, columns] = 1
        matrix, edges = (m[living[target]][:, living[a.source]] for m in (matrix, edges))
        return matrix @ x / (edges.sum(1, keepdim=True).clamp(min=1) if a.mean else 1)

    return receive


def _pooled(readout, vectors, rows):
    gate, value = readout.terms(vectors, rows)
    return gate.double().softmax(0) @ value.double()


class Apart(nn.Module):
    """A readout that keeps genes apart: all weigh the same, and each has its own places in z."""

    def __init__(self, n_genes):
        super().__init__()
        self.n_genes = n_genes

    def terms(self, vectors, rows):
        gene = torch.arange(self.n_genes)[rows]
        value = vectors.new_zeros(len(vectors), self.n_genes, vectors.shape[1])
        value[torch.arange(len(gene)), gene] = vectors
        return Terms(vectors.new_zeros(len(vectors)), value.flatten(1))

    def in_float64(self):
        return self.terms


@torch.no_grad()
def vectors_of(model, cell, genotypes):
    """The genes' vectors in every mutant, [b, n_genes, hidden], 0 where deleted."""
    encoded, prepared = model.encode(cell), model.prepare(cell, genotypes)
    hops, wild_type = encoded.hops[model._early :], encoded.wild_type.after(model._early)
    found = model.propagation.mutants(hops, wild_type, prepared, Apart(cell.n_genes))
    living = cell.n_genes - genotypes.sizes.unsqueeze(1)
    vectors = (found.pooled - found.z) * living
    return vectors.view(len(genotypes), cell.n_genes, vectors.shape[1] // cell.n_genes)


def results(model, strategy, cell, genotypes):
    """Per-gene vectors, z, score and all gradients."""
    model.propagation = strategy
    model.zero_grad()
    torch.manual_seed(5)
    prediction = model(cell, genotypes)
    weights = torch.arange(1.0, len(genotypes) + 1)
    (prediction.score * weights).sum().backward()
    torch.manual_seed(5)
    vectors = vectors_of(model, cell, genotypes)
    found = {"score": prediction.score, "z": prediction.intermediate["z"], "vectors": vectors}
    for name, p in model.named_parameters():
        found[f"gradient of {name}"] = torch.zeros_like(p) if p.grad is None else p.grad.clone()
    return {name: tensor.detach() for name, tensor in found.items()}


def assert_equals_deleting(strategy, model, cell, genotypes):
    """The check: in everything, the strategy is what is left when the genes are cut out."""
    expected = results(model, Dense(), cell, genotypes)
    # A step on another batch and other weights first, so that nothing stale can be right.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
    results(model, strategy, cell, Genotypes.of([[0]]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.div_(1.25)
    found = results(model, strategy, cell, genotypes)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name], tensor, rtol=EXACT, atol=EXACT, msg=lambda m, name=name: f"{name}: {m}"
        )


def model_of(cell, **options):
    torch.manual_seed(0)
    made = HeteroCell(cell, hidden=8, layers=2, local_heads=2, **options).double()
    with torch.no_grad():
        # Away from 0, where a wrong eps, bias or norm would not be seen.
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


@contextmanager
def made(name, model, cell, genotypes):
    """The strategy of a name, with its store filled where it has one."""
    if name == "dense" or not issubclass(STRATEGIES[name], Stored):  # type: ignore[arg-type]
        yield Dense() if name == "dense" else STRATEGIES[name]()
        return
    with tempfile.TemporaryDirectory() as folder:
        way = STRATEGIES[name](store=Path(folder) / "store")
        # The check takes a step on gene 0 alone first, and epistasis reads all subsets.
        each = [sorted(genes.tolist()) for genes in genotypes]
        small = [genes for genes in each if len(genes) < 5]
        sets = {(0,), *map(tuple, each)}
        sets |= {s for genes in small for k in range(1, len(genes)) for s in combinations(genes, k)}
        metabolism = model.reactions is not None
        deleted = Deleted.of(cell, Genotypes.of(sets), metabolism=metabolism)
        way.fill(model.mutant_hops(cell), deleted)
        yield way


def random_cell(n_genes, n_relations, n_edges):
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(
            f"r{i}", *rng.integers(0, n_genes, (2, n_edges)), n_genes=n_genes, directed=i == 0
        )
        for i in range(n_relations)
    ]
    return Cell([f"g{i}" for i in range(n_genes)], relations)


def fixed_cell(*, metabolism):
    """A connected cell of 8 genes in which gene 0 is needed by a reaction."""
    genes = Genes([f"g{i}" for i in range(8)])
    edges = {"ring": [(i, (i + 1) % 8) for i in range(8)], "star": [(0, i) for i in range(1, 6)]}
    relations = [
        Relation.from_edges(name, *zip(*pairs, strict=True), n_genes=8, directed=name == "star")
        for name, pairs in edges.items()
    ]
    if not metabolism:
        return Cell(genes, relations)
    stoichiometry = [(0, 0, -1.0), (0, 1, 2.0), (1, 1, -1.0)]
    rules, bounds = ["g0 and g4", "g2 or g5"], ([0.0, 0.0], [1.0, 1.0])
    made = Metabolism.build(genes, ["q0", "q1"], ["p0", "p1"], stoichiometry, rules, *bounds)
    return Cell(genes, relations, made)


@pytest.fixture(scope="session")
def laws():
    """What this file defines, because test files cannot import what lies beside them."""
    return SimpleNamespace(**globals())
