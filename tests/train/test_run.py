"""A run from its config to its directory: what is recorded, what stops it, what it predicts."""

import itertools
import math
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import polars as pl
import pytest
import torch
from scipy.optimize import lsq_linear
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from deltacell.base import files
from deltacell.base.errors import DeltacellError, InputError, MissingExtraError, need
from deltacell.base.files import temporary_name
from deltacell.models import LossValue
from deltacell.models.baselines import BASELINES, Additive
from deltacell.models.registry import config_class
from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.profile.phases import NoTimer, PhaseTimer
from deltacell.profile.record import Status, read_run
from deltacell.report import training as rendering
from deltacell.screen import Loader, Split
from deltacell.train.callbacks.base import EpochResult
from deltacell.train.callbacks.loggers import LoggerCallback
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.compare_modes import run_modes
from deltacell.train.config import Config, LoggersConfig
from deltacell.train.config.compose import compose
from deltacell.train.data import load_data
from deltacell.train.loaded_runs import labels_of, load_run, load_runs
from deltacell.train.loop import Loop
from deltacell.train.position import Position
from deltacell.train.predictor import TrainedPredictor, build_fitted, build_model
from deltacell.train.profiled_functions import function_named
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config, write_config
from deltacell.train.run_directory import metrics_of, opened
from deltacell.train.task import Task


def test_the_record_and_the_metrics_say_what_was_run(trained):
    record, config = read_run(trained), resumed_config(trained)
    data = load_data(config, trained / "split")
    assert (record.status, record.mode) == (Status.finished, "train")
    assert record.command == ("deltacell", "train")
    assert record.cell.checksum == data.cell.checksum
    assert record.screen.checksum == data.screen.checksum
    assert record.best is not None
    assert record.last.step == 2 * record.steps_per_epoch
    assert record.limits
    state = Checkpoints(trained / "checkpoints").load("last")
    model = build_model(config, data)
    model.load_state_dict(state["model"])
    predictor = TrainedPredictor(model.eval(), data.cell, data.standard)
    genotypes, measured = data.part(data.split.validation)
    predicted = predictor(genotypes).double().numpy()
    first, last = metrics_of(trained)
    assert (first["epoch"], last["step"]) == (1, record.last.step)
    assert {"train_loss", "train_interaction", "train_reconstruction", "lr"} <= set(first)
    # Metrics are in the unit of the screen, whose scale is far from 1.
    assert abs(math.log(data.standard.std)) > 1
    assert last["validation_mse"] == pytest.approx(np.mean((predicted - measured) ** 2), rel=1e-5)
    pearson = np.corrcoef(predicted, measured)[0, 1]
    assert last["validation_pearson"] == pytest.approx(pearson, rel=1e-4)
    scale = {"mean": data.standard.mean, "std": data.standard.std}
    assert state["standard"] == {"mean": record.target.mean, "std": record.target.std} == scale


def test_phases_add_up_to_the_wall_time_of_the_run(small, monkeypatch):
    ticks = itertools.count()  # a second passes whenever the clock is read
    spent = []
    run = Loop.run

    def timed(loop):
        loop.timer.end_step(0, 0, 0, kind="between")
        began = next(ticks)
        result = run(loop)
        spent.append(next(ticks) - began)
        return result

    clock = partial(PhaseTimer, lambda: next(ticks) * 10**9)
    monkeypatch.setattr("deltacell.train.build.PhaseTimer", clock)
    monkeypatch.setattr(Loop, "run", timed)
    given = ["trainer.epochs=4", "trainer.checkpoint_every_steps=3", "trainer.figures_every=2"]
    path = train(small(*given), rendering=rendering).path
    rows = read_phases(path / "phases")
    setup, rest = rows[0], rows[1:]
    assert setup["kind"].item() == "between"
    sums = rest.select(pl.sum_horizontal(f"{phase}_s" for phase in PHASES)).to_series()
    np.testing.assert_allclose(sums, rest["wall_s"], rtol=1e-9)
    # The clock was read last at the end of a row, and at most a few times after it.
    assert 0 <= spent[0] - float(sums.sum()) <= 5
    assert spent[0] > 100
    assert rest.filter(pl.col("kind") == "train").height == 20
    for phase in ("forward", "loss", "backward", "optimizer", "validation", "checkpoint"):
        assert rest[f"{phase}_s"].sum() > 0, phase
    outcome = train(small("trainer.epochs=1", "profiler.phases=false", run="without"))
    assert outcome.phases is None
    assert not (outcome.path / "phases").exists()


def test_a_loss_that_is_not_finite_names_step_genotypes_and_the_last_good_checkpoint(
    small,
    monkeypatch,
    tmp_path,
    refused,
):
    config = small("trainer.checkpoint_every_steps=2")
    data = load_data(config)
    order = list(Loader(data.screen, data.split.train, batch_size=16, seed=0))
    bad = int(order[3].rows[2])
    loss = Task._loss

    def broken(task, prediction, batch):
        found = loss(task, prediction, batch)
        return LossValue(found.total * math.nan, found.parts) if bad in batch.rows else found

    monkeypatch.setattr(Task, "_loss", broken)
    error = refused("not-finite", train, config)
    assert (error.fields["step"], error.fields["epoch"]) == (4, 1)
    assert error.fields["n_genotypes"] == 16
    assert "step-00000002.ckpt" in error.fix
    genes = data.screen.genotypes.take(order[3].rows[:1]).genes
    assert " + ".join(data.cell.genes.label(int(gene)) for gene in genes) in error.message
    record = read_run(tmp_path / "run")
    assert record.status is Status.failed
    assert "step 4" in record.error


def test_a_finished_run_says_how_to_train_longer_and_does(copy, refused):
    before = (copy / "run.json").read_bytes()
    refused("already-finished", train, resumed_config(copy), resume=copy)
    assert (copy / "run.json").read_bytes() == before
    config = resumed_config(copy, ["trainer.epochs=3"])
    config.data.synthetic_seed = 5
    refused(("other-screen", "other-cell"), train, config, resume=copy)
    train(resumed_config(copy, ["trainer.epochs=3"]), resume=copy)
    record = read_run(copy)
    assert [attempt.from_step for attempt in record.attempts] == [0, 2 * record.steps_per_epoch]
    assert [row["epoch"] for row in metrics_of(copy)] == [1, 2, 3]
    assert resumed_config(copy).trainer.epochs == 3


BAD = {
    "relation of the data": ["data.relations=[physical,telepathic]"],
    "relation of the model": ["model.relations=[physical,telepathic]"],
    "heads": ["model.heads=5"],
    "lambda": ["model.relations=[physical]"],
    "window": ["profiler.trace=true", "profiler.window=[600,1,25,1]"],
    "devices": ["trainer.devices=4096", "data.batch_size=5000"],
    "held out": ["split.method=gene", "split.held_out=0.99"],
    "profilers": ["profiler.trace=true", "profiler.with_stack=true", "profiler.kind=memory"],
    "logger that is not installed": ["loggers.mlflow=true"],
    "profiler that is not installed": ["profiler.kind=lines"],
}


@pytest.mark.parametrize("what", BAD)
def test_a_config_that_cannot_be_trained_leaves_no_directory(small, tmp_path, what, monkeypatch):
    missing = "not installed" in what
    if missing:
        monkeypatch.setattr("importlib.util.find_spec", lambda *_: None)
    with pytest.raises(MissingExtraError if missing else DeltacellError):
        train(small(*BAD[what]))
    assert not (tmp_path / "run").exists()


def test_a_capture_and_a_host_profiler_leave_files_and_the_same_weights(small):
    trace = ["profiler.trace=true", "profiler.window=[2,1,2,2]", "trainer.checkpoint_every_steps=3"]
    outcomes = {
        run: train(small(*given, run=run))
        for run, given in (("traced", trace), ("plain", []), ("host", ["profiler.kind=cprofile"]))
    }
    files = sorted(file.name for file in (outcomes["traced"].path / "traces").iterdir())
    assert files == ["trace-rank0-window0.json.gz", "trace-rank0-window1.json.gz"]
    assert any("cprofile" in f.name for f in (outcomes["host"].path / "traces").iterdir())
    assert outcomes["traced"].notices == ()
    states = [Checkpoints(o.path / "checkpoints").load("last")["model"] for o in outcomes.values()]
    assert all(torch.equal(one[name], states[0][name]) for one in states for name in one)


FAST = {"boosted_trees": ["model.rounds=5"]}


@pytest.fixture
def made(tmp_path):
    """Configs of a fit on 150 genotypes into ``tmp_path / "run"``."""

    def make(model="additive", *overrides):
        folder = f"directory={tmp_path / 'run'}"
        data = ["data.synthetic=demo", "data.synthetic_genotypes=150", "trainer.threads=1"]
        return compose([f"model={model}", *data, folder, *FAST.get(model, []), *overrides])

    return make


@pytest.mark.parametrize("model", sorted(BASELINES))
def test_a_loaded_run_predicts_what_was_fitted(made, model):
    assert config_class(model).trained_by == "fit"
    config = made(model)
    outcome = train(config)
    data = load_data(config)
    fitted = build_fitted(config, data).fit(
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
    rows = metrics_of(outcome.path)
    genotypes, measured = data.part(data.split.validation)
    score = fitted(data.cell, genotypes).score.numpy().astype(np.float64)
    assert rows[-1]["validation_mse"] == pytest.approx(np.mean((score - measured) ** 2))
    before = [row["validation_mse"] for row in fitted.history]
    assert [row["validation_mse"] for row in rows[:-1]] == before
    if model == "boosted_trees":
        # The checkpoint holds the state and no code.
        (file,) = (outcome.path / "checkpoints").glob("*.ckpt")
        state = torch.load(file, weights_only=True)["state"]
        assert state.keys() == {"predictor", "rows", "intervals", "run"}
        assert state["predictor"]["trees"].startswith("tree\n")


def test_a_fit_that_is_finished_or_of_other_data(made, refused):
    path = train(made("additive", "model.penalty=50")).path
    run = load_run(path)
    assert run.predictor.model.penalty == 50
    refused("already-finished", train, resumed_config(path), resume=path)
    refused("run-exists", train, made())
    write_config(path, made("additive", "data.synthetic_seed=1"))
    refused(("other-screen", "other-cell"), load_run, path)


def name_of_killed(path, monkeypatch):
    """Return the temporary name that a process which was killed has given to a file."""
    killed = subprocess.Popen([sys.executable, "-c", ""])
    with monkeypatch.context() as as_killed:
        as_killed.setattr(os, "getpid", lambda: killed.pid)
        name = temporary_name(path)
    killed.wait()
    files._remove_abandoned.cache_clear()
    return name


def scores_of(path):
    """Return what a saved run predicts for all genotypes of its screen."""
    run = load_run(path)
    return run.predictor(run.data.screen.genotypes)


def test_a_fit_that_was_killed_after_its_checkpoint_leaves_no_temporary_file(made, monkeypatch):
    path = train(made("additive")).path
    score = scores_of(path)
    with opened(path) as directory:
        directory.update(status=Status.running)
    phases = path / "phases"
    phases.mkdir(exist_ok=True)
    abandoned = name_of_killed(phases / "fit-attempt0.parquet", monkeypatch)
    abandoned.write_bytes(b"incomplete")
    train(resumed_config(path), resume=path)
    assert not abandoned.exists()
    assert read_run(path).status is Status.finished
    assert torch.equal(scores_of(path), score)


class _Interrupted(Additive):
    """Receives a signal in the middle of its fit."""

    def _fit(self, data):
        data.report("halfway", 1, 2)
        os.kill(os.getpid(), signal.SIGTERM)
        data.report("halfway", 1, 2)
        raise AssertionError("a signal was not noticed")


@pytest.mark.parametrize("again", ["rerun", "resume"])
def test_an_interrupted_fit_is_fitted_again(made, monkeypatch, again, refused):
    config = made()
    with monkeypatch.context() as patched:
        patched.setattr("deltacell.train.fit.build_fitted", lambda *_: _Interrupted())
        outcome = train(config)
    assert outcome.signal == signal.SIGTERM
    files = sorted(entry.name for entry in outcome.path.iterdir())
    assert files == [".lock", "config.yaml", "run.json", "split"]
    refused("no-checkpoint", load_run, outcome.path)
    if again == "rerun":
        refused("run-exists", train, replace(config, seed=1))
        data = load_data(config)
        other = replace(data, split=Split.random(data.screen, seed=5))
        refused("other-split", train, config, data=other)
        train(config)
    else:
        train(resumed_config(outcome.path), resume=outcome.path)
    run = load_run(outcome.path)
    statuses = [attempt.status for attempt in run.record.attempts]
    assert statuses == [Status.interrupted, Status.finished]
    assert len(metrics_of(outcome.path)) == 1


def test_an_ensemble_is_the_weighted_sum_and_outlives_its_runs(runs, tmp_path, refused):
    def ensemble(name, runs):
        words = ["model=ensemble", f"model.runs=[{','.join(map(str, runs))}]"]
        return train(compose([*words, f"directory={tmp_path / name}"])).path

    trees, additive = (shutil.copytree(runs[n], tmp_path / n) for n in ("trees", "additive"))
    words = ["model=additive", "split.seed=1", f"directory={tmp_path / 'other'}"]
    other = train(compose([*runs.fitted, *words])).path
    refused("too-few-runs", ensemble, "wrong", [trees])
    assert not (tmp_path / "wrong").exists()
    codes = ("other-split", "other-screen", "other-cell")
    refused(codes, ensemble, "wrong", [trees, other])
    path = ensemble("both", [trees, additive])
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
    # Least squares, with no negative weight but the first.
    bounds = ([-np.inf, 0, 0], np.inf)
    weights = lsq_linear(np.stack(design, axis=1), measured, bounds, tol=1e-12).x
    expected = torch.from_numpy(weights @ np.stack(asked)).float()
    torch.testing.assert_close(loaded.predictor(test), expected, rtol=1e-4, atol=1e-5)
    assert loaded.config.split == parts[0].config.split


def labelled(folder, *words):
    """Return a run, as far as its label is concerned."""
    config = compose(["model=dango", "data.synthetic=demo", *words])
    record = SimpleNamespace(name=config.name, seed=config.seed, path=Path("runs") / folder)
    return SimpleNamespace(record=record, config=config)


def test_runs_share_their_data_and_those_that_differ_in_their_seeds_a_label(trained, copy, refused):
    several = [labelled(f"s{seed}", "name=mine", f"seed={seed}") for seed in (0, 1)]
    assert labels_of([*several, labelled("h", "name=other")]) == ["mine", "mine", "other"]
    # Other settings, or a seed for the second time: the directory tells them apart.
    wider = labelled("b", "name=mine", "seed=2", "model.hidden=8")
    assert labels_of([*several, wider]) == ["s0", "s1", "b"]
    assert labels_of([several[0], labelled("again", "name=mine")]) == ["s0", "again"]
    assert labels_of([labelled("a")]) == ["a"]
    one, two = load_runs([trained, copy])
    assert one.data is two.data
    assert load_runs(one) == [one]
    refused("no-run", load_runs, [])
    refused("repeated-run", load_runs, [trained, copy / ".." / "copy", copy])


ROW = {"epoch": 2, "step": 10, "lr": 0.1, "train_loss": 0.5, "validation_mse": math.nan}
VALUES = {"lr": 0.1, "train/loss": 0.5}


COUNTS = {"parameters": 12, "parameters.inner": 9, "parameters.outer": 3}


def compose_with(loggers):
    return replace(Config(), loggers=loggers)


def log_epoch(config, folder):
    """Log one row at step 10."""
    logger = LoggerCallback(compose_with(config), folder, NoTimer())
    model = nn.ModuleDict({"inner": nn.Linear(2, 3), "outer": nn.Linear(3, 1, bias=False)})
    logger.before_training(SimpleNamespace(task=SimpleNamespace(model=model)))
    logger.after_epoch(SimpleNamespace(position=Position(step=10)), EpochResult(ROW))
    logger.close()


def test_tensorboard_has_the_finite_numbers_at_their_steps(tmp_path):
    log_epoch(LoggersConfig(tensorboard=False), tmp_path)
    assert list(tmp_path.iterdir()) == []
    log_epoch(LoggersConfig(), tmp_path)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    assert sorted(events.Tags()["scalars"]) == list(VALUES)
    (event,) = events.Scalars("train/loss")
    assert (event.step, event.value) == (10, 0.5)


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_services_are_told_offline_and_named_if_missing(name, tmp_path, monkeypatch):
    config = LoggersConfig(tensorboard=False, offline=True, project="yeast", **{name: True})
    # A folder of that name, such as W&B leaves behind, has no origin.
    for found in (None, SimpleNamespace(origin=None)):
        with monkeypatch.context() as patch:
            patch.setattr("importlib.util.find_spec", lambda asked, found=found: found)
            with pytest.raises(MissingExtraError):
                need(name, f"loggers.{name}=true", name)
    service = Mock()
    monkeypatch.setitem(sys.modules, name, service)
    log_epoch(config, tmp_path)
    if name == "wandb":
        began = service.init.call_args.kwargs
        assert (began["mode"], began["project"], began["id"]) == ("offline", "yeast", tmp_path.name)
        assert began["resume"] == "allow"
        told = service.init().config.update.call_args.args[0]
        assert COUNTS.items() <= told.items()
        assert told["data.batch_size"] == 64
        service.init().log.assert_called_once_with(VALUES, step=10)
        service.init().finish.assert_called_once_with()
    else:
        where = (tmp_path / "mlflow").absolute().as_uri()
        service.set_tracking_uri.assert_called_once_with(where)
        service.set_experiment.assert_called_once_with("yeast")
        told = {}
        for call in service.log_params.call_args_list:
            told |= call.args[0]
        assert {key: str(count) for key, count in COUNTS.items()}.items() <= told.items()
        service.log_metrics.assert_called_once_with(VALUES, step=10)
        service.end_run.assert_called_once_with()


def test_a_mode_that_fails_says_which_and_why(monkeypatch):
    def run(command, **_):
        return SimpleNamespace(returncode=2, stdout="", stderr="error: the cell has left\n")

    monkeypatch.setattr("deltacell.train.comparing.trials.subprocess.run", run)
    with pytest.raises(DeltacellError, match="the mode 'empty' failed: the cell has left"):
        run_modes(["experiment=demo"])


@pytest.mark.parametrize("word", ["mode=data", "+mode_steps=3", "directory=here"])
def test_overriding_a_key_that_modes_sets_is_an_error(word):
    with pytest.raises(InputError) as error:
        run_modes(["experiment=demo", word])
    assert error.value.code == "set-by-modes"


def test_modes_leave_no_folder_behind_nor_that_of_a_killed_process(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    abandoned = name_of_killed(tmp_path / "deltacell-modes", monkeypatch)
    abandoned.mkdir()
    other = tmp_path / "deltacell-modes-of-somebody"
    other.mkdir()

    def run(*_):
        assert not abandoned.exists()
        assert len(list(tmp_path.iterdir())) == 2
        raise KeyboardInterrupt

    monkeypatch.setattr("deltacell.train.compare_modes.run_trial", run)
    with pytest.raises(KeyboardInterrupt):
        run_modes(["experiment=demo"])
    assert list(tmp_path.iterdir()) == [other]


def test_functions_to_profile_are_found_by_name():
    assert function_named("deltacell.train.task:Task.forward") is Task.forward
    assert function_named("deltacell.train.data:load_data") is load_data
    for name in ("deltacell.train.task", "nowhere:f", "math:sin", "deltacell.train.task:Task", ":"):
        with pytest.raises(InputError) as error:
            function_named(name)
        assert error.value.code == "unknown-function"


def test_functions_are_profiled_by_lines_only(small):
    words = ("profiler.functions=['deltacell.train.task:Task.prepare']",)
    with pytest.raises(InputError) as error:
        small(*words)
    assert error.value.code == "conflicting-settings"
    small(*words, "profiler.kind=lines")


def test_the_best_checkpoint_is_by_the_metric_of_the_config(small):
    path = train(small("trainer.best=[loss,spearman]", "trainer.epochs=3", "trainer.keep=1")).path
    record = read_run(path)
    metrics = pl.read_csv(path / "metrics.csv")
    assert record.best is not None
    assert record.best.metric == "validation_loss"
    assert record.best.value == pytest.approx(metrics["validation_loss"].min())
    (other,) = record.best_by_others
    assert other.metric == "validation_spearman"
    assert other.value == pytest.approx(metrics["validation_spearman"].max())
    for words in ("[]", "[loss,loss]", "[accuracy]"):
        with pytest.raises(InputError) as error:
            small(f"trainer.best={words}")
        assert error.value.code == "conflicting-settings"
