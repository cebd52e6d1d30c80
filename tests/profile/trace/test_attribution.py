"""Attribution: steps, nesting, categories and names, and one account that adds up."""

from dataclasses import replace

import numpy as np
import pytest
from traces import STEP, Event, make_trace, named, steps

from deltacell.profile.phase_rows import PHASES
from deltacell.profile.trace.attribution import Attribution
from deltacell.profile.trace.categories import Category, classify
from deltacell.profile.trace.self_time import nest
from deltacell.profile.trace.steps import find_steps
from deltacell.profile.trace.trace import NOTHING, ON_DEVICE, Kind, Trace


def spent(trace: Trace) -> dict[str, int]:
    found = Attribution(trace)
    assert adds_up(found)
    return {n: round(time * 1e9) for n, time in found.seconds_per_step().items()}


def adds_up(found: Attribution) -> bool:
    return found.doing["time"].sum() == found.steps.wall[found.steps.counted].sum()


def doing(trace: Trace) -> dict[str, tuple[int, int]]:
    rows = Attribution(trace).doing.select("name", "count", "time").iter_rows()
    return {name: (count, time) for name, count, time in rows}


class TestNesting:
    def parents(self, trace: Trace) -> dict[str, str | None]:
        rows = nest(trace).parent.tolist()
        above = [None if row == NOTHING else trace.text(row) for row in rows]
        return dict(zip([trace.text(row) for row in range(len(trace))], above, strict=True))

    def test_an_event_that_ends_just_after_its_parent_is_nested_in_it(self):
        # Times were rounded: the child seems to end a moment after its parent.
        trace = make_trace([Event("step", 0, 300), Event("a", 0, 100), Event("b", 10, 91)])
        assert nest(trace).self_time.tolist() == [199, 10, 91]
        assert self.parents(trace) == {"step": None, "a": "step", "b": "a"}
        apart = make_trace([Event("a", 0, 10), Event("b", 5, 100), Event("c", 8, 4)])
        assert self.parents(apart) == {"a": None, "b": None, "c": "b"}

    def test_events_without_length_have_a_parent_and_hide_nothing(self):
        instants = {"first": 0, "in b": 5, "after b": 6, "after a": 10}
        lasting = [Event("a", 0, 10), Event("b", 4, 2)]
        trace = make_trace([*lasting, *(Event(name, at, 0) for name, at in instants.items())])
        found = self.parents(trace)
        assert [found[name] for name in instants] == ["a", "b", "a", None]
        assert nest(trace).self_time[0] == 8

    def test_collectives_that_run_beside_do_not_hold_what_begins_meanwhile(self):
        events = [named("backward", 0, 100), named("gloo:all_reduce", 10, 200)]
        trace = make_trace([*events, Event("aten::mul", 20, 5)])
        assert nest(trace).self_time.tolist() == [95, 200, 5]
        assert self.parents(trace)["aten::mul"] == "backward"


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
        assert [number for number, _ in found.cut] == np.flatnonzero(~found.counted).tolist()

    @pytest.mark.parametrize(
        ("events", "bounds"),
        [
            # Steps that overlap are not counted twice.
            ([STEP, named("ProfilerStep#2", 900, 50)], [(0, 900), (900, 950)]),
            # Ranges reach to the next, because the loader is between.
            (steps([50] * 3, "train_step *", pause=30), [(0, 80), (80, 160), (160, 210)]),
            # A round ends with the last optimizer.
            (
                [
                    Event("aten::add", 0, 5),
                    *(
                        named(f"Optimizer.step#{name}.step", 100 * place + at, 10)
                        for place in range(3)
                        for name, at in (("SGD", 50), ("Adam", 70))
                    ),
                ],
                [(0, 80), (80, 180), (180, 280)],
            ),
            # Else the whole is one step.
            ([Event("a", 10, 90), Event("b", 50, 100, thread="second")], [(10, 150)]),
        ],
    )
    def test_steps_begin_and_end_with_their_events(self, events, bounds):
        found = find_steps(make_trace(events))
        assert list(zip(found.begin.tolist(), found.end.tolist(), strict=True)) == bounds


class TestCategories:
    def test_categories_have_the_lengths_of_their_phases(self):
        names = [category.title for category in Category]
        lengths = {name: 50 - place for place, name in enumerate(names[:-1])}
        events = [
            named(f"phase.{phase}", 50 * place, 50 - place)
            for place, phase in enumerate(PHASES[:-1])
        ]
        expected = lengths | {"other": 1000 - sum(lengths.values())}
        assert spent(make_trace([STEP, *events])) == expected

    @pytest.mark.parametrize(
        ("category", "kind", "names"),
        [
            ("data_loading", 5, "[pl][profile][_TrainingEpochLoop].train_dataloader_next"),
            ("data_loading", 0, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"),
            ("transfer", 5, "## copy_batch_to_gpu ##"),
            ("preparation", 5, "collate"),
            ("preparation", 7, "torch/utils/data/_utils/collate.py(30): default_collate"),
            ("forward", 5, "DistributedDataParallel.forward"),
            ("loss", 0, "aten::cross_entropy_loss|aten::binary_cross_entropy_with_logits"),
            ("backward", 0, "autograd::engine::evaluate_function: MulBackward0"),
            ("backward", 0, f"torch::autograd::AccumulateGrad|{'x' * 5000}Backward0"),
            ("communication", 5, "nccl:all_reduce|DDP AllReduce"),
            ("communication", 0, "c10d::allreduce_"),
            ("optimizer", 5, "Optimizer.step#AdamW.step"),
            ("optimizer", 0, "Optimizer.zero_grad#SGD.zero_grad"),
            ("optimizer", 7, "torch/optim/adam.py(210): step"),
            ("logging", 5, "## recmetrics_update ##"),
            ("validation", 5, "validation_step"),
            ("checkpoint", 5, "save_checkpoint"),
            (None, 0, "aten::nll_loss_backward|aten::mul"),
            (None, 5, "ProfilerStep#7|hetero_cell.mutants"),
            (None, 1, "cudaStreamSynchronize"),
            (None, 2, "ncclKernel_AllReduce_RING"),
        ],
    )
    def test_names_tell(self, category, kind, names):
        found = [classify(name, Kind(kind)) for name in names.split("|")]
        assert {None if one is None else one.name for one in found} == {category}

    @pytest.mark.parametrize(
        ("around", "category"),
        [("part", "transfer to device"), ("phase.forward", "forward")],
    )
    def test_a_copy_to_the_device_is_a_transfer_unless_named_otherwise(self, around, category):
        trace = make_trace(
            [
                *(STEP, named(around, 0, 1000)),
                *(Event("aten::to", 10, 100), Event("aten::copy_", 20, 80)),
                Event("cudaMemcpyAsync", 30, 50, Kind.runtime, correlation=7),
                Event("Memcpy HtoD", 40, 50, Kind.copy, "stream 1", correlation=7),
            ],
        )
        assert spent(trace)[category] >= 100


class TestHost:
    def test_the_backward_of_another_thread_counts_where_the_first_one_waits(self):
        trace = make_trace(
            [
                *(STEP, named("phase.forward", 0, 300)),
                Event("autograd::engine::evaluate_function: A", 350, 200, thread="autograd"),
                Event("aten::mm", 360, 100, thread="autograd"),
                Event("autograd::engine::evaluate_function: B", 560, 40, thread="autograd"),
                named("Optimizer.step#SGD.step", 700, 300),
            ],
        )
        # The pause between two of its operators is its own.
        assert spent(trace) == {"forward": 300, "backward": 250, "optimizer": 300, "other": 150}
        rows = Attribution(trace).doing.select("name", "category", "time").rows()
        assert ("aten::mm", "backward", 100) in rows

    def test_an_operator_with_a_backward_in_its_step_is_the_forward(self):
        trace = make_trace(
            [
                STEP,
                Event("aten::conv2d", 100, 100, sequence=7),
                Event("aten::_convolution", 110, 50, sequence=7),
                Event("aten::relu", 250, 50, sequence=8),
                Event("aten::nll_loss", 320, 20, sequence=9),
                Event("ReluBackward0", 400, 50, sequence=8, thread="autograd"),
                Event("CudnnConvolutionBackward", 450, 50, sequence=7, thread="autograd"),
                # A number that a damaged trace may have.
                Event("aten::argmax", 600, 100, sequence=2**63 - 1),
            ],
        )
        assert spent(trace) == {"forward": 200, "loss": 20, "backward": 100, "other": 680}

    def test_an_operator_without_a_gradient_before_the_forward_is_not_the_forward(self):
        ms = 10**6
        trace = make_trace(
            [
                named("ProfilerStep#1", 0, 100 * ms),
                # It has the number of the next operator that makes a node.
                Event("aten::randperm", 0, ms, sequence=7),
                Event("aten::linear", 60 * ms, 10 * ms, sequence=7),
                Event("aten::addmm", 61 * ms, 8 * ms, sequence=7),
                Event("AddmmBackward0", 80 * ms, 20 * ms, sequence=7),
            ],
        )
        assert spent(trace) == {"forward": 10 * ms, "backward": 20 * ms, "other": 70 * ms}
        bare = "Python code that records nothing, between aten::randperm and aten::linear"
        assert doing(trace)[bare][1] == 59 * ms

    def test_the_wait_for_a_collective_of_the_host_is_communication(self):
        trace = make_trace(
            [
                *(STEP, named("phase.backward", 0, 900), named("phase.optimizer", 900, 100)),
                *(Event("MulBackward0", 10, 90), Event("MulBackward0", 110, 190)),
                named("gloo:all_reduce", 50, 700, "gloo"),
            ],
        )
        assert spent(trace) == {"gradient communication": 450, "backward": 450, "optimizer": 100}

    def test_the_loader_is_seen_also_where_something_in_it_is_classified(self):
        trace = make_trace(
            [
                *(STEP, named("enumerate(DataLoader)#_Single.__next__", 0, 400)),
                Event("torch/utils/data/_utils/collate.py(1): collate", 100, 100, Kind.python),
                Event("aten::stack", 100, 250, thread="pt_data_pin"),
            ],
        )
        loader = Attribution(trace).loader
        assert (loader.per_step, loader.share) == (400, 0.4)
        assert loader.workers.row(0) == ("pt_data_pin", 250, 0.25)
        assert spent(trace) == {"data loading": 300, "graph preparation": 100, "other": 600}

    def test_an_operation_counts_events_and_not_their_pieces(self):
        inner = [Event("b", at, 5) for at in (10, 30, 50)]
        found = doing(make_trace([STEP, Event("a", 0, 100), *inner]))
        assert (found["a"], found["b"]) == ((1, 85), (3, 15))

    def test_python_is_named_by_the_program_and_not_by_its_libraries(self):
        trace = make_trace(
            [
                STEP,
                Event("train.py(30): augment", 0, 500, Kind.python),
                Event("/lib/python3.11/random.py(1): shuffle", 10, 400, Kind.python),
                Event("torch/serialization.py(900): save", 600, 300, Kind.python),
                Event("<built-in method write of object at 0x7f12>", 610, 200, Kind.python),
                Event("src/train.py(44): hook", 910, 80, Kind.python),
                Event("<built-in function sleep>", 915, 70, Kind.python),
            ],
        )
        found = doing(trace)
        augment = "Python code of augment (train.py, line 30)"
        assert (found[augment][1], found["torch.save"][1]) == (500, 300)
        assert found["sleep in hook (train.py, line 44)"][1] == 70
        assert found["Python code of hook (train.py, line 44)"][1] == 10


def item(at: int, length: int, wait: int) -> list[Event]:
    return [
        Event("aten::item", at, length),
        Event("aten::_local_scalar_dense", at + 1, length - 2),
        Event("cudaStreamSynchronize", at + 2, wait, Kind.runtime),
    ]


class TestSyncs:
    def test_a_synchronization_is_attributed_to_the_outermost_operator(self):
        events = [named("metrics", 10, 500), *item(20, 100, 90), *item(200, 50, 40)]
        (found,) = Attribution(make_trace([STEP, *events])).syncs.rows()
        assert found == ("aten::item", "cudaStreamSynchronize", None, 2, 130)
        second = named("ProfilerStep#2", 1000, 1000)
        assert len(Attribution(make_trace([STEP, second, *item(20, 100, 90)])).syncs) == 0

    def test_the_call_site_is_the_nearest_function_that_is_not_of_torch(self):
        python = ["train.py(12): main", "train.py(40): log", "torch/_tensor.py(7): item"]
        calls = [Event(n, i + 1, 900 - i, Kind.python) for i, n in enumerate(python)]
        new = make_trace([STEP, *calls, *item(20, 100, 90)])
        old = make_trace([STEP, *item(20, 100, 90)])
        stack = np.array([-1, 0, -1, -1], dtype=np.int32)
        old = replace(old, stack=stack, stacks=(";".join(reversed(python)),))
        for trace in (new, old):
            assert Attribution(trace).syncs["site"].to_list() == ["train.py(40): log"]

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
        assert len(Attribution(make_trace([STEP, call, copy])).syncs) == waits


def of_every_kind(name: str) -> list[Event]:
    threads = {kind: "stream 7" if kind in ON_DEVICE else "main" for kind in Kind}
    return [Event(name, 10 * kind, 5, kind, threads[kind], correlation=1) for kind in Kind]


@pytest.mark.parametrize(
    "piece",
    ["!", "cudaStreamSynchronize", "DtoH", "step ", "_loss::", "torch_geometric/", "next("],
)
def test_a_hostile_name_takes_no_time(piece):
    events = of_every_kind(piece * 5_000 + "\x00<script>")
    assert adds_up(Attribution(make_trace([STEP, *events])))
    # Alone, so that the steps are found from its name. Only these kinds are matched with patterns.
    alone = [events[kind] for kind in (Kind.operator, Kind.annotation, Kind.python)]
    assert all(adds_up(Attribution(make_trace([event]))) for event in alone)
