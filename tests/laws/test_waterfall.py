"""Waterfalls: bars add up to the gap, A against A is empty, and B to A mirrors A to B."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.profile.explain import Account, compare

SECONDS = st.floats(0, 1e4, allow_subnormal=False).map(lambda s: s if s > 1e-9 else 0.0)
PARTS = st.dictionaries(st.sampled_from(["loader", "forward", "backward", "other"]), SECONDS)
OUTSIDE = st.dictionaries(st.sampled_from(["validation", "checkpoint"]), SECONDS)
FACTS = st.fixed_dictionaries(
    {"device": st.sampled_from(["cpu", "cuda", None]), "ranks": st.sampled_from([1, 4, None])},
)


@st.composite
def accounts(draw, name="x"):
    return Account(
        name,
        "figures",
        draw(PARTS),
        samples_per_step=draw(st.none() | st.integers(1, 4096)),
        steps_per_epoch=draw(st.none() | st.integers(1, 10_000)),
        outside=draw(OUTSIDE),
        facts=draw(FACTS),
    )


@settings(max_examples=40, deadline=None)
@given(a=accounts("a"), b=accounts("b"))
def test_bars_add_up_to_the_gap_and_every_fact_that_differs_is_named(a, b):
    compared = compare(a, b)
    for fall in compared.falls:
        scale = max(fall.a, fall.b, 1e-30)
        assert math.fsum(bar.change for bar in fall.bars) == pytest.approx(
            fall.b - fall.a,
            abs=1e-12 * scale,
        )
        assert fall.gap == pytest.approx(fall.b - fall.a, abs=1e-12 * scale)
        if abs(fall.gap) > 1e-6 * scale:
            assert math.fsum(bar.share for bar in fall.bars) == pytest.approx(1, abs=1e-6)
    if compared.epochs is not None:
        assert compared.epochs.a == pytest.approx(a.epoch_s)
        assert compared.epochs.b == pytest.approx(b.epoch_s)
    both_know = a.samples_per_step and b.samples_per_step
    assert compared.steps.per == ("sample" if both_know else "step")
    assert compared.steps.a == pytest.approx(a.sample_s if both_know else a.step_s)
    for name in ("device", "ranks"):
        named = any(one.startswith(f"{name}: ") for one in compared.unequal)
        assert named == (a.facts[name] != b.facts[name])


@settings(max_examples=30, deadline=None)
@given(a=accounts())
def test_a_run_compared_with_itself_has_no_change_in_any_bar(a):
    compared = compare(a, a)
    assert all(bar.change == 0 for fall in compared.falls for bar in fall.bars)
    assert compared.steps.gap == 0
    assert compared.unequal == ()
    if compared.epoch_ratio is not None:
        assert compared.epoch_ratio.epoch == compared.epoch_ratio.of_steps == 1


@settings(max_examples=40, deadline=None)
@given(a=accounts("a"), b=accounts("b"))
def test_b_to_a_mirrors_a_to_b(a, b):
    there, back = compare(a, b), compare(b, a)
    for one, other in zip(there.falls, back.falls, strict=True):
        changes = {bar.part: bar.change for bar in one.bars}
        assert {bar.part: -bar.change for bar in other.bars} == changes
        assert one.gap == -other.gap
        assert [bar.part for bar in one.bars] == [bar.part for bar in other.bars]
    assert len(there.unequal) == len(back.unequal)
    if there.epoch_ratio is not None:
        assert back.epoch_ratio is not None
        assert there.epoch_ratio.epoch * back.epoch_ratio.epoch == pytest.approx(1)


@settings(max_examples=40, deadline=None)
@given(a=accounts("a"), b=accounts("b"))
def test_the_ratio_of_epochs_is_the_product_of_its_terms(a, b):
    ratio = compare(a, b).epoch_ratio
    if ratio is None:
        assert not (a.steps_per_epoch and b.steps_per_epoch and a.step_s and b.step_s)
        return
    assert ratio.steps * ratio.time_per_step * ratio.outside == pytest.approx(b.epoch_s / a.epoch_s)
    if not a.outside_s and not b.outside_s:
        assert ratio.outside == pytest.approx(1)
