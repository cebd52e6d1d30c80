"""The real traces, against the golden answers of the specification."""

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


def test_the_loader_is_why_no_workers_are_slower_and_the_kernels_are_equal(loaders):
    assert loaders.sentence.startswith(
        "resnet50_loader_workers_0 takes 1.33x as long per step as resnet50_loader_workers_4 (175 "
        "ms against 131 ms): data loading accounts for +68.6 ms, and all other parts together for "
        "-25.3 ms.",
    )
    fall = loaders.comparison.steps
    assert sum(bar.change for bar in fall.bars) == pytest.approx(fall.gap, rel=1e-9)
    assert loaders.confidence == "high"
    said = " ".join(loaders.evidence)
    assert "kernels launched in a step take 99.0 ms against 98.6 ms: the work of the device" in said
    assert "Waiting for the loader takes 838 µs against 69.4 ms per step." in said
    assert any("Step 5 does not count: warm-up," in warning for warning in loaders.warnings)


def test_a_change_of_loaders_is_in_the_table_of_operations_and_not_of_kernels(loaders):
    host = {row["name"]: row["change_s"] for row in loaders.table("operations").to_dicts()}
    assert max(host, key=host.get) == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    for key in ("operators", "kernels"):
        frame = loaders.table(key)
        # The work of the device is the same.
        assert abs(frame["change_s"].sum()) < 0.02 * frame["a_s"].sum()
    parts = loaders.table("device")
    assert parts["change_s"].sum() == pytest.approx(loaders.comparison.steps.gap, rel=1e-6)


def test_one_with_a_slow_loader(traces):
    found = explain(traces / "resnet50_loader_workers_0.pt.trace.json.gz")
    assert found.sentence.startswith("Computing takes 56 % of a step of resnet50_loader_workers_0")
    assert [cause.kind for cause in found.causes[:2]] == ["compute", "idle data"]
    assert found.causes[1].share == pytest.approx(0.43, abs=0.005)
    waiting = found.causes[1].evidence.reasons[0]
    assert (waiting.reason, waiting.seconds) == ("data", pytest.approx(0.0570, rel=1e-2))

    assert found.accounts[0].parts["data loading"] == pytest.approx(0.0694, rel=1e-3)
    assert any(advice.startswith("data loading: ") for advice in found.advice)
    for key in ("operations", "idle", "syncs", "critical_path", "steps"):
        assert len(found.table(key)), key


def test_the_rank_that_the_others_wait_for(traces):
    found = explain(traces / "dlrm_ddp_8ranks")
    assert "is idle for 56 % of a step" in found.sentence
    assert found.sentence.startswith(
        "The ranks wait for rank 7, which starts its step 7.51 ms late: it enters the first "
        "sendrecv 7.62 ms after rank 1",
    )
    assert found.doubts == ["only 1 step was measured"]
    assert any(
        "idle 54.5 %, exposed communication and copies 37.7 %, compute 7.8 %" in one
        for one in found.evidence
    )
    assert any("only one step" in warning for warning in found.warnings)


def test_unlike_recordings_are_compared_with_low_confidence(traces, make_run):
    run = make_run("run", {"forward": 0.01})
    (dlrm,) = (traces / "dlrm_ddp_8ranks").glob("worker0*")
    for other, why in ((dlrm, "different programs"), (run, "is a run and")):
        found = explain(other, traces / "ddp_world128_rank0.json.gz")
        assert found.confidence == "low"
        assert why in found.warnings[0]
        fall = found.comparison.steps
        assert sum(bar.change for bar in fall.bars) == pytest.approx(fall.gap, rel=1e-9)
