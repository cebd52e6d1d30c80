"""What other studies say: no score of the target is in it, and no detail of its form matters."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.base.errors import InputError
from deltacell.cell import Cell, Feature, Relation
from deltacell.models.baselines.additive import Additive
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.models.interface import Prediction, Study
from deltacell.models.pairs import Measured, PairColumns, PairTrees
from deltacell.models.pairs.context import ContextColumns, studies_of
from deltacell.screen import Coverage, Genotypes, Screen
from deltacell.screen.coverage import StudyCoverage

N = 16
OPTIONS = {"rounds": 8, "leaves": 4, "folds": 3, "gene_folds": 3}
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=3, deadline=None)
EVERY = [[a, b] for a in range(N) for b in range(a + 1, N)]


def cell_of(rng, names=None):
    edges = rng.integers(0, N, (2, 40))
    links = Relation.from_edges("links", *edges, rng.random(40), n_genes=N, directed=False)
    features = [Feature("profile", rng.normal(size=(N, 20)))]
    return Cell(names or [f"G{i:02d}" for i in range(N)], [links], features=features)


def screen_of(cell, rows, scores, **columns):
    return Screen.build(cell.genes, Genotypes.of(rows), score=scores, **columns)


def problem(seed):
    """Return a cell, and the pairs of two studies of the same interactions with their scores."""
    rng = np.random.default_rng(seed)
    cell = cell_of(rng)
    gene = rng.normal(size=(N, 2))
    truth = np.array([gene[a] @ gene[b] for a, b in EVERY])
    own = rng.permutation(len(EVERY))[:70]
    others = rng.permutation(len(EVERY))[:80]
    noise = 0.1 * rng.normal(size=(2, len(EVERY)))
    target = [EVERY[i] for i in own], (truth + noise[0])[own]
    context = [EVERY[i] for i in others], (5 - 3 * (truth + noise[1]))[others]
    return rng, cell, target, context


def fitted(cell, target, context, **options):
    genotypes = Genotypes.of(target[0])
    return PairTrees(**OPTIONS, **options).fit(cell, genotypes, target[1], context=context)


def scores_of(trees, cell):
    return trees(cell, Genotypes.of(EVERY)).score.numpy()


def context_columns(cell, context, sets, largest=2):
    order = GeneOrder(cell.genes)
    columns = PairColumns(cell, order, largest)
    found = ContextColumns.of(context, cell, order, columns, 3.0)
    return found(cell, order, order.sets(Genotypes.of(sets)))


class Sums:
    """A predictor of a study: the sum of the numbers of the genes."""

    def __init__(self, cell):
        self.cell = cell

    def predict(self, genotypes):
        sums = torch.zeros(len(genotypes)).index_add_(
            0,
            genotypes.owner,
            genotypes.genes.float(),
        )
        return Prediction(sums)


@few
@given(seed=seeds)
def test_no_score_of_the_target_enters_a_column_of_context(seed):
    rng, cell, target, context = problem(seed)
    study = Study("others", screen_of(cell, *context))
    known = []

    class Spy(PairTrees):
        def _table(self, *args):
            table = super()._table(*args)
            known.append(table[:, -width:])
            return table

    width = context_columns(cell, [study], EVERY).shape[1]
    for scores in (target[1], rng.normal(size=len(target[1]))):
        trees = Spy(**OPTIONS).fit(cell, Genotypes.of(target[0]), scores, context=[study])
        trees(cell, Genotypes.of(EVERY))
    assert np.array_equal(known[0], known[1], equal_nan=True)
    assert np.array_equal(known[0], context_columns(cell, [study], EVERY), equal_nan=True)


@few
@given(seed=seeds)
def test_empty_context_is_none_and_neither_order_nor_repetition_matters(seed):
    rng, cell, target, (rows, scores) = problem(seed)
    genotypes = Genotypes.of(target[0])
    without = PairTrees(**OPTIONS).fit(cell, genotypes, target[1])
    assert np.array_equal(scores_of(fitted(cell, target, []), cell), scores_of(without, cell))
    assert "context" not in without.state_dict()
    first = Study("first", screen_of(cell, rows, scores))
    second = Study("second", screen_of(cell, rows[:50], rng.normal(size=50)))
    again = rng.permutation(len(rows))
    same = Study("again", screen_of(cell, [rows[i] for i in again], scores[again]))
    expected = scores_of(fitted(cell, target, [first, second]), cell)
    assert not np.array_equal(expected, scores_of(without, cell))
    for context in ([second, first], [first, second, first], [second, same, first]):
        assert np.array_equal(scores_of(fitted(cell, target, context), cell), expected)


@few
@given(seed=seeds)
def test_a_predictor_of_the_same_measurements_replaces_the_study_alone(seed):
    _, cell, _, context = problem(seed)
    screen = screen_of(cell, *context)
    alone = Study("screen", screen)
    with_one = Study("run", screen, Sums(cell), "weights")
    order = GeneOrder(cell.genes)
    for given_context in ([alone, with_one], [with_one, alone, with_one]):
        [study] = studies_of(given_context, cell, order)
        assert study.name == "run"


@few
@given(seed=seeds)
def test_genes_are_matched_by_name_and_unknown_ones_are_missing(seed):
    rng, cell, _, (rows, scores) = problem(seed)
    place = rng.permutation(N)
    names = [""] * N
    for gene, at in enumerate(place):
        names[at] = cell.genes.systematic[gene]
    names[place[0]] = "NOWHERE"
    other = cell_of(rng, names)
    has_first = np.array([0 in row for row in rows])
    moved = [[int(place[gene]) for gene in row] for row in rows]
    elsewhere = Study("others", screen_of(other, moved, scores), Sums(other))
    kept = [row for row, first in zip(rows, has_first, strict=True) if not first]
    here = Study("others", screen_of(cell, kept, scores[~has_first]))
    expected = context_columns(cell, [here], EVERY)[:, :-3]
    found = context_columns(cell, [elsewhere], EVERY)
    assert np.array_equal(found[:, :-3], expected, equal_nan=True)
    sums = np.array([np.nan if 0 in pair else place[pair].sum() for pair in EVERY])
    assert np.array_equal(found[:, -3], sums, equal_nan=True)
    assert np.isnan(found[:, -2:]).all()


@few
@given(seed=seeds)
def test_the_own_score_of_a_study_is_the_mean_of_what_it_measured(seed):
    _, cell, _, (rows, scores) = problem(seed)
    study = Study("others", screen_of(cell, [*rows, rows[3][::-1]], [*scores, 7.0]))
    found = context_columns(cell, [study], EVERY)[:, :2]
    measured = {tuple(row): score for row, score in zip(rows, scores, strict=True)}
    measured[tuple(rows[3])] = (scores[3] + 7.0) / 2
    for pair, (score, tested) in zip(EVERY, found, strict=True):
        expected = measured.get(tuple(pair), np.nan)
        assert np.isclose(score, expected, rtol=1e-5, equal_nan=True)
        assert (tested == 1) == (tuple(pair) in measured)


def test_a_pair_that_a_list_of_hits_leaves_out_was_tested():
    rng = np.random.default_rng(0)
    cell = cell_of(rng)
    grid = StudyCoverage("hits", np.arange(3), np.arange(4), np.arange(3, 9), complete=False)
    hits = [[0, 4], [1, 5], [2, 8], [0, 7]]
    coverage = Coverage((grid,))
    screen = screen_of(cell, hits, [-1.0, 1.5, -1.2, 1.1], p_value=0.01, coverage=coverage)
    tested = context_columns(cell, [Study("hits", screen)], EVERY)[:, 1]
    for (a, b), value in zip(EVERY, tested, strict=True):
        is_on_grid = a < 3 and 3 <= b < 9
        expected = 1.0 if [a, b] in hits else 0.0 if is_on_grid else np.nan
        assert np.array_equal(value, np.float32(expected), equal_nan=True)


def test_a_list_of_signs_votes_with_its_signs():
    rng = np.random.default_rng(0)
    cell = cell_of(rng)
    screen = screen_of(cell, [[0, 1], [2, 3]], [np.nan, np.nan], sign=[-1, 1])
    found = context_columns(cell, [Study("signs", screen)], [[0, 1], [2, 3], [0, 2]])
    assert np.array_equal(found[:, 0], np.float32([-1, 1, np.nan]), equal_nan=True)


@few
@given(seed=seeds)
def test_triples_get_what_is_known_of_their_pairs(seed):
    rng, cell, _, (rows, scores) = problem(seed)
    triples = [sorted(rng.choice(N, 3, replace=False).tolist()) for _ in range(20)]
    study = Study("others", screen_of(cell, rows, scores))
    found = context_columns(cell, [study], triples, largest=3)
    order = GeneOrder(cell.genes)
    [sets] = studies_of([study], cell, order)
    matrix = Measured.of(sets.measured, N).pairs.toarray()
    matrix[matrix == 0] = np.nan
    for (a, b, c), row in zip(triples, found, strict=True):
        known = np.array([matrix[a, b], matrix[a, c], matrix[b, c]])
        known = known[~np.isnan(known)]
        expected = [known.min(), known.max(), known.mean()] if len(known) else [np.nan] * 3
        assert np.allclose(row[2:5], expected, equal_nan=True)


@few
@given(seed=seeds, shift=st.floats(-50, 50))
def test_a_shifted_study_shifts_what_is_expected_of_it_but_not_the_target(seed, shift):
    """The twin law: half of a study under another name, with shifted scores, helps the other."""
    _, cell, target, (rows, scores) = problem(seed)
    here, shifted = (Study("twin", screen_of(cell, rows, scores + d)) for d in (0.0, shift))
    target_here, target_shifted = (
        scores_of(fitted(cell, target, [study]), cell) for study in (here, shifted)
    )
    spread = target_here.std()
    assert np.abs(target_shifted - target_here).mean() < 0.1 * spread
    twin_here, twin_shifted = (
        scores_of(fitted(cell, (rows, scores + d), []), cell) for d in (0.0, shift)
    )
    difference = (twin_shifted - twin_here).mean()
    assert abs(difference - shift) <= 0.1 * abs(shift) + 1e-3


@few
@given(seed=seeds)
def test_a_loaded_predictor_is_the_same_and_needs_the_same_studies(seed):
    rng, cell, target, (rows, scores) = problem(seed)
    study = Study("others", screen_of(cell, rows, scores))
    trees = fitted(cell, target, [study])
    state = trees.state_dict()
    loaded = PairTrees(**OPTIONS).load_state_dict(cell, state, context=[study])
    assert np.array_equal(scores_of(loaded, cell), scores_of(trees, cell))
    changed = Study("others", screen_of(cell, rows, rng.permutation(scores)))
    for context in ([], [changed], [study, changed]):
        with pytest.raises(InputError) as error:
            PairTrees(**OPTIONS).load_state_dict(cell, state, context=context)
        assert error.value.code == "other-context"


def test_studies_without_measured_sets_of_the_cell_are_refused_as_context():
    rng, cell, target, context = problem(0)
    genotypes = Genotypes.of(target[0])
    elsewhere = cell_of(rng, [f"H{i}" for i in range(N)])
    of_others = screen_of(elsewhere, *context)
    without_scores = screen_of(cell, [[0, 1], [2, 3]], [np.nan, np.nan])
    of_single_genes = screen_of(cell, [[0], [1]], [1.0, 2.0])
    for screen in (of_others, without_scores, of_single_genes):
        with pytest.raises(InputError) as error:
            fitted(cell, target, [Study("others", screen)])
        assert error.value.code == "context-without-sets"
    study = Study("others", screen_of(cell, *context))
    with pytest.raises(InputError) as error:
        Additive().fit(cell, genotypes, target[1], context=[study])
    assert error.value.code == "no-context"


def test_blocks_of_sets_have_the_columns_of_all_sets():
    _, cell, _, context = problem(1)
    study = Study("others", screen_of(cell, *context))
    whole = context_columns(cell, [study], EVERY)
    parts = [context_columns(cell, [study], EVERY[i : i + 7]) for i in range(0, len(EVERY), 7)]
    assert np.array_equal(whole, np.concatenate(parts), equal_nan=True)


def test_an_informative_study_improves_predictions_and_a_shuffled_one_does_not():
    """The law that gives the rest its meaning, and a context without information as its control."""
    gains = []
    for seed in range(3):
        rng, cell, target, (rows, scores) = problem(seed)
        tested = np.array([pair not in target[0] for pair in EVERY])
        truth_like = dict(zip(map(tuple, rows), scores, strict=True))
        both = np.array([t and tuple(p) in truth_like for p, t in zip(EVERY, tested, strict=True)])
        truth = np.array([truth_like.get(tuple(pair), np.nan) for pair in EVERY])
        informed = Study("others", screen_of(cell, rows, scores))
        shuffled = Study("others", screen_of(cell, rows, rng.permutation(scores)))
        own, told, misled = (
            -np.corrcoef(scores_of(fitted(cell, target, c), cell)[both], truth[both])[0, 1]
            for c in ([], [informed], [shuffled])
        )
        gains.append((told - own, misled - own))
    gain, gain_of_noise = np.mean(gains, axis=0)
    assert gain > 0.1
    assert gain_of_noise < 0.1
