"""The score less what single effects lead to expect, as what is learned."""

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import deltacell as dc
from deltacell.models.fitted.gene_sets import GeneSets
from deltacell.models.fitted.predictor import Part
from deltacell.models.fitted.single_effects import expected_scores, multiplicative_effects
from deltacell.screen import Genotypes
from deltacell.train.config.compose import compose
from deltacell.train.data import load_data, with_everything
from deltacell.train.run import train

N_GENES = 12
PAIRS = np.array([(a, b) for a in range(N_GENES) for b in range(a + 1, N_GENES)])


def sets_of(pairs):
    return GeneSets(pairs.reshape(-1), 2 * np.arange(len(pairs) + 1))


@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 10_000), scale=st.floats(0.01, 100))
def test_factors_minimise_the_deviance_on_any_scale(seed, scale):
    rng = np.random.default_rng(seed)
    fitness = np.maximum(0, rng.normal(0.8, 0.4, len(PAIRS)))
    part = Part(sets_of(PAIRS), fitness)
    effects = multiplicative_effects(part, N_GENES, penalty=3.0)
    expected = effects.expected(part.sets)
    # At the minimum the slope of every parameter is 0; a fitness of 0 is no obstacle.
    assert expected.sum() == pytest.approx(fitness.sum(), rel=1e-6)
    errors = (expected - fitness) / fitness.mean()
    slopes = np.bincount(PAIRS.ravel(), np.repeat(errors, 2), N_GENES) + 3.0 * effects.effect
    assert np.abs(slopes).max() < 1e-5
    rescaled = multiplicative_effects(Part(part.sets, scale * fitness), N_GENES, 3.0)
    np.testing.assert_allclose(rescaled.expected(part.sets), scale * expected, rtol=1e-5)


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_scores_that_single_genes_explain_leave_no_residual(kind):
    many = np.tile(PAIRS, (200, 1))
    effect = np.random.default_rng(0).uniform(0.6, 1.0, N_GENES)
    pairs = effect[many]
    scores = pairs.sum(axis=1) if kind == "additive" else pairs.prod(axis=1)
    expected = expected_scores(kind, Part(sets_of(many), scores), N_GENES, sets_of(PAIRS))
    assert np.abs(expected - scores[: len(PAIRS)]).max() < 1e-3


def test_factors_of_negative_scores_are_refused(refused):
    part = Part(sets_of(PAIRS), np.linspace(-1, 1, len(PAIRS)))
    refused("negative-scores", multiplicative_effects, part, N_GENES, 3.0)


@pytest.fixture(scope="module")
def fitness(tmp_path_factory):
    """A cell and a screen whose scores are products of two fitnesses, with noise."""
    rng = np.random.default_rng(1)
    genes = dc.cell.Genes([f"YAL{i:03}W" for i in range(40)])
    factor = rng.uniform(0.5, 1.0, 40)
    pairs = np.array([(a, b) for a in range(40) for b in range(a + 1, 40)])
    scores = factor[pairs].prod(axis=1) + rng.normal(0, 0.01, len(pairs))
    genotypes = Genotypes(torch.from_numpy(pairs.ravel()), 2 * torch.arange(len(pairs) + 1))
    screen = dc.Screen.build(genes, genotypes, score=scores, phenotype="fitness")
    folder = tmp_path_factory.mktemp("fitness")
    dc.Cell(genes, {}).save(folder / "cell")
    screen.save(folder / "screen")
    return folder


def config_of(folder, *words):
    places = (f"data.cell={folder / 'cell'}", f"data.screen={folder / 'screen'}")
    return compose(["model=additive", *places, *words])


@pytest.mark.parametrize("kind", ["additive", "multiplicative"])
def test_the_expectation_is_learned_from_the_training_part_alone(fitness, tmp_path, kind):
    config = config_of(fitness, f"data.residual={kind}")
    data = load_data(config)
    assert data.screen.column("score").std() < 0.5 * data.as_measured.column("score").std()
    # What is left of a fitness is an interaction.
    assert data.as_measured.hit_rule.low_means == "sick"
    assert data.screen.hit_rule.low_means == "negative"
    # The run and its split know the screen by the same checksum.
    assert data.screen.checksum == data.as_measured.checksum
    data.split.check(data.screen)
    screen = dc.Screen.load(fitness / "screen")
    scores = screen.column("score").copy()
    scores[data.split.test] = np.random.default_rng(5).normal(0.7, 0.2, len(data.split.test))
    screen.with_scores(scores).save(tmp_path / "noise")
    noisy = load_data(
        config_of(fitness, f"data.screen={tmp_path / 'noise'}", f"data.residual={kind}")
    )
    for part in ("train", "validation"):
        rows = getattr(data.split, part)
        assert (getattr(noisy.split, part) == rows).all()
        assert (noisy.screen.column("score")[rows] == data.screen.column("score")[rows]).all()
    # A predictor that is tested no more learns it from all measurements.
    everything = with_everything(data)
    assert everything.as_measured is data.as_measured
    assert (everything.screen.column("score") != data.screen.column("score")).any()


def test_a_run_on_residuals_is_tested_refitted_and_ranks_with_them(fitness, tmp_path, refused):
    words = ["name=residual", "data.residual=multiplicative", f"directory={tmp_path / 'run'}"]
    train(config_of(fitness, *words))
    train(config_of(fitness, "name=whole", f"directory={tmp_path / 'whole'}"))
    run, whole = dc.Run(tmp_path / "run"), dc.Run(tmp_path / "whole")
    evaluated = dc.evaluate([run], progress=False)
    assert any("data.residual=multiplicative" in note for note in evaluated.evaluation.notes)
    # Measurement noise is left, which nothing predicts.
    assert abs(evaluated.evaluation.test.scores["residual"]["pearson"].value) < 0.3
    assert (
        dc.evaluate([whole], progress=False).evaluation.test.scores["whole"]["pearson"].value > 0.9
    )
    refused("other-residual", dc.evaluate, [run, whole], progress=False)
    refitted = run.refit(tmp_path / "refitted", progress=False)
    everything = load_data(refitted.config, tmp_path / "refitted" / "split")
    assert refitted.loaded.data.screen.column("score").tolist() == (
        everything.screen.column("score").tolist()
    )
    assert refitted.record.refitted.accuracy == dc.Run(tmp_path / "run").record.accuracy
    ranked = dc.rank([refitted], status="any", top=3, out=tmp_path / "out.parquet", progress=False)
    result = ranked.to_json()
    assert any("data.residual=multiplicative" in sentence for sentence in result["sentences"])
    measured = pl.read_parquet(tmp_path / "out.parquet")["measured"]
    assert measured.null_count() == 0
