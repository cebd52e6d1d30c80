"""The loop and its parts: what a step is, when it saves, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from deltacell.models import Dango
from deltacell.profile.phases import NoTimer
from deltacell.screen import Batch, Loader
from deltacell.train import loop as loop_module
from deltacell.train.build import build_for, build_loss, make_loop, samples_per_epoch
from deltacell.train.callbacks import Callback, Figures
from deltacell.train.config import Config, ScheduleConfig
from deltacell.train.data import load_data
from deltacell.train.loop import (
    LOOK_EVERY,
    MODE_STEPS,
    FiniteGuard,
    Hooks,
    Latest,
    Loop,
    Meter,
    NotFiniteError,
    most_batches,
)
from deltacell.train.predictor import Predictor
from deltacell.train.processes import make_fabric
from deltacell.train.run import train
from deltacell.train.run_directory import MetricsFile
from deltacell.train.task import Ema, Schedule, Task, Validation

Small = Callable[..., Config]


def loop_of(config: Config, **hooks: Any) -> Loop:
    fabric, data = make_fabric(config), load_data(config)
    return make_loop(fabric, config, data, timer=NoTimer(), hooks=Hooks(**hooks))


def task_of(config: Config) -> tuple[Task, Any]:
    data = load_data(config)
    torch.manual_seed(0)
    return Task(build_for(config, data), build_loss(config), data.cell, data.standard), data


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in loop.task.model.named_parameters()}


@pytest.mark.parametrize("hetero", [False, True])
def test_accumulating_equals_a_larger_batch(small: Small, hetero: bool) -> None:
    # The last batch of an epoch is short, together with whole ones.
    plain = ["optimizer.clip=null", "loss=log_cosh", "trainer.precision=64", "trainer.epochs=3"]
    found = []
    for size, accumulate in ((7, 3), (21, 1)):
        given = [f"data.batch_size={size}", f"optimizer.accumulate={accumulate}"]
        loop = loop_of(small(*plain, *given, hetero=hetero))
        before = weights(loop)
        assert loop.run() == 0
        found.append(weights(loop))
        n = loop.training.samples_per_epoch
        assert n % 7
        assert n % 21 > 7
        assert loop.position.step == 3 * -(-n // 21)
        assert any(not torch.equal(before[name], found[-1][name]) for name in before)
        assert {w.dtype for w in loop.task.parameters()} == {torch.float64}
    for name, one in found[0].items():
        torch.testing.assert_close(one, found[1][name], rtol=1e-7, atol=1e-9)


def test_clipping_bounds_the_gradient_before_the_step(small: Small) -> None:
    norms: dict[float, list[float]] = {}
    for clip in (1e-3, 1e3):
        loop = loop_of(small(f"optimizer.clip={clip}", "trainer.epochs=1"))
        seen = norms[clip] = []
        step = loop.optimizer.step

        def spy(seen: list[float] = seen, step: Any = step, loop: Loop = loop) -> None:
            grads = [w.grad for w in loop.task.parameters() if w.grad is not None]
            seen.append(float(torch.stack([g.norm() for g in grads]).norm()))
            step()

        loop.optimizer.step = spy  # type: ignore[method-assign,assignment]
        loop.run()
    assert len(norms[1e-3]) == len(loop.training)
    assert max(norms[1e-3]) == pytest.approx(1e-3, rel=1e-3)
    assert min(norms[1e3]) > 2e-3


def test_samples_per_epoch_are_drawn_anew_for_each(small: Small) -> None:
    rows: list[list[int]] = [[]]

    class Rows(Callback):
        def epoch(self, *_: Any) -> None:
            rows.append([])

    config = small("data.samples_per_epoch=40", "trainer.epochs=3")
    loop = loop_of(config, callbacks=(Rows(),))
    prepare = loop.task.prepare

    def spy(batch: Batch) -> Any:
        if loop.task.model.training:
            rows[-1].extend(batch.rows.tolist())
        return prepare(batch)

    loop.task.prepare = spy  # type: ignore[method-assign]
    loop.run()
    epochs = [set(epoch) for epoch in rows[:3]]
    assert [len(epoch) for epoch in epochs] == [len(epoch) for epoch in rows[:3]] == [40, 40, 40]
    assert loop.position.step == 9
    assert epochs[0] != epochs[1] != epochs[2]
    assert set().union(*epochs) <= set(load_data(config).split.train.tolist())


@pytest.mark.parametrize(
    ("given", "samples", "steps"),
    [
        (["data.batch_size=74"], 74, 1),
        (["data.batch_size=9", "optimizer.accumulate=3"], 74, 3),
        (["data.samples_per_epoch=33"], 33, 3),
        (["data.samples_per_epoch=3300"], 74, 5),
    ],
)
def test_steps_of_an_epoch(small: Small, given: list[str], samples: int, steps: int) -> None:
    config = small("trainer.epochs=1", *given)
    assert samples_per_epoch(config, load_data(config)) == samples
    loop = loop_of(config)
    loop.run()
    assert loop.position.step == loop.schedule.steps_per_epoch == steps


def test_batches_and_epochs_of_modes(small: Small) -> None:
    assert most_batches(small()) is None
    assert most_batches(small("mode=data")) == MODE_STEPS
    loop = loop_of(small("mode=data", "mode_steps=12"))
    assert loop.epochs == 3
    loop.run()
    assert loop.position.step == 12


def test_validation_has_the_same_rows_every_time(small: Small) -> None:
    found: list[Any] = [
        loop_of(small("trainer.validation_samples=3", f"seed={seed}")).validation for seed in (0, 5)
    ]
    assert len(found[0].rows) == 3
    assert np.array_equal(found[0].rows, found[1].rows)
    assert set(found[0].rows.tolist()) <= set(load_data(small()).split.validation.tolist())
    assert (found[0].batch_size, found[0].shuffle) == (4096, False)


def test_patience_stops_after_so_many_validations_without_a_better_one(small: Small) -> None:
    loop = loop_of(small("trainer.epochs=20", "trainer.patience=2"))
    metrics = iter([0.1, 0.3, 0.2, math.nan, 0.9, 0.9])

    class Told:
        def metrics(self) -> dict[str, float]:
            return {"pearson": next(metrics)}

    loop._validate = Told  # type: ignore[method-assign,assignment]
    loop.run()
    assert loop.position.epoch == 4
    assert loop.finished


@pytest.mark.parametrize("ema", [None, 0.9])
def test_when_and_what_is_validated(
    small: Small, monkeypatch: pytest.MonkeyPatch, ema: float | None
) -> None:
    rows: list[dict[str, float]] = []
    given = ["trainer.epochs=5", "trainer.validate_every=2"]
    given += [] if ema is None else [f"trainer.ema={ema}"]
    loop = loop_of(small(*given), row=rows.append)
    seen: list[dict[str, torch.Tensor]] = []
    validate = Task.validate

    def spy(task: Task, loader: Loader) -> Validation:
        seen.append({n: w.detach().clone() for n, w in task.model.named_parameters()})
        return validate(task, loader)

    monkeypatch.setattr(Task, "validate", spy)
    loop.run()
    assert [row["epoch"] for row in rows if "validation_pearson" in row] == [2, 4, 5]
    after = weights(loop)
    assert all(torch.equal(after[name], seen[-1][name]) for name in after) is (ema is None)
    if loop.ema is not None:
        assert all(torch.equal(loop.ema.average[name], seen[-1][name]) for name in after)


def test_saves_after_so_much_time_and_not_twice_for_one_question(small: Small) -> None:
    saved: list[int] = []
    given = ["trainer.epochs=1", "trainer.checkpoint_every_minutes=1e-9"]
    loop = loop_of(small(*given), save=lambda state, metric: saved.append(1))
    loop.run()
    # Of 5 steps every second one and the epoch's end.
    assert loop.position.step == 5
    assert len(saved) == 3


def test_a_signal_saves_within_the_epoch(small: Small) -> None:
    steps: list[int] = []
    loop = loop_of(small(), stop=lambda: 15 if loop.position.step == 3 else 0)
    loop.hooks.save = lambda state, metric: steps.append(state["position"]["step"])
    assert loop.run() == 15
    assert steps == [3]
    assert (loop.position.epoch, loop.position.batch) == (0, 3)


@pytest.mark.parametrize("batches", [3, 5])
def test_a_training_of_some_batches_is_saved_and_continues_as_a_whole_one(
    small: Small, batches: int
) -> None:
    states: list[dict[str, Any]] = []
    short = loop_of(small(f"mode_steps={batches}"), save=lambda state, _: states.append(state))
    assert short.run() == 0
    assert [state["position"]["step"] for state in states] == [batches]
    rest, whole = loop_of(small()), loop_of(small())
    rest.load_state_dict(states[0])
    rest.run()
    whole.run()
    for name, weight in weights(whole).items():
        assert torch.equal(weight, weights(rest)[name])


def test_weights_that_are_not_finite_are_never_saved(small: Small) -> None:
    steps = 0

    def poison(gradient: torch.Tensor) -> torch.Tensor:
        """Break a gradient of the fourth step, whose loss is still finite."""
        nonlocal steps
        steps += 1
        return gradient * (math.nan if steps == 4 else 1.0)

    saved: list[int] = []
    loop = loop_of(small("trainer.checkpoint_every_steps=1", "optimizer.clip=null"))
    loop.hooks.save = lambda state, metric: saved.append(loop.position.step)
    next(iter(loop.task.model.parameters())).register_hook(poison)
    with pytest.raises(NotFiniteError):
        loop.run()
    assert saved == [1, 2, 3]


@pytest.mark.parametrize("hetero", [False, True])
@pytest.mark.parametrize(
    ("precision", "weight", "product"),
    [
        ("32", torch.float32, torch.float32),
        ("64", torch.float64, torch.float64),
        ("bf16", torch.float32, torch.bfloat16),
    ],
)
def test_the_precision_of_weights_products_and_losses(
    small: Small, hetero: bool, precision: str, weight: torch.dtype, product: torch.dtype
) -> None:
    rows: list[dict[str, float]] = []
    given = [f"trainer.precision={precision}", "trainer.epochs=1"]
    loop = loop_of(small(*given, hetero=hetero), row=rows.append)
    products: dict[bool, set[torch.dtype]] = {True: set(), False: set()}

    def see(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        products[torch.is_grad_enabled()].add(output.dtype)

    for module in loop.task.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(see)
    # Without oneDNN, whose bf16 kernels some virtual machines announce and cannot run.
    with torch.backends.mkldnn.flags(enabled=False):
        loop.run()
        values = loop._forward(loop._next(iter(loop.training))[0])
    # The pooling head of a hetero cell is in full precision whatever the autocast.
    assert product in products[True] <= {product, weight}
    assert products[False] == {weight}  # A validation is in full precision.
    assert not torch.is_autocast_enabled("cpu")
    assert {w.dtype for w in loop.task.parameters()} == {weight}
    assert values is not None
    assert values["loss"].dtype == weight
    assert math.isfinite(rows[0]["train_loss"] + rows[0]["validation_mse"])


@pytest.mark.parametrize("hetero", [False, True])
def test_two_runs_of_a_seed_are_equal_bit_for_bit(small: Small, hetero: bool) -> None:
    given = ["trainer.epochs=1"]
    if hetero:
        given += ["propagation=delta", "model.dropout=0.2", "trainer.threads=2"]
    found = []
    for run, seed in (("a", 3), ("b", 3), ("c", 4)):
        path = train(small(*given, f"seed={seed}", hetero=hetero, run=run)).path
        (row,) = MetricsFile(path / "metrics.csv").rows
        found.append({n: v for n, v in row.items() if n not in ("seconds", "samples_per_s")})
    assert found[0] == found[1] != found[2]


class TestTask:
    @pytest.mark.parametrize("size", [1, 5, 1000])
    def test_validation_is_in_the_unit_of_the_screen_whatever_the_batch(
        self, small: Small, size: int
    ) -> None:
        task, data = task_of(small("loss=log_cosh"))
        rows = np.random.default_rng(0).permutation(len(data.screen))[:37]
        loader = Loader(data.screen, rows, batch_size=size, shuffle=False, targets=data.targets)
        for _ in range(2):
            found = task.validate(loader)
            assert np.array_equal(found.rows, rows)
            expected = Predictor(task.model, data.cell, data.standard)(
                data.screen.genotypes.take(torch.tensor(rows))
            ).numpy()
            np.testing.assert_allclose(found.predicted, expected, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(found.measured, data.screen.column("score")[rows])
            # The loss is that of the standardised scores.
            error = (expected - found.measured) / data.standard.std
            assert found.loss == pytest.approx(np.log(np.cosh(error)).mean(), rel=1e-4)

    def test_dropout_rests_in_a_validation(self, small: Small) -> None:
        task, data = task_of(small("model.dropout=0.5", hetero=True))
        task.train()
        loader = Loader(data.screen, shuffle=False, targets=data.targets, batch_size=64)
        before = torch.get_rng_state()
        first, second = task.validate(loader), task.validate(loader)
        assert np.array_equal(first.predicted, second.predicted)
        assert torch.equal(torch.get_rng_state(), before)
        assert task.model.training

    @pytest.mark.parametrize(("loss", "expected"), [("dango", True), ("log_cosh", False)])
    def test_networks_are_reconstructed_only_for_their_loss(
        self, small: Small, monkeypatch: pytest.MonkeyPatch, loss: str, expected: bool
    ) -> None:
        task, data = task_of(small(f"loss={loss}"))
        batch = next(iter(Loader(data.screen, targets=data.targets, batch_size=9)))
        asked: list[Any] = []
        forward = Dango.forward

        def spy(self: Dango, *args: Any, **options: Any) -> Any:
            asked.append(options["reconstruct"])
            return forward(self, *args, **options)

        monkeypatch.setattr(Dango, "forward", spy)
        assert task.training_step(task.prepare(batch))["loss"].requires_grad
        assert asked == [expected]

    @pytest.mark.parametrize("hetero", [False, True])
    def test_weight_decay_leaves_gains_biases_and_scales_alone(
        self, small: Small, hetero: bool
    ) -> None:
        """With no gradient, one step of AdamW is the decay alone."""
        config = small("optimizer.weight_decay=0.5", "optimizer.beta1=0.8", hetero=hetero)
        task, _ = task_of(config)
        optimizer = task.make_optimizer(config.optimizer)
        assert optimizer.param_groups[0]["betas"] == (0.8, 0.999)
        for weight in task.parameters():
            nn.init.ones_(weight)
            weight.grad = torch.zeros_like(weight)
        optimizer.step()
        for name, weight in task.model.named_parameters():
            plain = name.endswith(("bias", "beta", "eps")) or "norm" in name
            assert bool((weight == 1).all()) is plain, name

    def test_metrics_are_those_of_scipy(self) -> None:
        draw = np.random.default_rng(0)
        measured = draw.normal(size=200)
        predicted = measured + draw.normal(size=200)
        found = Validation(np.arange(200), measured, predicted, 0.5).metrics()
        assert found["pearson"] == pytest.approx(stats.pearsonr(measured, predicted)[0])
        assert found["spearman"] == pytest.approx(stats.spearmanr(measured, predicted)[0], rel=1e-5)
        assert found["mse"] == pytest.approx(np.mean((measured - predicted) ** 2))
        for few in ([[1.0, 2.0], [3.0, 3.0]], [[1.0], [2.0]], [[], []]):
            metrics = Validation(np.arange(len(few[0])), *map(np.array, few), 0.0).metrics()
            assert math.isnan(metrics["pearson"])
            assert math.isnan(metrics["spearman"])
            assert math.isnan(metrics["mse"]) is (not few[0])


class TestMeter:
    def test_means_are_over_genotypes_and_in_double_precision(self) -> None:
        meter = Meter("cpu")
        meter.add({"loss": torch.tensor(1.0), "mse": torch.tensor(2.0)}, 30)
        meter.add({"loss": torch.tensor(4.0), "mse": torch.tensor(0.0)}, 10)
        assert meter.means() == {"loss": 1.75, "mse": 1.5}
        meter.reset()
        assert meter.state_dict() == {"genotypes": 0, "sums": {}}
        meter.add({"loss": torch.tensor(1e8)}, 1)
        for _ in range(1000):
            meter.add({"loss": torch.tensor(1.0)}, 1)
        assert meter.means()["loss"] * 1001 == pytest.approx(1e8 + 1000, rel=1e-12)

    def test_state_continues_in_the_first_rank_alone(self) -> None:
        meter, first, other = (Meter("cpu") for _ in range(3))
        meter.add({"loss": torch.tensor(2.0)}, 4)
        first.load_state_dict(meter.state_dict())
        other.load_state_dict(meter.state_dict(), first=False)
        assert other.means() == {"loss": 0.0}
        first.add({"loss": torch.tensor(8.0)}, 4)
        assert (meter.means(), first.means()) == ({"loss": 2.0}, {"loss": 5.0})

    def test_latest_is_the_newest_value(self) -> None:
        assert Latest().look(torch.tensor(2.5, requires_grad=True)) == 2.5


class Event:
    """Stands for a device's: it has happened when it is asked for the second time."""

    asked = 0

    def record(self) -> None:
        pass

    def query(self) -> bool:
        self.asked += 1
        return self.asked > 1


class TestFinite:
    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_a_cpu_says_so_at_once(self, value: float) -> None:
        guard = FiniteGuard("cpu")
        guard.see(torch.tensor(1.0), 6, 2, torch.tensor([1, 2]))
        with pytest.raises(NotFiniteError) as caught:
            guard.see(torch.tensor(value), 7, 2, torch.tensor([3, 4]))
        assert (caught.value.step, caught.value.epoch) == (7, 2)
        assert caught.value.rows.tolist() == [3, 4]

    @pytest.mark.parametrize("bad", [1, 5, LOOK_EVERY, LOOK_EVERY + 3, 4 * LOOK_EVERY])
    def test_a_device_is_asked_later(self, monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
        plain = torch.empty

        def empty(*args: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
            return plain(*args, **options)

        monkeypatch.setattr(loop_module.torch, "empty", empty)
        monkeypatch.setattr(loop_module.torch.cuda, "Event", Event)
        guard = FiniteGuard("cpu")
        guard.device = torch.device("cuda")

        def see_all() -> None:
            for step in range(1, 4 * LOOK_EVERY + 1):
                loss = torch.tensor(math.nan if step == bad else 1.0)
                guard.see(loss, step, 1, torch.tensor([step]))
            guard.settle()

        with pytest.raises(NotFiniteError) as caught:
            see_all()
        assert (caught.value.step, caught.value.rows.tolist()) == (bad, [bad])


class TestEma:
    def test_average_is_that_of_the_formula(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 2).double()
        ema = Ema(model, 0.6)
        expected = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        for step in (*range(12), 10_000):
            with torch.no_grad():
                for weight in model.parameters():
                    weight.add_(torch.randn_like(weight))
            ema.update(step)
            decay = min(0.6, (1 + step) / (10 + step))
            for name, weight in model.named_parameters():
                expected[name] = decay * expected[name] + (1 - decay) * weight.detach()
        for name, average in ema.average.items():
            torch.testing.assert_close(average, expected[name], rtol=1e-12, atol=1e-12)
        other = Ema(nn.Linear(3, 2).double(), 0.6)
        other.load_state_dict(ema.state_dict())
        assert torch.equal(other.average["weight"], ema.average["weight"])

    def test_in_place_gives_the_average_and_takes_it_back_even_after_an_error(self) -> None:
        model = nn.Linear(2, 1)
        ema = Ema(model, 0.9)
        before = model.weight.detach().clone()
        nn.init.ones_(model.weight)

        def fail() -> None:
            with ema.in_place():
                assert torch.equal(model.weight, before)
                raise KeyError

        with pytest.raises(KeyError):
            fail()
        assert bool((model.weight == 1).all())
        assert torch.equal(ema.average["weight"], before)


LR, STEPS, EPOCHS = 0.1, 4, 6
SCHEDULES = ("constant", "cosine", "warm_restarts", "plateau")


def schedule(**options: Any) -> Schedule:
    optimizer = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], lr=LR)
    return Schedule(optimizer, ScheduleConfig(**options), STEPS, EPOCHS)


class TestSchedule:
    @pytest.mark.parametrize("name", SCHEDULES)
    def test_the_first_step_has_the_full_rate_or_warms_up(self, name: str) -> None:
        found, without = schedule(name=name, warmup_steps=5), schedule(name=name)
        assert without.rate(0) == without.optimizer.param_groups[0]["lr"] == LR
        for done in range(STEPS * EPOCHS):
            rate = without.rate(done)
            expected = min(rate, LR * (done + 1) / 5) if done < 5 else rate
            assert found.rate(done) == pytest.approx(expected)
            assert name != "constant" or rate == LR

    def test_cosine_falls_over_the_whole_training(self) -> None:
        found = schedule(name="cosine", min_lr=0.01)
        assert all(found.rate(a) > found.rate(b) for a, b in pairwise(range(STEPS * EPOCHS)))
        assert found.rate(6) == pytest.approx(0.01 + 0.09 * (1 + math.cos(math.pi / 4)) / 2)
        # A training that is made longer afterwards does not rise again.
        assert found.rate(STEPS * EPOCHS) == found.rate(10 * STEPS * EPOCHS) == pytest.approx(0.01)
        found.apply(STEPS * EPOCHS // 2)
        assert found.optimizer.param_groups[0]["lr"] == pytest.approx(0.055)

    @pytest.mark.parametrize(("factor", "full"), [(1, [0, 4, 8, 12, 16]), (2, [0, 4, 12])])
    def test_warm_restarts(self, factor: int, full: list[int]) -> None:
        found = schedule(name="warm_restarts", period=1, period_factor=factor)
        assert [done for done in range(20) if found.rate(done) == LR] == full
        assert found.rate(3) == pytest.approx(LR * (1 + math.cos(math.pi * 3 / 4)) / 2)

    def test_plateau_steps_after_its_patience_and_its_state_continues(self) -> None:
        found = schedule(name="plateau", factor=0.5, patience=2, min_lr=0.02)
        seen = []
        for metric in (0.1, 0.2, 0.2, math.nan, 0.15, 0.1, 0.1, 0.1, 0.3, 0.2, 0.2):
            found.validated(metric)
            other = schedule(name="plateau", factor=0.5, patience=2, min_lr=0.02)
            other.load_state_dict(found.state_dict())
            found = other
            seen.append(found.rate(100) / LR)
        assert seen == [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25]
        for _ in range(9):
            found.validated(0.0)
        assert found.rate(100) == 0.02


def test_figures_count_as_checkpoints_and_not_as_logging(tmp_path: Path) -> None:
    seen = []

    class Timer(NoTimer):
        def phase(self, name: str) -> Any:
            seen.append(name)
            return nullcontext()

    metrics = MetricsFile(tmp_path / "metrics.csv")
    figures = Figures(tmp_path, metrics, 2, Timer())
    draw = np.random.default_rng(0)
    for epoch in range(1, 5):
        row = {"epoch": epoch, "step": 5 * epoch, "train_loss": 1 / epoch}
        metrics.append(row)
        scores = draw.normal(size=(2, epoch - 1))
        validation = Validation(np.arange(epoch - 1), *scores, 0.1) if epoch != 4 else None
        figures.epoch(row, validation, 5 * epoch)
    files = sorted((tmp_path / "figures").iterdir())
    assert [file.name for file in files] == ["learning.svg", "validation-epoch0002.png"]
    assert all(file.stat().st_size > 1000 for file in files)
    assert seen == ["checkpoint", "checkpoint"]
