"""No score enters what is said of its own set; votes are what deleting the set really leaves."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell, Feature, Relation
from deltacell.models.baselines.baseline import Part
from deltacell.models.baselines.gene_sets import GeneOrder, GeneSets
from deltacell.models.pairs import (
    Known,
    Measured,
    Neighbours,
    PairCell,
    PairColumns,
    PairTrees,
    Zeros,
    messages,
    pair_votes,
    set_votes,
    training_columns,
    voters,
)
from deltacell.models.pairs.columns import hashed_sets, set_folds
from deltacell.screen.genotypes import Genotypes
from deltacell.train.checkpoints import read_checkpoint, write_checkpoint

N = 14
NONE = GeneSets(np.zeros(0, dtype=np.int64), np.zeros(1, dtype=np.int64))
OPTIONS = {"penalty": 3.0, "folds": 3, "gene_folds": 3, "rounds": 2, "seed": 0}
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=8, deadline=None)


def a_cell(rng, names=("links", "regulates")):
    relations = [
        Relation.from_edges(
            name,
            *rng.integers(0, N, (2, 30)),
            rng.random(30),
            n_genes=N,
            directed=name == "regulates",
        )
        for name in names
    ]
    profile = rng.normal(size=(N, 20))
    profile[rng.random((N, 20)) < 0.3] = np.nan
    features = [Feature("profile", profile), Feature("fitness", rng.random((N, 2)))]
    return Cell([f"G{i:02d}" for i in range(N)], relations, features=features)


def sets_of(rows):
    sizes = np.array([len(row) for row in rows])
    return GeneSets(np.concatenate([np.sort(row) for row in rows]), np.append(0, sizes.cumsum()))


def problem(seed, sizes=(2, 2, 3)):
    rng = np.random.default_rng(seed)
    drawn = {tuple(sorted(rng.choice(N, rng.choice(sizes), replace=False))) for _ in range(60)}
    rows = [list(row) for row in sorted(drawn)]
    cell = a_cell(rng)
    return rng, cell, Part(sets_of(rows), rng.normal(size=len(rows)), np.ones(len(rows)))


def columns_of(cell, part, columns=PairColumns):
    made = columns(cell, GeneOrder(cell.genes), 3)
    return training_columns(made, part, NONE, **OPTIONS)


def own_score_shows(cell, part, row, columns=PairColumns):
    """Whether changing the score of a set changes its own columns, in any bit."""
    targets = part.targets.copy()
    targets[row] += 5.0
    before = columns_of(cell, part, columns)
    after = columns_of(cell, Part(part.sets, targets, part.weights), columns)
    mine = before.row == row
    return not np.array_equal(before.columns[mine], after.columns[mine], equal_nan=True)


@few
@given(seed=seeds, row=st.integers(0, 10**6))
def test_own_score_enters_no_column(seed, row):
    _, cell, part = problem(seed)
    assert not own_score_shows(cell, part, row % len(part.sets))


def test_versions_that_leak_are_rejected():
    class OwnVote(PairColumns):
        """A vote in which a gene is its own neighbour."""

        def __init__(self, *args):
            super().__init__(*args)
            import scipy.sparse as sp

            own = tuple(sp.csr_array(m + sp.eye_array(N)) for m in self.neighbours.matrices)
            self.neighbours = Neighbours(self.neighbours.names, self.neighbours.weights, own)

    class SpecAsWritten(PairColumns):
        """Both neighbourhoods with the pair's own term left in."""

        def votes(self, measured, sets, rows=None):
            found = super().votes(measured, sets, rows)
            pairs = sets.pairs()
            for i, matrix in enumerate(self.neighbours.matrices):
                dense = matrix.toarray()
                two = dense @ measured.pairs.toarray() @ dense.T
                found.pairs[:, i, 4] = two[pairs.first, pairs.second]
            return found

    _, cell, part = problem(7)
    rows = range(len(part.sets))
    assert any(own_score_shows(cell, part, row, OwnVote) for row in rows)
    assert any(own_score_shows(cell, part, row, SpecAsWritten) for row in rows)


def gene_level(cell, part, known_of):
    """The additive column of every training set, and its fold."""
    fold = set_folds(part.sets, N, 3, 0)
    effect = [known_of(part, row, fold) for row in range(len(part.sets))]
    return fold, np.stack(effect)


def is_by_fold(fold, effect):
    """Whether all sets of a fold are told the same of every gene."""
    return all(np.ptp(effect[fold == k], axis=0).max() == 0 for k in np.unique(fold))


def test_effects_are_by_fold_and_leave_one_out_means_are_rejected():
    _, cell, part = problem(3)

    def ours(part, row, fold):
        kept = np.flatnonzero(fold != fold[row])
        return Known.of(part.take(kept), N, 3.0).effects.effect

    def leave_one_out(part, row, fold):
        kept = np.flatnonzero(np.arange(len(fold)) != row)
        return Known.of(part.take(kept), N, 3.0).effects.effect

    fold, effect = gene_level(cell, part, ours)
    assert is_by_fold(fold, effect)
    made = columns_of(cell, part)
    with_all = made.unseen == 0
    expected = np.array([effect[row][part.sets.take([row]).genes].sum() for row in made.row])
    intercept = made.offset[with_all] - expected[with_all]
    # What is left of the offset is one intercept per fold.
    assert len(np.unique(intercept.round(5))) == 3
    assert not is_by_fold(*gene_level(cell, part, leave_one_out))


@few
@given(seed=seeds)
def test_votes_are_those_of_a_screen_without_the_pair(seed):
    rng, cell, part = problem(seed, sizes=(2,))
    neighbours = Neighbours.of(cell, GeneOrder(cell.genes))
    measured = Measured.of(part.sets, part.targets, part.weights, N)
    every = sets_of([[a, b] for a in range(N) for b in range(a + 1, N)])
    rows = rng.random(N) < 0.5
    for given_rows in (None, rows):
        votes = pair_votes(measured, neighbours, every.pairs(), given_rows)
        for i, (a, b) in enumerate(every.genes.reshape(-1, 2)):
            for what, matrix in ((0, measured.pairs), (1, measured.tested)):
                left = matrix.toarray().astype(np.float64)
                left[a, b] = left[b, a] = 0
                for r, relation in enumerate(neighbours.matrices):
                    w = relation.toarray().astype(np.float64)
                    of_a, of_b = w[a].copy(), w[b].copy()
                    of_a[b] = of_b[a] = 0
                    expected = [w[a] @ left[:, b], w[b] @ left[:, a], of_a @ left @ of_b]
                    np.testing.assert_allclose(votes[i, r, what::2], expected, atol=2e-5)


@few
@given(seed=seeds)
def test_set_votes_are_those_of_the_sets_with_a_neighbour_instead(seed):
    _, cell, part = problem(seed, sizes=(3,))
    neighbours = Neighbours.of(cell, GeneOrder(cell.genes))
    measured = Measured.of(part.sets, part.targets, part.weights, N)
    scores = {
        tuple(s): y for s, y in zip(part.sets.genes.reshape(-1, 3), part.targets, strict=True)
    }
    votes = set_votes(measured, neighbours, part.sets)
    for place, (gene, owner) in enumerate(zip(part.sets.genes, part.sets.owner, strict=True)):
        rest = set(part.sets.genes.reshape(-1, 3)[owner]) - {gene}
        for r, relation in enumerate(neighbours.matrices):
            row = relation.toarray()[gene]
            near = [(row[g], scores.get(tuple(sorted({*rest, g})))) for g in range(N)]
            found = [(w, y) for w, y in near if w > 0 and y is not None]
            expected = [sum(w * y for w, y in found), sum(w for w, _ in found)]
            np.testing.assert_allclose(votes[place, r], expected, atol=1e-5)


@few
@given(seed=seeds)
def test_order_of_rows_and_relations_does_not_matter(seed):
    rng, cell, part = problem(seed)
    shuffled = rng.permutation(len(part.sets))
    turned = Cell(cell.genes, list(cell.relations.values())[::-1], features=cell.features.values())
    one, other = columns_of(cell, part), columns_of(turned, part.take(shuffled))
    order = np.lexsort((one.unseen, one.offset, one.row))
    of_other = shuffled[other.row]
    again = np.lexsort((other.unseen, other.offset, of_other))
    assert np.array_equal(one.row[order], of_other[again])
    np.testing.assert_allclose(
        np.sort(one.columns[order], axis=0), np.sort(other.columns[again], axis=0), atol=2e-4
    )


@few
@given(seed=seeds)
def test_a_gene_without_a_measured_set_has_zero_counts_and_no_effect(seed):
    _, cell, part = problem(seed, sizes=(2,))
    alone = 5
    kept = np.flatnonzero((part.sets.genes.reshape(-1, 2) != alone).all(axis=1))
    rest = part.take(kept)
    made = PairColumns(cell, GeneOrder(cell.genes), 2)
    known, measured = Known.of(rest, N, 3.0), Measured.of(rest.sets, rest.targets, rest.weights, N)
    assert not known.seen[alone]
    assert np.isnan(known.negative[alone])
    sets = sets_of([[alone, other] for other in range(N) if other != alone])
    votes = made.votes(measured, sets)
    table = made(known, sets, votes)
    names = made.names(votes)
    assert table.shape[1] == len(names)
    assert (table[:, names.index("unseen")] >= 1).all()
    assert (table[:, names.index("links.min voters.mean")] == 0).all()
    assert (table[:, names.index("count.min")] == 0).all()


def test_blocks_do_not_change_a_bit(monkeypatch):
    _, cell, part = problem(11)
    whole = columns_of(cell, part)
    monkeypatch.setattr(messages, "_GENES_PER_BLOCK", 1)
    monkeypatch.setattr(messages, "_ENTRIES_PER_BLOCK", 3)
    assert np.array_equal(columns_of(cell, part).columns, whole.columns, equal_nan=True)


def test_folds_are_by_set_and_even():
    rng = np.random.default_rng(0)
    sets = sets_of([rng.choice(500, 2, replace=False).tolist() for _ in range(5_000)])
    fold = set_folds(sets, 500, 5, 0)
    assert np.bincount(fold).min() > 850
    assert np.array_equal(set_folds(sets.take(np.arange(9)), 500, 5, 0), fold[:9])
    assert not np.array_equal(hashed_sets(sets, 500, (1,)), hashed_sets(sets, 500, (2,)))


def test_voters_are_the_measured_sets_next_to_a_set():
    _, cell, part = problem(2)
    neighbours = Neighbours.of(cell, GeneOrder(cell.genes))
    measured = Measured.of(part.sets, part.targets, part.weights, N)
    known = {tuple(part.sets.take(np.array([i])).genes): y for i, y in enumerate(part.targets)}
    for asked in ((0, 1), (2, 5), (1, 4, 7)):
        found = voters(measured, neighbours, asked)
        assert all(v.score == pytest.approx(known[v.genes], rel=1e-6) for v in found)
        assert all(set(asked) - {v.replaced} < set(v.genes) for v in found)
        assert asked not in [v.genes for v in found]


def trees(**options):
    return PairTrees(rounds=12, folds=3, gene_folds=3, **options)


def genotypes_of(sets):
    return Genotypes.of([s.tolist() for s in np.split(sets.genes, sets.offsets[1:-1])])


@settings(max_examples=5, deadline=None)
@given(seed=seeds, two_parts=st.booleans())
def test_trees_save_and_load_to_the_last_bit(seed, two_parts, tmp_path_factory):
    rng, cell, part = problem(seed)
    sets = genotypes_of(part.sets)
    none = Genotypes.of([rng.choice(N, 2, replace=False).tolist() for _ in range(40)])
    zeros = Zeros(none, none, 10.0, 10.0) if two_parts else None
    model = trees().fit(
        cell, sets, part.targets, zeros=zeros, validation=(sets, part.targets), seed=1
    )
    path = tmp_path_factory.mktemp("trees") / "state.pt"
    write_checkpoint(path, model.state_dict(), step=1, epoch=1, metric=None)
    again = trees().load_state_dict(cell, read_checkpoint(path)["state"])
    one, other = model(cell, sets), again(cell, sets)
    for name in ("score", "hit", "given_hit"):
        was, is_ = getattr(one, name), getattr(other, name)
        assert (was is None) == (is_ is None) == (name != "score" and not two_parts)
        assert was is None or torch.equal(was, is_)
    if two_parts:
        torch.testing.assert_close(one.score, one.hit * one.given_hit)


@few
@given(seed=seeds, row=st.integers(0, 10**6))
def test_pair_cell_does_not_see_the_scores_of_its_batch(seed, row):
    rng, cell, part = problem(seed)
    sets, targets = genotypes_of(part.sets), torch.from_numpy(part.targets).float()
    torch.manual_seed(0)
    model = PairCell(cell, hidden=8, heads=2, nearest=5, nearest_both=3, dropout=0.0, folds=3)
    torch.nn.init.normal_(model.read_set.weight)
    row %= len(sets)
    batch = torch.tensor([row, (row + 1) % len(sets)])
    scores = []
    for shift in (0.0, 5.0):
        moved = targets.clone()
        moved[row] += shift
        model.remember(cell, sets, moved)
        model.train()
        torch.manual_seed(3)
        scores.append(model(cell, sets.take(batch)).score.detach())
    assert torch.equal(scores[0][:1], scores[1][:1])
    other = model.eval()(cell, sets.take(torch.tensor([(row + 1) % len(sets)]))).score
    shuffled = Genotypes.of([[int(g) for g in rng.permutation(s)] for s in _lists(sets)])
    torch.testing.assert_close(
        model(cell, shuffled).score[(row + 1) % len(sets)], other[0], rtol=1e-5, atol=1e-5
    )


def _lists(sets):
    ends = sets.offsets.tolist()
    return [sets.genes[a:b].tolist() for a, b in pairwise(ends)]
