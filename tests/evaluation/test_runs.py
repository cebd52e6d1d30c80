"""Runs as predictors, on their test part and on another screen."""

import dataclasses
import shutil
from functools import partialmethod

import golden
import numpy as np
import pytest
import torch

from deltacell.cell import Cell, Genes
from deltacell.evaluation import Bootstrap, baselines
from deltacell.evaluation.other_screen import IN_TRAINING, NO_INTERACTION, TOO_LARGE, untrained
from deltacell.evaluation.rows import EvaluationOptions
from deltacell.evaluation.runs import evaluate_runs
from deltacell.models.baselines import Additive
from deltacell.models.baselines.config import BoostedTreesConfig
from deltacell.models.interface import TargetScale
from deltacell.profile.record import Status, read_run, write_run
from deltacell.screen import Genotypes, Screen, Split
from deltacell.storage.provenance import UNKNOWN_GENE
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config.compose import compose
from deltacell.train.data import TrainingData
from deltacell.train.loaded_runs import load_run
from deltacell.train.run import train

CLOSED_FORMS = ["global_mean", "additive"]
FEW = Bootstrap(10)


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run, without baselines."""
    shutil.copytree(runs["seed0"], tmp_path / "run", ignore=shutil.ignore_patterns("baselines"))
    return tmp_path / "run"


def evaluated(paths, names=CLOSED_FORMS, **options):
    return evaluate_runs(
        paths, baselines=names, options=EvaluationOptions(bootstrap=FEW, **options)
    )


def test_the_best_weights_score_rows_in_the_unit_of_the_screen(runs):
    run = load_run(runs["seed0"])
    state, model = Checkpoints(runs["seed0"] / "checkpoints").load("best"), run.predictor.model
    assert torch.equal(model.embedding, state["model"]["embedding"])
    genotypes, _ = run.data.part(run.data.split.test)
    with torch.no_grad():
        by_hand = run.data.standard.undo(model(run.data.cell, genotypes).score)
    found = run.predictor.predict(genotypes)
    torch.testing.assert_close(found.score, by_hand, rtol=1e-5, atol=1e-6)
    assert found.hit is found.given_hit is None
    # An average of weights is what predicts.
    state = Checkpoints(runs["seed1"] / "checkpoints").load("best")
    model = load_run(runs["seed1"]).predictor.model
    assert torch.equal(model.embedding, state["ema"]["embedding"])
    assert not torch.equal(model.embedding, state["model"]["embedding"])


def test_seeds_of_one_name_are_one_predictor_beside_the_baselines(runs):
    found = evaluated([runs["seed0"], runs["seed1"], runs["hetero"]], samples=60)
    assert found.evaluation.predictors["demo"] == (0, 1)
    assert set(found.predictions) == {"demo", "hetero", *CLOSED_FORMS}
    assert all(len(scores) == 60 for scores in found.predictions.values())
    assert set(found.weights) == {"demo"}
    whole = load_run(runs["seed0"]).data.split
    assert set(found.split.test.tolist()) < set(whole.test.tolist())
    assert any("60 of" in note for note in found.split.notes)
    genotypes = found.data.screen.genotypes
    seen = set(genotypes.take(torch.from_numpy(np.array(whole.train))).genes.tolist())
    test = genotypes.take(torch.from_numpy(np.array(found.split.test)))
    unseen = [sum(gene not in seen for gene in genes.tolist()) for genes in test]
    assert found.split.unseen.tolist() == unseen
    assert len(set(unseen)) > 1
    assert found.evaluation.test.rows == 60


def test_evaluations_are_as_recorded(runs):
    """Networks amplify the last digits: other vector instructions changed them by up to 5e-4."""
    networks = evaluated([runs["seed0"], runs["seed1"], runs["hetero"]], ["global_mean"])
    golden.check("evaluate/networks", networks.evaluation.to_json(), tolerance=5e-3, floor=1e-5)
    fitted = evaluated([runs["additive"], runs["trees"]], ["global_mean"])
    golden.check("evaluate/fitted", fitted.evaluation.to_json(), floor=1e-12)


def test_baselines_are_fitted_once_and_kept_as_runs(copied, monkeypatch):
    fits, fit = [], Additive._fit
    monkeypatch.setattr(Additive, "_fit", lambda *a: fits.append(1) or fit(*a))
    once, again = evaluated([copied]), evaluated([copied])
    assert len(fits) == 1
    data = load_run(copied).data
    by_hand = baselines(data.cell, data.screen, data.split, CLOSED_FORMS, seed=data.split.seed)
    for name in CLOSED_FORMS:
        np.testing.assert_array_equal(once.predictions[name], again.predictions[name])
        np.testing.assert_array_equal(once.predictions[name], by_hand[name])
    kept = sorted((copied / "baselines").iterdir())
    assert [path.name.rpartition("-")[0] for path in kept] == ["additive", "global_mean"]
    itself = load_run(kept[0]).predictor.predict(data.part(data.split.test)[0])
    np.testing.assert_array_equal(itself.score.numpy(), once.predictions["additive"])
    # Another version may learn something else, so it has another key.
    fits.clear()
    monkeypatch.setattr("deltacell.evaluation.fitted_baselines.version", lambda name: "0.0.0")
    evaluated([copied], ["additive"])
    assert len(fits) == 1


def test_a_stopped_run_that_cannot_be_written_to_is_evaluated_all_the_same(copied):
    (copied / "baselines").write_text("in the way")
    write_run(copied, dataclasses.replace(read_run(copied), status=Status.interrupted))
    found = evaluated([copied], ["additive"])
    assert "additive" in found.predictions
    assert (copied / "baselines").read_text() == "in the way"
    assert any("did not finish" in note for note in found.evaluation.notes)


def test_the_order_of_runs_changes_nothing(runs, tmp_path, monkeypatch):
    """The baselines see every relation of the data of some run, whichever comes first."""
    small = partialmethod(BoostedTreesConfig.__init__, rounds=3)
    monkeypatch.setattr(BoostedTreesConfig, "__init__", small)
    few = ["name=few", "data.relations=[physical,string_database]", "model=global_mean"]
    few += ["data.screen_genes_only=false", f"directory={tmp_path / 'few'}"]
    train(compose([*runs.fitted, *few]))
    paths = [runs["seed0"], tmp_path / "few"]
    one, other = (
        evaluated(order, ["additive", "boosted_trees"], samples=100)
        for order in (paths, paths[::-1])
    )
    relations = set(load_run(runs["seed0"]).data.cell.relations)
    assert set(one.data.cell.relations) == set(other.data.cell.relations) == relations
    assert one.predictions.keys() == other.predictions.keys()
    for name, scores in one.predictions.items():
        np.testing.assert_array_equal(scores, other.predictions[name])
    for found in (one, other):
        notes = " ".join(found.evaluation.notes)
        assert "few sees 2 relations; the baselines also see" in notes
        assert "demo sees 6 relations; the baselines also see physical" in notes


def test_fitted_predictors_stand_beside_networks(runs, tmp_path, refused):
    words = ["model=additive", "model.penalty=9", f"directory={tmp_path / 'mine'}"]
    train(compose([*runs.fitted, *words]))
    found = evaluated([runs["seed0"], tmp_path / "mine", runs["additive"]])
    assert set(found.predictions) == {"demo", "mine", "additive", "global_mean"}
    assert not np.array_equal(found.predictions["mine"], found.predictions["additive"])
    (tmp_path / "mine").rename(tmp_path / "global_mean")
    refused("same-name", evaluated, [tmp_path / "global_mean"])


def test_runs_and_baselines_that_cannot_be_evaluated_are_refused(runs, tmp_path, refused):
    both = [runs["seed0"], runs["other_split"]]
    refused("other-split", evaluated, both, ["additive"])
    refused("no-run", evaluated, [])
    refused("not-a-run", evaluated, [tmp_path])
    refused("no-test-part", evaluated, both[:1], samples=0)
    refused("unknown-choice", evaluated, both[:1], ["trees"], samples=30)


@pytest.fixture(scope="module")
def data():
    """Pairs of 12 genes, 40 of them listed, split at random."""
    cell = Cell([f"g{i}" for i in range(12)], [])
    sets = [[i, j] for i in range(12) for j in range(i + 1, 12)][:40]
    screen = Screen.build(cell.genes, Genotypes.of(sets), score=np.linspace(-1, 1, 40))
    return TrainingData(cell, screen, Split.random(screen, 0, 0.2, 0.2), TargetScale())


def test_every_set_that_was_trained_on_is_left_out_whatever_the_order_of_its_genes(data):
    n = len(data.screen)
    # The same sets the other way round, over genes in another order, with one the run lacks.
    genes = Genes([*[f"g{i}" for i in reversed(range(12))], "other"])
    turned = [[11 - int(b), 11 - int(a)] for a, b in data.screen.genotypes]
    more, score = [[11, 10, 9], [0, 12], [0, 1]], np.array([*np.zeros(n), 0.5, 0.5, 0.5])
    screen = Screen.build(genes, Genotypes.of([*turned, *more]), score=score)
    other = untrained(screen, data)
    found, split, counts = other.screen, other.split, other.counts
    kept, test = (
        {frozenset(s.tolist()) for s in whole.genotypes.take(torch.tensor(rows))}
        for whole, rows in ((found, split.test), (data.screen, data.split.test))
    )
    assert kept == test | {frozenset((10, 11))}
    trained = len(data.split.train) + len(data.split.validation)
    assert counts.dropped == {UNKNOWN_GENE: 1, TOO_LARGE: 1, IN_TRAINING: trained}
    assert (counts.kept, counts.read) == (len(split.test), n + 3)
    # Genes that training did not have are counted, and rows of fitness left out.
    seen = set(data.screen.genotypes.take(torch.tensor(data.split.train)).genes.tolist())
    sets = Genotypes.of([[9, 10], [0, 11], [10, 11], [8, 11]])
    phenotypes = ["interaction"] * 3 + ["fitness"]
    screen = Screen.build(data.cell.genes, sets, score=0.1, phenotype=phenotypes)
    other = untrained(screen, data)
    found, split, counts = other.screen, other.split, other.counts
    sets = [s.tolist() for s in found.genotypes.take(torch.tensor(split.test))]
    assert split.unseen.tolist() == [len(set(s) - seen) for s in sets]
    assert counts.dropped[NO_INTERACTION] == 1


@pytest.mark.parametrize(
    ("why", "genes", "columns"),
    [
        (NO_INTERACTION, None, {"score": 0.9, "phenotype": "fitness"}),
        (NO_INTERACTION, None, {"score": np.nan}),
        (UNKNOWN_GENE, ["x", "y"], {"score": 0.1}),
        (IN_TRAINING, None, {"score": 0.1}),
    ],
)
def test_a_screen_that_cannot_be_the_test(data, why, genes, columns, refused):
    trained = data.screen.take(data.split.train[:1]).genotypes
    over = data.cell.genes if genes is None else Genes(genes)
    screen = Screen.build(over, trained if genes is None else Genotypes.of([[0, 1]]), **columns)
    assert refused("nothing-to-test", untrained, screen, data).fields["dropped"][why] == 1
