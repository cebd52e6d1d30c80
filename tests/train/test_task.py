"""The task: a model, its loss and the scale of its targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from deltacell.models import Dango
from deltacell.screen import Loader
from deltacell.train.build import make_task
from deltacell.train.config import Config
from deltacell.train.data import load_data
from deltacell.train.predictor import Predictor

Small = Callable[..., Config]


@pytest.mark.parametrize("hetero", [False, True])
def test_scores_are_in_the_unit_of_the_screen(small: Small, hetero: bool) -> None:
    config = small("loss=log_cosh", hetero=hetero)
    data = load_data(config)
    torch.manual_seed(0)
    task = make_task(config, data).eval()
    batch = next(iter(Loader(data.screen, targets=data.targets, batch_size=9)))
    with torch.no_grad():
        raw = task(task.prepare(batch).genotypes).score
        found = task.validation_step(task.prepare(batch))
    expected = raw * data.standard.std + data.standard.mean
    torch.testing.assert_close(found["score"], expected)
    predictor = Predictor(task.model, data.cell, data.standard)
    torch.testing.assert_close(predictor(batch.genotypes), expected)
    # The loss is of the common scale.
    error = raw - batch.targets
    torch.testing.assert_close(found["loss"], torch.log(torch.cosh(error)).mean())


@pytest.mark.parametrize(("loss", "expected"), [("dango", True), ("log_cosh", False)])
def test_networks_are_reconstructed_only_for_the_loss_of_them(
    small: Small, monkeypatch: pytest.MonkeyPatch, loss: str, expected: bool
) -> None:
    config = small(f"loss={loss}")
    data = load_data(config)
    task = make_task(config, data)
    batch = next(iter(Loader(data.screen, targets=data.targets, batch_size=9)))
    asked: list[Any] = []
    forward = Dango.forward

    def spy(self: Dango, *args: Any, **options: Any) -> Any:
        asked.append(options["reconstruct"])
        return forward(self, *args, **options)

    monkeypatch.setattr(Dango, "forward", spy)
    values = task.training_step(task.prepare(batch))
    assert asked == [expected]
    assert values["loss"].requires_grad


def test_adamw_is_as_the_config_says(small: Small) -> None:
    config = small(
        "optimizer.lr=0.003",
        "optimizer.weight_decay=0.02",
        "optimizer.beta1=0.8",
        "optimizer.beta2=0.95",
    )
    task = make_task(config, load_data(config))
    optimizer = task.configure_optimizers()
    assert isinstance(optimizer, torch.optim.AdamW)
    for group, decay in zip(optimizer.param_groups, (0.02, 0.0), strict=True):
        assert (group["lr"], group["weight_decay"], group["betas"]) == (0.003, decay, (0.8, 0.95))
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(
        list(task.model.parameters())
    )


@pytest.mark.parametrize("hetero", [False, True])
def test_weight_decay_leaves_gains_biases_and_scales_alone(small: Small, hetero: bool) -> None:
    """With no gradient, one step of AdamW is the decay alone."""
    config = small("optimizer.weight_decay=0.5", "optimizer.lr=0.1", hetero=hetero)
    task = make_task(config, load_data(config))
    optimizer = task.configure_optimizers()
    before = {}
    for name, weight in task.model.named_parameters():
        with torch.no_grad():
            weight.fill_(1.0)
        weight.grad = torch.zeros_like(weight)
        before[name] = weight
    optimizer.step()
    moved = {name for name, weight in before.items() if not bool((weight == 1).all())}
    kept = set(before) - moved
    assert all(name.endswith(("bias", "beta", "eps")) or "norm" in name for name in kept)
    assert not any(name.endswith(("bias", "beta", "eps")) or "norm" in name for name in moved)
    assert any("beta" in name for name in kept)
    assert any("embedding" in name for name in moved)
