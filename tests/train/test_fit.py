"""Runs of predictors that are fitted in one call."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from deltacell.errors import InputError, StoreError
from deltacell.models import Prediction
from deltacell.models.baselines import BASELINES, Additive, FittedPredictor
from deltacell.profile.record import Status, read_run
from deltacell.screen import Genotypes
from deltacell.train.build import build_fitted, build_model
from deltacell.train.changes import resumed_config, write_config
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.fit import fit_run, resume_fit
from deltacell.train.loaded_run import load_run, load_runs
from deltacell.train.predictor import Predictor
from deltacell.train.registry import MODEL_CONFIGS, MODELS, is_fitted
from deltacell.train.run import resume, train
from deltacell.train.standard import Standard

FAST = {"embedding_mlp": ["model.epochs=2"], "boosted_trees": ["model.rounds=5"]}
FITTED = [name for name, registered in MODELS.items() if registered.fitted]
Made = Callable[..., Config]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Configs of a fit on 150 genotypes into ``tmp_path / "run"``."""

    def make(model: str = "additive", *overrides: str) -> Config:
        folder = f"directory={tmp_path / 'run'}"
        data = ["data.synthetic=demo", "data.synthetic_genotypes=150", "trainer.threads=1"]
        return compose([f"model={model}", *data, folder, *FAST.get(model, []), *overrides])

    return make


def test_every_baseline_can_be_a_run() -> None:
    assert set(BASELINES) <= set(FITTED)
    for name, kind in MODEL_CONFIGS.items():
        assert kind().name == name


@pytest.mark.parametrize("model", sorted(BASELINES))
def test_a_loaded_run_predicts_what_was_fitted(made: Made, model: str) -> None:
    config = made(model)
    outcome = fit_run(config, command=["deltacell", "train"])
    data = load_data(config)
    fitted = build_fitted(config).fit(
        data.cell,
        *data.part(data.split.train),
        validation=data.part(data.split.validation),
        seed=config.seed,
    )
    run = load_run(outcome.path)
    expected = fitted(data.cell, data.screen.genotypes).score
    assert torch.equal(run.predictor(data.screen.genotypes), expected)
    assert run.is_finished
    assert run.record.cell is not None
    assert run.record.cell.checksum == data.cell.checksum
    assert run.record.best is None or run.record.best.value == outcome.best
    rows = run.record.metrics()
    assert rows["seconds"][-1] > 0
    genotypes, measured = data.part(data.split.validation)
    score = fitted(data.cell, genotypes).score.numpy().astype(np.float64)
    assert rows["validation_mse"][-1] == pytest.approx(np.mean((score - measured) ** 2))
    assert rows.height == len(fitted.history) + 1
    if model == "embedding_mlp":
        assert rows["validation_mse"][:-1].to_list() == [
            row["validation_mse"] for row in fitted.history
        ]


def test_parameters_of_the_config_reach_the_predictor(made: Made) -> None:
    fit_run(made("additive", "model.penalty=50"))
    run = load_run(made().directory or "")
    assert isinstance(run.predictor.model, Additive)
    assert run.predictor.model.penalty == 50


def test_train_and_resume_take_any_predictor(made: Made) -> None:
    config = made()
    outcome = train(config)
    with pytest.raises(InputError, match="the run is finished"):
        resume(outcome.path, resumed_config(outcome.path))
    with pytest.raises(InputError, match="there is a run here already"):
        train(config)


class _Interrupted(Additive):
    """Receives a signal in the middle of its fit."""

    def _fit(self, data):  # type: ignore[no-untyped-def]
        data.report("halfway", 1, 2)
        os.kill(os.getpid(), signal.SIGTERM)
        data.report("halfway", 1, 2)
        raise AssertionError("a signal was not noticed")


@pytest.mark.parametrize("again", ["rerun", "resume"])
def test_an_interrupted_fit_leaves_no_checkpoint_and_is_fitted_again(
    made: Made, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    config = made()
    with monkeypatch.context() as patched:
        patched.setattr("deltacell.train.fit.build_fitted", lambda config: _Interrupted())
        outcome = fit_run(config)
    assert outcome.signal == signal.SIGTERM
    assert read_run(outcome.path).status is Status.interrupted
    assert sorted(entry.name for entry in outcome.path.iterdir()) == [
        ".lock",
        "config.yaml",
        "run.json",
        "split",
    ]
    with pytest.raises(InputError, match="there is no checkpoint yet"):
        load_run(outcome.path)
    if again == "rerun":
        other = replace(config, seed=1)
        with pytest.raises(InputError, match="there is a run here already"):
            fit_run(other)
        fit_run(config)
    else:
        resume_fit(outcome.path, resumed_config(outcome.path))
    run = load_run(outcome.path)
    assert [attempt.status for attempt in run.record.attempts] == [
        Status.interrupted,
        Status.finished,
    ]
    assert run.record.metrics().height == 1


def test_a_failed_fit_says_so_in_its_record(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise InputError("the disk is on fire")

    monkeypatch.setattr(Additive, "_fit", fails)
    config = made()
    with pytest.raises(InputError, match="on fire"):
        fit_run(config)
    record = read_run(config.directory or "")
    assert record.status is Status.failed
    assert record.error is not None
    assert "on fire" in record.error


def test_a_damaged_checkpoint_is_refused(made: Made) -> None:
    path = fit_run(made()).path
    (file,) = (path / "checkpoints").glob("*.ckpt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(bytes(content))
    with pytest.raises(StoreError, match="damaged"):
        load_run(path)


def test_other_data_are_refused(made: Made) -> None:
    path = fit_run(made()).path
    write_config(path, made("additive", "data.synthetic_seed=1"))
    with pytest.raises(InputError, match="this split was made of another screen"):
        load_run(path)


def test_what_a_fitted_predictor_does_not_have(made: Made) -> None:
    for override, said in (
        ("loss=log_cosh", "has no loss"),
        ("trainer.devices=2", "fitted by one process"),
        ("mode=forward", "has no steps"),
        ("model.penalty=0", "model.penalty is 0.0; expected more than 0"),
        ("model.hidden=8", "hidden"),
    ):
        with pytest.raises(InputError, match=said):
            made("additive", override)
    with pytest.raises(InputError, match="needs one"):
        compose(["data.synthetic=demo", "loss=none"])
    with pytest.raises(InputError, match="fitted in one call"):
        build_model(made(), load_data(made()).cell, 3)


def test_the_checkpoint_holds_the_state_and_no_code(made: Made) -> None:
    path = fit_run(made("boosted_trees")).path
    (file,) = (path / "checkpoints").glob("*.ckpt")
    state = torch.load(file, weights_only=True)["state"]["predictor"]
    assert state["trees"].startswith("tree\n")
    index = json.loads((path / "checkpoints" / "index.json").read_text())
    assert index["best"] == index["last"] == file.name
    assert Checkpoints(path / "checkpoints").load("best").keys() == {"predictor", "run"}


def test_lightning_is_not_loaded(tmp_path: Path) -> None:
    script = (
        "import sys; from deltacell.cli.train import train; "
        "train(['model=additive', 'data.synthetic=demo', 'data.synthetic_genotypes=150', "
        f"'directory={tmp_path / 'run'}']); "
        "print('lightning' in sys.modules, 'lightgbm' in sys.modules)"
    )
    words = [sys.executable, "-c", script]
    found = subprocess.run(words, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False False"
    assert load_runs([tmp_path / "run"])[0].is_finished


class _TwoParts(FittedPredictor):
    """Knows its answers."""

    def __call__(self, cell: object, genotypes: Genotypes) -> Prediction:
        n = torch.arange(len(genotypes), dtype=torch.float32)
        return Prediction(n, {"vectors": n}, hit=n / 10, given_hit=2 * n)

    def _fit(self, *_: object) -> None: ...
    def _score(self, *_: object) -> None: ...  # type: ignore[override]
    def _state(self) -> None: ...  # type: ignore[override]
    def _load(self, *_: object) -> None: ...


def test_a_prediction_of_two_parts_comes_back_in_the_unit_of_the_screen() -> None:
    cell = load_data(compose(["data.synthetic=demo", "data.synthetic_genotypes=150"])).cell
    predictor = Predictor(_TwoParts(), cell, Standard(1.0, 10.0))
    found = predictor.predict(Genotypes.of([[0], [1], [2]]))
    assert found.score.tolist() == [1, 11, 21]
    assert found.hit is not None
    assert found.hit.tolist() == pytest.approx([0, 0.1, 0.2])
    assert found.given_hit is not None
    assert found.given_hit.tolist() == [1, 21, 41]
    assert found.intermediate == {}
    assert torch.equal(predictor(Genotypes.of([[0], [1], [2]])), found.score)
    assert predictor.predict(Genotypes.of([])).score.shape == (0,)


def test_batches_do_not_change_a_prediction(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(fit_run(made()).path)
    genotypes, seen = run.data.screen.genotypes, []
    whole = run.predictor(genotypes)
    monkeypatch.setattr("deltacell.train.predictor.WHOLE_BLOCK", 40)
    told = run.predictor.predict(genotypes, lambda done, total: seen.append((done, total)))
    assert torch.equal(told.score, whole)
    assert seen == [(0, 150), (40, 150), (80, 150), (120, 150)]


def test_networks_are_not_fitted() -> None:
    assert not is_fitted(compose(["data.synthetic=demo"]).model)
