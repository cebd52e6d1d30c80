"""Benchmarks: what they measure and report, on cells small enough for a test."""

import gzip
import json
import os
import subprocess
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import random_cell
from torch_geometric.loader import DataLoader
from typer.testing import CliRunner

from deltacell import storage
from deltacell.base.errors import DeltacellError, InputError
from deltacell.bench import growth, models, process, propagation
from deltacell.bench import trace as trace_bench
from deltacell.bench.context import OWN, SHUFFLED, WITH
from deltacell.cell import Cell
from deltacell.cli.app import app
from deltacell.models.hetero_cell.model import HeteroCell
from deltacell.profile.trace.read import read_trace
from deltacell.profile.trace.trace import Kind
from deltacell.propagate import NAMES, strategy
from deltacell.report.bench import print_bench
from deltacell.screen import Genotypes, Loader, Screen, Split
from deltacell_dev.bench import data, mutants, start
from deltacell_dev.bench.faults import Fork

BENCHES = tomllib.loads(files("deltacell.cli").joinpath("bench.toml").read_text("utf-8"))


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


def test_peak_memory_includes_freed_memory() -> None:
    def work() -> float:
        memory = process.PeakMemory()
        np.ones(8 * 2**20)
        return memory.mib()

    # In a fork, because here memory of other tests may be freed meanwhile.
    code, mib, _ = Fork(work).end()
    assert code == 0
    assert 60 < mib < 200


def test_a_separate_process_returns_fails_and_dies(tmp_path: Path) -> None:
    # Functions of modules that load quickly.
    assert process.in_own_process(os.path.commonprefix, m=["ab", "ac"]) == "a"
    with pytest.raises(InputError):
        process.in_own_process(storage.read, path=tmp_path / "none", kind="cell")
    with pytest.raises(DeltacellError, match="died"):
        process.in_own_process(os._exit, status=1)


def test_bars_are_limits_that_are_met_or_not_and_medians_are_over_turns(monkeypatch: Any) -> None:
    limits = {"a": {"at_least": 10.0}, "b": {"at_most": 0.2}, "c": {"at_most": 1.0}}
    found = process.bars(limits, {"a": 12.0, "b": 0.3})
    assert found["b"] == {"at_most": 0.2, "measured": 0.3, "met": False}
    assert [bar["met"] for bar in found.values()] == [True, False]
    order, shown = [], []
    ways = {name: lambda name=name: order.append(name) or len(order) for name in "xy"}
    monkeypatch.setattr(process, "progress", lambda *news: shown.append(news))
    turns = process.in_turns(ways, 3)
    assert (order, turns) == (list("xyxyxy"), {"x": [1, 3, 5], "y": [2, 4, 6]})
    assert shown[-1] == ("y, 3 of 3", 5, 6)
    rows = [{"s": s, "name": "a", "n": 4} for s in (1.0, 10.0, 2.0)]
    assert process.median_row(rows) == {"s": 2.0, "name": "a", "n": 4}


@pytest.mark.parametrize(
    ("run", "options", "code"),
    [
        (models.train, {"models": ["dago"]}, "unknown-choice"),
        (propagation.run, {"strategies": ["fast"]}, "unknown-propagation"),
        (propagation.scaling, {"strategies": ["fast"]}, "unknown-propagation"),
        (growth.run, {"only": "model"}, "unknown-choice"),
    ],
)
def test_sizes_that_cannot_be_measured_are_refused(
    refused: Any, run: Any, options: Any, code: str
) -> None:
    refused(code, run, **options)
    assert CliRunner().invoke(app, ["bench", "dango", "--batch", "0"]).exit_code == 2


# --- quick runs ---


def test_the_three_pipelines_load_the_same_genotypes() -> None:
    cell = random_cell(24, {"physical": 60, "regulatory": 60}, directed=["regulatory"])
    screen = data.random_triples(cell, 30)
    (batch,) = Loader(screen, batch_size=30, shuffle=False)
    records, whole = data.Records(screen), data.Mutants(cell, screen)
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
            positions = whole.incidence[name].positions_of(genes.tolist())
            assert sorted(set(positions.tolist())) == np.flatnonzero(touched).tolist()


def test_the_rate_of_workers_is_counted_after_their_first_batch() -> None:
    cell = random_cell(24, {"physical": 60}, directed=[])
    whole = data.Mutants(cell, data.random_triples(cell, 40))
    loader = DataLoader(whole, batch_size=8, num_workers=2, persistent_workers=True)
    assert data.rate(loader, 0.0) > 0
    batch = next(iter(loader))
    edges = batch["gene", "physical", "gene"]
    assert edges.edge_index.shape == (2, 8 * whole.edges["physical"].shape[1])
    assert edges.edge_index.max() < 8 * 24
    assert len(edges.living) == edges.edge_index.shape[1]


PREDICT = [name for model in models.LOOPS for name in ("loop", *models.RANKED[model])]
DEVICE = [*("dango", "pair_cell", "shared", "delta", "late", "late, epistasis", "edge_mask")]
QUICK = {
    "data": ("name", ["columnar", "per_record", "lazy"], "bytes_per_sample"),
    "dango --batch 5 --steps 2": ("variant", ["dense", "closed_form"], "loss"),
    "context": ("predictor", [OWN, SHUFFLED, WITH], "seen new_unseen seconds"),
    "device --device cpu --batch 4 --repeats 1": (
        *(
            "case",
            ["dango", "pair_cell", "shared", "delta", "late", "late, epistasis", "edge_mask"],
        ),
        "s_per_step genotypes_per_s",
    ),
    "pairs": ("name", ["columns", "train", "score_all_pairs"], "seconds pairs"),
    "train --steps 2 --repeats 1": ("model", [*models.MODELS], "phase_overhead"),
    "predict --repeats 1": ("variant", PREDICT, "sets_per_s times_the_loop"),
    "propagation --strategies subgraph,shared --batch 3 --layers 1 --repeats 1": (
        *("strategy", ["subgraph", "shared", "wild_type"], "s_per_genotype"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("words", QUICK)
def test_a_quick_run(words: str, quick: Any) -> None:
    column, names, positive = QUICK[words]
    found = quick(*words.split())
    rows, ratios = found["rows"], found.get("ratios", {})
    assert [row[column] for row in rows] == names
    assert all(row[key] > 0 for row in rows for key in positive.split())
    # In this process a step may fit into memory that is held already.
    assert all(row.get("peak_mib", 0) >= 0 for row in rows)
    match found["benchmark"]:
        case "data" | "dango" as name:
            assert set(ratios) == set(BENCHES[name]["bars"])
            assert ratios.get("relative_difference_of_loss", 0) < 1e-5
        case "train":
            assert all(0 <= row["data_wait_share"] < 1 > row["phase_overhead"] for row in rows)
            assert all(0 <= row["component_overhead"] < 1 for row in rows)
            assert (len(ratios), rows[2]["propagation"]) == (3, "late")
        case "propagation":
            assert min(ratios["best_times_faster_than_subgraph"], found["roofline_s_per_genotype"])
        case "predict":
            # Of so many genes all triples are ranked, and of the loop's as many as it says.
            assert [row["sets"] for row in rows] == [5_120, *[34_220] * 2, 8, 84]


# --- mutants and start ---


@pytest.mark.slow
def test_all_arms_are_compared_a_rerun_trains_nothing_and_no_fit_predicts_its_own_pairs(
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {"split": "random", "seeds": 1, "epochs": 1, "genotypes": 300}
    result = mutants.run(tmp_path, **options)
    assert [row["arm"] for row in result["rows"]] == list(mutants.ARMS)
    assert all(row["weight"] >= 0 for row in result["rows"])
    pairs = {(row["arm"], row["less"]) for row in result["differences"]}
    assert pairs == {("true", "matched"), ("true", "none"), ("true", mutants.ALONE)}
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
    assert mutants.run(tmp_path, **options)["scores"] == result["scores"]
    # With another score of one row, its own prediction, by the other half, stays the same.
    cell = Cell.synthetic("redundancy")
    screen = Screen.synthetic(cell, n=options["genotypes"])
    split = Split.random(screen, seed=0)
    base = mutants.cross_fitted(cell, screen, split, tmp_path)
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.ckpt")}
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
    code = (
        "import sys; from deltacell.cli.app import app\n"
        f"for words in (['--help'], ['data', 'info', {str(tmp_path / 'cell')!r}]):\n"
        "    app(words, standalone_mode=False)\n"
        "heavy = {'torch', 'polars', 'scipy', 'deltacell.bench'}\n"
        "print(heavy & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stderr.strip().endswith("set()"), done.stderr


# --- train ---


def test_ratios_are_of_turns_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"data_wait_share": 0.02, "phase_overhead": 0.002, "peak_mib": 900.0}
    facts["component_overhead"] = 0.003
    # The machine was ten times slower in the second turn.
    seconds = {"dango": iter([1.0, 10.0, 1.0]), "hetero_cell_late": iter([3.0, 31.0, 9.0])}

    def measured(*_: Any, model: str, **options: Any) -> dict[str, Any]:
        return {"model": model, "s_per_sample": next(seconds[model]), **facts}

    monkeypatch.setattr(process, "in_own_process", measured)
    found = models.train(repeats=3, models=["dango", "hetero_cell_late"])
    assert found["ratios"] == {"hetero_cell_late_over_dango_s_per_sample": pytest.approx(3.1)}
    assert [row["s_per_sample"] for row in found["rows"]] == [1.0, 9.0]
    bars = process.bars(BENCHES["train"]["bars"], {**found["ratios"], **found["measured"]})
    assert bars["hetero_cell_late_over_dango_s_per_sample"]["met"]
    assert not bars["dango_data_wait_share"]["met"]
    assert models.timer_cost(20) > 0


# --- propagation and scaling ---


@pytest.mark.parametrize(
    ("factors", "differences", "notes"),
    [
        ((2.0, 1.5), (0.0, None), []),
        ((2.0, 0.4), (0.0, None), ["delta"]),
        ((2.0, 1.5), (3e-4, None), ["0.0003"]),
        ((0.9, 0.4), (3e-4, 2e-5), ["shared, delta", "0.0003"]),
    ],
)
def test_surprising_factors_and_differences_get_a_note_where_they_are_printed(
    factors: Any,
    differences: Any,
    notes: list[str],
    capsys: Any,
) -> None:
    columns = zip(("shared", "delta"), factors, differences, strict=True)
    names = "strategy", "times_roofline", "grad_rel_diff"
    rows = [dict(zip(names, row, strict=True)) for row in columns]
    found = propagation.notes_of(rows)
    assert len(found) == len(notes)
    assert all(part in note for part, note in zip(notes, found, strict=True))
    result = {"rows": rows, "notes": found, "bars": {}, "machine": {}, "command": "x"}
    print_bench(result, "title")
    shown = " ".join(capsys.readouterr().out.split())
    assert all(note in shown for note in found)


def test_all_strategies_give_the_same() -> None:
    settings: dict[str, Any] = {"cell": "demo", "batch": 3, "layers": 2, "repeats": 1}
    found = propagation.measure_times(**settings, mutant_layers=1, strategies=list(NAMES))
    rows = {row["strategy"]: row for row in found["rows"]}
    assert list(rows) == [*NAMES, "wild_type"]
    for name in NAMES:
        row = rows[name]
        assert row["score_diff_over_std"] < 1e-2
        assert row["grad_rel_diff"] < 0.05
        assert row["forward_s"] >= row["preparation_s"] > 0
        assert row["s_per_genotype"] * 3 == pytest.approx(row["forward_s"] + row["backward_s"])
        assert row["loader_bytes_per_genotype"] > 0
    assert rows["subgraph"]["score_diff_over_std"] == 0
    assert rows["wild_type"]["score_diff_over_std"] is None


def test_wrong_scores_and_gradients_are_seen() -> None:
    bench = propagation.Bench(Cell.synthetic("demo"), batch=6, layers=2)
    fewer = Genotypes.of([genes[:2].tolist() for genes in bench.genotypes])
    reference = bench.step(strategy("shared"), bench.genotypes)
    right, wrong = (bench.step(strategy("edge_mask"), s) for s in (bench.genotypes, fewer))
    assert propagation.differences(right, reference)["score_diff_over_std"] < 1e-3
    assert propagation.differences(wrong, reference)["score_diff_over_std"] > 1e-2
    assert propagation.differences(wrong, reference)["grad_rel_diff"] > 0.05
    # Far above rounding, or the comparison would say nothing.
    assert reference.score.std() > 0.1 * reference.score.abs().max()


def test_the_roofline_counts_what_a_mutant_takes():
    cell = Cell.synthetic("demo")
    model = HeteroCell(cell, hidden=16, layers=2, output="global")
    found = propagation.roofline(model, cell, repeats=1)
    n, h, relations = 300, 16, 9
    # Two linear layers per relation, and the readout; a product and its two gradients each.
    gin = 2 * relations * 2 * (2 * n * h * h)
    pool = 2 * n * (h * h // 2 + h // 2 + h * h)
    assert found["flop"] == 3 * (gin + pool)
    assert found["entries"] == 2 * 2 * sum(r.n_entries for r in cell.relations.values())
    seconds = found["flop"] / found["gemm_flop_per_s"]
    seconds += found["entries"] * h / found["csr_entries_hidden_per_s"]
    assert found["s_per_genotype"] == pytest.approx(seconds)
    assert all(p.grad is None for p in model.parameters())


def test_an_exponent_is_that_of_a_power():
    sizes = [2_500, 5_000, 20_000]
    assert growth.exponent(sizes, [3.0 * size**1.5 for size in sizes]) == pytest.approx(1.5)
    assert np.isnan(growth.exponent(sizes, [1.0, 0.0, 2.0]))
    rows = [
        {"model": "a", "genes": n, "s_per_step": n, "processor_s": n**2, "peak_mib": 5.0}
        for n in sizes
    ]
    [row] = growth.growth_of(rows)
    exponents = [value for name, value in row.items() if name.startswith("exponent")]
    assert exponents == pytest.approx([1, 2, 0], abs=1e-9)


def test_a_quick_run_of_the_models_on_growing_cells(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(process, "in_own_process", lambda function, **options: function(**options))
    monkeypatch.setattr(growth, "REPEATS", 1)
    result = growth.run(only=growth.MODELS, quick=True)
    assert set(result) == {"models", "growth"}
    sizes = [(row["model"], row["genes"]) for row in result["models"]]
    assert sizes == [(name, n) for name in growth.WORK for n in growth.QUICK_GENES]
    assert all(row["s_per_step"] > 0 and row["processor_s"] > 0 for row in result["models"])
    assert [row["model"] for row in result["growth"]] == list(growth.WORK)


def test_a_quick_run_of_scaling(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(propagation, "RELATIONS", 2)
    monkeypatch.setattr(propagation, "REPEATS", 1)
    result = propagation.scaling(["shared"], quick=True)
    assert list(dict.fromkeys(row["sweep"] for row in result["rows"])) == list(propagation.SWEEPS)
    assert [(fit["sweep"], fit["strategy"]) for fit in result["fits"]] == [
        (sweep, "shared") for sweep in propagation.SWEEPS
    ]
    for row in result["rows"]:
        assert row["s_per_step"] == pytest.approx(row["s_per_genotype"] * row["batch"])
    # Through two points goes one line.
    small, large = (row for row in result["rows"] if row["sweep"] == "batch")
    fit = result["fits"][0]
    for row in (small, large):
        assert row["s_per_step"] == pytest.approx(fit["factor"] * row["size"] ** fit["exponent"])


def test_full_sweeps_grow_up_to_a_human_cell():
    edges = propagation.SWEEPS["cell"][1][-1]
    assert (edges // propagation.EDGES_PER_GENE, edges) == (20_000, 12_000_000)
    cell = propagation.random_cell(500, 20_000)
    edges = {name: r.n_edges for name, r in cell.relations.items()}
    assert abs(sum(edges.values()) - 20_000) < 10
    degree = cell.relation("r0").in_degree
    assert degree.max() > 4 * np.median(degree)
    assert cell.equals(propagation.random_cell(500, 20_000))


# --- traces ---


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Three steps of a GPU program, with flows from launches to kernels."""
    whole = json.loads(files("deltacell_dev.bench").joinpath("samples", "trace.txt").read_bytes())
    for event in [e for e in whole["traceEvents"] if e.get("cat") in ("cuda_runtime", "kernel")]:
        ends = {"ph": "sf"[event["cat"] == "kernel"], "id": event["args"]["correlation"]}
        flow = {key: event[key] for key in ("pid", "tid", "ts")}
        whole["traceEvents"].append({**flow, **ends, "cat": "ac2g", "name": "ac2g"})
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(json.dumps(whole).encode()))
    return path


def test_a_repeated_trace(small: Path, tmp_path: Path) -> None:
    path = tmp_path / "large.json"
    written = trace_bench.make_trace(small, path, 20_000)
    text = path.read_bytes()
    assert 20_000 <= len(text) < 26_000
    listed = json.loads(text)["traceEvents"]
    assert written == len(listed)
    steps = [e["name"] for e in listed if e["name"].startswith("ProfilerStep")]
    assert steps == [f"ProfilerStep#{number}" for number in range(len(steps))]
    assert len(steps) > 9
    trace = read_trace(path)
    assert (len(trace), trace.device_name) == (6 * len(steps), "A100")
    # Each launch has a kernel, and a flow, of its own.
    launched = trace.correlation[trace.kind == Kind.kernel].tolist()
    assert set(launched) < set(trace.correlation[trace.kind == Kind.runtime].tolist())
    assert len(set(launched)) == len(steps)
    assert launched == [event["id"] for event in listed if event["ph"] == "f"]
    # Copies follow each other and do not overlap.
    begin = trace.begin[trace.named(lambda name: name.startswith("ProfilerStep"))]
    assert set(begin[1:] - begin[:-1]) == {1_000_000}


def test_damaged_traces_cannot_be_repeated_and_leave_no_file(refused: Any, tmp_path: Path) -> None:
    broken, out = tmp_path / "broken.json", tmp_path / "out.json"
    for text in ("", "{}", "[]", '{"traceEvents": []}', '{"traceEvents": [{"ph'):
        broken.write_text(text)
        refused("not-a-trace", trace_bench.make_trace, broken, out, 10)
    assert not out.exists()


def test_the_command_makes_and_measures(small: Path, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(trace_bench, "in_own_process", lambda function, **given: function(**given))
    large, out = tmp_path / "large.json", tmp_path / "out.json"
    words = ["bench", "trace", str(large)]
    made = CliRunner().invoke(app, [*words, "--make", "0.02", "--from", str(small)])
    assert made.exit_code == 0, made.output
    told = CliRunner().invoke(app, [*words, str(small), "--json", str(out)])
    assert told.exit_code == 0, told.output
    rows = json.loads(out.read_text())["rows"]
    assert [row["name"] for row in rows] == ["large.json", "small.json.gz"]
    assert rows[1]["events"] == 18
    assert rows[1]["mb"] == pytest.approx(len(gzip.decompress(small.read_bytes())) / 1e6)
    assert 0 < rows[1]["read_s"] < rows[1]["explain_s"]
    assert 1 < rows[1]["read_mib"] <= rows[1]["peak_mib"]
    without = CliRunner().invoke(app, [*words, "--make", "0.02"])
    assert getattr(without.exception, "code", None) == "one-file"
