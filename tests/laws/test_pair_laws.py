"""No score enters what is said of its own set; votes are what deleting the set really leaves."""

import doctest
import sys

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Feature, Relation
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets
from deltacell.models.fitted.predictor import Part
from deltacell.models.interface import LabelledSets
from deltacell.models.pairs import (
    Known,
    Measured,
    Neighbours,
    PairCell,
    PairColumns,
    PairTrees,
    Zeros,
    larger_set_sums,
    messages,
    pair_sums,
    training_columns,
    votes_on,
)
from deltacell.models.pairs.columns import hashed_sets, set_folds
from deltacell.screen.genotypes import Genotypes
from deltacell.train.checkpoints import read_checkpoint, write_checkpoint

N = 14
OPTIONS = {"penalty": 3.0, "folds": 3, "gene_folds": 3, "rounds": 2, "seed": 0}
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=6, deadline=None)


def sets_of(rows):
    sizes = np.array([len(row) for row in rows])
    return GeneSets(np.concatenate([np.sort(row) for row in rows]), np.append(0, sizes.cumsum()))


def problem(seed, sizes=(2, 2, 3)):
    rng = np.random.default_rng(seed)
    drawn = {tuple(sorted(rng.choice(N, rng.choice(sizes), replace=False))) for _ in range(60)}
    rows = [list(row) for row in sorted(drawn)]
    relations = []
    for name, directed in (("links", False), ("regulates", True)):
        edges = rng.integers(0, N, (2, 30))
        relations.append(
            Relation.from_edges(name, *edges, rng.random(30), n_genes=N, directed=directed),
        )
    profile = rng.normal(size=(N, 20))
    profile[rng.random((N, 20)) < 0.3] = np.nan
    features = [Feature("profile", profile), Feature("fitness", rng.random((N, 2)))]
    cell = Cell([f"G{i:02d}" for i in range(N)], relations, features=features)
    return rng, cell, Part(sets_of(rows), rng.normal(size=len(rows)))


def columns_of(cell, part, columns=PairColumns):
    return training_columns(columns(cell, GeneOrder(cell.genes), 3), part, **OPTIONS)


def own_score_shows(cell, part, row, columns=PairColumns):
    """Whether changing the score of a set changes its own columns, in any bit."""
    targets = part.targets.copy()
    targets[row] += 5.0
    before, owner = columns_of(cell, part, columns)
    after, _ = columns_of(cell, Part(part.sets, targets), columns)
    return not np.array_equal(before[owner == row], after[owner == row], equal_nan=True)


@few
@given(seed=seeds, row=st.integers(0, 10**6))
def test_own_score_enters_no_column(seed, row):
    _, cell, part = problem(seed)
    assert not own_score_shows(cell, part, row % len(part.sets))


class OwnVote(PairColumns):
    """A vote in which a gene is its own neighbour."""

    def __init__(self, *args):
        super().__init__(*args)
        own = tuple(sp.csr_array(m + sp.eye_array(N)) for m in self.neighbours.matrices)
        self.neighbours = Neighbours(self.neighbours.names, self.neighbours.weights, own)


class OwnTermLeftIn(PairColumns):
    """Both neighbourhoods with the pair's own term left in."""

    def sums(self, measured, sets, rows=None):
        sums = super().sums(measured, sets, rows)
        pairs = sets.pairs()
        for i, matrix in enumerate(self.neighbours.matrices):
            two = matrix.toarray() @ measured.pairs.toarray() @ matrix.toarray().T
            sums.pairs.both.scores[:, i] = two[pairs.first, pairs.second]
        return sums


@pytest.mark.parametrize("leaking", [OwnVote, OwnTermLeftIn])
def test_versions_that_leak_are_rejected(leaking):
    _, cell, part = problem(7)
    assert any(own_score_shows(cell, part, row, leaking) for row in range(len(part.sets)))


def test_effects_are_by_fold_and_leave_one_out_means_are_rejected():
    _, cell, part = problem(3)
    fold, rows = set_folds(part.sets, N, 3, 0), np.arange(len(part.sets))

    def effects(left_out):
        """What every set is told of every gene, if some sets are left out of it."""
        kept = [np.flatnonzero(~left_out(row)) for row in rows]
        return np.stack([Known.of(part.take(k), N, 3.0).effects.effect for k in kept])

    def is_by_fold(effect):
        return all(np.ptp(effect[fold == k], axis=0).max() == 0 for k in range(3))

    effect = effects(lambda row: fold == fold[row])
    assert is_by_fold(effect)
    assert not is_by_fold(effects(lambda row: rows == row))
    table, owner = columns_of(cell, part)
    expected = np.array([effect[row][part.sets.take([row]).genes].sum() for row in owner])
    # What is left of the additive score is one intercept per fold.
    intercept = (table[:, 0] - expected)[: len(rows)]
    assert len(np.unique(intercept.round(5))) == 3


@few
@given(seed=seeds)
def test_votes_are_those_of_a_screen_without_the_pair(seed):
    rng, cell, part = problem(seed, sizes=(2,))
    neighbours, measured = Neighbours.of(cell, GeneOrder(cell.genes)), Measured.of(part, N)
    every = sets_of([[a, b] for a in range(N) for b in range(a + 1, N)])
    for rows in (None, rng.random(N) < 0.5):
        sums = pair_sums(measured, neighbours, every.pairs(), rows)
        for kind, matrix in (("scores", measured.pairs), ("weights", measured.is_measured)):
            scores = matrix.toarray().astype(np.float64)
            for r, relation in enumerate(neighbours.matrices):
                w = relation.toarray().astype(np.float64)
                expected = np.empty((len(every), 3))
                for i, (a, b) in enumerate(every.genes.reshape(-1, 2)):
                    left = scores.copy()
                    left[a, b] = left[b, a] = 0
                    of_a, of_b = w[a].copy(), w[b].copy()
                    of_a[b] = of_b[a] = 0
                    expected[i] = w[a] @ left[:, b], w[b] @ left[:, a], of_a @ left @ of_b
                found = np.stack([getattr(summed, kind)[:, r] for summed in sums], axis=1)
                np.testing.assert_allclose(found, expected, atol=2e-5)


@pytest.mark.skipif(sys.flags.optimize >= 2, reason="Python removed the docstrings")
def test_worked_example_of_sums_gives_what_it_says():
    result = doctest.testmod(messages)
    assert result.attempted > 5
    assert result.failed == 0


@few
@given(seed=seeds)
def test_votes_on_larger_sets_are_those_of_the_sets_with_a_neighbour_instead(seed):
    _, cell, part = problem(seed, sizes=(3,))
    neighbours = Neighbours.of(cell, GeneOrder(cell.genes))
    triples = part.sets.genes.reshape(-1, 3)
    scores = {tuple(s): y for s, y in zip(triples, part.targets, strict=True)}
    sums = larger_set_sums(Measured.of(part, N), neighbours, part.sets)
    dense = [matrix.toarray() for matrix in neighbours.matrices]
    for place, (gene, owner) in enumerate(zip(part.sets.genes, part.sets.owner, strict=True)):
        rest = set(triples[owner]) - {gene}
        for r, relation in enumerate(dense):
            row = relation[gene]
            near = [(row[g], scores.get(tuple(sorted({*rest, g})))) for g in range(N)]
            votes = [(w, y) for w, y in near if w > 0 and y is not None]
            expected = [sum(w * y for w, y in votes), sum(w for w, _ in votes)]
            found = sums.scores[place, r], sums.weights[place, r]
            np.testing.assert_allclose(found, expected, atol=1e-5)


@few
@given(seed=seeds)
def test_order_of_rows_and_relations_does_not_matter(seed):
    rng, cell, part = problem(seed)
    shuffled = rng.permutation(len(part.sets))
    turned = Cell(cell.genes, list(cell.relations.values())[::-1], features=cell.features.values())
    one, owner = columns_of(cell, part)
    other, of_other = columns_of(turned, part.take(shuffled))
    of_other = shuffled[of_other]
    order = np.lexsort((one[:, 2], one[:, 0], owner))
    again = np.lexsort((other[:, 2], other[:, 0], of_other))
    assert np.array_equal(owner[order], of_other[again])
    tables = (np.sort(t, axis=0) for t in (one[order], other[again]))
    np.testing.assert_allclose(*tables, atol=2e-4)


@few
@given(seed=seeds)
def test_a_gene_without_a_measured_set_has_zero_counts_and_no_effect(seed):
    _, cell, part = problem(seed, sizes=(2,))
    alone = 5
    rest = part.take(np.flatnonzero((part.sets.genes.reshape(-1, 2) != alone).all(axis=1)))
    made, known = PairColumns(cell, GeneOrder(cell.genes), 2), Known.of(rest, N, 3.0)
    assert not known.effects.seen[alone]
    assert np.isnan(known.negative[alone])
    sets = sets_of([[alone, other] for other in range(N) if other != alone])
    sums = made.sums(Measured.of(rest, N), sets)
    table = made(known, sets, sums)
    # After three columns of the set and two for each of the genes' come the votes of the pairs.
    unseen, least_count, min_voters = table[:, [2, 5, 12 + 2 * len(made.neighbours.names)]].T
    assert (unseen >= 1).all()
    assert (least_count == 0).all()
    assert (min_voters == 0).all()
    # In a relation that links the gene, its neighbours vote.
    assert max(sums.pairs.first.weights.max(), sums.pairs.second.weights.max()) > 0


def test_blocks_do_not_change_a_bit(monkeypatch):
    _, cell, part = problem(11)
    whole, _ = columns_of(cell, part)
    monkeypatch.setattr(messages, "_GENES_PER_BLOCK", 1)
    monkeypatch.setattr(messages, "_ROWS_PER_BLOCK", 3)
    assert np.array_equal(columns_of(cell, part)[0], whole, equal_nan=True)


def test_folds_are_by_set_and_even():
    rng = np.random.default_rng(0)
    sets = sets_of([rng.choice(500, 2, replace=False).tolist() for _ in range(5_000)])
    fold = set_folds(sets, 500, 5, 0)
    assert np.bincount(fold).min() > 850
    assert np.array_equal(set_folds(sets.take(np.arange(9)), 500, 5, 0), fold[:9])
    assert not np.array_equal(hashed_sets(sets, 500, (1,)), hashed_sets(sets, 500, (2,)))


def test_listed_votes_are_the_measured_sets_next_to_a_set():
    _, cell, part = problem(2)
    neighbours, measured = Neighbours.of(cell, GeneOrder(cell.genes)), Measured.of(part, N)
    known = {tuple(part.sets.take(np.array([i])).genes): y for i, y in enumerate(part.targets)}
    for asked in ((0, 1), (2, 5), (1, 4, 7)):
        found = votes_on(measured, neighbours, asked)
        assert all(v.score == pytest.approx(known[v.genes], rel=1e-6) for v in found)
        assert all(set(asked) - {v.replaced} < set(v.genes) for v in found)
        assert asked not in [v.genes for v in found]
    assert not votes_on(measured, neighbours, (0, 1, 2, 3))


def genotypes_of(sets):
    return Genotypes.of([s.tolist() for s in np.split(sets.genes, sets.offsets[1:-1])])


@settings(max_examples=4, deadline=None)
@given(seed=seeds, two_parts=st.booleans())
def test_trees_save_and_load_to_the_last_bit(seed, two_parts, tmp_path_factory):
    rng, cell, part = problem(seed)
    sets = genotypes_of(part.sets)
    none = Genotypes.of([rng.choice(N, 2, replace=False).tolist() for _ in range(40)])
    zeros = Zeros(none, none, 10.0, 10.0) if two_parts else None
    model, again = (PairTrees(rounds=12, folds=3, gene_folds=3) for _ in range(2))
    model.fit(
        cell,
        sets,
        part.targets,
        draw_zeros=lambda ratio: zeros,
        validation=(sets, part.targets),
        seed=1,
    )
    path = tmp_path_factory.mktemp("trees") / "state.pt"
    write_checkpoint(path, model.state_dict(), step=1, epoch=1, metrics={})
    again.load_state_dict(cell, read_checkpoint(path)["state"])
    one, other = model(cell, sets), again(cell, sets)
    for name in ("score", "hit", "given_hit")[: 3 if two_parts else 1]:
        assert torch.equal(getattr(one, name), getattr(other, name))
    if two_parts:
        torch.testing.assert_close(one.score, one.hit * one.given_hit)
    else:
        assert one.hit is other.hit is one.given_hit is other.given_hit is None


@few
@given(seed=seeds, row=st.integers(0, 10**6))
def test_pair_cell_does_not_see_the_scores_of_its_batch(seed, row):
    rng, cell, part = problem(seed)
    sets, targets = genotypes_of(part.sets), torch.from_numpy(part.targets).float()
    torch.manual_seed(0)
    model = PairCell(cell, hidden=8, heads=2, nearest=5, nearest_both=3, dropout=0.0, folds=3)
    torch.nn.init.normal_(model.read_set.weight)
    row, next_row = row % len(sets), (row + 1) % len(sets)
    scores = []
    for shift in (0.0, 5.0):
        moved = targets.clone()
        moved[row] += shift
        model.begin(cell, LabelledSets(sets, moved))
        torch.manual_seed(3)
        batch = sets.take(torch.tensor([row, next_row]))
        scores.append(model.train()(cell, batch).score.detach())
    assert torch.equal(scores[0][:1], scores[1][:1])
    alone = model.eval()(cell, sets.take(torch.tensor([next_row]))).score[0]
    shuffled = Genotypes.of([rng.permutation(genes).tolist() for genes in sets])
    found = model(cell, shuffled).score[next_row]
    torch.testing.assert_close(found, alone, rtol=1e-5, atol=1e-5)
