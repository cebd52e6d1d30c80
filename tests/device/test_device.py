"""A training step on a device does not wait, sends each tensor once, and equals the CPU's."""

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from deltacell.train.devices import device_named

HERE = Path(__file__).parent
MINIMUM = (2, 9)

# Waits that belong to what a case shows, by a part of the place, with the reason.
ALLOWED = {
    "device_mask": "propagate/reference/edge_masks.py",  # it looks up edges on the device: its cost
}
MODELS = [
    *("dango", "pair_cell", "shared", "delta", "delta, sparse", "delta, bounded", "late"),
    *("late, epistasis", "auto", "auto, late", "matched", "none", "metabolism"),
    *("metabolism, delta", "pairwise", "attention", "edge_mask", "subgraph", "device_mask"),
]
PREDICTED = ["dango", "pair_cell", "shared", "delta", "late, epistasis", "metabolism", "none"]
FAULTS = [
    *("item per sample", "mask per step", "host copy", "pageable copy"),
    *("double forward", "needless gather"),
]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What each case did on the pretend device, which has a process of its own."""
    # Workers of one test run share the result.
    whole_run = tmp_path_factory.getbasetemp().parent
    file = whole_run / f"device-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}.jsonl"
    with (whole_run / "device.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            file.write_text(_run_cases())
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    return {row["case"]: row for row in rows}


def _run_cases():
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < MINIMUM:
        pytest.skip(f"PyTorch {torch.__version__} cannot register a device in Python; 2.9 can")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    finished = subprocess.run(
        [sys.executable, HERE / "cases.py"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-2000:]
    return finished.stdout


@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_a_device_neither_waits_nor_sends_what_is_not_pinned(results, name):
    result = results[name]
    assert "error" not in result, result
    waits = [place for place in result["waits"] if ALLOWED.get(name, "nothing") not in place]
    assert waits == []
    assert result["pageable"] == {}
    assert result["copies"] > 0


@pytest.mark.parametrize("name", MODELS)
def test_a_step_on_a_device_equals_that_of_the_cpu(results, name):
    result = results[name]
    assert result["loss"] < 1e-12
    # The gradients of the second step, after an update that divides by tiny squares of the first.
    assert result["gradients"] < 1e-6
    assert result["n_gradients"] > 10


def test_a_documented_wait_is_still_there(results):
    for name, place in ALLOWED.items():
        assert any(place in wait for wait in results[name]["waits"])


def test_every_case_is_judged(results):
    judged = {*MODELS, *(f"fault: {fault}" for fault in FAULTS)}
    assert set(results) == {*judged, *(f"predict: {name}" for name in PREDICTED)}


@pytest.mark.parametrize("name", PREDICTED)
def test_predictions_validation_and_gates_on_a_device_equal_the_cpu_s(results, name):
    result = results[f"predict: {name}"]
    assert "error" not in result, result
    assert result["device"] == "cpu", "predictions are on the host"
    assert result["spread"] > 1e-9
    for part in ("scores", "scorer", "validation", "gates"):
        assert result.get(part, 0) < 1e-9, part
    # The sums of all scores are read once, at the end of the validation.
    assert [place.split(" at ")[0] for place in result["waits_of_validation"]] == [
        "copy to the host"
    ]


def test_a_device_has_a_name_and_must_be_there(refused):
    assert device_named("cpu") == torch.device("cpu")
    assert device_named("auto").type == ("cuda" if torch.cuda.is_available() else "cpu")
    refused("unknown-device", device_named, "gpu")
    if not torch.cuda.is_available():
        refused("no-gpu", device_named, "cuda")


def test_auto_chooses_for_the_device_that_the_model_is_on(results):
    assert results["auto"]["propagation"] == "shared"
    assert results["auto, late"]["propagation"] == "late"


def test_a_bound_on_memory_does_not_mean_one_mutant_at_a_time(results):
    assert results["delta, bounded"]["launches"] == results["delta"]["launches"]


def test_planted_faults_are_found(results):
    right = results["shared"]
    item = results["fault: item per sample"]["waits"]
    assert sum(item.values()) == 8, "one wait for each genotype"
    assert all("_local_scalar_dense" in place for place in item)
    masked = results["fault: mask per step"]["waits"]
    assert [place.split(" at ")[0] for place in masked] == ["aten::index with a mask"]
    copied = results["fault: host copy"]["waits"]
    assert [place.split(" at ")[0] for place in copied] == ["copy to the host"]
    pageable = results["fault: pageable copy"]["pageable"]
    assert [place.split(" at ")[0] for place in pageable] == ["copy to the device"]
    # A pass too many is no wait: it shows in the number of operations.
    assert results["fault: double forward"]["launches"] > 1.05 * right["launches"]
    assert results["fault: double forward"]["waits"] == {}
    # A gather is one operation more, and shows in the bytes.
    gathered = results["fault: needless gather"]
    assert gathered["waits"] == {}
    assert right["launches"] < gathered["launches"] <= right["launches"] + 4
    assert gathered["mb"] > right["mb"] + 1
