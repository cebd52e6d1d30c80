"""Components of runs and the cost of a step by its size, from rows whose times are known."""

from __future__ import annotations

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltacell.profile.component_rows import COMPONENT_COLUMNS, StepPass
from deltacell.profile.explain import explain
from deltacell.profile.explain.account import Account
from deltacell.profile.explain.run_components import (
    component_fall,
    leading_component,
    parts_table,
    step_parts,
)
from deltacell.profile.explain.step_cost import at_equal_batch, step_cost
from deltacell.profile.phase_rows import COLUMNS, PHASES

PER_STEP = {"forward": 0.3, "loss": 0.1, "backward": 0.5, "optimizer": 0.1, "data_wait": 0.2}
_SHARES = st.dictionaries(
    st.tuples(st.sampled_from(list(StepPass)), st.sampled_from(["", "a", "a > b", "c"])),
    st.floats(0, 0.2),
    min_size=1,
)


def phase_rows(n_steps: int, samples: int = 8, **seconds: float) -> pl.DataFrame:
    times = {f"{phase}_s": seconds.get(phase, 0.0) for phase in PHASES}
    row = {"rank": 0, "attempt": 0, "epoch": 0, "kind": "train", "samples": samples}
    row |= {"profiled": False, "begin_s": 0.0, "wall_s": sum(seconds.values()), **times}
    rows = [{**row, "step": step} for step in range(1, n_steps + 1)]
    return pl.DataFrame(rows, COLUMNS, orient="row")


def component_rows(*rows: tuple[int, StepPass, str, float]) -> pl.DataFrame:
    full = [(0, 0, step, 8, step_pass.value, name, s) for step, step_pass, name, s in rows]
    return pl.DataFrame(full, COMPONENT_COLUMNS, orient="row")


def account(name: str = "A", **seconds: float) -> Account:
    titles = {"data_wait": "data loading"}
    return Account(name, "run", {titles.get(key, key): s for key, s in seconds.items()}, 8.0)


@given(_SHARES)
def test_components_and_the_rest_add_up_to_the_step_of_the_account(shares):
    rows = [(2, step_pass, path, s) for (step_pass, path), s in shares.items()]
    # The recorded step took twice as long as all steps on average.
    slow = {phase: 2 * s for phase, s in PER_STEP.items()}
    parts = step_parts(component_rows(*rows), phase_rows(3, **slow), account(**PER_STEP))
    assert parts is not None
    whole = math.fsum(PER_STEP.values())
    assert math.isclose(math.fsum(parts.by_part.values()), whole)
    table = parts_table(parts, "A", "key", 8.0).frame
    positive = math.fsum(s for s in parts.by_part.values() if s > 0)
    assert table["ms per step"].sum() <= 1e3 * positive + 1e-9
    for component in parts.components:
        for step_pass, seconds in component.seconds.items():
            assert math.isclose(seconds, shares[step_pass, component.path] / 2)


def test_steps_that_are_not_steady_do_not_count():
    rows = component_rows((1, StepPass.forward, "a", 0.1), (9, StepPass.forward, "a", 5.0))
    parts = step_parts(rows, phase_rows(3, **PER_STEP), account(**PER_STEP))
    assert parts is not None
    assert parts.n_steps == 1
    assert math.isclose(parts.by_part["a"], 0.1)
    assert step_parts(rows.filter(step=9), phase_rows(3, **PER_STEP), account()) is None


def test_the_component_with_the_largest_change_leads_and_its_passes_are_told():
    def parts(forward: float, backward: float):
        rows = component_rows(
            (1, StepPass.forward, "mutants > layer", forward),
            (1, StepPass.backward, "mutants", backward),
            (1, StepPass.forward, "encoder", 0.02),
        )
        seconds = {"forward": forward + 0.02, "backward": backward, "optimizer": 0.01}
        return step_parts(rows, phase_rows(3, **seconds), account(**seconds))

    a = parts(0.01, 0.02)
    b = parts(0.08, 0.19)
    assert a is not None
    assert b is not None
    gap = leading_component(a, b, (8.0, 8.0), "sample")
    assert gap is not None
    assert gap.component == "mutants"
    assert math.isclose(gap.change, 0.24 / 8)
    assert math.isclose(gap.gap, 0.24 / 8)
    assert math.isclose(gap.forward, 0.07 / 8)
    assert math.isclose(gap.backward, 0.17 / 8)
    backwards = leading_component(b, a, (8.0, 8.0), "sample")
    assert backwards is not None
    assert math.isclose(backwards.change, -gap.change)
    fall = component_fall(a, b, (8.0, 8.0), "sample")
    assert math.isclose(math.fsum(bar.change for bar in fall.bars), fall.gap)
    assert leading_component(a, a, (8.0, 8.0), "sample") is None


@given(st.floats(0, 1), st.floats(1e-3, 1), st.permutations([8, 16, 64]), st.integers(3, 5))
def test_the_cost_of_a_step_follows_from_steps_of_different_size(fixed, each, sizes, n):
    steps = [phase_rows(n, size, forward=fixed + size * each) for size in sizes[:2]]
    cost = step_cost(pl.concat(steps))
    assert cost is not None
    assert math.isclose(cost.fixed, fixed, abs_tol=1e-9)
    assert math.isclose(cost.per_sample, each)
    assert cost.sizes == tuple(sorted(sizes[:2]))


def test_steps_of_one_size_or_few_of_another_do_not_tell_the_cost():
    full = phase_rows(9, 64, forward=1.0)
    assert step_cost(full) is None
    assert step_cost(pl.concat([full, phase_rows(2, 8, forward=0.2)])) is None
    assert step_cost(pl.concat([full, phase_rows(5, 60, forward=0.2)])) is None
    assert step_cost(pl.concat([full, phase_rows(5, 8, forward=2.0)])) is None


def test_at_an_equal_batch_the_fixed_cost_no_longer_counts():
    steps = pl.concat([phase_rows(5, size, forward=0.1 + size * 0.01) for size in (10, 40)])
    cost = step_cost(steps)
    known = ("A", cost, 40.0, 0.5)
    equal = at_equal_batch(known, ("B", None, 10.0, 0.6))
    assert equal is not None
    assert (equal.run, equal.samples) == ("A", 10.0)
    assert math.isclose(equal.ratio, 3.0)
    swapped = at_equal_batch(("B", None, 10.0, 0.6), known)
    assert swapped is not None
    assert math.isclose(swapped.ratio, 1 / 3)
    assert at_equal_batch(("A", None, 1.0, 1.0), ("B", None, 2.0, 1.0)) is None


@pytest.mark.slow
def test_trained_runs_have_components_that_add_up(runs):
    explanation = explain(runs["seed0"], runs["hetero"])
    for key, side in zip(("a", "b"), explanation.accounts, strict=True):
        frame = explanation.table(f"step_components_{key}")
        assert math.isclose(frame["ms per step"].sum(), 1e3 * side.step_s, rel_tol=0.01)
    named = set(explanation.table("step_components_b")["component"])
    paths = {"messages on mutants > layer 1", "wild type > layer 1", "encoder", "global head"}
    assert paths | {"clip", "optimizer"} <= named
    of_dango = set(explanation.table("step_components_a")["component"])
    assert {"reconstruction", "Hyper-SAGNN", "loss > interaction"} <= of_dango
    alone = explain(runs["hetero"])
    assert set(alone.table("step_components")["component"]) == named
