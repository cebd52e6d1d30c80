"""DANGO's loss and its schedules."""

from __future__ import annotations

import pytest
import torch

from deltacell import InputError
from deltacell.models import DangoLoss, Prediction
from deltacell.models.losses import log_cosh


def _prediction() -> Prediction:
    return Prediction(
        torch.tensor([0.2, -0.4]), {"reconstruction": torch.tensor([0.01, 0.03, 0.05])}
    )


@pytest.mark.parametrize(
    ("schedule", "alphas"),
    [
        ("pre_then_post", {0: 1.0, 9: 1.0, 10: 0.0, 500: 0.0}),
        ("linear_until_uniform", {0: 1.0, 5: 0.75, 10: 0.5, 11: 0.5, 500: 0.5}),
        ("linear_until_flipped", {0: 1.0, 5: 0.5, 10: 0.0, 11: 0.0, 500: 0.0}),
    ],
)
def test_alpha_over_epochs(schedule: str, alphas: dict[int, float]) -> None:
    loss = DangoLoss(schedule)  # type: ignore[arg-type]
    targets = torch.tensor([0.0, 0.1])
    interaction = log_cosh(torch.tensor([0.2, -0.5])).mean()
    for epoch, alpha in alphas.items():
        assert loss.factors(epoch) == pytest.approx((alpha, 1 - alpha))
        value = loss(_prediction(), targets, epoch=epoch)
        torch.testing.assert_close(value.total, alpha * 0.03 + (1 - alpha) * interaction)
        torch.testing.assert_close(value.parts["interaction"], interaction)
        torch.testing.assert_close(value.parts["reconstruction"], torch.tensor(0.03))


def test_the_additive_variant() -> None:
    interaction = log_cosh(torch.tensor([0.2, -0.4])).mean()
    for epoch in (0, 100):
        value = DangoLoss("additive")(_prediction(), torch.zeros(2), epoch=epoch)
        torch.testing.assert_close(value.total, interaction + 0.001 * 0.03)


def test_the_turn_can_be_another() -> None:
    assert DangoLoss("linear_until_flipped", turn=4).factors(1) == (0.75, 0.25)


def test_ranks_add_up_to_the_whole_batch() -> None:
    whole = Prediction(
        torch.tensor([0.2, -0.4, 0.7]), {"reconstruction": torch.tensor([0.01, 0.03])}
    )
    targets, weights = torch.tensor([0.0, 0.1, 0.2]), torch.tensor([0.5, 0.3, 0.2])
    loss = DangoLoss()
    parts = [
        loss(Prediction(whole.score[at], whole.intermediate), targets[at], weights[at], epoch=4)
        for at in (slice(0, 2), slice(2, 3), slice(3, 3))
    ]
    total = torch.stack([part.total for part in parts]).sum()
    torch.testing.assert_close(total, loss(whole, targets, weights, epoch=4).total)


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"no schedule 'flipped'; there are pre_then_post, "):
        DangoLoss("flipped")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="turn is 0"):
        DangoLoss(turn=0)
    with pytest.raises(InputError, match="no reconstruction loss"):
        DangoLoss()(Prediction(torch.zeros(2)), torch.zeros(2), epoch=0)
