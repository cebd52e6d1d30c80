"""A run from its config to its directory: what is recorded, and what stops it."""

from __future__ import annotations

import errno
import json
import math
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch

from deltacell.errors import DeltacellError, InputError
from deltacell.files import seal_of
from deltacell.models import LossValue
from deltacell.profile.phase_rows import PHASES, read_phases
from deltacell.profile.record import Status, read_run
from deltacell.screen import Batch, Loader
from deltacell.train import checkpoints as checkpoints_module
from deltacell.train.build import build_model
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.predictor import Predictor
from deltacell.train.run import resume, train
from deltacell.train.run_directory import MetricsFile, new_path, resumed_config
from deltacell.train.task import Task

Small = Callable[..., Config]


class Watch:
    """A callback that does something after so many batches."""

    def __init__(self, after: int = -1, then: Callable[[], None] = lambda: None) -> None:
        self.left, self.then = after, then
        self.closed = 0

    def begin(self, *_: Any) -> None:
        pass

    def step(self, *_: Any) -> None:
        if self.left == 0:
            self.then()
        self.left -= 1

    def epoch(self, *_: Any) -> None:
        pass

    def close(self) -> None:
        self.closed += 1


def test_the_average_follows_the_weights_of_every_step(small: Small) -> None:
    # With next to no memory of earlier weights it is the weights of the last step.
    state = Checkpoints(train(small("trainer.ema=1e-9")).path / "checkpoints").load("last")
    assert state["ema"]
    for name, average in state["ema"].items():
        torch.testing.assert_close(average, state["model"][name], msg=name)


def test_reported_metrics_are_in_the_unit_of_the_screen(small: Small) -> None:
    config = small("trainer.epochs=3", "loss=log_cosh")
    path = train(config).path
    data = load_data(config)
    state = Checkpoints(path / "checkpoints").load("last")
    assert state["standard"] == {"mean": data.standard.mean, "std": data.standard.std}
    model = build_model(config, data.cell, data.largest)
    model.load_state_dict(state["model"])
    predictor = Predictor(model.eval(), data.cell, data.standard)
    rows = data.split.validation
    predicted = predictor(data.screen.genotypes.take(torch.tensor(rows))).double().numpy()
    measured = data.screen.column("score")[rows].astype(np.float64)
    last = MetricsFile(path / "metrics.csv").rows[-1]
    assert last["validation_mse"] == pytest.approx(np.mean((predicted - measured) ** 2), rel=1e-5)
    pearson = np.corrcoef(predicted, measured)[0, 1]
    assert last["validation_pearson"] == pytest.approx(pearson, rel=1e-4)
    # The scale is far from 1, so an error that was left standardised would show.
    assert abs(math.log(data.standard.std)) > 1
    train_scores = data.screen.column("score")[data.split.train].astype(np.float64)
    assert data.standard.mean == pytest.approx(train_scores.mean())
    assert data.standard.std == pytest.approx(train_scores.std())
    record = read_run(path)
    assert record.target is not None
    assert (record.target.mean, record.target.std) == (data.standard.mean, data.standard.std)


def test_metrics_have_a_row_an_epoch(small: Small) -> None:
    path = train(small("trainer.epochs=3", "schedule=constant", "optimizer.lr=0.002")).path
    rows = MetricsFile(path / "metrics.csv").rows
    assert [(row["epoch"], row["step"]) for row in rows] == [(1, 5), (2, 10), (3, 15)]
    for row in rows:
        assert row["lr"] == 0.002
        assert row["train_loss"] is not None
        assert row["samples_per_s"] is not None
    seconds = [row["seconds"] for row in rows]
    assert seconds == sorted(seconds)  # type: ignore[type-var]
    # Of the parts of DANGO's loss too.
    assert {"train_interaction", "train_reconstruction"} <= set(rows[0])


def test_the_mean_training_loss_is_over_genotypes(small: Small) -> None:
    # With a rate of nothing the weights stay, so the epoch's mean is that of one great batch.
    still = ["optimizer.lr=1e-30", "optimizer.weight_decay=0", "trainer.epochs=1", "loss=log_cosh"]
    means = []
    for size, run in ((16, "a"), (1000, "b")):
        path = train(small(*still, f"data.batch_size={size}", run=run)).path
        means.append(MetricsFile(path / "metrics.csv").rows[0]["train_loss"])
    assert means[0] == pytest.approx(means[1], rel=1e-5)


def test_the_record_says_what_was_run(small: Small) -> None:
    config = small("seed=7", "trainer.epochs=1", hetero=True)
    path = train(config, command=["deltacell", "train"]).path
    record, data = read_run(path), load_data(config)
    assert record.status is Status.finished
    assert (record.seed, record.mode, record.command) == (7, "train", ("deltacell", "train"))
    assert record.cell is not None
    assert record.cell.checksum == data.cell.checksum
    assert record.screen is not None
    assert record.screen.checksum == data.screen.checksum
    assert record.steps_per_epoch == 5
    assert record.propagation is not None
    assert record.propagation["name"] == "auto"
    assert record.propagation["why"]
    assert record.best is not None
    assert record.last is not None
    assert record.last.step == 5
    assert record.limits
    assert {"deltacell", "torch", "lightning"} <= set(record.versions)
    assert resumed_config(path) == config


def test_phases_add_up_to_the_wall_time_of_the_run(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltacell.train.loop import Loop

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


def test_figures_count_as_checkpoints_and_not_as_logging(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    from deltacell.train import figures

    def slow(*_: Any) -> None:
        time.sleep(0.3)

    monkeypatch.setattr(figures, "draw_learning", slow)
    path = train(small("trainer.epochs=1", "trainer.figures_every=1")).path
    rows = read_phases(path / "phases")
    assert rows["checkpoint_s"].sum() > 0.3
    assert rows["logging_s"].sum() < 0.3


def test_phases_can_be_left_out(small: Small) -> None:
    outcome = train(small("trainer.epochs=1", "profiler.phases=false"))
    assert outcome.phases is None
    assert not (outcome.path / "phases").exists()


# --- what is not finite ---


def test_a_loss_that_is_no_number_names_step_genotypes_and_the_last_good_checkpoint(
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
    said = str(caught.value)
    assert "the loss is nan at step 4 (epoch 1)" in said
    assert "The last good checkpoint is step-00000002.ckpt, of step 2" in said
    genes = data.screen.genotypes.take(order[3].rows[:1]).genes
    assert " + ".join(data.cell.genes.label(int(gene)) for gene in genes) in said
    assert "and 11 more" in said
    assert told.closed == 1
    record = read_run(tmp_path / "run")
    assert record.status is Status.failed
    assert record.error is not None
    assert "step 4" in record.error
    assert Checkpoints(tmp_path / "run/checkpoints").last.step == 2  # type: ignore[union-attr]


def test_a_rate_that_is_too_high_leaves_only_checkpoints_of_numbers(
    small: Small, tmp_path: Path
) -> None:
    config = small(
        "optimizer.lr=1e30",
        "trainer.epochs=20",
        "trainer.checkpoint_every_steps=1",
        "trainer.keep=9",
    )
    with pytest.raises(InputError, match=r"is (nan|inf|-inf) at step \d"):
        train(config)
    kept = Checkpoints(tmp_path / "run/checkpoints")
    for one in kept.kept:
        state = kept.load(one.file)
        assert all(torch.isfinite(weight).all() for weight in state["model"].values())
    assert read_run(tmp_path / "run").status is Status.failed


# --- disks, damage, resuming ---


def test_a_full_disk_keeps_the_checkpoint_before(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write = checkpoints_module.write_checkpoint

    def full(path: Path, state: Any, *, step: int, **facts: Any) -> str:
        if step > 4:
            path.write_bytes(b"half")
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, state, step=step, **facts)

    monkeypatch.setattr(checkpoints_module, "write_checkpoint", full)
    with pytest.raises(DeltacellError, match=r"step-00000004\.ckpt, is still there") as caught:
        train(small("trainer.checkpoint_every_steps=2"))
    assert "No space left" in str(caught.value)
    assert read_run(tmp_path / "run").status is Status.failed
    monkeypatch.undo()
    path = tmp_path / "run"
    assert sorted(file.name for file in (path / "checkpoints").iterdir()) == [
        "index.json",
        "step-00000002.ckpt",
        "step-00000004.ckpt",
    ]
    outcome = resume(path, resumed_config(path))
    assert read_run(outcome.path).status is Status.finished
    assert [row["epoch"] for row in MetricsFile(path / "metrics.csv").rows] == [1, 2]


def test_a_finished_run_says_how_to_train_longer_and_does(small: Small) -> None:
    path = train(small()).path
    before = (path / "run.json").read_bytes()
    with pytest.raises(InputError, match=r"has done its 2 epochs(?s:.*)trainer.epochs=12"):
        resume(path, resumed_config(path))
    assert (path / "run.json").read_bytes() == before
    resume(path, resumed_config(path, ["trainer.epochs=3"]))
    record = read_run(path)
    assert record.status is Status.finished
    assert [attempt.from_step for attempt in record.attempts] == [0, 10]
    assert [row["epoch"] for row in MetricsFile(path / "metrics.csv").rows] == [1, 2, 3]
    assert resumed_config(path).trainer.epochs == 3


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_offered(
    small: Small, tmp_path: Path
) -> None:
    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    config = small("trainer.checkpoint_every_steps=2")
    with pytest.raises(Stop):
        train(config, tell=[Watch(8, stop)])
    path = tmp_path / "run"
    last = path / "checkpoints" / "step-00000008.ckpt"
    content = bytearray(last.read_bytes())
    content[len(content) // 2] ^= 0xFF
    last.write_bytes(content)
    with pytest.raises(DeltacellError) as caught:
        resume(path, resumed_config(path))
    assert str(last) in str(caught.value)
    offered = "--from step-00000006.ckpt"
    assert offered in str(caught.value)
    resume(path, resumed_config(path), which="step-00000006.ckpt")
    assert read_run(path).status is Status.finished
    assert read_run(path).attempts[-1].from_step == 6


def test_a_checkpoint_with_code_in_it_is_refused(small: Small, tmp_path: Path) -> None:
    import hashlib
    import pickle

    class Payload:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "ran",))

    path = train(small("trainer.epochs=1")).path
    file = path / "checkpoints" / "step-00000005.ckpt"
    torch.save({"state": Payload()}, file, pickle_module=pickle)
    index = json.loads((path / "checkpoints/index.json").read_text())
    index["checkpoints"][-1]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    index["seal"] = seal_of(index)
    (path / "checkpoints/index.json").write_text(json.dumps(index))
    with pytest.raises(DeltacellError, match=r"step-00000005\.ckpt: refused"):
        resume(path, resumed_config(path, ["trainer.epochs=3"]))
    assert not (tmp_path / "ran").exists()


def test_other_data_than_before_are_refused(small: Small) -> None:
    path = train(small("trainer.epochs=1")).path
    config = resumed_config(path, ["trainer.epochs=2"])
    config.data.synthetic_seed = 5
    with pytest.raises(InputError, match="this split was made of another screen"):
        resume(path, config)
    assert read_run(path).status is Status.finished


def test_a_directory_with_something_in_it_is_left_alone(small: Small, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("all of it")
    with pytest.raises(InputError, match="not empty"):
        train(small())
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["thesis.tex"]


# --- before there is a directory ---

BAD = {
    "relation of the data": ["data.relations=[physical,telepathic]"],
    "relation of the model": ["model.relations=[physical,telepathic]"],
    "window": ["profiler.trace=true", "profiler.window=[600,1,25,1]"],
    "devices": ["trainer.devices=4096"],
    "loss of another model": ["loss=dango"],
    "held out": ["split.method=gene", "split.held_out=0.99"],
    "extra": ["loggers.mlflow=true"],
    "least rate": ["schedule=cosine", "schedule.min_lr=5"],
}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_trained_leaves_no_directory(
    small: Small, tmp_path: Path, what: str
) -> None:
    if what == "extra" and find_spec("mlflow") is not None:
        pytest.skip("mlflow is here")
    with pytest.raises(DeltacellError) as caught:
        train(small(*BAD[what], hetero=what == "loss of another model"))
    assert str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_window_that_is_never_reached_has_the_arithmetic(small: Small) -> None:
    given = ["profiler.trace=true", "profiler.window=[600,1,25,1]"]
    with pytest.raises(InputError, match=r"74 .*16.*5 .*2.*10.*626"):
        train(small(*given))


def test_a_capture_leaves_a_trace_and_the_same_weights(small: Small) -> None:
    given = ["profiler.trace=true", "profiler.window=[2,1,2,2]", "trainer.checkpoint_every_steps=3"]
    traced = train(small(*given, run="traced"))
    plain = train(small(run="plain"))
    files = sorted(file.name for file in (traced.path / "traces").iterdir())
    assert files == ["trace-rank0-window0.json.gz", "trace-rank0-window1.json.gz"]
    assert traced.notices == ()
    a, b = (Checkpoints(x.path / "checkpoints").load("last")["model"] for x in (traced, plain))
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("kind", ["cprofile", "memory"])
def test_profilers_of_the_host_leave_their_files(small: Small, kind: str) -> None:
    outcome = train(small("trainer.epochs=1", f"profiler.kind={kind}"))
    assert any(kind in file.name for file in (outcome.path / "traces").iterdir())


def test_a_new_path_is_never_one_that_is_there(
    small: Small, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    config = small()
    config.directory = None
    config.seed = 3
    made = set()
    for _ in range(5):
        path = new_path(config)
        assert path.parent == Path("runs")
        assert "seed3" in path.name
        assert path not in made
        path.mkdir(parents=True)
        made.add(path)
