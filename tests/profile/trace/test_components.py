"""The time of a step by component: outermost ranges or modules, and what belongs to none."""

import pytest
from traces import STEP, Event, make_trace, named

from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.components import StepComponents
from deltacell.profile.trace.trace import Kind

NS = 1e-9


def parts_of(events: list[Event]) -> StepComponents:
    found = Attribution(make_trace([STEP, *events]))
    parts = found.step_parts
    whole = sum(parts.components.values()) + sum(parts.others.values())
    assert whole == pytest.approx(found.step_times.mean() * NS)
    return parts


def module(name: str, begin: int, length: int) -> Event:
    return Event(f"nn.Module: {name}", begin, length, Kind.python)


def test_a_range_has_the_time_of_what_is_inside_it_and_of_its_backward():
    parts = parts_of(
        [
            named("encoder", 0, 300),
            named("encoder.layer", 100, 100),
            Event("aten::mm", 120, 50, sequence=4),
            named("head", 300, 100),
            Event("autograd::engine::evaluate_function: MmBackward0", 500, 200, sequence=4),
            named("Optimizer.step#Adam.step", 800, 150),
        ],
    )
    assert parts.components == pytest.approx({"encoder": 500 * NS, "head": 100 * NS})
    assert parts.others["optimizer"] == pytest.approx(150 * NS)


def test_a_module_that_is_the_whole_model_is_opened():
    inside = [module("Linear_0", 10, 300), module("Norm_0", 310, 100)]
    parts = parts_of([module("Model_0", 0, 420), *inside])
    expected = {"Linear_0": 300 * NS, "Norm_0": 100 * NS, "Model_0": 20 * NS}
    assert parts.components == pytest.approx(expected)


def test_a_module_that_works_itself_is_not_opened():
    parts = parts_of([module("Model_0", 0, 400), module("Norm_0", 300, 20)])
    assert parts.components == pytest.approx({"Model_0": 400 * NS})


def test_without_components_there_are_only_categories():
    parts = parts_of([named("Optimizer.step#Adam.step", 0, 400)])
    assert parts.components == {}
    assert set(parts.others) == {"optimizer", "other"}


def test_on_a_device_a_component_has_the_kernels_that_it_launched():
    parts = parts_of(
        [
            named("encoder", 0, 100),
            Event("cudaLaunchKernel", 10, 5, Kind.runtime, correlation=1),
            Event("cudaLaunchKernel", 200, 5, Kind.runtime, correlation=2),
            Event("gemm", 20, 400, Kind.kernel, "stream 7", 1),
            Event("add", 500, 100, Kind.kernel, "stream 7", 2),
        ],
    )
    assert parts.components == pytest.approx({"encoder": 400 * NS})
    assert parts.others == pytest.approx({"compute": 100 * NS, "idle": 500 * NS})
