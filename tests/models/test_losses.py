"""The losses: their formulas, schedules and buffer, and what they refuse."""

import math
from itertools import permutations

import mpmath
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.models import DangoLoss, LogCosh, PointDistributionContrast, Prediction, losses
from deltacell.models.losses import log_cosh, supcr, wasserstein


@pytest.mark.parametrize("x", [0.0, 1e-6, 0.3, 0.999999, 1.0, 1.000001, 5.0, 80.0, 1e6, 3e38])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_cosh_is_exact_near_0_and_finite_far_away(x, dtype):
    for signed in (x, -x):
        t = torch.tensor(signed, dtype=dtype, requires_grad=True)
        y = log_cosh(t)
        y.backward()
        with mpmath.workdps(60):
            far = abs(mpmath.mpf(t.item())) - mpmath.log(2)
            exact = far if x > 1e5 else mpmath.log(mpmath.cosh(mpmath.mpf(t.item())))
        rtol = 1e-6 if dtype == torch.float32 else 1e-13
        assert y.item() == pytest.approx(float(exact), rel=rtol, abs=1e-30)
        assert t.grad is not None
        assert t.grad.item() == pytest.approx(float(mpmath.tanh(t.item())), rel=rtol)


def test_the_log_cosh_loss_is_the_weighted_sum():
    prediction, targets = Prediction(torch.tensor([1.0, 2.0])), torch.tensor([0.5, 4.0])
    each, loss = log_cosh(torch.tensor([0.5, -2.0])), LogCosh()
    weighted = loss(prediction, targets, torch.tensor([0.25, 0.5]), epoch=0)
    torch.testing.assert_close(weighted.total, 0.25 * each[0] + 0.5 * each[1])
    torch.testing.assert_close(loss(prediction, targets, epoch=3).total, each.mean())
    assert set(weighted.parts) == {"log_cosh"}


@pytest.mark.parametrize(
    ("schedule", "alphas"),
    [
        ("pre_then_post", {0: 1.0, 9: 1.0, 10: 0.0, 500: 0.0}),
        ("linear_until_uniform", {0: 1.0, 5: 0.75, 10: 0.5, 500: 0.5}),
        ("linear_until_flipped", {0: 1.0, 5: 0.5, 10: 0.0, 500: 0.0}),
    ],
)
def test_alpha_over_epochs(schedule, alphas):
    prediction = Prediction(
        torch.tensor([0.2, -0.4]),
        {"reconstruction": torch.tensor([0.01, 0.05])},
    )
    targets, interaction = torch.tensor([0.0, 0.1]), log_cosh(torch.tensor([0.2, -0.5])).mean()
    for epoch, alpha in alphas.items():
        value = DangoLoss(schedule)(prediction, targets, epoch=epoch)
        torch.testing.assert_close(value.total, alpha * 0.03 + (1 - alpha) * interaction)
        torch.testing.assert_close(value.parts["interaction"], interaction)
        additive = DangoLoss("additive")(prediction, targets, epoch=epoch)
        torch.testing.assert_close(additive.total, interaction + 0.001 * 0.03)
    assert DangoLoss("linear_until_flipped", turn=4).factors(1) == (0.75, 0.25)


def test_wasserstein_is_the_cheapest_of_all_plans():
    torch.manual_seed(0)
    for n in range(1, 6):
        x, y = torch.randn(2, n, dtype=torch.float64, requires_grad=True)
        costs = [(x - y[list(p)]).square().mean() / 2 for p in permutations(range(n))]
        found, best = wasserstein(x, y), torch.stack(costs).min()
        torch.testing.assert_close(found, best)
        torch.testing.assert_close(torch.autograd.grad(found, x), torch.autograd.grad(best, x))
    assert wasserstein(torch.zeros(0), torch.zeros(0)) == 0


def naive_supcr(z, y, t):
    unit, n = z / z.norm(dim=1, keepdim=True), len(z)
    terms = []
    for i, j in permutations(range(n), 2):
        far = [k for k in range(n) if k != i and abs(y[i] - y[k]) >= abs(y[i] - y[j])]
        similarity = [torch.exp(unit[i] @ unit[k] / t) for k in far]
        terms.append(-torch.log(torch.exp(unit[i] @ unit[j] / t) / sum(similarity)))
    return torch.stack(terms).mean()


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.integers(-2, 2) | st.floats(-2, 2), min_size=2, max_size=7),
    st.sampled_from([0.1, 0.5, 1.0]),
    st.integers(0, 2**32),
)
def test_supcr_is_the_formula_with_ties(levels, t, seed):
    torch.manual_seed(seed)
    z = torch.randn(len(levels), 3, dtype=torch.float64, requires_grad=True)
    y = torch.tensor(levels, dtype=torch.float64)
    fast, slow = supcr(z, y, t), naive_supcr(z, y, t)
    torch.testing.assert_close(fast, slow, rtol=1e-10, atol=1e-12)
    gradients = (torch.autograd.grad(loss, z) for loss in (fast, slow))
    torch.testing.assert_close(*gradients, rtol=1e-8, atol=1e-10)


def test_supcr_of_few_vectors_and_inside_autocast():
    for n in (0, 1):
        loss = supcr(torch.randn(n, 3, requires_grad=True), torch.zeros(n), 0.1)
        loss.backward()
        assert loss == 0
    z, y = torch.randn(6, 8), torch.randn(6)
    with torch.autocast("cpu", torch.bfloat16):
        cast = supcr(z, y, 0.1)
    assert torch.equal(cast, supcr(z, y, 0.1))


def batch_of(n, seed=0):
    generator = torch.Generator().manual_seed(seed)
    score = torch.randn(n, generator=generator, requires_grad=True)
    z = torch.randn(n, 4, generator=generator, requires_grad=True)
    return Prediction(score, {"z": z}), torch.randn(n, generator=generator)


def test_the_terms_of_a_first_batch():
    prediction, y = batch_of(6)
    weights = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1])
    value = PointDistributionContrast(2.0, 0.1, 0.05, width=4)(prediction, y, weights, epoch=0)
    mse = (weights * (prediction.score - y).square()).sum()
    w, c = wasserstein(prediction.score, y), supcr(prediction.intermediate["z"], y, 1.0)
    torch.testing.assert_close(value.total, 2 * mse + 0.1 * w + 0.05 * c)
    torch.testing.assert_close(value.parts["supcr"], c.detach())
    alone = PointDistributionContrast(1.0, 0.0, 0.0)(prediction, y, epoch=0)
    assert set(alone.parts) == {"mse"}
    torch.testing.assert_close(alone.total, (prediction.score - y).square().mean())
    halves = Prediction(prediction.score.bfloat16(), {"z": prediction.intermediate["z"].bfloat16()})
    rounded = PointDistributionContrast(1.0, 1.0, 1.0, width=4)(halves, y, epoch=0)
    assert rounded.total.dtype == torch.float32


def test_the_buffer_has_its_share_of_the_rows_and_no_gradient():
    loss = PointDistributionContrast(0.0, 1.0, 1.0, width=4, warmup=10, stable=20, buffer=100)
    batches = [batch_of(8, seed) for seed in range(12)]
    for prediction, y in batches[:-1]:
        loss(prediction, y, epoch=0)
    prediction, y = batches[-1]
    value = loss(prediction, y, epoch=15)
    # A share of 0.6: one and a half rows of the buffer for each of the batch, the latest.
    assert loss.buffer_share(15) == pytest.approx(0.6)
    score = torch.cat([p.score for p, _ in batches[:-1]])[-12:]
    z = torch.cat([p.intermediate["z"] for p, _ in batches[:-1]])[-12:]
    all_y = torch.cat([y, torch.cat([t for _, t in batches[:-1]])[-12:]])
    w = wasserstein(torch.cat([prediction.score, score]), all_y)
    c = supcr(torch.cat([prediction.intermediate["z"], z]), all_y, loss.temperature(15))
    torch.testing.assert_close([*value.parts.values()][1:], [w.detach(), c.detach()])
    value.total.backward()
    assert batches[-2][0].score.grad is None
    assert prediction.score.grad is not None
    assert prediction.score.grad.any()
    loss.eval()
    alone = loss(prediction, y, epoch=15).parts["wasserstein"]
    torch.testing.assert_close(alone, wasserstein(prediction.score, y).detach())
    assert loss.written == 96


def test_the_ring_goes_round_and_may_be_empty():
    loss = PointDistributionContrast(0.0, 1.0, warmup=1, stable=1, buffer=10)
    for seed in range(5):
        loss(*batch_of(7, seed), epoch=1)
    expected = torch.cat([batch_of(7, 3)[0].score, batch_of(7, 4)[0].score])[-10:].detach()
    assert torch.equal(loss.recent(99)["score"], expected)
    prediction, y = batch_of(33, 9)
    loss(prediction, y, epoch=1)
    assert torch.equal(loss.recent(10)["target"], y[-10:])
    none = PointDistributionContrast(1.0, 1.0, 1.0, width=4, buffer=0)
    for _ in range(2):
        value = none(prediction, y, epoch=999)
        expected = wasserstein(prediction.score, y).detach()
        torch.testing.assert_close(value.parts["wasserstein"], expected)
    value = none(*batch_of(0), epoch=0)
    value.total.backward()
    assert value.total == 0


def test_a_resumed_loss_equals_one_that_never_stopped():
    options = {"width": 4, "warmup": 1, "stable": 1, "buffer": 20}
    straight, resumed = (PointDistributionContrast(1.0, 1.0, 1.0, **options) for _ in range(2))
    for seed in range(4):
        straight(*batch_of(7, seed), epoch=2)
    resumed.load_state_dict(straight.state_dict())
    totals = [loss(*batch_of(7, 9), epoch=2).total for loss in (straight, resumed)]
    assert torch.equal(*totals)
    assert resumed.steps == straight.steps


def test_the_schedules():
    loss = PointDistributionContrast(warmup=100, stable=500, max_epochs=1000)
    middle = {100: 5.0, 300: 0.0, 400: -2.5}
    shares = {0: 0.1, 50: 0.2, 500: 0.9, 9999: 0.9}
    shares |= {epoch: 0.3 + 0.6 / (1 + math.exp(x)) for epoch, x in middle.items()}
    assert {epoch: loss.buffer_share(epoch) for epoch in shares} == pytest.approx(shares)
    temperatures = {0: 1.0, 500: math.sqrt(0.1), 1000: 0.1, 2000: 0.1}
    assert {e: loss.temperature(e) for e in temperatures} == pytest.approx(temperatures)


def test_tensors_that_do_not_fit_a_loss_are_refused_with_codes(refused):
    two, contrast = torch.zeros(2), PointDistributionContrast(lambda_c=0.1, width=4)
    for code, function, arguments, options in (
        ("wrong-shape", LogCosh(), (Prediction(two), torch.zeros(3)), {"epoch": 0}),
        ("wrong-shape", LogCosh(), (Prediction(two), two, torch.zeros(2, 1)), {"epoch": 0}),
        ("unknown-choice", DangoLoss, ("flipped",), {}),
        ("no-reconstruction", DangoLoss(), (Prediction(two), two), {"epoch": 0}),
        ("no-vectors", contrast, (Prediction(two), two), {"epoch": 0}),
    ):
        refused(code, function, *arguments, **options)


@pytest.mark.parametrize(("every", "times"), [(0, 0), (1, 6), (3, 2)])
def test_rows_of_all_ranks_are_gathered_now_and_then(monkeypatch, every, times):
    """What is gathered goes into the buffer; laws/ has the gradients of two processes."""
    gathered = []

    def twice(*rows):
        gathered.append(len(rows[0]))
        return tuple(torch.cat([row, row]) for row in rows)

    monkeypatch.setattr(losses, "world_size", lambda: 2)
    monkeypatch.setattr(losses, "gather_rows", twice)
    loss = PointDistributionContrast(1.0, 1.0, buffer=100, gather_interval=every)
    for seed in range(6):
        loss(*batch_of(7, seed), epoch=0)
    assert (gathered, loss.written) == ([7] * times, 14 * times)
