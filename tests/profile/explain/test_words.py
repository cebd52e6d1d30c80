"""What a person is told: names of kernels, of Python code, and of the two sides of a comparison."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from deltacell.profile.explain import explain
from deltacell.profile.explain.causes import CauseKind
from deltacell.profile.explain.sentences import kernel_name
from deltacell_dev.bench.simulate import Program, write

HOST = Program(device=None, attention=900.0, gemm=1100.0)
NATIVE = "void at::native::"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            f"{NATIVE}vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, X>(int)",
            "vectorized_elementwise_kernel (add)",
        ),
        (
            f"{NATIVE}vectorized_elementwise_kernel<4, at::native::BinaryFunctor<float, X> >(int)",
            "vectorized_elementwise_kernel (binary)",
        ),
        (
            f"{NATIVE}reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<X>>>",
            "reduce_kernel (mean)",
        ),
        (
            f"{NATIVE}elementwise_kernel<128, at::native::gelu_kernel_cuda(X)::lambda>(int)",
            "elementwise_kernel (gelu)",
        ),
        (
            f"{NATIVE}(anonymous namespace)::multi_tensor_apply_kernel<A, B::FusedAdamFunctor<X>>",
            "multi_tensor_apply_kernel (fusedadam)",
        ),
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(Args<4096ul>)", "NCCL AllReduce"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(X)", "NCCL SendRecv"),
        ("Memcpy HtoD (Pinned -> Device)", "Memcpy HtoD (Pinned -> Device)"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("aten::mm", "aten::mm"),
        ("<unknown>", "<unknown>"),
    ],
)
def test_a_kernel_has_the_name_that_a_person_says(name: str, said: str) -> None:
    assert kernel_name(name) == said


@pytest.mark.parametrize("stacks", [False, True])
def test_code_that_no_operator_runs_is_the_cause_though_the_calls_differ(
    tmp_path: Path,
    stacks: bool,
) -> None:
    plain = replace(HOST, stacks=stacks)
    slow = replace(plain, work_before=("augment", 40_000.0), foreach=False)
    a = write(plain, tmp_path / "one", 3)
    b = write(slow, tmp_path / "two", 4)
    for explanation in (explain(a, b), explain(b, a)):
        (cause, *_) = explanation.causes
        assert cause.kind is CauseKind.host
        expected = "Python code of augment (train.py, line 30)"
        if not stacks:
            expected = "Python code that records nothing, between aten::randperm and"
        assert str(cause.name).startswith(expected)
        assert ("record with_stack=True" in explanation.sentence) == (not stacks)


def test_a_stall_in_one_step_is_not_code_of_most_steps(tmp_path: Path) -> None:
    slow = replace(HOST, save=700_000.0, save_every=14, foreach=False, stacks=True)
    a = write(replace(HOST, stacks=True), tmp_path / "one", 3)
    b = write(slow, tmp_path / "two", 4)
    for explanation in (explain(a, b), explain(b, a)):
        lead = explanation.causes[0]
        assert lead.kind is CauseKind.host
        assert "save" in str(lead.name)
        assert "no difference beyond noise" in explanation.sentence


def test_sides_of_one_name_are_called_by_what_differs_in_their_paths(tmp_path: Path) -> None:
    a = write(HOST, tmp_path / "before" / "traces", 3)
    b = write(HOST, tmp_path / "after" / "traces", 4)
    assert [account.name for account in explain(a, b).accounts] == ["before", "after"]
    assert [account.name for account in explain(a, a).accounts] == ["A", "B"]


def test_every_kind_of_cause_of_a_trace_has_a_row_that_says_what_to_do() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "slow-run.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    listed = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    kinds = [kind.value for kind in CauseKind]
    of_traces = kinds[: kinds.index(CauseKind.model)]
    assert [kind for kind in of_traces if kind not in listed] == []
