"""Attribution: one account, which adds up."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from made import Event, make_trace

from deltacell.errors import InputError
from deltacell.profile.trace.attribution import Attribution, attribute
from deltacell.profile.trace.categories import Category
from deltacell.profile.trace.operations import call_paths
from deltacell.profile.trace.trace import Kind, Trace


def seconds(trace: Trace) -> dict[str, int]:
    found = attribute(trace).seconds_per_step()
    return {name: round(time * 1e9) for name, time in found.items() if time}


def adds_up(found: Attribution) -> bool:
    wall = found.steps.wall[found.steps.counted].sum()
    assert found.categories["time"].sum() == wall
    assert found.operations["time"].sum() == wall
    assert found.per_step["residual"].abs().sum() == 0
    assert found.call_paths["time"].sum() == wall
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


def test_the_same_call_has_the_same_path_in_every_step() -> None:
    events = []
    for step in range(3):
        at = 1000 * step
        events += [
            Event(f"ProfilerStep#{step}", at, 1000, Kind.annotation),
            Event("phase.forward", at, 900, Kind.annotation),
            Event("aten::linear", at + 10, 100),
            Event("aten::mm", at + 20, 50),
        ]
    paths = {
        row["path"]: row for row in attribute(make_trace(events)).call_paths.iter_rows(named=True)
    }
    assert paths["phase.forward > aten::linear > aten::mm"]["time"] == 100
    assert paths["phase.forward > aten::linear > aten::mm"]["count"] == 2


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


def test_paths_that_are_not_told_apart_still_count() -> None:
    events = [STEP, *(Event(f"aten::op{i}", 10 * i, i + 1) for i in range(8))]
    found = attribute(make_trace(events))
    few = call_paths(found.trace, found.nesting, found.steps, found.host, longest=3)
    assert few["time"].sum() == 1000
    rows = dict(few.select("path", "time").iter_rows())
    assert rows == {"ProfilerStep": 964, "aten::op7": 8, "aten::op6": 7, "(other paths)": 21}


def test_a_deep_stack_of_long_names_has_a_path_of_some_length() -> None:
    events = [Event(f"{i}" + "x" * 1000, i, 2000 - 2 * i) for i in range(500)]
    found = attribute(make_trace(events))
    paths = found.call_paths["path"]
    assert max(len(path) for path in paths) <= 4010
    assert paths.n_unique() == len(paths)
    assert adds_up(found)
