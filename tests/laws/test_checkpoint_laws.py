"""Save then load is identity, and of any sequence the last few and the best are kept."""

import math

import laws
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from deltacell.train.checkpoints import Checkpoints

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    bits = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    numbers = torch.randint(-128, 128, shape, generator=bits).to(draw(st.sampled_from(DTYPES)))
    if numbers.is_floating_point() and draw(st.booleans()):
        numbers = numbers.masked_fill(numbers > 64, math.nan).masked_fill(numbers < -64, -math.inf)
    if numbers.dim() > 1 and draw(st.booleans()):
        numbers = numbers.transpose(0, 1)
    return numbers


values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | tensors()
states = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        values,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(max_examples=80, deadline=None)
@given(state=states)
def test_save_then_load_is_identity(tmp_path_factory, state):
    folder = tmp_path_factory.mktemp("law") / "checkpoints"
    Checkpoints(folder).save(state, step=1, epoch=0)
    assert laws.bits_of(Checkpoints(folder).load()) == laws.bits_of(state)


@settings(max_examples=40, deadline=None)
@given(
    metrics=st.lists(st.none() | st.sampled_from([-1.0, 0.0, 0.5, math.nan, math.inf]), max_size=8),
    keep=st.integers(1, 3),
    reopened=st.booleans(),
)
def test_the_last_few_and_the_best_are_kept(tmp_path_factory, metrics, keep, reopened):
    folder = tmp_path_factory.mktemp("law") / "checkpoints"
    checkpoints = Checkpoints(folder, keep)
    for step, metric in enumerate(metrics):
        if reopened:
            checkpoints = Checkpoints(folder, keep)
        checkpoints.save({"step": step}, step=step, epoch=0, metrics={"pearson": metric})
    measured = [
        (-metric, step)
        for step, metric in enumerate(metrics)
        if metric is not None and math.isfinite(metric)
    ]
    best = min(measured)[1] if measured else None
    expected = set(range(len(metrics))[-keep:]) | ({best} - {None})
    again = Checkpoints(folder)
    assert [one.step for one in again.kept] == sorted(expected)
    assert (again.best.step if again.best else None) == best
    assert (again.last.step if again.last else None) == (len(metrics) - 1 if metrics else None)
    assert {again.load(one.file)["step"] for one in again.kept} == expected
    on_disk = {file.name for file in folder.glob("*")}
    assert on_disk == {one.file for one in again.kept}
