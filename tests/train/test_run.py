"""A run from its config to its directory: what is recorded, what stops it, what it predicts."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import numpy as np
import polars as pl
import pytest
import torch

from deltacell.errors import DeltacellError, InputError, MissingExtraError, StoreError
from deltacell.files import seal_of
from deltacell.models import LossValue, Prediction
from deltacell.models.baselines import BASELINES, Additive, FittedPredictor
from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.profile.record import Status, read_run
from deltacell.screen import Batch, Genotypes, Loader
from deltacell.train import callbacks
from deltacell.train import checkpoints as checkpoints_module
from deltacell.train.build import build_fitted, build_model
from deltacell.train.callbacks import Callback, check_loggers, make_loggers
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compose import compose
from deltacell.train.config import MODELS, Config, LoggersConfig
from deltacell.train.data import Standard, load_data
from deltacell.train.loaded_run import LoadedRun, labels_of, load_run, load_runs
from deltacell.train.loop import Loop
from deltacell.train.predictor import Predictor
from deltacell.train.run import fit_run, resume, resume_fit, train
from deltacell.train.run_directory import MetricsFile, resumed_config, write_config
from deltacell.train.task import Task

Small = Callable[..., Config]


class Watch(Callback):
    """Does something after so many batches."""

    def __init__(self, after: int = -1, then: Callable[[], None] = lambda: None) -> None:
        self.left, self.then = after, then
        self.closed = 0

    def step(self, *_: Any) -> None:
        if self.left == 0:
            self.then()
        self.left -= 1

    def close(self) -> None:
        self.closed += 1


def test_the_record_and_the_metrics_say_what_was_run(trained: Path) -> None:
    record, config = read_run(trained), resumed_config(trained)
    data = load_data(config, trained / "split")
    assert (record.status, record.mode) == (Status.finished, "train")
    assert record.command == ("deltacell", "train")
    assert (record.cell.checksum, record.screen.checksum) == (  # type: ignore[union-attr]
        data.cell.checksum,
        data.screen.checksum,
    )
    assert record.best is not None
    assert record.last is not None
    assert record.last.step == 2 * record.steps_per_epoch  # type: ignore[operator]
    assert record.limits
    state = Checkpoints(trained / "checkpoints").load("last")
    model = build_model(config, data.cell, data.largest)
    model.load_state_dict(state["model"])
    predictor = Predictor(model.eval(), data.cell, data.standard)
    genotypes, measured = data.part(data.split.validation)
    predicted = predictor(genotypes).double().numpy()
    first, last = MetricsFile(trained / "metrics.csv").rows
    assert (first["epoch"], last["step"]) == (1, record.last.step)
    assert {"train_loss", "train_interaction", "train_reconstruction", "lr"} <= set(first)
    # Metrics are in the unit of the screen, whose scale is far from 1.
    assert abs(math.log(data.standard.std)) > 1
    assert last["validation_mse"] == pytest.approx(np.mean((predicted - measured) ** 2), rel=1e-5)
    pearson = np.corrcoef(predicted, measured)[0, 1]
    assert last["validation_pearson"] == pytest.approx(pearson, rel=1e-4)
    assert state["standard"] == {"mean": data.standard.mean, "std": data.standard.std}
    assert (record.target.mean, record.target.std) == (  # type: ignore[union-attr]
        data.standard.mean,
        data.standard.std,
    )


def test_the_propagation_is_recorded(small: Small) -> None:
    record = read_run(train(small("seed=7", "trainer.epochs=1", hetero=True)).path)
    assert record.seed == 7
    assert record.propagation is not None
    assert record.propagation["name"] == "auto"
    assert record.propagation["why"]


def test_the_mean_training_loss_is_over_genotypes(small: Small) -> None:
    # With a rate of nothing the weights stay, so the epoch's mean is that of one great batch.
    still = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.epochs=1", "loss=log_cosh"]
    means = []
    for size, run in ((16, "a"), (1000, "b")):
        path = train(small(*still, f"data.batch_size={size}", run=run)).path
        means.append(MetricsFile(path / "metrics.csv").rows[0]["train_loss"])
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_phases_add_up_to_the_wall_time_of_the_run(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    spent: list[float] = []
    run = Loop.run

    def timed(loop: Loop) -> int:
        loop.timer.end_step(0, 0, 0, kind="between")
        began = time.perf_counter()
        result = run(loop)
        spent.append(time.perf_counter() - began)
        return result

    monkeypatch.setattr(Loop, "run", timed)
    given = ["trainer.epochs=4", "trainer.checkpoint_every_steps=3", "trainer.figures_every=2"]
    path = train(small(*given)).path
    rows = read_phases(path / "phases")
    setup, rest = rows[0], rows[1:]
    assert setup["kind"].item() == "between"
    sums = rest.select(pl.sum_horizontal(f"{phase}_s" for phase in PHASES)).to_series()
    np.testing.assert_allclose(sums, rest["wall_s"], rtol=1e-9)
    assert float(sums.sum()) == pytest.approx(spent[0], rel=0.01)
    assert rest.filter(pl.col("kind") == "train").height == 20
    for phase in ("forward", "loss", "backward", "optimizer", "validation", "checkpoint"):
        assert rest[f"{phase}_s"].sum() > 0, phase
    outcome = train(small("trainer.epochs=1", "profiler.phases=false", run="without"))
    assert outcome.phases is None
    assert not (outcome.path / "phases").exists()


def test_a_loss_that_is_not_finite_names_step_genotypes_and_the_last_good_checkpoint(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = small("trainer.checkpoint_every_steps=2")
    data = load_data(config)
    order = list(Loader(data.screen, data.split.train, batch_size=16, seed=0))
    bad = int(order[3].rows[2])
    loss = Task._loss

    def broken(task: Task, prediction: Any, batch: Batch) -> LossValue:
        found = loss(task, prediction, batch)
        return LossValue(found.total * math.nan, found.parts) if bad in batch.rows else found

    monkeypatch.setattr(Task, "_loss", broken)
    told = Watch()
    with pytest.raises(InputError) as caught:
        train(config, tell=[told])
    error = caught.value
    assert error.code == "not-finite"
    assert "nan at step 4 (epoch 1)" in error.what
    assert "step-00000002.ckpt, of step 2" in (error.fix or "")
    genes = data.screen.genotypes.take(order[3].rows[:1]).genes
    assert " + ".join(data.cell.genes.label(int(gene)) for gene in genes) in error.what
    assert "11 more" in error.what
    assert told.closed == 1
    record = read_run(tmp_path / "run")
    assert record.status is Status.failed
    assert "step 4" in (record.error or "")


def test_a_rate_that_is_too_high_leaves_only_finite_checkpoints(
    small: Small, tmp_path: Path
) -> None:
    given = ["optimizer.lr=1e30", "trainer.checkpoint_every_steps=1", "trainer.keep=9"]
    with pytest.raises(InputError) as caught:
        train(small(*given, "trainer.epochs=20"))
    assert caught.value.code == "not-finite"
    kept = Checkpoints(tmp_path / "run/checkpoints")
    for one in kept.kept:
        state = kept.load(one.file)
        assert all(torch.isfinite(weight).all() for weight in state["model"].values())


def test_a_full_disk_keeps_the_checkpoint_before(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write = checkpoints_module.write_checkpoint

    def full(path: Path, state: Any, *, step: int, **facts: Any) -> str:
        if step > 4:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, state, step=step, **facts)

    path = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints_module, "write_checkpoint", full)
        with pytest.raises(StoreError) as caught:
            train(small("trainer.checkpoint_every_steps=2"))
    assert caught.value.code == "not-written"
    assert "step-00000004.ckpt" in (caught.value.fix or "")
    assert read_run(path).status is Status.failed
    files = sorted(file.name for file in (path / "checkpoints").iterdir())
    assert files == ["index.json", "step-00000002.ckpt", "step-00000004.ckpt"]
    resume(path, resumed_config(path))
    assert read_run(path).status is Status.finished
    assert [row["epoch"] for row in MetricsFile(path / "metrics.csv").rows] == [1, 2]


def test_a_finished_run_says_how_to_train_longer_and_does(copy: Path) -> None:
    before = (copy / "run.json").read_bytes()
    with pytest.raises(InputError) as caught:
        resume(copy, resumed_config(copy))
    assert caught.value.code == "already-finished"
    assert (copy / "run.json").read_bytes() == before
    config = resumed_config(copy, ["trainer.epochs=3"])
    config.data.synthetic_seed = 5
    with pytest.raises(InputError, match="screen"):
        resume(copy, config)
    resume(copy, resumed_config(copy, ["trainer.epochs=3"]))
    record = read_run(copy)
    steps = record.steps_per_epoch or 0
    assert [attempt.from_step for attempt in record.attempts] == [0, 2 * steps]
    assert [row["epoch"] for row in MetricsFile(copy / "metrics.csv").rows] == [1, 2, 3]
    assert resumed_config(copy).trainer.epochs == 3


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_offered(
    small: Small, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        train(small("trainer.checkpoint_every_steps=2"), tell=[Watch(8, stop)])
    path = tmp_path / "run"
    last = path / "checkpoints" / "step-00000008.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 0xFF
    last.write_bytes(content)
    with pytest.raises(StoreError) as caught:
        resume(path, resumed_config(path))
    assert (caught.value.where, caught.value.code) == (last, "damaged-checkpoint")
    assert "--from step-00000006.ckpt" in (caught.value.fix or "")
    resume(path, resumed_config(path), which="step-00000006.ckpt")
    assert read_run(path).attempts[-1].from_step == 6


def test_a_checkpoint_with_code_in_it_is_refused(copy: Path, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    index_file = copy / "checkpoints" / "index.json"
    index = json.loads(index_file.read_text())
    file = copy / "checkpoints" / index["last"]
    torch.save({"state": Payload()}, file, pickle_module=pickle)
    index["checkpoints"][-1]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    index_file.write_text(json.dumps(index | {"seal": seal_of(index)}))
    with pytest.raises(StoreError) as caught:
        resume(copy, resumed_config(copy, ["trainer.epochs=3"]))
    assert caught.value.code == "unsafe-checkpoint"
    assert not (tmp_path / "ran").exists()


BAD = {
    "relation of the data": ["data.relations=[physical,telepathic]"],
    "relation of the model": ["model.relations=[physical,telepathic]"],
    "window": ["profiler.trace=true", "profiler.window=[600,1,25,1]"],
    "devices": ["trainer.devices=4096", "data.batch_size=5000"],
    "held out": ["split.method=gene", "split.held_out=0.99"],
    "profilers": ["profiler.trace=true", "profiler.with_stack=true", "profiler.kind=memory"],
    "extra": ["loggers.mlflow=true"],
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_trained_leaves_no_directory(
    small: Small, tmp_path: Path, what: str
) -> None:
    if what == "extra" and find_spec("mlflow") is not None:
        pytest.skip("mlflow is here")
    with pytest.raises(DeltacellError):
        train(small(*BAD[what]))
    assert not (tmp_path / "run").exists()


def test_a_capture_and_a_host_profiler_leave_files_and_the_same_weights(small: Small) -> None:
    traced = [
        "profiler.trace=true",
        "profiler.window=[2,1,2,2]",
        "trainer.checkpoint_every_steps=3",
    ]
    outcomes = {
        run: train(small(*given, run=run))
        for run, given in (("traced", traced), ("plain", []), ("host", ["profiler.kind=cprofile"]))
    }
    files = sorted(file.name for file in (outcomes["traced"].path / "traces").iterdir())
    assert files == ["trace-rank0-window0.json.gz", "trace-rank0-window1.json.gz"]
    assert any("cprofile" in f.name for f in (outcomes["host"].path / "traces").iterdir())
    assert outcomes["traced"].notices == ()
    states = [Checkpoints(o.path / "checkpoints").load("last")["model"] for o in outcomes.values()]
    for state in states[1:]:
        assert all(torch.equal(state[name], states[0][name]) for name in state)


FAST = {"embedding_mlp": ["model.epochs=2"], "boosted_trees": ["model.rounds=5"]}
Made = Callable[..., Config]


@pytest.fixture
def made(tmp_path: Path) -> Made:
    """Configs of a fit on 150 genotypes into ``tmp_path / "run"``."""

    def make(model: str = "additive", *overrides: str) -> Config:
        folder = f"directory={tmp_path / 'run'}"
        data = ["data.synthetic=demo", "data.synthetic_genotypes=150", "trainer.threads=1"]
        return compose([f"model={model}", *data, folder, *FAST.get(model, []), *overrides])

    return make


@pytest.mark.parametrize("model", sorted(BASELINES))
def test_a_loaded_run_predicts_what_was_fitted(made: Made, model: str) -> None:
    assert MODELS[model].fitted
    config = made(model)
    outcome = fit_run(config)
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
    assert run.record.best is None or run.record.best.value == outcome.best
    rows = run.record.metrics()
    genotypes, measured = data.part(data.split.validation)
    score = fitted(data.cell, genotypes).score.numpy().astype(np.float64)
    assert rows["validation_mse"][-1] == pytest.approx(np.mean((score - measured) ** 2))
    before = [row["validation_mse"] for row in fitted.history]
    assert rows["validation_mse"][:-1].to_list() == before
    if model == "boosted_trees":
        # The checkpoint holds the state and no code.
        (file,) = (outcome.path / "checkpoints").glob("*.ckpt")
        state = torch.load(file, weights_only=True)["state"]
        assert state.keys() == {"predictor", "run"}
        assert state["predictor"]["trees"].startswith("tree\n")


def test_a_fit_that_is_finished_damaged_or_of_other_data(made: Made) -> None:
    path = train(made("additive", "model.penalty=50")).path
    run = load_run(path)
    assert run.predictor.model.penalty == 50  # type: ignore[union-attr]
    for again in (lambda: resume(path, resumed_config(path)), lambda: train(made())):
        with pytest.raises(InputError) as caught:
            again()
        assert caught.value.code in ("already-finished", "run-exists")
    write_config(path, made("additive", "data.synthetic_seed=1"))
    with pytest.raises(InputError, match="screen"):
        load_run(path)
    write_config(path, run.config)
    (file,) = (path / "checkpoints").glob("*.ckpt")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 255
    file.write_bytes(bytes(content))
    with pytest.raises(StoreError) as damaged:
        load_run(path)
    assert damaged.value.code == "damaged-checkpoint"


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
        patched.setattr("deltacell.train.run.build_fitted", lambda config: _Interrupted())
        outcome = fit_run(config)
    assert outcome.signal == signal.SIGTERM
    files = sorted(entry.name for entry in outcome.path.iterdir())
    assert files == [".lock", "config.yaml", "run.json", "split"]
    with pytest.raises(InputError) as caught:
        load_run(outcome.path)
    assert caught.value.code == "no-checkpoint"
    if again == "rerun":
        with pytest.raises(InputError) as caught:
            fit_run(replace(config, seed=1))
        assert caught.value.code == "run-exists"
        fit_run(config)
    else:
        resume_fit(outcome.path, resumed_config(outcome.path))
    run = load_run(outcome.path)
    statuses = [attempt.status for attempt in run.record.attempts]
    assert statuses == [Status.interrupted, Status.finished]
    assert run.record.metrics().height == 1


def test_a_failed_fit_says_so_in_its_record(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise InputError("the disk is on fire")

    monkeypatch.setattr(Additive, "_fit", fails)
    config = made()
    with pytest.raises(InputError, match="on fire"):
        fit_run(config)
    record = read_run(config.directory or "")
    assert (record.status, record.error) == (Status.failed, "the disk is on fire")


def test_lightning_is_loaded_only_for_networks(tmp_path: Path) -> None:
    """It takes seconds, and neither a prediction nor a fit should wait for it."""
    words = f"['model=additive', 'data.synthetic=demo', 'directory={tmp_path / 'run'}']"
    script = (
        "import sys, deltacell.predict.ensemble, deltacell.evaluate.runs; "
        f"from deltacell.cli.train import train; train({words}); "
        "print('lightning' in sys.modules, 'lightgbm' in sys.modules)"
    )
    command = [sys.executable, "-c", script]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    assert found.stdout.splitlines()[-1] == "False False"


class _TwoParts(FittedPredictor):
    """Knows its answers."""

    def __call__(self, cell: object, genotypes: Genotypes) -> Prediction:
        n = torch.arange(len(genotypes), dtype=torch.float32)
        return Prediction(n, {"vectors": n}, hit=n / 10, given_hit=2 * n)

    def _fit(self, *_: object) -> None: ...
    def _score(self, *_: object) -> None: ...  # type: ignore[override]
    def _state(self) -> None: ...  # type: ignore[override]
    def _load(self, *_: object) -> None: ...


def test_a_prediction_of_two_parts_is_in_the_unit_of_the_screen() -> None:
    predictor = Predictor(_TwoParts(), cast(Any, None), Standard(1.0, 10.0))
    found: Any = predictor.predict(Genotypes.of([[0], [1], [2]]))
    assert found.score.tolist() == [1, 11, 21]
    assert found.hit.tolist() == pytest.approx([0, 0.1, 0.2])
    assert found.given_hit.tolist() == [1, 21, 41]
    assert found.intermediate == {}
    assert predictor.predict(Genotypes.of([])).score.shape == (0,)
    assert predictor.rescaled(2.0, 3.0)(Genotypes.of([[0], [1]])).tolist() == [5, 25]


def test_batches_do_not_change_a_prediction(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    run = load_run(fit_run(made()).path)
    genotypes, seen = run.data.screen.genotypes, []
    whole = run.predictor(genotypes)
    monkeypatch.setattr("deltacell.train.predictor.WHOLE_BLOCK", 40)
    told = run.predictor.predict(genotypes, lambda done, total: seen.append((done, total)))
    assert torch.equal(told.score, whole)
    assert seen == [(0, 150), (40, 150), (80, 150), (120, 150)]


class TestEnsemble:
    DATA = ("data.synthetic=demo", "data.synthetic_genotypes=900", "split.method=gene")

    def fitted(self, path: Path, *overrides: str) -> Path:
        return fit_run(compose([*overrides, f"directory={path}"])).path

    def test_it_is_the_weighted_sum_and_outlives_its_runs(self, tmp_path: Path) -> None:
        trees = self.fitted(
            tmp_path / "trees", *self.DATA, "model=boosted_trees", "model.rounds=20"
        )
        additive = self.fitted(tmp_path / "additive", *self.DATA, "model=additive")
        other = self.fitted(tmp_path / "other", *self.DATA, "model=additive", "split.seed=1")
        for wrong in ([trees, other], [trees]):
            with pytest.raises(InputError) as caught:
                self.ensemble(tmp_path / f"wrong{len(wrong)}", wrong)
            assert caught.value.code in (
                "other-split",
                "other-screen",
                "other-cell",
                "too-few-runs",
            )
        assert not (tmp_path / "wrong1").exists()
        path = self.ensemble(tmp_path / "both", [trees, additive])
        parts = [load_run(run) for run in (trees, additive)]
        for run in (trees, additive):
            shutil.rmtree(run)
        loaded = load_run(path)
        data = loaded.data
        valid, measured = data.part(data.split.validation)
        test, _ = data.part(data.split.test)
        design, asked = [np.ones(len(valid))], [np.ones(len(test))]
        for part in parts:
            known = part.predictor(valid).double().numpy()
            design.append((known - known.mean()) / known.std())
            asked.append((part.predictor(test).double().numpy() - known.mean()) / known.std())
        weights = self.best_weights(np.stack(design, axis=1), measured)
        expected = torch.from_numpy(weights @ np.stack(asked)).float()
        torch.testing.assert_close(loaded.predictor(test), expected, rtol=1e-4, atol=1e-5)
        assert loaded.config.split == parts[0].config.split

    def ensemble(self, path: Path, runs: list[Path]) -> Path:
        return self.fitted(path, "model=ensemble", f"model.runs=[{','.join(map(str, runs))}]")

    def best_weights(self, design: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """The least-squares weights, none but the first negative, by trying all subsets."""
        found = []
        for kept in ([0], [0, 1], [0, 2], [0, 1, 2]):
            weights = np.zeros(3)
            weights[kept] = np.linalg.lstsq(design[:, kept], measured, rcond=None)[0]
            if (weights[1:] >= 0).all():
                found.append((((design @ weights - measured) ** 2).sum(), weights))
        return min(found, key=lambda one: one[0])[1]


def test_runs_are_loaded_once_and_share_their_data(trained: Path, copy: Path) -> None:
    one, two = load_runs([trained, copy])
    assert one.data is two.data
    assert load_runs(one) == [one]
    for runs, code in (([trained, copy / ".." / "copy", copy], "repeated-run"), ([], "no-run")):
        with pytest.raises(InputError) as caught:
            load_runs(runs)
        assert caught.value.code == code


def labelled(folder: str, *words: str) -> LoadedRun:
    """Return a run, as far as its label is concerned."""
    config = compose(["model=dango", "data.synthetic=demo", *words])
    record = SimpleNamespace(name=config.name, seed=config.seed, path=Path("runs") / folder)
    return cast(LoadedRun, SimpleNamespace(record=record, config=config))


def test_runs_that_differ_in_their_seeds_alone_have_one_label() -> None:
    several = [labelled(f"s{seed}", "name=mine", f"seed={seed}") for seed in (0, 1)]
    assert labels_of([*several, labelled("h", "name=other")]) == ["mine", "mine", "other"]
    # Other settings, or a seed for the second time: the directory tells them apart.
    wider = labelled("b", "name=mine", "seed=2", "model.hidden=8")
    assert labels_of([*several, wider]) == ["s0", "s1", "b"]
    assert labels_of([several[0], labelled("again", "name=mine")]) == ["s0", "again"]
    assert labels_of([labelled("a")]) == ["a"]


ROW = {"epoch": 2, "step": 10, "lr": 0.1, "train_loss": 0.5, "validation_mse": math.nan}


def test_tensorboard_has_the_finite_numbers_at_their_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert make_loggers(LoggersConfig(tensorboard=False), tmp_path) == []
    assert list(tmp_path.iterdir()) == []
    (logger,) = make_loggers(LoggersConfig(), tmp_path)
    logger.begin(0, 1, 0, 5)
    logger.step(None, 3)
    logger.epoch(ROW, None, 10)
    logger.close()
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == ["lr", "train/loss"]
    (event,) = events.Scalars("train/loss")
    assert (event.step, event.value) == (10, 0.5)


class Service(ModuleType):
    """Stands for wandb and for mlflow, and remembers what it was told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def tell(*args: Any, **options: Any) -> Service:
            self.told.append((name, args, options))
            return self

        return tell


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_services_are_told_offline_and_named_if_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(name)
    config = LoggersConfig(tensorboard=False, offline=True, project="yeast")
    setattr(config, name, True)
    with monkeypatch.context() as patch:
        # A folder of that name, such as W&B leaves behind, has no origin.
        for found in (None, SimpleNamespace(origin=None)):
            patch.setattr(callbacks, "find_spec", lambda asked, found=found: found)
            with pytest.raises(MissingExtraError):
                check_loggers(config)
    monkeypatch.setitem(sys.modules, name, service)
    (logger,) = make_loggers(config, tmp_path)
    logger.epoch(ROW, None, 10)
    logger.close()
    told = {called: (args, options) for called, args, options in service.told}
    values = {"lr": 0.1, "train/loss": 0.5}
    if name == "wandb":
        began = told["init"][1]
        assert (began["mode"], began["project"], began["id"]) == ("offline", "yeast", tmp_path.name)
        assert began["resume"] == "allow"
        assert told["log"] == ((values,), {"step": 10})
        assert service.told[-1][0] == "finish"
    else:
        uri = (tmp_path / "mlflow").absolute().as_uri()
        assert told["set_tracking_uri"][0] == (uri,)
        assert told["set_experiment"][0] == ("yeast",)
        assert told["log_metrics"] == ((values,), {"step": 10})
        assert service.told[-1][0] == "end_run"
