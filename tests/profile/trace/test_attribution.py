"""Attribution: one account, which adds up."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made import Event, make_trace

from deltacell.errors import InputError
from deltacell.profile.trace.attribution import Attribution, attribute
from deltacell.profile.trace.categories import Category
from deltacell.profile.trace.trace import Kind, Trace


def seconds(trace: Trace) -> dict[str, int]:
    found = attribute(trace).seconds_per_step()
    return {name: round(time * 1e9) for name, time in found.items() if time}


def adds_up(found: Attribution) -> bool:
    wall = found.steps.wall[found.steps.counted].sum()
    assert found.categories["time"].sum() == wall
    assert found.operations["time"].sum() == wall
    assert found.per_step["residual"].abs().sum() == 0
    assert found.doing["time"].sum() == wall
    return True


STEP = Event("ProfilerStep#1", 0, 1000, Kind.annotation)


def test_phases_of_this_program_are_its_categories() -> None:
    phases = ["data_wait", "transfer", "preparation", "forward", "loss", "backward"]
    phases += ["communication", "optimizer", "logging", "validation", "checkpoint"]
    events = [STEP]
    for place, phase in enumerate(phases):
        events.append(Event(f"phase.{phase}", 50 * place, 50 - place, Kind.annotation))
    found = seconds(make_trace(events))
    names = [category.name for category in Category]
    assert found == {
        **{name: 50 - place for place, name in enumerate(names[:-1])},
        "other": 1000 - sum(50 - place for place in range(11)),
    }
    assert adds_up(attribute(make_trace(events)))


def test_the_backward_of_another_thread_counts_where_the_first_one_waits() -> None:
    trace = make_trace(
        [
            STEP,
            Event("phase.forward", 0, 300, Kind.annotation),
            Event("autograd::engine::evaluate_function: A", 350, 200, thread="autograd"),
            Event("aten::mm", 360, 100, thread="autograd"),
            Event("autograd::engine::evaluate_function: B", 560, 40, thread="autograd"),
            Event("Optimizer.step#SGD.step", 700, 300, Kind.annotation),
        ]
    )
    assert seconds(trace) == {"forward": 300, "backward": 250, "optimizer": 300, "other": 150}
    rows = {row["operation"]: row for row in attribute(trace).operations.iter_rows(named=True)}
    assert rows["aten::mm"]["category"] == "backward"
    assert rows["aten::mm"]["time"] == 100
    # The pause between two of its operators is known only from them.
    assert attribute(trace).categories.filter(category="backward")["inferred"].item() == 10


def test_what_has_a_backward_in_its_step_is_the_forward_though_no_name_says_so() -> None:
    trace = make_trace(
        [
            STEP,
            Event("aten::conv2d", 100, 100, sequence=7),
            Event("aten::_convolution", 110, 50, sequence=7),
            Event("aten::relu", 250, 50, sequence=8),
            Event("aten::nll_loss", 320, 20, sequence=9),
            Event("ReluBackward0", 400, 50, sequence=8, thread="autograd"),
            Event("CudnnConvolutionBackward", 450, 50, sequence=7, thread="autograd"),
            Event("aten::argmax", 600, 100, sequence=10),
        ]
    )
    assert seconds(trace) == {"forward": 200, "loss": 20, "backward": 100, "other": 680}


def test_the_wait_for_a_collective_of_the_host_is_communication() -> None:
    trace = make_trace(
        [
            STEP,
            Event("phase.backward", 0, 900, Kind.annotation),
            Event("MulBackward0", 10, 90),
            Event("gloo:all_reduce", 50, 700, Kind.annotation, "gloo"),
            Event("MulBackward0", 110, 190),
            Event("phase.optimizer", 900, 100, Kind.annotation),
        ]
    )
    found = seconds(trace)
    assert found["communication"] == 750 - 300
    assert found["backward"] == 900 - 450
    assert adds_up(attribute(trace))


def test_the_loader_is_seen_also_where_something_in_it_is_classified() -> None:
    trace = make_trace(
        [
            STEP,
            Event("enumerate(DataLoader)#_Single.__next__", 0, 400, Kind.annotation),
            Event("torch/utils/data/_utils/collate.py(1): collate", 100, 100, Kind.python),
        ]
    )
    found = attribute(trace)
    assert found.loader.per_step == 400
    assert found.loader.share == pytest.approx(0.4)
    assert seconds(trace) == {"data_loading": 300, "preparation": 100, "other": 600}


def test_threads_of_the_loader_are_seen() -> None:
    trace = make_trace([STEP, Event("aten::stack", 100, 250, thread="pt_data_pin")])
    workers = attribute(trace).loader.workers
    assert workers.row(0) == ("pt_data_pin", 250, 0.25)


def test_much_in_no_category_is_a_finding_with_its_contents() -> None:
    found = attribute(make_trace([STEP, Event("aten::sort", 0, 300)]))
    assert found.other["operation"].to_list() == ["ProfilerStep", "aten::sort"]
    assert any("no category" in notice for notice in found.notices)
    little = attribute(make_trace([STEP, Event("phase.forward", 0, 950, Kind.annotation)]))
    assert len(little.other) == 0


def test_steps_that_are_cut_are_reported_and_not_counted() -> None:
    events = [
        Event("ProfilerStep#1", 0, 5000, Kind.annotation),
        Event("phase.forward", 0, 5000, Kind.annotation),
        Event("ProfilerStep#2", 5000, 1000, Kind.annotation),
        Event("phase.loss", 5000, 1000, Kind.annotation),
    ]
    found = attribute(make_trace(events))
    why = "warm-up: 5.0 times the median of the steps after the first"
    assert found.notices == (f"Step 1 does not count: {why}.",)
    assert seconds(make_trace(events)) == {"loss": 1000}
    assert found.per_step.filter(~pl.col("counted"))["forward"].to_list() == [5000]


def test_the_peak_of_memory_is_found_where_recorded() -> None:
    memory = {
        "time": np.array([10, 500, 700]),
        "total": np.array([100, 900, 50]),
        "device": np.array([1, 1, 0]),
        "device_id": np.array([0, 0, 0]),
    }
    events = [STEP, Event("phase.backward", 400, 200, Kind.annotation)]
    peaks = attribute(make_trace(events, memory=memory)).memory
    assert [(peak.device, peak.size, peak.step) for peak in peaks] == [
        ("cuda:0", 900, 1),
        ("cpu", 50, 1),
    ]
    assert peaks[0].during == "phase.backward"


@pytest.mark.parametrize("kind", list(Kind))
def test_one_event_of_any_kind_is_no_trouble(kind: Kind) -> None:
    thread = "stream 7" if kind in (Kind.kernel, Kind.copy, Kind.fill) else "main"
    found = attribute(make_trace([Event("alone", 0, 10, kind, thread)]))
    assert adds_up(found)


def test_nothing_that_lasts_is_an_error() -> None:
    with pytest.raises(InputError, match="no event"):
        attribute(make_trace([Event("a", 0, 0)]))


@pytest.mark.parametrize("piece", ["!", "cudaStreamSynchronize", "DtoH", "step ", "_loss::"])
def test_a_hostile_name_takes_no_time(piece: str) -> None:
    name = piece * 50_000 + "\x00<script>"
    events = [STEP]
    for place, kind in enumerate(Kind):
        thread = "stream 7" if kind in (Kind.kernel, Kind.copy, Kind.fill) else "main"
        events.append(Event(name, 10 * place, 5, kind, thread, correlation=1))
    assert adds_up(attribute(make_trace(events)))


def test_an_operator_without_a_gradient_before_the_forward_is_not_the_forward() -> None:
    million = 10**6
    trace = make_trace(
        [
            Event("ProfilerStep#1", 0, 100 * million, Kind.annotation),
            # It has the number of the next operator that makes a node.
            Event("aten::randperm", 0, million, sequence=7),
            Event("aten::linear", 60 * million, 10 * million, sequence=7),
            Event("aten::addmm", 61 * million, 8 * million, sequence=7),
            Event("AddmmBackward0", 80 * million, 20 * million, sequence=7),
        ]
    )
    assert seconds(trace) == {
        "forward": 10 * million,
        "backward": 20 * million,
        "other": 70 * million,
    }
    named = dict(attribute(trace).doing.select("name", "time").iter_rows())
    assert named["code that records nothing, between aten::randperm and aten::linear"] == (
        59 * million
    )


def test_what_python_does_is_named_by_the_program_and_not_by_its_libraries() -> None:
    trace = make_trace(
        [
            STEP,
            Event("train.py(30): augment", 0, 500, Kind.python),
            Event("/lib/python3.11/random.py(1): shuffle", 10, 400, Kind.python),
            Event("torch/serialization.py(900): save", 600, 300, Kind.python),
            Event("<built-in method write of object at 0x7f12>", 610, 200, Kind.python),
        ]
    )
    named = dict(attribute(trace).doing.select("name", "time").iter_rows())
    assert (named["train.py(30): augment"], named["torch.save"]) == (500, 300)


def test_device_time_is_by_kernel_operator_and_module() -> None:
    trace = make_trace(
        [
            STEP,
            Event("nn.Module: Linear_0", 0, 100, Kind.python),
            Event("aten::linear", 10, 80, sequence=3),
            Event("aten::addmm", 20, 60, sequence=3),
            Event("hipLaunchKernel", 30, 10, Kind.runtime, correlation=1),
            Event("gemm", 50, 200, Kind.kernel, "stream 7", 1),
            Event("AddmmBackward0", 300, 100, thread="autograd", sequence=3),
            Event("hipLaunchKernel", 310, 10, Kind.runtime, "autograd", correlation=2),
            Event("gemm", 330, 400, Kind.kernel, "stream 7", 2),
        ]
    )
    work = attribute(trace).work
    operators = {row["name"]: row for row in work.operators.iter_rows(named=True)}
    assert (operators["aten::addmm"]["time"], operators["aten::linear"]["time"]) == (200, 0)
    assert operators["aten::linear"]["total"] == 200
    assert work.kernels.row(0) == ("gemm", "compute", 2, 600)
    # The backward of its operator is the module's too.
    assert work.modules.filter(name="nn.Module: Linear_0")["time"].item() == 600


def test_a_device_that_falls_behind_its_host_has_steps_of_its_own() -> None:
    events = []
    for step in range(4):
        events += [
            Event(f"ProfilerStep#{step}", 100 * step, 100, Kind.annotation),
            Event("cudaLaunchKernel", 100 * step + 10, 5, Kind.runtime, correlation=step),
            Event("gemm", 20 + 300 * step, 300, Kind.kernel, "stream 7", step),
        ]
    found = attribute(make_trace(events))
    assert found.device is not None
    assert found.device.queued
    assert found.step_times.tolist() == [300, 300, 300]
    assert found.behind == 200
    assert found.device.steps.filter("counted")["compute"].to_list() == [300, 300, 300]


def test_sizes_of_products_give_a_roofline() -> None:
    events = [
        STEP,
        Event("aten::mm", 10, 80),
        Event("cudaLaunchKernel", 30, 10, Kind.runtime, correlation=1),
        Event("gemm", 50, 200, Kind.kernel, "stream 7", 1),
    ]
    row = [-1, 0, -1, -1]
    trace = make_trace(
        events,
        shape=np.array(row, dtype=np.int32),
        shapes=(("[[1000, 1000], [1000, 1000]]", '["float", "float"]'),),
        device_name="NVIDIA A100-SXM4-80GB",
    )
    found = attribute(trace).work.roofline.row(0, named=True)
    assert found["gflop"] == 2.0
    # 2 GFLOP at 19.5 TFLOP per second.
    assert found["least"] == pytest.approx(102_564, abs=1)
    assert found["share of the peak"] == pytest.approx(102_564 / 200, rel=1e-4)
