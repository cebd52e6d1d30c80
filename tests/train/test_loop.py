"""The loop: what a step is, when it saves, and when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deltacell.profile.phases import NoTimer
from deltacell.screen import Batch
from deltacell.train.build import make_loop
from deltacell.train.checkpoints import Checkpoints
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.loop import Hooks, Loop
from deltacell.train.processes import make_fabric
from deltacell.train.run import train
from deltacell.train.run_directory import MetricsFile
from deltacell.train.task import Task

Small = Callable[..., Config]


def loop_of(config: Config, **hooks: Any) -> Loop:
    return make_loop(
        make_fabric(config), config, load_data(config), timer=NoTimer(), hooks=Hooks(**hooks)
    )


def weights(loop: Loop) -> dict[str, torch.Tensor]:
    return {name: w.detach().clone() for name, w in loop.task.model.named_parameters()}


def weights_of(path: Path) -> dict[str, torch.Tensor]:
    return dict(Checkpoints(path / "checkpoints").load("last")["model"])


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

    class Rows:
        def begin(self, *_: Any) -> None:
            pass

        def step(self, *_: Any) -> None:
            pass

        def epoch(self, *_: Any) -> None:
            rows.append([])

        def close(self) -> None:
            pass

    config = small("data.samples_per_epoch=40", "trainer.epochs=3")
    loop = loop_of(config)
    loop.hooks.callbacks = (Rows(),)
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


def test_validate_every_few_epochs_and_at_the_end(small: Small) -> None:
    rows: list[dict[str, float]] = []
    loop_of(small("trainer.epochs=5", "trainer.validate_every=2"), row=rows.append).run()
    assert [row["epoch"] for row in rows if "validation_pearson" in row] == [2, 4, 5]


@pytest.mark.parametrize(("ema", "same"), [(None, True), (0.9, False)])
def test_with_an_average_that_is_what_is_validated(
    small: Small, monkeypatch: pytest.MonkeyPatch, ema: float | None, same: bool
) -> None:
    loop = loop_of(small("trainer.epochs=1", *([] if ema is None else [f"trainer.ema={ema}"])))
    seen: list[dict[str, torch.Tensor]] = []
    step = Task.validation_step

    def spy(task: Task, *args: Any) -> dict[str, torch.Tensor]:
        seen.append({n: w.detach().clone() for n, w in task.model.named_parameters()})
        return step(task, *args)

    monkeypatch.setattr(Task, "validation_step", spy)
    loop.run()
    after = weights(loop)
    assert all(torch.equal(after[name], seen[0][name]) for name in after) is same
    if loop.ema is not None:
        assert all(torch.equal(loop.ema.average[name], seen[0][name]) for name in after)


def test_saves_after_so_much_time_and_not_twice_for_one_question(small: Small) -> None:
    saved: list[int] = []
    loop = loop_of(small("trainer.epochs=1"), save=lambda state, metric: saved.append(1))
    loop.limits = loop.limits.__class__(epochs=1, save_every_seconds=0.0)
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
def test_a_training_of_some_batches_is_saved_and_goes_on_as_a_whole_one(
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


def test_weights_that_are_no_numbers_are_never_saved(small: Small, tmp_path: Path) -> None:
    class Poison:
        """Breaks a gradient of the fourth step, whose loss is still a number."""

        steps = 0

        def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            return gradient * (math.nan if self.steps == 4 else 1.0)

    saved: list[int] = []
    config = small("trainer.checkpoint_every_steps=1", "optimizer.clip=null")
    loop = loop_of(config)
    loop.hooks.save = lambda state, metric: saved.append(loop.position.step)
    next(iter(loop.task.model.parameters())).register_hook(Poison())
    with pytest.raises(Exception, match=r"(weight|loss) is nan at step [45]"):
        loop.run()
    assert saved == [1, 2, 3]


def test_precision_of_64_bits_goes_all_the_way(small: Small) -> None:
    for hetero in (False, True):
        loop = loop_of(small("trainer.precision=64", "trainer.epochs=1", hetero=hetero))
        loop.run()
        assert {w.dtype for w in loop.task.parameters()} == {torch.float64}, hetero


@pytest.mark.parametrize("hetero", [False, True])
def test_bfloat16_keeps_its_weights_in_single_precision(small: Small, hetero: bool) -> None:
    rows: list[dict[str, float]] = []
    given = ["trainer.precision=bf16", "trainer.epochs=1"]
    loop = loop_of(small(*given, hetero=hetero), row=rows.append)
    loop.run()
    assert {w.dtype for w in loop.task.parameters()} == {torch.float32}
    assert math.isfinite(rows[0]["train_loss"])
    assert math.isfinite(rows[0]["validation_mse"])


@pytest.mark.parametrize("hetero", [False, True])
def test_two_runs_of_a_seed_are_equal_bit_for_bit(small: Small, hetero: bool) -> None:
    given = ["trainer.epochs=1"]
    if hetero:
        given += ["propagation=delta", "model.dropout=0.2", "trainer.threads=2"]
    paths = []
    for run, seed in (("a", 3), ("b", 3), ("c", 4)):
        config = small(*given, f"seed={seed}", hetero=hetero, run=run)
        paths.append(train(config).path)
    a, b, c = map(weights_of, paths)
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert any(not torch.equal(a[name], c[name]) for name in a)
    rows = [MetricsFile(path / "metrics.csv").rows for path in paths[:2]]
    for one, other in zip(*rows, strict=True):
        for name in ("train_loss", "validation_loss", "validation_pearson", "validation_mse", "lr"):
            assert one[name] == other[name]
