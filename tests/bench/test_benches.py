"""Benchmarks: what they measure and report, on cells small enough for a test."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from deltacell.bench import dango, data, mutants, predict, process, start, trace
from deltacell.bench import train as train_bench
from deltacell.cell import Cell, Genes, Relation
from deltacell.cli.app import app
from deltacell.errors import DeltacellError, InputError
from deltacell.screen import Loader, Screen, Split

N = 24
BENCHES = tomllib.loads(files("deltacell.cli").joinpath("bench.toml").read_text("utf-8"))


@pytest.fixture(scope="module")
def cell() -> Cell:
    rng = np.random.default_rng(0)
    relations = [
        Relation.from_edges(name, *rng.integers(N, size=(2, 60)), n_genes=N, directed=directed)
        for name, directed in (("physical", False), ("regulatory", True))
    ]
    return Cell(Genes(f"g{i}" for i in range(N)), relations)


@pytest.fixture
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run a quick benchmark by its command, all in this process, and return what it wrote."""

    def here(function: Any, **settings: Any) -> Any:
        return function(**settings)

    def run(*words: str) -> dict[str, Any]:
        monkeypatch.setattr(process, "in_own_process", here)
        out = tmp_path / "out.json"
        done = CliRunner().invoke(app, ["bench", *words, "--quick", "--json", str(out)])
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(out.read_text())
        assert (found["bars"], found["benchmark"]) == ({}, words[0])
        assert found["machine"]["cores"] >= 1
        return found

    return run


# --- what all share ---


def test_peak_memory_sees_what_was_given_back() -> None:
    # In a process of its own: in this one, memory of other tests may come back meanwhile.
    code = (
        "import numpy; from deltacell.bench.process import PeakMemory; memory = PeakMemory(); "
        "block = numpy.ones(8 * 2**20); del block; print(memory.mib())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 200


SLOW = """
import os, time
from deltacell.bench.process import in_own_process
def work():
    print(os.getpid(), flush=True)
    time.sleep(600)
if __name__ == "__main__":
    import slow
    in_own_process(slow.work)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux says who runs")
def test_a_process_of_its_own_ends_with_the_one_that_asked(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    found = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    words, options = [sys.executable, str(tmp_path / "slow.py")], {"PYTHONPATH": found}
    with subprocess.Popen(words, stdout=subprocess.PIPE, env=os.environ | options) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        asking.kill()
    stat, until = Path(f"/proc/{pid}/stat"), time.monotonic() + 60
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_process_of_its_own_fails_and_dies(tmp_path: Path) -> None:
    with pytest.raises(InputError):
        process.in_own_process(trace.measure, file=tmp_path / "no.json")
    with pytest.raises(DeltacellError, match="died"):
        process.in_own_process(os._exit, status=1)


def test_bars_are_limits_that_are_met_or_not_and_medians_are_over_turns() -> None:
    limits = {"a": {"at_least": 10.0}, "b": {"at_most": 0.2}, "c": {"at_most": 1.0}}
    found = process.bars(limits, {"a": 12.0, "b": 0.3})
    assert found["b"] == {"at_most": 0.2, "measured": 0.3, "met": False}
    assert [bar["met"] for bar in found.values()] == [True, False]
    order, shown = [], []
    ways = {name: lambda name=name: order.append(name) or len(order) for name in "xy"}
    turns = process.in_turns(ways, 3, lambda *news: shown.append(news))
    assert (order, turns) == (list("xyxyxy"), {"x": [1, 3, 5], "y": [2, 4, 6]})
    assert shown[-1] == ("y, 3 of 3", 5, 6)
    rows = [{"s": s, "name": "a", "n": 4} for s in (1.0, 10.0, 2.0)]
    assert process.median_row(rows) == {"s": 2.0, "name": "a", "n": 4}


@pytest.mark.parametrize(
    ("run", "options", "code"),
    [
        (dango.run, {"batch": 0}, "out-of-range"),
        (predict.run, {"repeats": 0}, "out-of-range"),
        (train_bench.run, {"steps": 0}, "out-of-range"),
        (train_bench.run, {"models": ["dago"]}, "unknown-choice"),
    ],
)
def test_what_cannot_be_measured_is_refused(run: Any, options: dict[str, Any], code: str) -> None:
    with pytest.raises(InputError) as caught:
        run(**options)
    assert caught.value.code == code


# --- quick runs ---


def test_the_three_pipelines_load_the_same_genotypes(cell: Cell) -> None:
    screen = data.random_triples(cell, 30, seed=1)
    (batch,) = Loader(screen, batch_size=30, shuffle=False)
    records, whole = data._Records(screen), data._Mutants(cell, screen)
    assert len(records) == len(whole) == len(batch)
    for i, genes in enumerate(batch.genotypes):
        assert records[i].deleted.tolist() == genes.tolist()
        assert records[i].y.item() == whole[i]["gene"].y.item() == batch.targets[i].item()
        assert (~whole[i]["gene"].living).nonzero().ravel().tolist() == sorted(genes.tolist())
        for name, relation in cell.relations.items():
            part = whole[i]["gene", name, "gene"]
            assert part.edge_index.shape[1] == relation.n_edges
            touched = np.isin(part.edge_index.numpy(), genes.numpy()).any(axis=0)
            assert np.array_equal(part.living.numpy(), ~touched)


PREDICT = [name for model in predict.LOOPS for name in ("loop", *predict.RANKED[model])]
QUICK = {
    "data": ("name", ["columnar", "per_record", "lazy"], "bytes_per_sample"),
    "dango --batch 5 --steps 2": ("variant", ["dense", "closed_form"], "peak_mib loss"),
    "pairs": ("name", ["columns", "train", "score_all_pairs"], "seconds pairs peak_mib"),
    "train --steps 2 --repeats 1": ("model", [*train_bench.CONFIGS], "phase_overhead peak_mib"),
    "predict --repeats 1": ("variant", PREDICT, "sets_per_s times_the_loop"),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", QUICK)
def test_a_quick_run(words: str, quick: Any) -> None:
    column, names, positive = QUICK[words]
    found = quick(*words.split())
    rows, ratios = found["rows"], found.get("ratios", {})
    assert [row[column] for row in rows] == names
    assert all(row[key] > 0 for row in rows for key in positive.split())
    match found["benchmark"]:
        case "data" | "dango" as name:
            assert set(ratios) == set(BENCHES[name]["bars"])
            assert ratios.get("relative_difference_of_loss", 0) < 1e-5
        case "train":
            assert all(0 <= row["data_wait_share"] < 1 > row["phase_overhead"] for row in rows)
            assert (len(ratios), rows[2]["propagation"]) == (3, "auto: late")
        case "predict":
            # Of so many genes all triples are ranked, and of the loop's as many as it says.
            assert [row["sets"] for row in rows] == [5_120, *[34_220] * 3, 8, 84]


# --- mutants and start ---


@pytest.mark.slow
def test_all_arms_are_compared_and_a_rerun_trains_nothing(tmp_path: Path) -> None:
    options: dict[str, Any] = {"split": "random", "seeds": 1, "epochs": 1, "genotypes": 400}
    result = mutants.run(tmp_path, **options)
    assert [row["arm"] for row in result["rows"]] == list(mutants.ARMS)
    assert all(row["weight"] >= 0 for row in result["rows"])
    pairs = {(row["arm"], row["less"]) for row in result["differences"]}
    assert pairs == {("true", "matched"), ("true", "none"), ("true", mutants.ALONE)}
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
    assert mutants.run(tmp_path, **options)["scores"] == result["scores"]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}


@pytest.mark.slow
def test_a_pair_is_never_predicted_by_a_fit_that_saw_it(tmp_path: Path) -> None:
    """With another score in one half, its own prediction by the other half stays the same."""
    cell = Cell.synthetic("redundancy")
    screen = Screen.synthetic(cell, n=400)
    split = Split.random(screen, seed=0)
    base = mutants.cross_fitted(cell, screen, split, tmp_path / "a")
    row = int(split.train[0])
    changed = screen.column("score").copy()
    changed[row] += 5
    other = screen.with_scores(changed)
    part = mutants.replace(split, screen_checksum=other.checksum)
    assert mutants.cross_fitted(cell, other, part, tmp_path / "b")[row] == base[row]


def test_starts_are_compared_with_numpy_and_load_neither_pytorch_nor_polars(tmp_path: Path) -> None:
    Cell.synthetic("demo").save(tmp_path / "cell")
    result = start.run(times=1, data=tmp_path / "cell")
    assert [row["command"] for row in result["rows"]] == ["import numpy", "help", "data info"]
    assert result["rows"][0]["times_import_numpy"] == 1
    assert set(BENCHES["start"]["bars"]) < set(result["measured"])
    for words in (["--help"], ["data", "info", str(tmp_path / "cell")]):
        code = (
            "import sys; from deltacell.cli.app import app\n"
            f"app({words!r}, standalone_mode=False)\n"
            "print([m for m in ('torch', 'polars', 'scipy', 'deltacell.bench') "
            "if m in sys.modules], file=sys.stderr)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stderr.strip().endswith("[]"), done.stderr


# --- train ---


def test_ratios_are_of_turns_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"data_wait_share": 0.02, "phase_overhead": 0.002, "peak_mib": 900.0}
    # The machine was ten times slower in the second turn.
    seconds = {"dango": iter([1.0, 10.0, 1.0]), "hetero_cell_late": iter([3.0, 31.0, 9.0])}

    def measured(*_: Any, model: str, **options: Any) -> dict[str, Any]:
        return {"model": model, "s_per_sample": next(seconds[model]), **facts}

    monkeypatch.setattr(process, "in_own_process", measured)
    found = train_bench.run(repeats=3, models=["dango", "hetero_cell_late"])
    assert found["ratios"] == {"hetero_cell_late_over_dango_s_per_sample": pytest.approx(3.1)}
    assert [row["s_per_sample"] for row in found["rows"]] == [1.0, 9.0]
    bars = process.bars(BENCHES["train"]["bars"], {**found["ratios"], **found["measured"]})
    assert bars["hetero_cell_late_over_dango_s_per_sample"]["met"]
    assert not bars["dango_data_wait_share"]["met"]
    assert train_bench.timer_cost(20) > 0
