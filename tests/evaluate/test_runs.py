"""Runs as predictors."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deltacell.errors import InputError
from deltacell.evaluate import Bootstrap, baselines
from deltacell.evaluate.runs import evaluate_on, evaluate_runs, predict_genotypes
from deltacell.models import Dango
from deltacell.models.baselines import Additive
from deltacell.models.baselines.baseline import Parts
from deltacell.profile.record import Status, read_run, write_run
from deltacell.screen import Screen
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose
from deltacell.train.loaded_run import load_run
from deltacell.train.run import train

SMALL = [
    "experiment=demo",
    "data.synthetic_genotypes=400",
    "data.batch_size=32",
    "trainer.epochs=2",
    "trainer.figures_every=0",
    "loggers.tensorboard=false",
    "model.hidden=8",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("runs")
    asked = {
        "seed0": [],
        "seed1": ["seed=1", "trainer.ema=0.5"],
        "other_split": ["split.seed=1"],
        "hetero": [
            "model=hetero_cell",
            "model.relations=[physical]",
            "model.layers=1",
            "model.local_heads=2",
            "name=hetero",
        ],
    }
    for name, more in asked.items():
        train(compose([*SMALL, *more, f"directory={folder / name}"]))
    return {name: folder / name for name in asked}


def test_the_best_weights_score_the_test_rows_in_the_unit_of_the_screen(
    runs: dict[str, Path],
) -> None:
    run = load_run(runs["seed0"])
    state = Checkpoints(runs["seed0"] / "checkpoints").load("best")
    model = run.predictor.model
    assert isinstance(model, Dango)
    assert torch.equal(model.embedding, state["model"]["embedding"])
    rows = torch.from_numpy(np.array(run.data.split.test))
    genotypes = run.data.screen.genotypes.take(rows)
    with torch.no_grad():
        by_hand = model(run.data.cell, genotypes).score * run.data.standard.std
    expected = (by_hand + run.data.standard.mean).numpy()
    found = predict_genotypes(run, genotypes)
    np.testing.assert_allclose(found.score.numpy(), expected, rtol=1e-5, atol=1e-6)
    assert found.hit is found.given_hit is None


def test_an_average_of_weights_is_what_predicts(runs: dict[str, Path]) -> None:
    state = Checkpoints(runs["seed1"] / "checkpoints").load("best")
    model = load_run(runs["seed1"]).predictor.model
    assert isinstance(model, Dango)
    assert torch.equal(model.embedding, state["ema"]["embedding"])
    assert not torch.equal(model.embedding, state["model"]["embedding"])


def test_a_run_that_was_stopped_is_told_of(runs: dict[str, Path], tmp_path: Path) -> None:
    whole = evaluate_runs([runs["seed0"]], baseline_names=["global_mean", "additive"])
    assert not any("did not finish" in note for note in whole.evaluation.notes)
    shutil.copytree(runs["seed0"], tmp_path / "stopped")
    record = read_run(tmp_path / "stopped")
    write_run(record.path, dataclasses.replace(record, status=Status.interrupted))
    found = evaluate_runs([tmp_path / "stopped"], baseline_names=["global_mean", "additive"])
    (note,) = [note for note in found.evaluation.notes if "did not finish" in note]
    assert "it is interrupted" in note


def test_seeds_of_one_name_are_one_predictor_beside_the_baselines(runs: dict[str, Path]) -> None:
    found = evaluate_runs(
        [runs["seed0"], runs["seed1"], runs["hetero"]],
        baseline_names=["global_mean", "additive"],
        samples=60,
    )
    assert found.evaluation.predictors["demo"] == (0, 1)
    assert set(found.predictions) == {"demo", "hetero", "global_mean", "additive"}
    assert all(len(scores) == 60 for scores in found.predictions.values())
    assert set(found.weights) == {"demo"}
    whole = load_run(runs["seed0"]).data.split
    assert set(found.split.test.tolist()) < set(whole.test.tolist())
    assert any("60 of" in note for note in found.split.notes)
    genotypes = found.data.screen.genotypes
    seen = set(genotypes.take(torch.from_numpy(np.array(whole.train))).genes.tolist())
    seen |= set(whole.validation_genes.tolist())
    ends = genotypes.offsets.tolist()
    unseen = [
        sum(gene not in seen for gene in genotypes.genes[ends[row] : ends[row + 1]].tolist())
        for row in found.split.test.tolist()
    ]
    assert found.split.unseen.tolist() == unseen
    assert len(set(unseen)) > 1
    assert found.evaluation.test.rows == 60


def test_another_screen_is_the_test_without_what_was_trained_on(runs: dict[str, Path]) -> None:
    other = Screen.synthetic(load_run(runs["seed0"]).data.cell, n=300, seed=3)
    found = evaluate_on(
        [runs["seed0"], runs["seed1"]],
        other,
        baseline_names=["additive"],
        bootstrap=Bootstrap(30),
        samples=50,
    )
    assert found.evaluation.test.rows == 50
    assert found.evaluation.tested is not None
    assert len(found.predictions["demo"]) == 50
    assert found.evaluation.predictors["demo"] == (0, 1)
    assert set(found.weights) == {"demo"}


def test_runs_of_different_splits_do_not_stand_side_by_side(runs: dict[str, Path]) -> None:
    said = r"trained on another split or screen than .*seed0: split.seed is 1 and 0"
    with pytest.raises(InputError, match=said):
        evaluate_runs([runs["seed0"], runs["other_split"]], baseline_names=["additive"])


def test_baselines_are_fitted_once_and_kept_as_runs(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["seed0"], run, ignore=shutil.ignore_patterns("baselines"))
    fits = []
    fit = Additive._fit
    monkeypatch.setattr(Additive, "_fit", lambda *a: fits.append(1) or fit(*a))
    names = ["global_mean", "additive"]
    once = evaluate_runs([run], baseline_names=names)
    again = evaluate_runs([run], baseline_names=names)
    assert len(fits) == 1
    for name in names:
        np.testing.assert_array_equal(once.predictions[name], again.predictions[name])
    data = load_run(run).data
    by_hand = baselines(data.cell, data.screen, data.split, names, seed=data.split.seed)
    for name in names:
        np.testing.assert_array_equal(once.predictions[name], by_hand[name])
    kept = sorted((run / "baselines").iterdir())
    assert [path.name.rpartition("-")[0] for path in kept] == ["additive", "global_mean"]
    itself = load_run(kept[0])
    test = data.screen.genotypes.take(torch.from_numpy(np.array(data.split.test)))
    found = predict_genotypes(itself, test).score.numpy()
    np.testing.assert_array_equal(found, once.predictions["additive"])
    # Another version may learn something else, so it has another key.
    fits.clear()
    with monkeypatch.context() as patched:
        patched.setattr("deltacell.evaluate.runs.version", lambda name: "0.0.0")
        evaluate_runs([run], baseline_names=["additive"])
    assert len(fits) == 1


def test_a_run_that_cannot_be_written_to_is_evaluated_all_the_same(
    runs: dict[str, Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(runs["seed0"], run, ignore=shutil.ignore_patterns("baselines"))
    (run / "baselines").write_text("in the way")
    found = evaluate_runs([run], baseline_names=["additive"])
    assert "additive" in found.predictions
    assert (run / "baselines").read_text() == "in the way"


def test_the_order_of_runs_changes_nothing(
    runs: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The baselines see every relation of the data of some run, whichever comes first."""
    folder = tmp_path_factory.mktemp("few")
    few = [*SMALL, "name=few", "data.relations=[physical,string_database]", "trainer.epochs=1"]
    lambdas = ["model.relations=[physical,string_database]", "model.lambdas.physical=1"]
    train(compose([*few, *lambdas, f"directory={folder / 'few'}"]))
    paths, trees = [runs["seed0"], folder / "few"], ["additive", "boosted_trees"]
    one, other = (
        evaluate_runs(order, baseline_names=trees, samples=100) for order in (paths, paths[::-1])
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


def test_fitted_predictors_stand_beside_networks(runs: dict[str, Path], tmp_path: Path) -> None:
    same = ["data.synthetic=demo", "data.synthetic_genotypes=400", "data.screen_genes_only=true"]
    same.append("split.method=gene")
    train(compose([*same, "model=additive", "model.penalty=9", f"directory={tmp_path / 'mine'}"]))
    train(compose([*same, "model=additive", f"directory={tmp_path / 'additive'}"]))
    found = evaluate_runs(
        [runs["seed0"], tmp_path / "mine", tmp_path / "additive"],
        baseline_names=["global_mean", "additive"],
    )
    assert set(found.predictions) == {"demo", "mine", "additive", "global_mean"}
    assert not np.array_equal(found.predictions["mine"], found.predictions["additive"])
    (tmp_path / "mine").rename(tmp_path / "global_mean")
    with pytest.raises(InputError, match="a run is called 'global_mean', as a baseline is"):
        evaluate_runs([tmp_path / "global_mean"], baseline_names=["global_mean"])


def test_among_hits_a_predictor_of_two_parts_answers_with_the_size_of_a_hit(
    runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same = ["data.synthetic=demo", "data.synthetic_genotypes=400", "model=additive"]
    run = load_run(train(compose([*same, f"directory={tmp_path / 'run'}"])).path)

    def parts(self: Any, cell: Any, sets: Any) -> Parts:
        n = len(sets)
        return Parts(np.full(n, -0.1), np.full(n, 0.2), np.full(n, -0.5))

    monkeypatch.setattr(Additive, "_parts", parts)
    found = predict_genotypes(run, run.data.screen.genotypes)
    for part, expected in ((found.score, -0.1), (found.hit, 0.2), (found.given_hit, -0.5)):
        assert part is not None
        assert set(part.tolist()) == {np.float32(expected)}


def test_what_cannot_be_evaluated(runs: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run was given"):
        evaluate_runs([])
    with pytest.raises(InputError, match="not a run"):
        evaluate_runs([tmp_path])
    with pytest.raises(InputError, match="0 test rows"):
        evaluate_runs([runs["seed0"]], samples=0)
    with pytest.raises(InputError, match="unknown baseline 'trees'"):
        evaluate_runs([runs["seed0"]], baseline_names=["trees"], samples=30)
