"""What must not change a prediction of HeteroCell, and what must."""

import laws
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Genes, Metabolism, Relation
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.screen import Genotypes

law = settings(laws.LAW, max_examples=12)


def same(a, b):
    torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@law
@given(data=st.data())
@torch.no_grad()
def test_neither_other_genotypes_nor_order_nor_numbering_matter(data):
    cell = data.draw(laws.small_cells())
    drawn = [s.tolist() for s in data.draw(laws.genotypes_of(cell))]
    # Epistasis is of small sets.
    genotypes = Genotypes.of([[0, 1], *(s for s in drawn if len(s) < 5)])
    options = {
        "aggregation": ["sum", "mean"],
        "metabolism": [False, True],
        "combine": ["sum", "attention", "pairwise"],
        "output": ["mean", "gate", "global"],
        "mutant_layers": [1, 2],
        "epistasis": [False, True],
    }
    chosen = {name: data.draw(st.sampled_from(values)) for name, values in options.items()}
    chosen["epistasis"] &= chosen["metabolism"] or chosen["mutant_layers"] == 1
    model = laws.model_of(cell, **chosen)
    together = model(cell, genotypes).score
    turned = Genotypes.of([deleted.flip(0).tolist() for deleted in genotypes])
    order = torch.tensor(data.draw(st.permutations(range(len(genotypes)))))
    same(model(cell, turned.take(order)).score, together[order])
    for b in range(len(genotypes)):
        same(model(cell, genotypes.take(torch.tensor([b]))).score, together[b : b + 1])
    genes = data.draw(st.permutations(range(cell.n_genes)))
    renumbered, new_index = cell.subset(genes), np.argsort(genes)
    other = HeteroCell(renumbered, **model.made_with).double()
    weights = model.state_dict()
    weights["encoder.embedding"] = weights["encoder.embedding"][torch.tensor(genes)]
    other.load_state_dict(weights)
    moved = Genotypes.of([[int(new_index[g]) for g in deleted] for deleted in genotypes])
    same(other(renumbered, moved).score, together)


@law
@given(data=st.data())
@torch.no_grad()
def test_a_deleted_gene_is_missed_by_its_targets_and_an_isolated_one_by_nobody(data):
    cell = data.draw(laws.small_cells())
    gene = data.draw(st.integers(0, cell.n_genes - 1))
    isolated = Cell(cell.genes, [_without(relation, gene) for relation in cell.relations.values()])
    aggregation, dropout = st.sampled_from(["sum", "mean"]), st.sampled_from([0.0, 0.5])
    model = laws.model_of(isolated, aggregation=data.draw(aggregation), dropout=data.draw(dropout))
    genotypes = Genotypes.of([[gene]])
    torch.manual_seed(1)
    wild_type = model(isolated, genotypes).intermediate["genes"]
    # The same draw of dropout: one mask for the wild type and all mutants.
    torch.manual_seed(1)
    vectors = laws.vectors_of(model, isolated, genotypes)[0]
    others = [i for i in range(cell.n_genes) if i != gene]
    same(vectors[others], wild_type[others])
    same(vectors[gene], torch.zeros_like(vectors[gene]))

    # A connected one is missed by its targets.
    connected = [r for r in cell.relations.values() if r.n_entries]
    if not connected:
        return
    source, target, _ = connected[0].entries()
    model, genotypes = laws.model_of(cell), Genotypes.of([[int(source[0])]])
    wild_type = model(cell, genotypes).intermediate["genes"][target[0]]
    assert (laws.vectors_of(model, cell, genotypes)[0, target[0]] - wild_type).abs().max() > 1e-6


def _without(relation, gene):
    source, target, weight = relation.edges()
    kept = (source != gene) & (target != gene)
    edges = (x[kept] for x in (source, target, weight))
    n, directed = relation.n_genes, relation.directed
    return Relation.from_edges(relation.name, *edges, n_genes=n, directed=directed)


def rule_cell(rule):
    """Gene 0 has no edge: it acts through the reaction alone."""
    genes = Genes([f"g{i}" for i in range(6)])
    relation = Relation.from_edges("r", [1, 2, 3], [2, 3, 4], n_genes=6, directed=False)
    stoichiometry = [(0, 0, -1.0), (0, 1, 1.0), (1, 1, -2.0)]
    metabolism = Metabolism.build(
        genes,
        ["q0", "q1"],
        ["p0", "p1"],
        stoichiometry,
        [rule, "g3"],
        [0.0] * 2,
        [1.0] * 2,
    )
    return Cell(genes, [relation], metabolism)


def test_losing_a_reaction_changes_the_score_and_an_or_rescues_it():
    needed, rescued = rule_cell("g0 and g1"), rule_cell("g0 or g1")
    deleted = Genotypes.of([[0]])
    assert needed.metabolism is not None
    assert rescued.metabolism is not None
    assert needed.metabolism.lost_reactions(deleted).reactions.tolist() == [0]
    assert rescued.metabolism.lost_reactions(deleted).reactions.tolist() == []
    model = laws.model_of(needed, metabolism=True)
    # The same weights on both: the rules differ, the pairs of reaction and gene do not.
    lost, kept = model(needed, deleted), model(rescued, deleted)
    same(lost.intermediate["genes"], kept.intermediate["genes"])
    assert (lost.score - kept.score).abs() > 1e-6
    # Gene 1 has another reaction to receive from only while the first lives.
    of_lost, of_kept = (laws.vectors_of(model, c, deleted)[0, 1] for c in (needed, rescued))
    assert (of_lost - of_kept).abs().max() > 1e-6
    without = laws.model_of(needed)
    same(without(needed, deleted).score, without(rescued, deleted).score)
