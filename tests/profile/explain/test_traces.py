"""The real traces, against the golden answers of the specification."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from deltacell.profile.explain import explain

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def traces(shared_data: Path) -> Path:
    return shared_data / "traces"


@pytest.fixture(scope="module")
def loaders(traces: Path):
    return explain(
        traces / "resnet50_loader_workers_4.pt.trace.json.gz",
        traces / "resnet50_loader_workers_0.pt.trace.json.gz",
    )


def test_the_loader_is_why_no_workers_are_slower(loaders):
    assert loaders.sentence.startswith(
        "resnet50_loader_workers_0 takes 1.33x as long per step as resnet50_loader_workers_4 (175 "
        "ms against 131 ms): data loading accounts for +68.6 ms, 159 % of the gap, which is more "
        "than all of it; the other parts account for -25.3 ms."
    )
    fall = loaders.comparison.steps
    assert fall.a == pytest.approx(0.1313, rel=1e-3)
    assert fall.b == pytest.approx(0.1746, rel=1e-3)
    assert sum(bar.change for bar in fall.bars) == pytest.approx(fall.gap, rel=1e-9)
    loading = next(bar for bar in fall.bars if bar.part == "data loading")
    assert (loading.a, loading.b) == pytest.approx((0.001, 0.069), abs=1e-3)
    assert any(bar.change < 0 for bar in fall.bars)
    assert loaders.confidence == "high"


def test_the_kernels_are_equal(loaders):
    said = " ".join(loaders.evidence)
    assert "kernels launched in a step take 99.0 ms against 98.6 ms: the work of the device" in said
    assert "Waiting for the loader takes 838 µs against 69.4 ms per step." in said


def test_warmup_is_cut_and_said(loaders):
    assert any("Step 5 does not count: warm-up" in warning for warning in loaders.warnings)


def test_what_changes_is_in_tables_by_operation_operator_and_kernel(loaders):
    host = {row["name"]: row["change_s"] for row in loaders.table("operations").to_dicts()}
    assert max(host, key=host.get) == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for key in ("operators", "kernels"):
        frame = loaders.table(key)
        # The work of the device is the same.
        assert abs(frame["change_s"].sum()) < 0.02 * frame["a_s"].sum()
    assert any("Only resnet50_loader_workers_0 has" in one for one in loaders.evidence)


def test_the_device_adds_up(loaders):
    frame = loaders.table("device")
    parts = frame.filter(frame["part"] != "all")
    assert parts["change_s"].sum() == pytest.approx(loaders.comparison.steps.gap, rel=1e-6)


def test_all_of_it_is_json(loaders):
    again = json.loads(json.dumps(loaders.to_json(), allow_nan=False))
    assert again["sentence"] == loaders.sentence


def test_one_with_a_slow_loader(traces):
    found = explain(traces / "resnet50_loader_workers_0.pt.trace.json.gz")
    assert found.sentence.startswith("Computing takes 56 % of a step of resnet50_loader_workers_0")
    assert "is idle for 43 % of a step" in found.sentence
    assert "57.0 ms waiting for the loader" in found.sentence
    assert [cause.kind for cause in found.causes[:2]] == ["compute", "idle"]
    assert found.accounts[0].parts["data loading"] == pytest.approx(0.0694, rel=1e-3)
    assert any(advice.startswith("data loading: ") for advice in found.advice)
    for key in ("operations", "gaps", "syncs", "small", "critical_path", "memory", "steps"):
        assert len(found.table(key)), key


def test_the_rank_that_the_others_wait_for(traces):
    found = explain(traces / "dlrm_ddp_8ranks")
    assert "is idle for 56 % of a step" in found.sentence
    assert found.sentence.startswith(
        "The ranks wait for rank 7, which starts its step 7.51 ms late: it enters the first "
        "sendrecv 7.62 ms after rank 1"
    )
    assert found.doubts == ("only 1 step was measured",)
    assert any(
        "idle 54.5 %, exposed communication and copies 37.7 %, compute 7.8 %" in one
        for one in found.evidence
    )
    assert any("one step only" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("ddp_world128_rank0.json.gz", "1 of 128 ranks"),
        ("ddp_a100_rank0of2.json.gz", "1 of 2 ranks"),
    ],
)
def test_missing_ranks_are_a_notice(traces, name, said):
    found = explain(traces / name)
    assert sum(said in warning for warning in found.warnings) == 1
    assert sum("missing" in warning for warning in found.warnings) == 1


def test_different_programs_are_compared_with_low_confidence(traces):
    found = explain(
        traces / "resnet50_loader_workers_4.pt.trace.json.gz", traces / "dlrm_ddp_8ranks"
    )
    assert found.confidence == "low"
    assert "different programs" in found.warnings[0]
    fall = found.comparison.steps
    assert sum(bar.change for bar in fall.bars) == pytest.approx(fall.gap, rel=1e-9)


def test_a_trace_and_a_run_are_compared_with_low_confidence(traces, make_run):
    found = explain(
        make_run("run", {"forward": 0.01}), traces / "resnet50_loader_workers_4.pt.trace.json.gz"
    )
    assert found.confidence == "low"
    assert "is a run and" in found.warnings[0]


def test_the_other_way_round_is_the_mirror_image(traces, loaders):
    back = explain(
        traces / "resnet50_loader_workers_0.pt.trace.json.gz",
        traces / "resnet50_loader_workers_4.pt.trace.json.gz",
    )
    there = {bar.part: bar.change for bar in loaders.comparison.steps.bars}
    assert {bar.part: -bar.change for bar in back.comparison.steps.bars} == there
    assert back.sentence.startswith("resnet50_loader_workers_4 takes 0.752x as long per step as ")
    assert "data loading accounts for -68.6 ms, 159 % of the gap" in back.sentence
    assert back.advice == ()
    for key in ("operations", "operators"):
        changes = dict(back.table(key).select("name", "change_s").iter_rows())
        for name, change in loaders.table(key).select("name", "change_s").iter_rows():
            assert changes[name] == pytest.approx(-change)


def test_traces_of_unlike_ranks_are_said_to_be_at_once(traces):
    found = explain(traces / "ddp_world128_rank0.json.gz", traces / "ddp_world128_rank1.json.gz")
    assert "no difference beyond noise" in found.sentence
    assert "rank 0 of 128" in found.sentence
    assert "rank 1 of 128" in found.sentence
    assert found.confidence == "low"
