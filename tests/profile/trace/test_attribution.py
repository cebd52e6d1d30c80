"""Attribution: steps, nesting, categories and names, and one account that adds up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl
import pytest
from made import STEP, Event, make_trace, row_of, steps

from deltacell.errors import InputError
from deltacell.profile.phase_rows import PHASES
from deltacell.profile.trace import self_time
from deltacell.profile.trace.attribution import Attribution, attribute
from deltacell.profile.trace.categories import Category, classify, is_collective
from deltacell.profile.trace.host import is_sync_call
from deltacell.profile.trace.self_time import Covered, nest
from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


def spent(trace: Trace) -> dict[str, int]:
    found = attribute(trace)
    assert adds_up(found)
    return {n: round(time * 1e9) for n, time in found.seconds_per_step().items() if time}


def adds_up(found: Attribution) -> bool:
    wall = found.steps.wall[found.steps.counted].sum()
    frames = (found.categories, found.operations, found.doing)
    return all(frame["time"].sum() == wall for frame in frames)


def named(trace: Trace) -> dict[str, int]:
    return dict(attribute(trace).doing.select("name", "time").iter_rows())


class TestNesting:
    def parents(self, trace: Trace) -> dict[str, str | None]:
        rows = nest(trace).parent.tolist()
        above = [None if row == NOTHING else trace.text(row) for row in rows]
        return dict(zip([trace.text(row) for row in range(len(trace))], above, strict=True))

    def test_what_is_mostly_inside_lies_in_it_though_it_ends_after(self):
        # Times were rounded: the child seems to end a moment after its parent.
        trace = make_trace([Event("step", 0, 300), Event("a", 0, 100), Event("b", 10, 91)])
        assert nest(trace).self_time.tolist() == [199, 10, 91]
        assert self.parents(trace) == {"step": None, "a": "step", "b": "a"}
        apart = make_trace([Event("a", 0, 10), Event("b", 5, 100), Event("c", 8, 4)])
        assert self.parents(apart) == {"a": None, "b": None, "c": "b"}

    def test_events_without_length_have_a_parent_and_hide_nothing(self):
        lasting = [Event("a", 0, 10), Event("b", 4, 2)]
        instants = {"first": 0, "in b": 5, "after b": 6, "after a": 10}
        trace = make_trace([*lasting, *(Event(name, at, 0) for name, at in instants.items())])
        found = self.parents(trace)
        assert [found[name] for name in instants] == ["a", "b", "a", None]
        assert nest(trace).self_time[row_of(trace, "a")] == 8

    def test_collectives_that_run_beside_do_not_hold_what_begins_meanwhile(self):
        trace = make_trace(
            [
                Event("backward", 0, 100, Kind.annotation),
                Event("gloo:all_reduce", 10, 200, Kind.annotation),
                Event("aten::mul", 20, 5),
            ]
        )
        assert nest(trace).self_time.tolist() == [95, 200, 5]
        assert self.parents(trace)["aten::mul"] == "backward"

    @pytest.mark.parametrize("crossing", [False, True])
    def test_a_deep_stack(self, crossing):
        events = [Event(f"{i}", i, 1000 - 2 * i) for i in range(500)]
        events += [Event("over", 500, 507)] if crossing else []
        assert nest(make_trace(events)).self_time.sum() == 1000 + 7 * crossing
        assert len(nest(make_trace([])).self_time) == 0

    def test_pieces_of_the_host_are_joined_where_they_touch(self, monkeypatch):
        monkeypatch.setattr(self_time, "_PART", 3)
        host = attribute(make_trace([*steps([50] * 3), *(Event("a", 7 * i, 4) for i in range(20))]))
        begin, end = host.host.begin, host.host.end
        for seed in range(20):
            which = np.random.default_rng(seed).random(len(begin)) < 0.6
            found, union = host.host.covered(which), Covered.union(begin[which], end[which])
            assert found.begin.tolist() == union.begin.tolist()
            assert found.within(begin, end).tolist() == np.where(which, end - begin, 0).tolist()


def filled(lengths: list[int], counts: list[int]) -> list[Event]:
    """Steps with so many operators each."""
    events = steps(lengths)
    for step, count in zip(list(events), counts, strict=True):
        events += [Event("aten::add", step.begin + i, 1) for i in range(count)]
    return events


class TestSteps:
    @pytest.mark.parametrize(
        ("events", "counted"),
        [
            (steps([100, 90, 80], pause=5), [0, 1, 1]),
            (steps([9000, 300, 100, 100, 100, 500]), [0, 0, 1, 1, 1, 1]),
            (steps([1]), [1]),
            (steps([10**9]), [1]),
            (steps([1000, 100, 10, 1]), [0, 0, 1, 1]),
            # The profiler stopped in the last one; a short one with all its work counts.
            (filled([30_000, 40], [900, 3]), [1, 0]),
            (filled([3000, 3000, 3000, 1000], [100] * 4), [0, 1, 1, 1]),
            (filled([9000, 3000, 3000, 40], [100, 100, 100, 1]), [0, 1, 1, 0]),
        ],
    )
    def test_both_ends_are_cut_by_rule(self, events, counted):
        found = find_steps(make_trace(events))
        assert found.how == "ProfilerStep"
        assert found.counted.tolist() == counted
        assert [cut.number for cut in found.cut] == np.flatnonzero(~found.counted).tolist()

    def test_each_cycle_has_its_own_start(self):
        found = find_steps(make_trace(steps([100] * 6), cycles=(0, 300)))
        assert found.counted.tolist() == [False, True, True] * 2

    def test_steps_that_overlap_are_not_counted_twice(self):
        second = Event("ProfilerStep#2", 900, 50, Kind.annotation)
        assert find_steps(make_trace([STEP, second])).wall.tolist() == [900, 50]

    def test_ranges_named_as_steps_reach_to_the_next_because_the_loader_is_between(self):
        found = find_steps(make_trace(steps([50] * 3, "train_step *", pause=30)))
        assert found.begin.tolist() == [0, 80, 160]
        assert found.wall.tolist() == [80, 80, 50]

    def test_steps_end_with_the_last_optimizer_of_a_round(self):
        events = [Event("aten::add", 0, 5)]
        for place in range(3):
            for name, at in (("SGD", 50), ("Adam", 70)):
                event = Event(f"Optimizer.step#{name}.step", 100 * place + at, 10, Kind.annotation)
                events.append(event)
        found = find_steps(make_trace(events))
        assert (found.begin.tolist(), found.end.tolist()) == ([0, 80, 180], [80, 180, 280])

    def test_else_the_whole_is_one_step(self):
        trace = make_trace([Event("a", 10, 90), Event("b", 50, 100, thread="second")])
        found = find_steps(trace)
        assert (found.begin.tolist(), found.end.tolist()) == ([10], [150])
        assert found.counted.all()

    def test_the_thread_is_that_of_the_steps_and_any_number_is_read(self):
        name = "ProfilerStep#" + "9" * 50
        trace = make_trace(
            [Event(name, 0, 10, Kind.annotation), Event("busy", 0, 10**6, thread="a worker")]
        )
        assert trace.threads[find_steps(trace).thread].tid == "main"

    def test_steps_that_are_cut_are_noticed(self):
        events = [
            *steps([5000, 1000]),
            Event("phase.forward", 0, 5000, Kind.annotation),
            Event("phase.loss", 5000, 1000, Kind.annotation),
        ]
        found = attribute(make_trace(events))
        assert spent(make_trace(events)) == {"loss": 1000}
        assert found.per_step.filter(~pl.col("counted"))["forward"].to_list() == [5000]
        assert len(found.notices) == len(found.steps.cut) == 1


class TestCategories:
    def test_they_are_those_of_the_phases(self):
        found = [classify(f"phase.{phase}", Kind.annotation) for phase in PHASES]
        assert found == list(Category)
        events = [STEP]
        for place, phase in enumerate(PHASES[:-1]):
            events.append(Event(f"phase.{phase}", 50 * place, 50 - place, Kind.annotation))
        names = [category.name for category in Category]
        expected = {name: 50 - place for place, name in enumerate(names[:-1])}
        assert spent(make_trace(events)) == expected | {"other": 1000 - sum(expected.values())}

    @pytest.mark.parametrize(
        ("name", "kind", "category"),
        [
            ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, "data_loading"),
            ("[pl][profile][_TrainingEpochLoop].train_dataloader_next", 5, "data_loading"),
            ("## copy_batch_to_gpu ##", 5, "transfer"),
            ("Optimizer.step#AdamW.step", 5, "optimizer"),
            ("Optimizer.zero_grad#SGD.zero_grad", 0, "optimizer"),
            ("nccl:all_reduce", 5, "communication"),
            ("c10d::allreduce_", 0, "communication"),
            ("autograd::engine::evaluate_function: MulBackward0", 0, "backward"),
            ("x" * 5000 + "Backward0", 0, "backward"),
            ("torch::autograd::AccumulateGrad", 0, "backward"),
            ("aten::cross_entropy_loss", 0, "loss"),
            ("aten::binary_cross_entropy_with_logits", 0, "loss"),
            ("aten::nll_loss_backward", 0, None),
            ("aten::mul", 0, None),
            ("ProfilerStep#7", 5, None),
            ("hetero_cell.mutants", 5, None),
            ("DistributedDataParallel.forward", 5, "forward"),
            ("## recmetrics_update ##", 5, "logging"),
            ("save_checkpoint", 5, "checkpoint"),
            ("validation_step", 5, "validation"),
            ("collate", 5, "preparation"),
            ("torch/optim/adam.py(210): step", 7, "optimizer"),
            ("torch/utils/data/_utils/collate.py(30): default_collate", 7, "preparation"),
            ("cudaStreamSynchronize", 1, None),
            ("ncclKernel_AllReduce_RING", 2, None),
        ],
    )
    def test_names_tell(self, name, kind, category):
        found = classify(name, Kind(kind))
        assert (None if found is None else found.name) == category

    def test_the_nearest_classified_ancestor_decides(self):
        trace = make_trace(
            [
                STEP,
                Event("phase.forward", 0, 400, Kind.annotation),
                Event("model.encoder", 10, 300, Kind.annotation),
                Event("aten::linear", 20, 50),
                Event("phase.loss", 500, 100, Kind.annotation),
                Event("aten::mul", 510, 50),
                Event("aten::add", 700, 50),
            ]
        )
        found = attribute(trace).operations.select("operation", "category").rows()
        expected = {("aten::linear", "forward"), ("aten::mul", "loss"), ("aten::add", "other")}
        assert expected <= set(found)

    @pytest.mark.parametrize(
        ("around", "category"), [("part", "transfer"), ("phase.forward", "forward")]
    )
    def test_a_copy_to_the_device_is_a_transfer_unless_named_otherwise(self, around, category):
        trace = make_trace(
            [
                STEP,
                Event(around, 0, 1000, Kind.annotation),
                Event("aten::to", 10, 100),
                Event("aten::copy_", 20, 80),
                Event("cudaMemcpyAsync", 30, 50, Kind.runtime, correlation=7),
                Event("Memcpy HtoD", 40, 50, Kind.copy, "stream 1", correlation=7),
            ]
        )
        assert spent(trace)[category] >= 100

    def test_collectives_of_device_and_host_are_known(self):
        names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "gloo:all_reduce"]
        assert [is_collective(name) for name in [*names, "volta_sgemm"]] == [True, True, False]


class TestHost:
    def test_the_backward_of_another_thread_counts_where_the_first_one_waits(self):
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
        # The pause between two of its operators is its own.
        assert spent(trace) == {"forward": 300, "backward": 250, "optimizer": 300, "other": 150}
        rows = attribute(trace).operations.select("operation", "category", "time").rows()
        assert ("aten::mm", "backward", 100) in rows

    def test_what_has_a_backward_in_its_step_is_the_forward(self):
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
        assert spent(trace) == {"forward": 200, "loss": 20, "backward": 100, "other": 680}

    def test_an_operator_without_a_gradient_before_the_forward_is_not_the_forward(self):
        ms = 10**6
        trace = make_trace(
            [
                Event("ProfilerStep#1", 0, 100 * ms, Kind.annotation),
                # It has the number of the next operator that makes a node.
                Event("aten::randperm", 0, ms, sequence=7),
                Event("aten::linear", 60 * ms, 10 * ms, sequence=7),
                Event("aten::addmm", 61 * ms, 8 * ms, sequence=7),
                Event("AddmmBackward0", 80 * ms, 20 * ms, sequence=7),
            ]
        )
        assert spent(trace) == {"forward": 10 * ms, "backward": 20 * ms, "other": 70 * ms}
        bare = "code that records nothing, between aten::randperm and aten::linear"
        assert named(trace)[bare] == 59 * ms

    def test_the_wait_for_a_collective_of_the_host_is_communication(self):
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
        assert spent(trace) == {"communication": 450, "backward": 450, "optimizer": 100}

    def test_the_loader_is_seen_also_where_something_in_it_is_classified(self):
        trace = make_trace(
            [
                STEP,
                Event("enumerate(DataLoader)#_Single.__next__", 0, 400, Kind.annotation),
                Event("torch/utils/data/_utils/collate.py(1): collate", 100, 100, Kind.python),
                Event("aten::stack", 100, 250, thread="pt_data_pin"),
            ]
        )
        loader = attribute(trace).loader
        assert (loader.per_step, loader.share) == (400, 0.4)
        assert loader.workers.row(0) == ("pt_data_pin", 250, 0.25)
        assert spent(trace) == {"data_loading": 300, "preparation": 100, "other": 600}

    def test_an_operation_counts_events_and_not_their_pieces(self):
        inner = [Event("b", at, 5) for at in (10, 30, 50)]
        found = attribute(make_trace([STEP, Event("a", 0, 100), *inner])).operations
        counts = {n: (count, time) for n, _, count, time, _ in found.rows()}
        assert (counts["a"], counts["b"]) == ((1, 85), (3, 15))

    def test_much_in_no_category_is_a_notice(self):
        some = make_trace([STEP, Event("aten::sort", 0, 300)])
        little = make_trace([STEP, Event("phase.forward", 0, 950, Kind.annotation)])
        assert [len(attribute(trace).notices) for trace in (some, little)] == [2, 1]

    def test_python_is_named_by_the_program_and_not_by_its_libraries(self):
        trace = make_trace(
            [
                STEP,
                Event("train.py(30): augment", 0, 500, Kind.python),
                Event("/lib/python3.11/random.py(1): shuffle", 10, 400, Kind.python),
                Event("torch/serialization.py(900): save", 600, 300, Kind.python),
                Event("<built-in method write of object at 0x7f12>", 610, 200, Kind.python),
            ]
        )
        assert (named(trace)["train.py(30): augment"], named(trace)["torch.save"]) == (500, 300)

    def test_the_peak_of_memory_is_found_where_recorded(self):
        rows = {"time": [10, 500, 700], "total": [100, 900, 50], "device": [1, 1, 0]}
        memory = {n: np.array(v) for n, v in (rows | {"device_id": [0, 0, 0]}).items()}
        events = [STEP, Event("phase.backward", 400, 200, Kind.annotation)]
        peaks = attribute(make_trace(events, memory=memory)).memory
        assert [(p.device, p.size, p.step) for p in peaks] == [("cuda:0", 900, 1), ("cpu", 50, 1)]
        assert peaks[0].during == "phase.backward"


def item(at: int, length: int, wait: int) -> list[Event]:
    return [
        Event("aten::item", at, length),
        Event("aten::_local_scalar_dense", at + 1, length - 2),
        Event("cudaStreamSynchronize", at + 2, wait, Kind.runtime),
    ]


class TestSyncs:
    def test_calls_that_wait(self):
        waits = ["cudaStreamSynchronize", "cudaDeviceSynchronize", "hipDeviceSynchronize"]
        waits += ["cudaEventSynchronize", "cudaMemcpy"]
        others = ["cudaMemcpyAsync", "cudaLaunchKernel", "cudaEventQuery"]
        assert [n for n in [*waits, *others] if is_sync_call(n)] == waits

    def test_what_asked_is_the_outermost_operator(self):
        metrics = Event("metrics", 10, 500, Kind.annotation)
        trace = make_trace([STEP, metrics, *item(20, 100, 90), *item(200, 50, 40)])
        (found,) = attribute(trace).syncs.rows()
        assert found[:4] == ("aten::item", "cudaStreamSynchronize", None, "metrics")
        assert found[4:] == (2, 130, 2.0)
        second = Event("ProfilerStep#2", 1000, 1000, Kind.annotation)
        assert len(attribute(make_trace([STEP, second, *item(20, 100, 90)])).syncs) == 0

    def test_the_call_site_is_the_nearest_function_that_is_not_of_torch(self):
        python = ["train.py(12): main", "train.py(40): log", "torch/_tensor.py(7): item"]
        calls = [Event(n, i + 1, 900 - i, Kind.python) for i, n in enumerate(python)]
        new = make_trace([STEP, *calls, *item(20, 100, 90)])
        old = make_trace([STEP, *item(20, 100, 90)])
        stack = np.full(len(old), NOTHING, dtype=np.int32)
        stack[row_of(old, "aten::item")] = 0
        old = replace(old, stack=stack, stacks=(";".join(reversed(python)),))
        for trace in (new, old):
            assert attribute(trace).syncs["site"].to_list() == ["train.py(40): log"]

    @pytest.mark.parametrize(
        ("name", "waits"),
        [
            ("Memcpy DtoH (Device -> Pageable)", 1),
            ("Memcpy DtoH (Device -> Pinned)", 0),
            ("Memcpy HtoD (Pageable -> Device)", 0),
        ],
    )
    def test_a_copy_to_the_host_waits_unless_it_is_pinned(self, name, waits):
        call = Event("cudaMemcpyAsync", 20, 50, Kind.runtime, correlation=1)
        copy = Event(name, 30, 20, Kind.copy, "stream 7", correlation=1)
        assert len(attribute(make_trace([STEP, call, copy])).syncs) == waits


@pytest.mark.parametrize("kind", list(Kind))
def test_one_event_of_any_kind_is_attributed(kind):
    thread = "stream 7" if kind in (Kind.kernel, Kind.copy, Kind.fill) else "main"
    assert adds_up(attribute(make_trace([Event("alone", 0, 10, kind, thread)])))


def test_nothing_that_lasts_is_an_error():
    with pytest.raises(InputError) as caught:
        attribute(make_trace([Event("a", 0, 0)]))
    assert caught.value.code == "no-events"


@pytest.mark.parametrize(
    "piece", ["!", "cudaStreamSynchronize", "DtoH", "step ", "_loss::", "torch_geometric/", "next("]
)
def test_a_hostile_name_takes_no_time(piece):
    name = piece * 50_000 + "\x00<script>"
    events = [STEP]
    for place, kind in enumerate(Kind):
        thread = "stream 7" if kind in (Kind.kernel, Kind.copy, Kind.fill) else "main"
        events.append(Event(name, 10 * place, 5, kind, thread, correlation=1))
    assert adds_up(attribute(make_trace(events)))
