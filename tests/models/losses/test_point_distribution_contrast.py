"""Point, distribution and contrast: terms, buffer, schedules."""

from __future__ import annotations

import io
import math

import pytest
import torch

from deltacell import InputError
from deltacell.models import PointDistributionContrast, Prediction
from deltacell.models.losses import supcr, wasserstein


def _batch(n: int, seed: int = 0) -> tuple[Prediction, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(n, generator=generator, requires_grad=True)
    z = torch.randn(n, 4, generator=generator, requires_grad=True)
    return Prediction(score, {"z": z}), torch.randn(n, generator=generator)


def test_the_terms_of_a_first_batch() -> None:
    prediction, y = _batch(6)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    loss = PointDistributionContrast(2.0, 0.1, 0.05, width=4)
    value = loss(prediction, y, weights, epoch=0)
    z = prediction.intermediate["z"]
    mse = (weights * (prediction.score - y).square()).sum()
    w, c = wasserstein(prediction.score, y), supcr(z, y, 1.0)
    torch.testing.assert_close(value.total, 2 * mse + 0.1 * w + 0.05 * c)
    assert set(value.parts) == {"mse", "wasserstein", "supcr"}
    torch.testing.assert_close(value.parts["supcr"], c.detach())


def test_a_term_with_factor_0_is_left_out() -> None:
    prediction, y = _batch(6)
    value = PointDistributionContrast(1.0, 0.0, 0.0)(prediction, y, epoch=0)
    assert set(value.parts) == {"mse"}
    torch.testing.assert_close(value.total, (prediction.score - y).square().mean())


def test_the_buffer_has_its_share_of_the_rows() -> None:
    loss = PointDistributionContrast(0.0, 1.0, 1.0, width=4, warmup=10, stable=20, buffer=100)
    batches = [_batch(8, seed) for seed in range(12)]
    for prediction, y in batches[:-1]:
        loss(prediction, y, epoch=0)
    prediction, y = batches[-1]
    value = loss(prediction, y, epoch=15)
    # A share of 0.6: one and a half rows of the buffer for each of the batch, the latest.
    recent = [*range(88 - 12, 88)]
    score = torch.cat([p.score for p, _ in batches[:-1]]).detach()[recent]
    z = torch.cat([p.intermediate["z"] for p, _ in batches[:-1]]).detach()[recent]
    target = torch.cat([t for _, t in batches[:-1]])[recent]
    assert loss.buffer_share(15) == pytest.approx(0.6)
    all_y = torch.cat([y, target])
    torch.testing.assert_close(
        value.parts["wasserstein"],
        wasserstein(torch.cat([prediction.score, score]), all_y).detach(),
    )
    torch.testing.assert_close(
        value.parts["supcr"],
        supcr(torch.cat([prediction.intermediate["z"], z]), all_y, loss.temperature(15)).detach(),
    )


def test_only_the_batch_has_a_gradient() -> None:
    loss = PointDistributionContrast(0.0, 1.0, 1.0, width=4, warmup=1, stable=1)
    (before, y_before), (now, y) = _batch(8, 1), _batch(8, 2)
    loss(before, y_before, epoch=5)
    loss(now, y, epoch=5).total.backward()
    assert before.score.grad is None
    assert now.score.grad is not None
    assert now.score.grad.any()
    assert now.intermediate["z"].grad is not None
    assert now.intermediate["z"].grad.any()


def test_the_ring_goes_round() -> None:
    loss = PointDistributionContrast(0.0, 1.0, warmup=1, stable=1, buffer=10)
    for seed in range(5):
        prediction, y = _batch(7, seed)
        loss(prediction, y, epoch=1)
    expected = torch.cat([_batch(7, 3)[0].score, _batch(7, 4)[0].score])[-10:].detach()
    assert len(loss.buffer) == 10
    assert torch.equal(loss.buffer.latest(99)["score"], expected)
    prediction, y = _batch(33, 9)
    loss(prediction, y, epoch=1)
    assert torch.equal(loss.buffer.latest(10)["target"], y[-10:])


def test_no_buffer_and_no_rows() -> None:
    loss = PointDistributionContrast(1.0, 1.0, 1.0, width=4, buffer=0)
    for _ in range(2):
        prediction, y = _batch(5)
        value = loss(prediction, y, epoch=999)
        torch.testing.assert_close(
            value.parts["wasserstein"], wasserstein(prediction.score, y).detach()
        )
    empty, y = _batch(0)
    value = loss(empty, y, epoch=0)
    value.total.backward()
    assert value.total == 0


def test_after_eval_the_buffer_is_left_alone() -> None:
    loss = PointDistributionContrast(0.0, 1.0, warmup=1, stable=1)
    prediction, y = _batch(8)
    loss(prediction, y, epoch=1)
    loss.eval()
    other, other_y = _batch(8, 1)
    value = loss(other, other_y, epoch=1)
    torch.testing.assert_close(value.total, wasserstein(other.score, other_y))
    assert len(loss.buffer) == 8


def test_a_saved_state_goes_on_as_if_never_stopped() -> None:
    def made() -> PointDistributionContrast:
        return PointDistributionContrast(1.0, 1.0, 1.0, width=4, warmup=1, stable=1, buffer=20)

    straight = made()
    for seed in range(4):
        straight(*_batch(7, seed), epoch=2)
    file = io.BytesIO()
    torch.save(straight.state_dict(), file)
    file.seek(0)
    resumed = made()
    resumed.load_state_dict(torch.load(file, weights_only=True))
    batch = _batch(7, 9)
    torch.testing.assert_close(resumed(*batch, epoch=2).total, straight(*batch, epoch=2).total)
    assert resumed.steps == straight.steps


def test_the_schedules() -> None:
    loss = PointDistributionContrast(warmup=100, stable=500, max_epochs=1000)
    assert loss.buffer_share(0) == pytest.approx(0.1)
    assert loss.buffer_share(50) == pytest.approx(0.2)
    assert loss.buffer_share(100) == pytest.approx(0.3 + 0.6 / (1 + math.exp(5)))
    assert loss.buffer_share(300) == pytest.approx(0.6)
    assert loss.buffer_share(400) == pytest.approx(0.3 + 0.6 / (1 + math.exp(-2.5)))
    assert loss.buffer_share(500) == loss.buffer_share(9999) == 0.9
    assert loss.temperature(0) == pytest.approx(1.0)
    assert loss.temperature(500) == pytest.approx(math.sqrt(0.1))
    assert loss.temperature(1000) == loss.temperature(2000) == pytest.approx(0.1)


def test_halves_are_computed_in_float32() -> None:
    prediction, y = _batch(6)
    halves = Prediction(prediction.score.bfloat16(), {"z": prediction.intermediate["z"].bfloat16()})
    value = PointDistributionContrast(1.0, 1.0, 1.0, width=4)(halves, y, epoch=0)
    assert value.total.dtype == torch.float32


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"lambda_c is 0.1, and the width"):
        PointDistributionContrast(lambda_c=0.1)
    with pytest.raises(InputError, match="stable is epoch 5, before warmup, epoch 10"):
        PointDistributionContrast(warmup=10, stable=5)
    with pytest.raises(InputError, match=r"temperature is 0\.0; expected more than 0"):
        PointDistributionContrast(temperature=0.0)
    with pytest.raises(InputError, match="lambda_w is -1; expected 0 or more"):
        PointDistributionContrast(lambda_w=-1)
    with pytest.raises(InputError, match="gather_interval is -1"):
        PointDistributionContrast(gather_interval=-1)
    loss = PointDistributionContrast(lambda_c=0.1, width=4, vectors="z_global")
    with pytest.raises(InputError, match="no vectors 'z_global'; it has z"):
        loss(*_batch(3), epoch=0)
