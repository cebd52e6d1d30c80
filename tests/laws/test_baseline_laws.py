"""A baseline's prediction depends on the genotype and on nothing around it."""

from dataclasses import replace

import laws
import numpy as np
import pytest
import torch
from cells import random_cell, random_sets
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.cell import Cell
from deltacell.evaluation import baselines
from deltacell.models.baselines import BASELINES, baseline
from deltacell.screen import Screen, Split
from deltacell.screen.genotypes import Genotypes
from deltacell.train.checkpoints import read_checkpoint, write_checkpoint

FAST = {"boosted_trees": {"rounds": 8, "dimensions": 4}}
N_GENES = 24
CLOSED_FORMS = ("global_mean", "additive", "query_pair", "query_pair_mean", "additive_pair")

every_baseline = pytest.mark.parametrize("name", list(BASELINES))
seeds = st.integers(0, 2**32 - 1)
few = settings(max_examples=8, deadline=None)


def problem(seed):
    rng = np.random.default_rng(seed)
    # Sparse enough for several components, where eigenvalues coincide.
    cell = random_cell(N_GENES, {"a": 14, "b": 40}, directed="b", weighted=True, seed=seed)
    return rng, cell, random_sets(N_GENES, 90, seed=seed), rng.normal(size=90)


def fitted(name, cell, sets, targets):
    return baseline(name, **FAST.get(name, {})).fit(cell, Genotypes.of(sets), targets)


def renumbered(rng, cell, sets):
    """The same cell and sets with the genes in another order."""
    new_order = rng.permutation(N_GENES)
    place = np.argsort(new_order)
    return cell.subset(new_order.tolist()), [place[s].tolist() for s in sets]


@every_baseline
@few
@given(seed=seeds)
def test_independent_of_batch_gene_order_and_numbering(name, seed):
    rng, cell, sets, targets = problem(seed)
    model = fitted(name, cell, sets, targets)
    expected = model(cell, Genotypes.of(sets)).score
    rows = torch.from_numpy(rng.permutation(90)[: rng.integers(1, 90)])
    some = model(cell, Genotypes.of(sets).take(rows)).score
    torch.testing.assert_close(some, expected[rows], rtol=1e-6, atol=1e-6)
    other_cell, other_sets = renumbered(rng, cell, sets)
    shuffled = [rng.permutation(s).tolist() for s in other_sets]
    assert torch.equal(model(other_cell, Genotypes.of(shuffled)).score, expected)
    # Fitted again, with the same seed, it is the same to the last bit.
    again = fitted(name, other_cell, shuffled, targets)
    assert torch.equal(again(cell, Genotypes.of(sets)).score, expected)


@pytest.mark.parametrize("name", CLOSED_FORMS)
@few
@given(seed=seeds, factor=st.sampled_from([0.25, 4.0]), shift=st.sampled_from([-2.0, 8.0]))
def test_follows_units(name, seed, factor, shift):
    """Scores in other units give predictions in these units."""
    _, cell, sets, targets = problem(seed)
    expected = factor * fitted(name, cell, sets, targets)(cell, Genotypes.of(sets)).score + shift
    scaled = fitted(name, cell, sets, factor * targets + shift)(cell, Genotypes.of(sets)).score
    torch.testing.assert_close(scaled, expected, rtol=1e-5, atol=1e-5)


@every_baseline
@few
@given(seed=seeds)
def test_save_then_load_is_the_identity(name, seed, tmp_path_factory):
    rng, cell, sets, targets = problem(seed)
    model = fitted(name, cell, sets, targets)
    file = tmp_path_factory.mktemp("state") / "state.ckpt"
    write_checkpoint(file, model.state_dict(), step=1, epoch=1, metrics={})
    state = read_checkpoint(file)["state"]
    other_cell, other_sets = renumbered(rng, cell, sets)
    for there, asked in ((cell, sets), (other_cell, other_sets)):
        again = baseline(name, **FAST.get(name, {})).load_state_dict(there, state)
        expected, found = model(cell, Genotypes.of(sets)), again(there, Genotypes.of(asked))
        assert torch.equal(found.score, expected.score)
        assert laws.bits_of(again.state_dict()) == laws.bits_of(model.state_dict())


# Trees choose between columns that are equally good by rounding.
@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"boosted_trees"}))
@few
@given(seed=seeds)
def test_other_names_of_the_genes_change_nothing_but_the_rounding(name, seed):
    rng, cell, sets, targets = problem(seed)
    expected = fitted(name, cell, sets, targets)(cell, Genotypes.of(sets)).score
    names = [f"Y{i:03d}" for i in rng.permutation(N_GENES)]
    renamed = Cell(names, cell.relations.values())
    score = fitted(name, renamed, sets, targets)(renamed, Genotypes.of(sets)).score
    torch.testing.assert_close(score, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", sorted(set(BASELINES) - {"global_mean", "boosted_trees"}))
@few
@given(seed=seeds)
def test_a_set_of_unseen_genes_has_the_intercept_and_an_unseen_gene_adds_nothing(name, seed):
    """A set of unseen genes has the intercept; an unseen gene in a set adds nothing."""
    _, cell, sets, targets = problem(seed)
    kept = [i for i, genes in enumerate(sets) if max(genes) < N_GENES - 3]
    model = fitted(name, cell, [sets[i] for i in kept], targets[kept])
    unseen = [[N_GENES - 1], [N_GENES - 2, N_GENES - 1], [N_GENES - 3, N_GENES - 2, N_GENES - 1]]
    intercept = model(cell, Genotypes.of(unseen)).score
    torch.testing.assert_close(intercept, intercept[:1].expand(3))
    assert targets.min() < float(intercept[0]) < targets.max()
    alone = model(cell, Genotypes.of([[0], [1]])).score
    with_unseen = model(cell, Genotypes.of([[0, N_GENES - 1], [1, N_GENES - 2]])).score
    torch.testing.assert_close(with_unseen, alone)


@every_baseline
def test_scores_of_the_test_part_change_no_bit_of_a_prediction(name):
    cell = Cell.synthetic("demo")
    screen = Screen.synthetic(cell, n=300).merge("mean")
    split = Split.random(screen, seed=0)
    rng = np.random.default_rng(0)

    def predictions_without(rows):
        """Return the predictions of the test part if the scores of some rows are noise."""
        score = screen.column("score").astype(np.float64)
        score[rows] = rng.normal(size=len(rows))
        changed = screen.with_scores(score)
        of_changed = replace(split, screen_checksum=changed.checksum)
        return baselines(cell, changed, of_changed, [name])[name]

    expected = predictions_without(split.test[:0])
    np.testing.assert_array_equal(predictions_without(split.test), expected)
    assert not np.array_equal(predictions_without(split.train), expected)
