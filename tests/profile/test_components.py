"""Components of steps: what is recorded of named ranges, forward and backward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from deltacell.base.errors import InputError
from deltacell.models.base import named_range
from deltacell.profile.component_rows import (
    COMPONENT_COLUMNS,
    NO_COMPONENT,
    StepPass,
    read_components,
)
from deltacell.profile.components import ComponentTimer, NoComponents
from deltacell.propagate.parallel.graphs import GraphWork, in_graphs


class Ticks:
    """A clock that only work moves on."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, ticks: Ticks, forward: int, backward: int) -> Tensor:
        ticks.now += forward
        ctx.ticks = ticks
        ctx.backward_ticks = backward
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.ticks.now += ctx.backward_ticks
        return gradient * 2, None, None, None


# A part of a program: work as (forward, backward), or a component as (name, parts, own graph?).
_WORK = st.tuples(st.integers(1, 9), st.integers(1, 9))
_PROGRAMS = st.recursive(
    st.lists(_WORK, min_size=1, max_size=3),
    lambda parts: st.lists(
        st.one_of(_WORK, st.tuples(st.sampled_from("abc"), parts, st.booleans())),
        min_size=1,
        max_size=4,
    ),
    max_leaves=12,
)


class _Piece(GraphWork):
    """A part of a program as a graph of its own, whose backward is run by hand."""

    def __init__(self, parts: Sequence[Any], x: Tensor, ticks: Ticks) -> None:
        self.parts = parts
        self.ticks = ticks
        self.inputs = [[x]]
        self.parameters: Sequence[Tensor] = []

    def forward(self, piece: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
        return (run(self.parts, inputs[0], self.ticks),)


def run(parts: Sequence[Any], x: Tensor, ticks: Ticks) -> Tensor:
    for part in parts:
        if isinstance(part[0], int):
            x = _Work.apply(x, ticks, *part)
            continue
        name, inner, is_own_graph = part
        with named_range(f"model.{name}"):
            if is_own_graph:
                ((x,),) = in_graphs(_Piece(inner, x, ticks), workers=1)
            else:
                x = run(inner, x, ticks)
    return x


def expected(parts: Sequence[Any], within: str = NO_COMPONENT) -> dict[tuple[str, str], int]:
    """The ticks of each component by pass, without those inside it."""
    ticks: dict[tuple[str, str], int] = {}
    for part in parts:
        if isinstance(part[0], int):
            for step_pass, n in zip(("forward", "backward"), part, strict=True):
                ticks[step_pass, within] = ticks.get((step_pass, within), 0) + n
            continue
        path = f"{within} > {part[0]}" if within else part[0]
        for key, n in expected(part[1], path).items():
            ticks[key] = ticks.get(key, 0) + n
    return ticks


def begun(ticks: Ticks) -> ComponentTimer:
    """A timer that records the step it is in."""
    timer = ComponentTimer(ticks, most=1e9)
    while not timer.is_recording:
        ticks.now += 1
        timer.begin_step()
    return timer


def step(timer: ComponentTimer, parts: Sequence[Any], ticks: Ticks) -> None:
    x = torch.ones(2, requires_grad=True)
    with timer.during(StepPass.forward):
        loss = run(parts, x, ticks).sum()
    timer.before_backward(loss)
    with timer.during(StepPass.backward):
        loss.backward()


@settings(max_examples=60, deadline=None)
@given(_PROGRAMS)
def test_every_tick_of_a_step_counts_for_the_component_whose_code_it_is(tmp_path_factory, parts):
    ticks = Ticks()
    timer = begun(ticks)
    step(timer, parts, ticks)
    timer.end_step(7, 3)
    folder = tmp_path_factory.mktemp("components")
    timer.flush(folder, rank=1, attempt=2)
    rows = read_components(folder)
    assert {*rows["rank"], *rows["attempt"], *rows["step"], *rows["samples"]} == {1, 2, 7, 3}
    recorded = {
        (row["pass"], row["component"]): round(1e9 * row["seconds"])
        for row in rows.iter_rows(named=True)
        if row["seconds"]
    }
    assert recorded == expected(parts)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_thread_that_waits_has_the_components_of_those_it_waits_for(workers):
    class Pieces(GraphWork):
        def __init__(self, x: Tensor) -> None:
            self.inputs = [[x], [x], [x]]
            self.parameters: Sequence[Tensor] = []

        def forward(self, piece: int, inputs: Sequence[Tensor]) -> tuple[Tensor, ...]:
            with named_range(f"model.piece{piece}"):
                return ((inputs[0] @ inputs[0]).relu(),)

    timer = ComponentTimer(most=1e9)
    while not timer.is_recording:
        timer.begin_step()
    x = torch.ones(200, 200, requires_grad=True)
    with timer.during(StepPass.forward):
        loss = torch.stack([y for (y,) in in_graphs(Pieces(x), workers)]).sum()
    timer.before_backward(loss)
    with timer.during(StepPass.backward):
        loss.backward()
    spent = timer._spent
    assert spent is not None
    for step_pass in (StepPass.forward, StepPass.backward):
        pieces = [spent.get((step_pass, f"piece {piece}"), 0) for piece in range(3)]
        assert min(pieces) > 0
    assert torch.equal(x.grad, _without_timer(Pieces, workers))


def _without_timer(pieces: type, workers: int) -> Tensor:
    x = torch.ones(200, 200, requires_grad=True)
    torch.stack([y for (y,) in in_graphs(pieces(x), workers)]).sum().backward()
    assert x.grad is not None
    return x.grad


@given(
    st.lists(st.integers(1, 10**7), min_size=1, max_size=300),
    st.sampled_from((0.001, 0.005, 0.1)),
)
def test_recording_costs_no_more_than_its_share_of_the_time(lengths, most):
    ticks = Ticks()
    timer = ComponentTimer(ticks, most=most)
    costs = []
    for number, length in enumerate(lengths):
        timer.begin_step()
        ticks.now += length
        with timer.during(StepPass.forward):
            for _ in range(20):
                with named_range("model.part"):
                    pass
        before = timer._cost
        timer.end_step(number, 1)
        costs.append(timer._cost - before)
    # The first recorded step is the only one whose cost was not known before.
    assert timer._cost <= most * ticks.now + 2 * max(costs)


def test_a_step_under_a_profiler_is_not_recorded_and_keeps_its_ranges():
    timer = begun(Ticks())
    timer.end_step(1, 1)
    with torch.profiler.profile() as profile:
        timer.begin_step()
        assert not timer.is_recording
        with named_range("model.part"):
            torch.ones(3).sum()
    assert "model.part" in {event.name for event in profile.events()}


def test_the_wait_for_other_ranks_is_left_out_of_the_backward():
    ticks = Ticks()
    timer = begun(ticks)
    step(timer, [("a", [(1, 5)], False), ("b", [(1, 5)], False)], ticks)
    timer.leave_out(3e-9)
    assert timer._spent is not None
    assert timer._spent[StepPass.backward, "a"] == 2
    assert timer._spent[StepPass.backward, "b"] == 5


def test_without_recorded_steps_nothing_is_written(tmp_path):
    timer = NoComponents()
    timer.begin_step()
    timer.end_step(1, 1)
    timer.flush(tmp_path, 0, 0)
    assert not list(tmp_path.iterdir())
    assert read_components(tmp_path).is_empty()


@pytest.mark.parametrize("change", [{"seconds": -1.0}, {"pass": "sideways"}, {"component": None}])
def test_a_damaged_file_of_components_is_an_error(tmp_path, change):
    row = {"rank": 0, "attempt": 0, "step": 1, "samples": 1, "pass": "forward", "component": "a"}
    row |= {"seconds": 1.0, **change}
    file = tmp_path / "components-rank0-attempt0-part0.parquet"
    pl.DataFrame([row], COMPONENT_COLUMNS, orient="row").write_parquet(file)
    with pytest.raises(InputError) as error:
        read_components(tmp_path)
    assert error.value.code == "damaged-components"
    assert error.value.where == file
