"""A prediction of DANGO depends on the genotype and the cell, and on nothing else."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell import Cell, Genotypes, Relation
from deltacell.models import Dango

N = 14
RELATIONS = ("a", "b", "c")
LAMBDAS = {"a": 0.1, "b": 1.0, "c": 0.5}
EXACT = {"rtol": 1e-10, "atol": 1e-12}

gene_sets = st.lists(
    st.lists(st.integers(0, N - 1), min_size=1, max_size=6, unique=True), min_size=1, max_size=7
)
seeds = st.integers(0, 2**32)


def _cell(seed):
    rng = np.random.default_rng(seed)
    return Cell(
        [f"Y{i}" for i in range(N)],
        [
            Relation.from_edges(name, *rng.integers(0, N, (2, 40)), n_genes=N, directed=name == "b")
            for name in RELATIONS
        ],
    )


def _model(cell, seed):
    torch.manual_seed(seed)
    model = Dango(cell, RELATIONS, LAMBDAS, hidden=8).double()
    for layer in model.hyper_sagnn.sets.attention:
        # Far from its start, so that attention weighs in the score.
        torch.nn.init.constant_(layer.beta, 0.8)
    return model


@settings(max_examples=30, deadline=None)
@given(gene_sets, seeds, st.permutations(range(N)), st.randoms(use_true_random=False))
def test_neither_other_genotypes_nor_order_nor_numbering_matter(sets, seed, order, random):
    cell = _cell(seed)
    model = _model(cell, seed)
    old = model(cell, Genotypes.of(sets))
    alone = [model(cell, Genotypes.of([random.sample(s, len(s))])) for s in sets]
    torch.testing.assert_close(old.score, torch.cat([p.score for p in alone]), **EXACT)
    vectors = torch.cat([p.intermediate["z"] for p in alone])
    torch.testing.assert_close(old.intermediate["z"], vectors, **EXACT)
    new_cell, new_model = cell.subset(order), _model(cell, seed)
    taken = torch.tensor(order)
    with torch.no_grad():
        new_model.embedding.copy_(model.embedding[taken])
        for one, other in zip(
            new_model.reconstruction.heads, model.reconstruction.heads, strict=True
        ):
            one.weight.copy_(other.weight[taken])
            one.bias.copy_(other.bias[taken])
    new = new_model(new_cell, Genotypes.of([[order.index(gene) for gene in s] for s in sets]))
    torch.testing.assert_close(new.score, old.score, **EXACT)
    of_new, of_old = (p.intermediate for p in (new, old))
    torch.testing.assert_close(of_new["reconstruction"], of_old["reconstruction"], **EXACT)
    torch.testing.assert_close(of_new["genes"], of_old["genes"][taken], **EXACT)


def test_a_score_does_depend_on_the_genotype():
    cell = _cell(0)
    model = _model(cell, 0)
    scores = model(cell, Genotypes.of([[0], [1], [0, 1], [0, 1, 2], [2, 1]])).score
    assert len(set(scores.tolist())) == 5
    apart = model(cell, Genotypes.of([[0, 1], [0], [1]])).score
    assert not torch.isclose(apart[0], apart[1:].mean(), rtol=1e-6)
