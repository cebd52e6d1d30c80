"""Categories: from names, and from what lies above."""

from __future__ import annotations

import pytest
from made import Event, make_trace, row_of

from deltacell.profile.phase_rows import PHASES
from deltacell.profile.trace.categories import Category, categories, classify, is_collective
from deltacell.profile.trace.self_time import nest
from deltacell.profile.trace.trace import NOTHING, Kind, Trace


def category_of(trace: Trace, name: str) -> int:
    return int(categories(trace, nest(trace))[row_of(trace, name)])


def test_the_categories_are_those_of_the_phases_and_have_titles() -> None:
    assert len(Category) == len(PHASES)
    found = [classify(f"phase.{phase}", Kind.annotation) for phase in PHASES]
    assert found == list(Category)
    assert Category.communication.title == "gradient communication"


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
        ("torch::autograd::AccumulateGrad", 0, "backward"),
        ("aten::cross_entropy_loss", 0, "loss"),
        ("aten::binary_cross_entropy_with_logits", 0, "loss"),
        ("aten::nll_loss_backward", 0, None),
        ("aten::mul", 0, None),
        ("ProfilerStep#7", 5, None),
        ("dango.reconstruction", 5, None),
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
def test_names_tell(name: str, kind: int, category: str | None) -> None:
    found = classify(name, Kind(kind))
    assert (None if found is None else found.name) == category


def test_the_nearest_classified_ancestor_decides() -> None:
    trace = make_trace(
        [
            Event("ProfilerStep#1", 0, 1000, Kind.annotation),
            Event("phase.forward", 0, 400, Kind.annotation),
            Event("model.encoder", 10, 300, Kind.annotation),
            Event("aten::linear", 20, 50),
            Event("phase.loss", 500, 100, Kind.annotation),
            Event("aten::mul", 510, 50),
            Event("aten::add", 700, 50),
        ]
    )
    assert category_of(trace, "aten::linear") == Category.forward
    assert category_of(trace, "aten::mul") == Category.loss
    assert category_of(trace, "aten::add") == NOTHING


def test_a_copy_to_the_device_is_a_transfer_unless_something_above_says_more() -> None:
    def trace_within(name: str) -> Trace:
        return make_trace(
            [
                Event(name, 0, 1000, Kind.annotation),
                Event("aten::to", 10, 100),
                Event("aten::copy_", 20, 80),
                Event("cudaMemcpyAsync", 30, 50, Kind.runtime, correlation=7),
                Event("Memcpy HtoD", 40, 50, Kind.copy, "stream 1", correlation=7),
            ]
        )

    assert category_of(trace_within("ProfilerStep#1"), "aten::to") == Category.transfer
    assert category_of(trace_within("ProfilerStep#1"), "cudaMemcpyAsync") == Category.transfer
    assert category_of(trace_within("phase.forward"), "aten::to") == Category.forward


def test_collectives_of_device_and_host_are_known() -> None:
    names = ["ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)", "gloo:all_reduce"]
    assert all(is_collective(name) for name in names)
    assert not is_collective("volta_sgemm_128x64_nn")


@pytest.mark.parametrize(
    "piece", ["_loss", "::_loss", "torch_geometric/", "Backward", "next(loader"]
)
def test_a_hostile_name_takes_no_time(piece: str) -> None:
    for kind in (Kind.operator, Kind.annotation, Kind.python):
        classify(piece * 200_000 + "!", kind)
    is_collective(piece * 200_000)
    assert classify("x" * 5000 + "Backward0", Kind.operator) == Category.backward
