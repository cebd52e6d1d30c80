"""Small random cells and genotypes, and what laws of propagation are checked with."""

import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from torch import nn

from deltacell.cell import Cell, Feature, Genes, Metabolism, Relation
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.profile.record import Messages
from deltacell.propagate import (
    GENE,
    STRATEGIES,
    Deleted,
    Mutants,
    Plan,
    Strategy,
    Terms,
    WildType,
    strategy,
)
from deltacell.propagate.reference import StoredArrays
from deltacell.propagate.strategy import propagate
from deltacell.screen import Genotypes

# The cells are small as they are, and shrinking them takes minutes.
LAW = settings(
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
EXACT = 1e-10
BOUNDS = [(0.0, 1000.0), (-1000.0, 1000.0), (-1000.0, 0.0), (-5.0, 7.0), (1.0, 2.0), (-9.0, -3.0)]
weights = st.floats(-100, 100, width=32)


def edge_lists(n_genes, max_size=25):
    if not n_genes:
        return st.just([])
    gene = st.integers(0, n_genes - 1)
    return st.lists(st.tuples(gene, gene, weights), max_size=max_size)


@st.composite
def relations(draw, n_genes, name="r", directed=None):
    if directed is None:
        directed = draw(st.booleans())
    return relation_of(name, draw(edge_lists(n_genes)), n_genes, directed)


def relation_of(name, edges, n_genes, directed):
    source, target, weight = [[e[i] for e in edges] for i in range(3)]
    return Relation.from_edges(name, source, target, weight, n_genes=n_genes, directed=directed)


def rule_trees(names):
    """A rule as nested tuples, so that it can be written down and evaluated without a parser."""
    return st.recursive(
        st.sampled_from(names),
        lambda inner: st.tuples(
            st.sampled_from(["and", "or"]),
            st.lists(inner, min_size=1, max_size=3),
        ),
        max_leaves=6,
    )


def written(tree, shout=False):
    if isinstance(tree, str):
        return tree
    word, parts = tree
    joined = f" {word.upper() if shout else word} ".join(written(p, not shout) for p in parts)
    return f"({joined})"


def satisfied(tree, living):
    if isinstance(tree, str):
        return tree in living
    word, parts = tree
    return (all if word == "and" else any)(satisfied(p, living) for p in parts)


@st.composite
def metabolisms(draw, genes, min_reactions=0):
    """A metabolism with the trees of its rules, None where a reaction has none."""
    n_reactions, n_metabolites = draw(st.integers(min_reactions, 5)), draw(st.integers(1, 4))
    rule = rule_trees(list(genes)) if len(genes) else st.none()
    trees = [draw(st.none() | rule) for _ in range(n_reactions)]
    stoichiometry = {}
    for r in range(n_reactions):
        for m in draw(st.sets(st.integers(0, n_metabolites - 1), min_size=1)):
            stoichiometry[r, m] = draw(st.sampled_from([-2.0, -1.0, 1.0, 0.5]))
    bounds = [draw(st.sampled_from(BOUNDS)) for _ in range(n_reactions)]
    metabolism = Metabolism.build(
        genes,
        [f"r{i}" for i in range(n_reactions)],
        [f"m{i}" for i in range(n_metabolites)],
        [(r, m, c) for (r, m), c in stoichiometry.items()],
        ["" if tree is None else written(tree) for tree in trees],
        [low for low, _ in bounds],
        [high for _, high in bounds],
        pathways=[draw(st.lists(st.sampled_from("pqr"), max_size=2)) for _ in range(n_reactions)],
    )
    return metabolism, trees


@st.composite
def features(draw, n_genes, name):
    width = draw(st.integers(1, 3))
    known = np.array([draw(st.booleans()) for _ in range(n_genes)], dtype=bool)
    seed = draw(st.integers(0, 99))
    values = np.random.default_rng(seed).normal(size=(n_genes, width)).astype(np.float32)
    missing = np.array([draw(st.booleans()) for _ in range(width)], dtype=bool)
    return Feature(name, np.where(known[:, None] | missing, values, np.nan))


@st.composite
def small_cells(draw):
    """Cells with a few genes, relations of both kinds, a metabolism and a feature ``f``."""
    n_genes = draw(st.integers(5, 10))
    genes = Genes([f"g{i}" for i in range(n_genes)])
    networks = [draw(relations(n_genes, f"r{i}")) for i in range(draw(st.integers(1, 3)))]
    metabolism, _ = draw(metabolisms(genes, min_reactions=1))
    return Cell(genes, networks, metabolism, [draw(features(n_genes, "f"))])


@st.composite
def genotypes_of(draw, cell):
    """Mixed genotypes of a cell."""
    gene = st.integers(0, cell.n_genes - 1)
    sets = draw(st.lists(st.lists(gene, min_size=1, max_size=4, unique=True), max_size=4))
    # One genotype that takes all neighbours of a gene, and one that is there twice.
    hub, relation = draw(gene), draw(st.sampled_from(list(cell.relations.values())))
    neighbours = relation.indices[relation.indptr[hub] : relation.indptr[hub + 1]].tolist()
    return Genotypes.of([*sets, neighbours or [hub], *sets[:1]])


def bits_of(state):
    """What a checkpoint holds in a form that is equal only where every bit is."""
    if isinstance(state, torch.Tensor):
        held = state.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes()
        return state.dtype, state.shape, held
    if isinstance(state, dict):
        return type(state), [(repr(key), bits_of(value)) for key, value in state.items()]
    if isinstance(state, list | tuple):
        return type(state), [bits_of(one) for one in state]
    # As text, because NaN differs from itself and -0.0 does not from 0.0.
    return repr(state)


@dataclass(frozen=True, eq=False)
class DensePlan(Plan):
    """What each mutant lacks."""

    deleted: Deleted
    epistasis: bool


class Dense(Strategy[DensePlan]):
    """The definition, carried out to the letter: slow, large, and plainly right.

    For each mutant, matrices as rectangles of numbers without the rows and columns of its deleted
    nodes, message passing on them, and a pool over the genes that are left.
    """

    name = "dense"
    passes = Messages.whole_products

    def plan(self, shapes, deleted, device, *, epistasis=False, **options):
        return DensePlan(len(deleted), deleted, epistasis)

    def wild_type(self, hops, state):
        living = {kind: torch.arange(len(x)) for kind, x in state.items()}
        return WildType(tuple(propagate(hops, state, living, _among(living))))

    def _mutants(self, plan, step):
        genes, first = step.wild_type.last[GENE], step.wild_type.states[0]
        whole = _pooled(step.readout, genes, torch.arange(len(genes)))

        def z_without(**lost):
            living = {}
            for kind, x in first.items():
                kept = torch.ones(len(x), dtype=torch.bool)
                kept[lost.get(kind, [])] = False
                living[kind] = kept.nonzero().squeeze(1)
            if not len(living[GENE]):
                return whole
            smaller = {kind: x[living[kind]] for kind, x in first.items()}
            left = propagate(step.hops, smaller, living, _among(living))[-1][GENE]
            return whole - _pooled(step.readout, left, living[GENE])

        z, epistasis = [], []
        for b, lost in enumerate(plan.deleted.genes):
            nodes = plan.deleted.nodes.items()
            z.append(z_without(**{kind: of.nodes[of.owner == b] for kind, of in nodes}))
            epistasis.append(0 * whole)
            for k in range(1, len(lost) + 1 if plan.epistasis and len(lost) > 1 else 1):
                of_size = sum(z_without(gene=s) for s in torch.combinations(lost, k))
                epistasis[-1] = epistasis[-1] + (-1) ** (len(lost) - k) * of_size
        requested = torch.stack(epistasis) if plan.epistasis else None
        return Mutants(torch.stack(z).to(genes.dtype), whole.to(genes.dtype), requested)


def _among(living):
    def receive(a, target, x):
        whole = a.matrix.csr(device="cpu", dtype=x.dtype).to_dense()
        matrix = whole[living[target]][:, living[a.source]]
        n_edges = (matrix != 0).sum(1, keepdim=True)
        return matrix @ x / (n_edges.clamp(min=1) if a.mean else 1)

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


@torch.no_grad()
def vectors_of(model, cell, genotypes):
    """The genes' vectors in every mutant, [b, n_genes, hidden], 0 where deleted."""
    encoded, prepared = model.encode(cell), model.prepare(cell, genotypes)
    first = model.first_mutant_hop
    hops, wild_type = encoded.hops[first:], encoded.wild_type.after(first)
    found = prepared.strategy.mutants(prepared.plan, hops, wild_type, Apart(cell.n_genes))
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


def assert_equals_deleting(strategy, model, cell, genotypes, expected=None):
    """The check: in everything, the strategy is what is left when the genes are cut out.

    What is expected, the results of `Dense`, can be given where several strategies are checked.
    """
    expected = expected or results(model, Dense(), cell, genotypes)
    model.propagation = strategy
    # A step on another batch and other weights first, so that nothing stale can be right.
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.25)
        model(cell, Genotypes.of([[0]]))
        for parameter in model.parameters():
            parameter.div_(1.25)
    found = results(model, strategy, cell, genotypes)
    for name, tensor in expected.items():
        torch.testing.assert_close(
            found[name],
            tensor,
            rtol=EXACT,
            atol=EXACT,
            msg=lambda m, name=name: f"{name}: {m}",
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
    if not name.startswith("stored_"):
        yield Dense() if name == "dense" else strategy(name)
        return
    with tempfile.TemporaryDirectory() as folder:
        way = STRATEGIES[name](store=Path(folder) / "store")
        assert isinstance(way, StoredArrays)
        # The check takes a step on gene 0 alone first.
        sets = {(0,), *(tuple(sorted(genes.tolist())) for genes in genotypes)}
        metabolism = model.reactions is not None
        deleted = Deleted.of(cell, Genotypes.of(sets), metabolism=metabolism)
        way.fill(model.mutant_shapes(cell), deleted)
        yield way


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
