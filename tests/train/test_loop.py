"""The loop and its parts: what a step is, when it saves, and when it ends."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import laws
import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from deltacell.screen import Batch, Loader
from deltacell.train.build import build_loop, build_training
from deltacell.train.callbacks.base import Callback
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config, OptimizerConfig, ScheduleConfig, TrainerConfig
from deltacell.train.config.compose import compose
from deltacell.train.data import load_data
from deltacell.train.devices import make_fabric
from deltacell.train.finite import LOOK_EVERY, FiniteGuard
from deltacell.train.limits import MODE_STEPS
from deltacell.train.loop import Loop
from deltacell.train.optimizers import build_optimizer, parameter_groups
from deltacell.train.position import Position
from deltacell.train.predictor import TrainedPredictor, build_model
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config
from deltacell.train.schedule import LearningRate
from deltacell.train.signals import StopSignals
from deltacell.train.task import Task, Validation
from deltacell.train.validation import Validator

Small = Callable[..., Config]


def loop_of(config: Config, *callbacks: Callback) -> Loop:
    """Return a loop without a directory, which writes no checkpoint, with callbacks of a test."""
    place = Path(str(config.directory))
    training = build_training(make_fabric(config), config, load_data(config), place)
    loop = build_loop(training, None, StopSignals())
    loop.callbacks.callbacks.extend(callbacks)
    return loop


def task_of(config: Config) -> tuple[Task, Any]:
    data = load_data(config)
    torch.manual_seed(0)
    loss = config.loss.build(config.model, config.trainer.epochs)
    return Task(build_model(config, data), loss, data.cell, data.standard), data


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in loop.state.task.model.named_parameters()}


@pytest.mark.parametrize("model", ["dango", "hetero_cell", "pair_cell"])
def test_a_rank_without_genotypes_still_has_a_gradient_for_every_weight(model):
    words = [f"model={model}", "model.hidden=8", "data.synthetic=demo", "loss=log_cosh"]
    heads = "model.heads" if model == "pair_cell" else "model.layers"
    config = compose([*words, "data.synthetic_genotypes=60", f"{heads}=2"])
    task, data = task_of(config)
    batch = next(iter(Loader(data.screen, data.split.train, batch_size=8, targets=data.targets)))
    none = torch.empty(0, dtype=torch.int64)
    empty = Batch(batch.genotypes.take(none), batch.targets[:0], batch.weights[:0], none)
    losses = task(task.prepare(empty))
    losses["loss"].backward()
    assert losses["loss"] == 0
    assert all(weight.grad is not None for weight in task.model.parameters())


@pytest.mark.parametrize("hetero", [False, True])
def test_accumulating_equals_a_larger_batch(small, hetero):
    # The last batch of an epoch is short, together with whole ones.
    plain = ["optimizer.clip=null", "loss=log_cosh", "trainer.precision=64", "trainer.epochs=1"]
    found = []
    for size, accumulate in ((7, 3), (21, 1)):
        given = [f"data.batch_size={size}", f"optimizer.accumulate={accumulate}"]
        loop = loop_of(small(*plain, *given, hetero=hetero))
        before = weights(loop)
        assert loop.run() == 0
        found.append(weights(loop))
        n = loop.state.loader.samples_per_epoch
        assert n % 7
        assert n % 21 > 7
        assert loop.state.position.step == -(-n // 21)
        assert any(not torch.equal(before[name], found[-1][name]) for name in before)
        assert {w.dtype for w in loop.state.task.parameters()} == {torch.float64}
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=1e-7, atol=1e-9)


def test_clipping_bounds_the_gradient_before_the_step(small):
    loop = loop_of(small("optimizer.clip=1e-3", "trainer.epochs=1"))
    norms = []

    def spy(*_: Any) -> None:
        grads = [w.grad for w in loop.state.task.parameters() if w.grad is not None]
        norms.append(float(torch.stack([g.norm() for g in grads]).norm()))

    loop.state.optimizer.register_step_pre_hook(spy)
    loop.run()
    assert len(norms) == len(loop.state.loader)
    # Before it is clipped, the norm is above the bound in every step.
    assert norms == pytest.approx([1e-3] * len(norms), rel=1e-3)


@pytest.mark.parametrize(
    ("given", "samples", "steps"),
    [
        (["data.batch_size=74"], 74, 1),
        (["data.batch_size=9", "optimizer.accumulate=3"], 74, 3),
        (["data.samples_per_epoch=3300"], 74, 5),
        (["data.samples_per_epoch=40"], 40, 3),
        (["mode=data", "mode_steps=12"], 74, 12),
        (["mode=data"], 74, MODE_STEPS),
    ],
)
def test_steps_of_an_epoch_or_of_a_mode(small, given, samples, steps):
    loop = loop_of(small("trainer.epochs=1", *given))
    assert loop.state.loader.samples_per_epoch == samples
    loop.run()
    assert loop.state.position.step == steps
    assert loop.limits.epochs == -(-steps // loop.loaders.steps_per_epoch)


def test_validation_has_the_same_rows_every_time(small):
    found: list[Any] = [
        loop_of(small("trainer.validation_samples=3", f"seed={seed}")).loaders.validation
        for seed in (0, 5)
    ]
    assert len(found[0].rows) == 3
    assert np.array_equal(found[0].rows, found[1].rows)
    assert set(found[0].rows.tolist()) <= set(load_data(small()).split.validation.tolist())
    assert (found[0].batch_size, found[0].shuffle) == (4096, False)


def test_patience_stops_after_so_many_validations_without_a_better_one(small, monkeypatch):
    loop = loop_of(small("trainer.epochs=20", "trainer.patience=2"))
    metrics = iter([0.1, 0.3, 0.2, math.nan, 0.9, 0.9])

    monkeypatch.setattr(Validation, "metrics", lambda self: {"pearson": next(metrics)})
    loop.run()
    assert loop.state.position.epoch == 4
    assert loop.limits.finished(loop.state.position)


def test_the_average_of_the_weights_is_that_of_the_formula_and_is_validated(small, monkeypatch):
    given = ["trainer.ema=0.6", "trainer.precision=64", "trainer.validate_every=2"]
    validate = Task.validate
    seen = []

    class Average(Callback):
        def after_step(self, *_: Any) -> None:
            step = loop.state.position.step - 1
            decay = min(0.6, (1 + step) / (10 + step))
            for name, weight in weights(loop).items():
                expected[name] = decay * expected[name] + (1 - decay) * weight

    loop = loop_of(small(*given, "trainer.epochs=3"), Average())
    expected = weights(loop)

    def spy_validate(task: Task, loader: Loader) -> Validation:
        seen.append({n: w.detach().clone() for n, w in task.model.named_parameters()})
        return validate(task, loader)

    monkeypatch.setattr(Task, "validate", spy_validate)
    loop.run()
    assert [row["epoch"] for row in loop.state.rows if "validation_mse" in row] == [2, 3]
    assert len(seen) == 2
    after = weights(loop)
    for name, average in expected.items():
        torch.testing.assert_close(seen[-1][name], average, rtol=1e-12, atol=1e-12)
    # After a validation the weights are back, even if it failed.
    assert not all(torch.equal(after[name], expected[name]) for name in after)

    def fails(*_: Any) -> None:
        raise KeyError

    monkeypatch.setattr(Task, "validate", fails)
    with pytest.raises(KeyError):
        Validator(loop.loaders.validation, every=1, epochs=3)(loop.state)
    assert all(torch.equal(after[name], weight) for name, weight in weights(loop).items())


def test_saves_after_so_much_time(small):
    config = small("trainer.epochs=1", "trainer.checkpoint_every_minutes=1e-9", "trainer.keep=9")
    kept = Checkpoints(train(config).path / "checkpoints").kept
    # The last is the epoch's end.
    assert [one.step for one in kept] == [1, 2, 3, 4, 5]


def test_weights_that_are_not_finite_are_never_saved(small, monkeypatch, refused):
    step = torch.optim.AdamW.step

    def poison(optimizer: Any, *given: Any) -> None:
        """Break a gradient of the fourth step, whose loss is still finite."""
        weight = optimizer.param_groups[0]["params"][0]
        if optimizer.state and int(optimizer.state[weight]["step"]) == 3:
            weight.grad.fill_(math.nan)
        step(optimizer, *given)

    monkeypatch.setattr(torch.optim.AdamW, "step", poison)
    given = ["trainer.checkpoint_every_steps=1", "optimizer.clip=null", "trainer.keep=9"]
    config = small(*given)
    refused("not-finite", train, config)
    kept = Checkpoints(Path(str(config.directory)) / "checkpoints").kept
    assert [one.step for one in kept] == [1, 2, 3]


@pytest.mark.parametrize("bad", [1, 5, LOOK_EVERY, LOOK_EVERY + 3])
def test_a_device_is_asked_seldom_for_losses_and_the_bad_one_is_named(
    small,
    tmp_path,
    bad,
    refused,
):
    task, data = task_of(small())
    guard = FiniteGuard(task, data, tmp_path, LOOK_EVERY)
    noted = []

    def note_all() -> None:
        for step in range(1, LOOK_EVERY + 5):
            loss = torch.tensor(math.nan if step == bad else 1.0)
            guard.note(step, torch.tensor([(step - 1) % 150]), loss)
            noted.append(step)
        guard.check_losses()

    what = refused("not-finite", note_all).message
    assert f"the loss is nan at step {bad} " in what
    # The device is not asked before there are enough losses.
    assert len(noted) == (LOOK_EVERY - 1 if bad <= LOOK_EVERY else LOOK_EVERY + 4)
    gene = data.screen.genotypes.take(torch.tensor([(bad - 1) % 150])).genes[0]
    assert data.cell.genes.label(int(gene)) in what


@pytest.mark.parametrize(
    ("precision", "weight", "product", "hetero"),
    [
        ("32", torch.float32, torch.float32, False),
        ("64", torch.float64, torch.float64, False),
        ("bf16", torch.float32, torch.bfloat16, False),
        ("bf16", torch.float32, torch.bfloat16, True),
    ],
)
def test_the_precision_of_weights_products_and_losses(small, hetero, precision, weight, product):
    given = [f"trainer.precision={precision}", "trainer.epochs=1"]
    loop = loop_of(small(*given, hetero=hetero))
    products: dict[bool, set[torch.dtype]] = {True: set(), False: set()}

    def see(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        products[torch.is_grad_enabled()].add(output.dtype)

    for module in loop.state.task.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(see)
    # Without oneDNN, whose bf16 kernels some virtual machines announce and cannot run.
    with torch.backends.mkldnn.flags(enabled=False):
        loop.run()
        batch = next(iter(loop.loaders.training))
        values = loop.step.ranked.forward(loop.state.task.prepare(batch))
    # The pooling head of a hetero cell is in full precision whatever the autocast.
    assert product in products[True] <= {product, weight}
    assert products[False] == {weight}  # A validation is in full precision.
    assert not torch.is_autocast_enabled("cpu")
    assert {w.dtype for w in loop.state.task.parameters()} == {weight}
    assert values["loss"].dtype == weight
    assert math.isfinite(loop.state.rows[0]["train_loss"] + loop.state.rows[0]["validation_mse"])


class TestTask:
    @pytest.mark.parametrize("size", [5, 1000])
    def test_validation_is_in_the_unit_of_the_screen_whatever_the_batch(self, small, size):
        task, data = task_of(small("loss=log_cosh"))
        rows = np.random.default_rng(0).permutation(len(data.screen))[:37]
        loader = Loader(data.screen, rows, batch_size=size, shuffle=False, targets=data.targets)
        for _ in range(2):
            found = task.validate(loader)
            expected = TrainedPredictor(task.model, data.cell, data.standard)(
                data.screen.genotypes.take(torch.tensor(rows)),
            ).numpy()
            np.testing.assert_allclose(found.predicted, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found.measured, data.screen.column("score")[rows])
            # The loss is that of the standardised scores.
            error = (expected - found.measured) / data.standard.std
            assert found.loss == pytest.approx(np.log(np.cosh(error)).mean(), rel=1e-4)

    def test_dropout_rests_in_a_validation(self, small):
        task, data = task_of(small("model.dropout=0.5", hetero=True))
        task.train()
        loader = Loader(data.screen, shuffle=False, targets=data.targets, batch_size=64)
        before = torch.get_rng_state()
        first, second = task.validate(loader), task.validate(loader)
        assert np.array_equal(first.predicted, second.predicted)
        assert torch.equal(torch.get_rng_state(), before)
        assert task.model.training

    @pytest.mark.parametrize("hetero", [False, True])
    def test_weight_decay_leaves_gains_biases_and_scales_alone(self, small, hetero):
        """With no gradient, one step of AdamW is the decay alone."""
        task, _ = task_of(small(hetero=hetero))
        optimizer = torch.optim.AdamW(parameter_groups(task, 0.5), lr=0.1)
        for weight in task.parameters():
            nn.init.ones_(weight)
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        for name, weight in task.model.named_parameters():
            plain = name.endswith(("bias", "beta", "eps")) or "norm" in name
            assert bool((weight == 1).all()) is plain, name

    def test_metrics_are_those_of_scipy(self):
        draw = np.random.default_rng(0)
        measured = draw.normal(size=200)
        predicted = measured + draw.normal(size=200)
        found = Validation(measured, predicted, 0.5).metrics()
        assert found["pearson"] == pytest.approx(stats.pearsonr(measured, predicted)[0])
        assert found["spearman"] == pytest.approx(stats.spearmanr(measured, predicted)[0], rel=1e-5)
        assert found["mse"] == pytest.approx(np.mean((measured - predicted) ** 2))
        for few in ([[1.0, 2.0], [3.0, 3.0]], [[1.0], [2.0]], [[], []]):
            metrics = Validation(*map(np.array, few), 0.0).metrics()
            assert math.isnan(metrics["pearson"])
            assert math.isnan(metrics["spearman"])
            assert math.isnan(metrics["mse"]) is (not few[0])
        predicted[0] = math.nan
        assert math.isnan(Validation(measured, predicted, 0.5).metrics()["spearman"])


LR, STEPS, EPOCHS = 0.1, 4, 6


class Scheduled:
    """A training of 6 epochs of 4 steps, as far as its learning rate is concerned."""

    def __init__(self, **options: Any) -> None:
        optimizer, trainer = OptimizerConfig(lr=LR), TrainerConfig(epochs=EPOCHS)
        schedule = ScheduleConfig(**options)
        config = Config(optimizer=optimizer, schedule=schedule, trainer=trainer)
        self.learning_rate = LearningRate.of(config, STEPS)
        self.position = Position()

    def rate(self, done: int) -> float:
        self.position.step = done
        return self.learning_rate(self.position)

    def validated(self, metric: float) -> None:
        self.position.note_validation(metric, self.learning_rate.schedule.patience)


class TestSchedule:
    def test_cosine_falls_over_the_whole_training_or_a_period(self):
        for name in ("constant", "cosine", "warm_restarts", "plateau"):
            assert Scheduled(name=name).rate(0) == LR
        assert Scheduled(name="constant").rate(77) == LR
        found = Scheduled(name="cosine", min_lr=0.01)
        assert all(found.rate(a) > found.rate(b) for a, b in pairwise(range(STEPS * EPOCHS)))
        assert found.rate(6) == pytest.approx(0.01 + 0.09 * (1 + math.cos(math.pi / 4)) / 2)
        # A training that is made longer afterwards does not rise again.
        assert found.rate(STEPS * EPOCHS) == found.rate(10 * STEPS * EPOCHS) == pytest.approx(0.01)
        found = Scheduled(name="warm_restarts", period=1)
        assert [done for done in range(20) if found.rate(done) == LR] == [0, 4, 8, 12, 16]
        assert found.rate(3) == pytest.approx(LR * (1 + math.cos(math.pi * 3 / 4)) / 2)

    def test_plateau_steps_after_its_patience(self):
        found = Scheduled(name="plateau", factor=0.5, patience=2, min_lr=0.02)
        seen = []
        for metric in (0.1, 0.2, 0.2, math.nan, 0.15, 0.1, 0.1, 0.1, 0.3, 0.2, 0.2):
            found.validated(metric)
            seen.append(found.rate(100) / LR)
        assert seen == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
        for _ in range(9):
            found.validated(0.0)
        assert found.rate(100) == 0.02

    def test_the_rate_of_the_schedule_is_that_of_the_optimizer(self, small):
        loop = loop_of(small("schedule=cosine"))
        loop.run()
        loop.state.position.step -= 1
        rate = loop.step.rate(loop.state.position)
        assert {group["lr"] for group in loop.state.optimizer.param_groups} == {rate}
        assert loop.state.rows[-1]["lr"] == rate < loop.step.rate.initial


class TestOptimizers:
    @pytest.mark.parametrize(
        ("name", "options"),
        [("Adam", {"betas": [0.8, 0.99]}), ("SGD", {"momentum": 0.9, "nesterov": True})],
    )
    def test_a_resumed_run_has_the_weights_of_one_that_never_stopped(self, small, name, options):
        """Also with an optimizer that keeps another state than AdamW."""

        def config_of(run: str, *words: str) -> Config:
            config = small("schedule=constant", *words, run=run)
            return replace(config, optimizer=replace(config.optimizer, name=name, options=options))

        whole = train(config_of("whole")).path
        path = train(config_of("short", "trainer.epochs=1")).path
        train(resumed_config(path, ["trainer.epochs=2"]), resume=path)
        states = [Checkpoints(run / "checkpoints").load() for run in (whole, path)]
        assert laws.bits_of(states[0]["model"]) == laws.bits_of(states[1]["model"])
        assert laws.bits_of(states[0]["optimizer"]) == laws.bits_of(states[1]["optimizer"])

    def test_the_optimizer_is_the_named_class_with_its_options(self, small):
        config = small()
        task, _ = task_of(config)
        options = {"momentum": 0.9}
        settings = replace(config.optimizer, name="SGD", options=options, weight_decay=0.5)
        optimizer = build_optimizer(task, settings)
        assert isinstance(optimizer, torch.optim.SGD)
        assert [group["momentum"] for group in optimizer.param_groups] == [0.9, 0.9]
        assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5, 0.0]

    @pytest.mark.parametrize(
        ("name", "options", "code"),
        [
            ("AdaW", {}, "unknown-name"),
            ("LBFGS", {}, "unknown-name"),
            ("Optimizer", {}, "unknown-name"),
            ("SGD", {"betas": [0.9, 0.99]}, "unknown-key"),
            ("SGD", {"lr": 1.0}, "conflicting-settings"),
            ("SGD", {"momentum": -1.0}, "out-of-range"),
        ],
    )
    def test_an_optimizer_that_cannot_be_built_leaves_no_directory(
        self, small, name, options, code, refused
    ):
        config = small()
        config = replace(config, optimizer=replace(config.optimizer, name=name, options=options))
        refused(code, train, config)
        assert not Path(str(config.directory)).exists()
