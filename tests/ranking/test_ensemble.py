"""Candidates are what scoring every set of a block gives, and scores are the runs' own."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from deltacell import Cell, Relation
from deltacell.models import Dango, HeteroCell
from deltacell.models.dango.scorer import DangoScorer
from deltacell.models.interface import TargetScale
from deltacell.models.scoring import Rough
from deltacell.ranking import ensemble
from deltacell.ranking.ensemble import scorer_of_predictors
from deltacell.ranking.gene_sets import Block, Scored
from deltacell.screen import Genotypes
from deltacell.train.predictor import TrainedPredictor

N = 22
EDGES = np.random.default_rng(0).integers(0, N, (2, 90))
CELL = Cell(
    [f"Y{i}" for i in range(N)],
    [Relation.from_edges("a", *EDGES, n_genes=N, directed=False)],
)


def predictor_of(model, cell=CELL):
    return TrainedPredictor(model, cell, TargetScale(-0.05, 0.15))


def dango(betas=(0.25, 0.001), scale=40.0, seed=0):
    """Return a DANGO whose attention is far from uniform where the scale is large."""
    torch.manual_seed(seed)
    model = Dango(CELL, ("a",), {"a": 1.0}, hidden=16, heads=2, layers=len(betas), largest=2)
    with torch.no_grad():
        model.embedding.mul_(scale)
        for layer, beta in zip(model.hyper_sagnn.sets.attention, betas, strict=True):
            layer.beta.fill_(beta)
    return predictor_of(model)


def hetero(seed=0):
    torch.manual_seed(seed)
    return predictor_of(HeteroCell(CELL, hidden=8, layers=2, local_heads=2, largest=2).eval())


def genes(*of):
    return np.array(of, dtype=np.int64)


def blocks():
    a, b, c = np.arange(0, 9), np.arange(9, 16), np.arange(16, N)
    return {
        "pairs": Block((a, b)),
        "pairs of one axis": Block((a, a)),
        "triples": Block((a, b, c)),
        "triples of one axis": Block((c, c, c)),
        "triples, two of one axis": Block((a, a, c)),
        "triples, the last two of one axis": Block((a, c, c)),
        "with one gene": Block((genes(20), a, b)),
        "axes out of order": Block((c, a[::-1].copy(), b)),
        "single genes": Block((a,)),
        "fours": Block((genes(3, 1), genes(7, 9), c, c)),
        "fives": Block((genes(3), genes(7), genes(8, 5), b, c)),
        "no gene": Block((a, b, genes())),
        "too few genes": Block((genes(1, 2), genes(5))[:1] * 3),
    }


MODELS = {
    "as trained": ((0.25, 0.001), 40.0),
    "second layer": ((-0.0002, -0.25), 40.0),
    "uniform attention": ((0.25, 0.25), 1.0),
    "both layers": ((0.5, 0.6), 40.0),
    "huge logits": ((0.25, 0.01), 1000.0),
    "one layer": ((0.9,), 60.0),
    "three layers": ((0.3, 0.01, 0.2), 30.0),
    "no layer": ((), 10.0),
}


@pytest.fixture(params=[False, True], ids=["few stages", "every stage"])
def limits(request, monkeypatch):
    """With small limits every stage has a say in small blocks too."""
    if request.param:
        monkeypatch.setattr(ensemble, "FEW", 1)


def same_as_all(scorer, block, above, below):
    every = scorer.score(block.sets())
    # A score that is no number is not lost without a word.
    wanted = np.isnan(every.score) | (every.score >= above) | (every.score <= below)
    for found, expected in zip(scorer.candidates(block, above, below), every, strict=True):
        np.testing.assert_array_equal(found, expected[wanted])
    return int(wanted.sum())


@pytest.mark.usefixtures("limits")
@pytest.mark.parametrize("model", MODELS)
def test_candidates_are_those_of_scoring_every_set(model):
    scorer = scorer_of_predictors([dango(*MODELS[model])])
    for block in blocks().values():
        scores = np.sort(scorer.score(block.sets()).score)
        ends = [(np.inf, -np.inf), (-np.inf, np.inf)]
        if len(scores):
            # Thresholds that are scores themselves: what equals them is wanted.
            ends += [(scores[-k], scores[k - 1]) for k in (1, 20) if k <= len(scores)]
        for above, below in ends:
            same_as_all(scorer, block, float(above), float(below))


@pytest.mark.usefixtures("limits")
def test_candidates_of_several_runs():
    both = scorer_of_predictors([dango((0.3, 0.1), 30, seed) for seed in (0, 1)])
    # Mutants of a HeteroCell take long, and it prunes nothing.
    mixed = scorer_of_predictors([dango((0.3, 0.1), 30), hetero(1)])
    large = ("pairs of one axis", "triples", "triples, two of one axis")
    for scorer, names in ((both, ("single genes", *large)), (mixed, ("single genes",))):
        for name in names:
            block = blocks()[name]
            scores = np.sort(scorer.score(block.sets()).score)
            assert same_as_all(scorer, block, float(scores[-4]), float(scores[3])) >= 8


@pytest.mark.usefixtures("limits")
def test_most_of_a_block_is_not_scored(monkeypatch):
    scorer = scorer_of_predictors([dango((0.25, 0.001), 40)])
    block, scored, score = blocks()["triples"], [], scorer.score
    scores = np.sort(score(block.sets()).score)
    monkeypatch.setattr(scorer, "score", lambda sets: (scored.append(len(sets)), score(sets))[1])
    scorer.candidates(block, float(scores[-1]), float(scores[0]))
    assert sum(scored) < len(block) / 10


@settings(max_examples=8, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32), st.sampled_from(list(MODELS)))
def test_scores_are_the_models_own(size, seed, model):
    rng = np.random.default_rng(seed)
    sets = np.stack([rng.choice(N, size, replace=False) for _ in range(9)])
    for predictor, exact in ((dango(*MODELS[model]), 2e-7), (hetero(), 1e-5)):
        found = scorer_of_predictors([predictor]).score(sets)
        head = "hyper_sagnn" if isinstance(predictor.model, Dango) else "local_head"
        getattr(predictor.model, head).largest = None
        predictor.model.double()
        expected = predictor(Genotypes.of(sets.tolist())).numpy()
        np.testing.assert_allclose(found.score, expected, rtol=exact, atol=exact / 2)
        assert np.isnan(found.spread).all()


@settings(max_examples=10, deadline=None)
@given(st.integers(1, 4), st.integers(0, 2**32))
def test_neither_order_nor_company_matter(size, seed):
    rng = np.random.default_rng(seed)
    scorer = scorer_of_predictors([dango((0.3, 0.5)), dango((0.3, 0.5), seed=1)])
    # More than are scored at once.
    sets = np.stack([rng.choice(N, size, replace=False) for _ in range(70)])
    together = scorer.score(sets)
    alone = [scorer.score(rng.permuted(sets[i : i + 1], axis=1)) for i in range(0, 70, 9)]
    for one, other in zip(together.take(slice(None, None, 9)), Scored.join(alone), strict=True):
        np.testing.assert_array_equal(one, other)


def test_every_part_has_one_shape_because_a_product_of_another_may_round_differently():
    shapes, sets = [], np.arange(210).reshape(70, 3)

    def score(part: torch.Tensor) -> torch.Tensor:
        shapes.append(tuple(part.shape))
        return part.sum(1).double()

    found = DangoScorer._in_parts(SimpleNamespace(_genes=torch.zeros(1)), score, sets, 32)
    assert found.tolist() == sets.sum(1).tolist()
    assert set(shapes) == {(32, 3)}


single = st.floats(-1e6, 1e6, width=32)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(single, single), min_size=1, max_size=4))
@example([(2.0**24, 1.0), (1.0, 2.0**24)])
def test_a_mean_is_as_exact_as_it_says(rows):
    found = Rough.mean([Rough(torch.tensor(row), 0.0) for row in rows])
    assert (np.abs(found.scores.double().numpy() - np.mean(rows, axis=0)) <= found.within).all()


def test_several_runs_are_their_mean_with_the_spread(refused):
    sets = blocks()["triples"].sets()
    predictors = [dango((0.3, 0.1), 30, seed) for seed in range(3)]
    each = np.stack([scorer_of_predictors([one]).score(sets).score for one in predictors])
    both = scorer_of_predictors(predictors).score(sets)
    np.testing.assert_allclose(both.score, each.mean(0), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(both.spread, each.std(0, ddof=1), rtol=1e-4, atol=1e-7)
    other = CELL.subset(np.arange(N)[::-1])
    turned = predictor_of(Dango(other, ("a",), {"a": 1.0}, hidden=8), other)
    refused("different-genes", scorer_of_predictors, [dango(), turned])


@pytest.mark.parametrize("make", [dango, hetero])
@pytest.mark.parametrize("size", [2, 3])
def test_one_gene_that_is_no_number_hides_no_set(make, size):
    """Bounds are no numbers then either: the sets beside it must not be lost without a word."""
    predictor = make()
    with torch.no_grad():
        getattr(predictor.model, "encoder", predictor.model).embedding[0] = float("nan")
    scorer, block = scorer_of_predictors([predictor]), Block((np.arange(6),) * size)
    score = scorer.score(block.sets()).score
    assert np.isnan(score).any()
    median = float(np.nanmedian(score)) if np.isfinite(score).any() else 0.0
    assert same_as_all(scorer, block, median, -np.inf)


@pytest.mark.parametrize("size", [2, 3])
def test_runs_that_cancel_lose_no_set(size):
    """The mean is small and what is rounded is not."""
    for seed in range(6):
        first, second = dango((0.25, 0.001), 3, seed), dango((0.25, 0.001), 3, seed)
        rng = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            # The score is linear in the last weights.
            for weight in second.model.hyper_sagnn.sets.score.parameters():
                weight.mul_(-1 - 1e-6 * torch.rand(1, generator=rng))
        scorer = scorer_of_predictors(
            [replace(one, scale=TargetScale()) for one in (first, second)],
        )
        block = blocks()["pairs" if size == 2 else "triples"]
        score = scorer.score(block.sets()).score
        above, below = float(np.quantile(score, 0.8)), float(np.quantile(score, 0.2))
        assert same_as_all(scorer, block, above, below)


def test_neither_company_nor_cores_change_a_bit_and_the_model_is_left_as_it_is(monkeypatch):
    predictor, encoded, encode = hetero(), [], HeteroCell.encode
    model = predictor.model.train()
    monkeypatch.setattr(
        HeteroCell,
        "encode",
        lambda self, cell: (encoded.append(1), encode(self, cell))[1],
    )
    scores = predictor.scorer().scores
    sets = np.array([[0, 3, 7], [1, 2, 19], [3, 7, 11], [0, 3, 8], [4, 5, 6]])
    threads, found = torch.get_num_threads(), []
    try:
        for cores in (1, 2):
            torch.set_num_threads(cores)
            found.append(scores(sets))
            found.append(np.concatenate([scores(sets[i : i + 1]) for i in range(5)]))
            assert torch.get_num_threads() == cores
    finally:
        torch.set_num_threads(threads)
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert scores(sets[:0]).shape == (0,)
    assert len(encoded) == 1
    assert model.training
    assert model.encoder.embedding.dtype == torch.float32
    assert model.local_head.largest == 2
