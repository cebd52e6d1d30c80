"""`deltacell bench ...`: speed, memory and accuracy, measured on this machine."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from deltacell.cli.program import write_json

Json = Annotated[Path | None, typer.Option(help="Also write the result to a file.")]
Figure = Annotated[Path | None, typer.Option(help="Also draw the result, as PNG or SVG.")]
Quick = Annotated[
    bool, typer.Option("--quick", help="Use a small cell, in seconds; no bar applies.")
]
Folder = Annotated[Path | None, typer.Option(help="A folder that `deltacell data import` made.")]
OfFolder = Annotated[str | None, typer.Option(help="The screen of the folder.")]


def _measure(title: str, json: Path | None, run: Callable[[Any], dict[str, Any]]) -> dict[str, Any]:
    """Run a benchmark under a progress bar, then write and print its result."""
    from deltacell.report.bench import print_bench
    from deltacell.report.progress import progress_bar

    with progress_bar() as report:
        result = run(report)
    write_json(json, result)
    print_bench(result, title)
    return result


def _names(text: str | None) -> list[str] | None:
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def data(quick: Quick = False, json: Json = None) -> None:
    """Compare this loader with two per-record pipelines, side by side in one run.

    Example: deltacell bench data --json loader.json
    """
    from deltacell.bench import data as bench
    from deltacell.cell import Cell

    def run(report: Any) -> dict[str, Any]:
        if not quick:
            return bench.run(progress=report)
        cell = Cell.synthetic("demo")
        result = bench.run(20_000, cell=cell, repeats=3, seconds=0.3, progress=report)
        return result | {"bars": {}, "command": "deltacell bench data --quick"}

    _measure("loading genotypes", json, run)


def dango(
    batch: Annotated[int, typer.Option(help="Genotypes per step.")] = 64,
    steps: Annotated[int, typer.Option(help="Timed steps.")] = 5,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Compare a DANGO step in the closed form with one that forms every N x N reconstruction.

    Example: deltacell bench dango --json dango.json
    """
    from deltacell.bench import dango as bench

    _measure(
        "a DANGO step", json, lambda report: bench.run(batch, steps, quick=quick, progress=report)
    )


def explain(
    only: Annotated[
        str | None, typer.Option(help="Run only kinds of cause with this in their name.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed; another one is other cases.")] = 0,
    json: Json = None,
) -> None:
    """Explain simulated traces whose cause is known, and count the right first sentences.

    Example: deltacell bench explain --json explain.json
    """
    from deltacell.bench import explain as bench

    _measure(
        "first sentences by kind of cause",
        json,
        lambda report: bench.run(seed=seed, only=only, progress=report),
    )


def faults(
    minutes: Annotated[
        float, typer.Option(min=0, help="How long; every kind gets at least one turn.")
    ] = 1.0,
    only: Annotated[
        str | None,
        typer.Option(help="Comma-separated beginnings of kinds: flip, fuzz, inject train."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    json: Json = None,
) -> None:
    """Damage files, fuzz readers and fail file operations of commands, and count the outcomes.

    A case is clean if it ends in an error that says what is wrong, and right if it ends in the
    right result; a command that failed must also succeed when it is rerun. All other cases are
    failures, and then the exit code is 1.

    Example: deltacell bench faults --minutes 10 --json faults.json
    """
    from deltacell.bench import faults as bench
    from deltacell.cli import main

    def say(text: str) -> None:
        typer.secho(text, err=True)

    kinds = _names(only)
    result = _measure(
        "faults", json, lambda _: bench.run(minutes, main, seed=seed, kinds=kinds, say=say)
    )
    for row in result["rows"]:
        for example in row["examples"]:
            typer.echo(f"{row['kind']}: {example}")
    if result["total"]["failures"]:
        raise typer.Exit(1)


def mutants(
    folder: Folder = None,
    split: Annotated[str, typer.Option(help="gene or random.")] = "gene",
    seeds: Annotated[int, typer.Option(help="Random seeds per arm.")] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs per run.")] = 3,
    out: Annotated[Path, typer.Option(help="Directory of the runs; rerun to resume.")] = Path(
        "runs/mutants"
    ),
    json: Json = None,
) -> None:
    """Compare true mutants, mutants of degree-matched wrong genes, and no mutants.

    All arms are trained on the residuals of one cross-fitted pair predictor: on Costanzo 2010 with
    --folder, otherwise on the planted screen `redundancy`.

    Example: deltacell bench mutants --epochs 5 --json mutants.json
    """
    from deltacell.bench import mutants as bench
    from deltacell.report.terminal import print_table

    where = None if folder is None else str(folder)
    result = _measure(
        "what HeteroCell explains of the residuals",
        json,
        lambda report: bench.run(
            out, folder=where, method=split, seeds=range(seeds), epochs=epochs, progress=report
        ),
    )
    columns = ["group", "rows", "arm", "less", "value", "low", "high"]
    table = [[row[name] for name in columns] for row in result["differences"]]
    print_table("differences of the Pearson correlation, 95 % intervals", columns, table)


def pairs(
    folder: Folder = None, screen: OfFolder = None, quick: Quick = False, json: Json = None
) -> None:
    """Measure the columns of a screen, a training, and the scoring of all pairs of its genes.

    Example: deltacell bench pairs --folder data --json pairs.json
    """
    from deltacell.bench import pairs as bench

    where = None if folder is None else str(folder)
    size: dict[str, Any] = {"rounds": 10, "most_pairs": 2_000} if quick else {}
    _measure(
        "pair messages", json, lambda report: bench.run(where, screen, **size, progress=report)
    )


def predict(
    repeats: Annotated[int, typer.Option(help="Turns per variant; the median counts.")] = 3,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Measure how many triples per second both models rank, beside a plain loop of batches.

    On the yeast-sized cell and two cores it takes about two minutes.

    Example: deltacell bench predict --json predict.json
    """
    from deltacell.bench import predict as bench

    _measure(
        "triples ranked per second", json, lambda report: bench.run(report, quick, repeats=repeats)
    )


def propagation(
    batch: Annotated[int, typer.Option(help="Genotypes per step.")] = 8,
    layers: Annotated[int, typer.Option(help="Layers of the model.")] = 3,
    mutant_layers: Annotated[
        int | None, typer.Option(help="The last layers that see the deletion; all by default.")
    ] = None,
    strategies: Annotated[
        str | None, typer.Option(help="Comma-separated names; all by default.")
    ] = None,
    repeats: Annotated[int, typer.Option(help="Turns; slow strategies have at most two.")] = 3,
    max_bytes: Annotated[
        int | None, typer.Option(help="Memory budget of the strategies that take one.")
    ] = None,
    quick: Quick = False,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Compare all ways of propagating mutants: time, memory, scores and gradients.

    On the yeast-sized cell the slow ways take minutes and some gigabytes per step.

    Example: deltacell bench propagation --quick --strategies subgraph,shared
    """
    from deltacell.bench import propagation as bench
    from deltacell.bench.figures import draw_ladder
    from deltacell.report.figures import check_figure

    check_figure(figure)
    result = _measure(
        "mutants, forward and backward",
        json,
        lambda report: bench.run(
            batch,
            layers,
            _names(strategies),
            repeats,
            report,
            max_bytes,
            mutant_layers=mutant_layers,
            quick=quick,
        ),
    )
    least, best = result["roofline_s_per_genotype"], result["ratios"]["best"]
    times = result["ratios"]["best_times_roofline"]
    typer.echo(f"The roofline is {least:.4g} s per genotype; {best} takes {times:.3g} times that.")
    if figure is not None:
        draw_ladder(result, figure)


def scaling(
    strategies: Annotated[
        str | None, typer.Option(help="Comma-separated names; shared and delta by default.")
    ] = None,
    quick: Quick = False,
    json: Json = None,
    figure: Figure = None,
) -> None:
    """Measure how time grows with the batch, the edges, the layers, the deletions and the cell.

    The largest cell has the size of a human one: 20,000 genes and 12 million edges.

    Example: deltacell bench scaling --json scaling.json --figure scaling.svg
    """
    from deltacell.bench import scaling as bench
    from deltacell.bench.figures import draw_scaling
    from deltacell.report.figures import check_figure
    from deltacell.report.terminal import print_table

    check_figure(figure)
    result = _measure(
        "a step, while one size grows",
        json,
        lambda report: bench.run(report, quick, strategies=_names(strategies)),
    )
    rows = [list(fit.values()) for fit in result["fits"]]
    print_table(
        "fitted: seconds per step = factor * size ^ exponent", list(result["fits"][0]), rows
    )
    if figure is not None:
        draw_scaling(result, figure)


def start(
    data: Annotated[
        Path | None, typer.Argument(help="What `data info` shows; the demo by default.")
    ] = None,
    times: Annotated[int, typer.Option(min=1, help="Starts of each; the fastest counts.")] = 5,
    json: Json = None,
) -> None:
    """Measure the processor time of `--help` and `data info`, beside `import numpy`.

    Example: deltacell bench start --json start.json
    """
    from deltacell.bench import start as bench

    _measure("starts", json, lambda report: bench.run(times, data, report))


def trace(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Traces; with --make the one to write.")
    ],
    make: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Write a trace of this size, such as 100MB or 1GB."),
    ] = None,
    source: Annotated[
        Path | None, typer.Option("--from", help="The real GPU trace that --make repeats.")
    ] = None,
    hta: Annotated[
        Path | None,
        typer.Option(
            help="Also measure HolisticTraceAnalysis, in a virtual environment in this directory, "
            "which is created from PyPI if missing."
        ),
    ] = None,
    json: Json = None,
) -> None:
    """Measure seconds, events per second and memory of reading and explaining traces.

    To make a large trace: deltacell bench trace --make 100MB --from rank0.json.gz big.json

    Example: deltacell bench trace big.json --json trace.json
    """
    from deltacell.bench import trace as bench
    from deltacell.bench.trace import hta_environment

    if make is not None:
        _make_trace(files, make, source)
        return

    def run(report: Any) -> dict[str, Any]:
        if hta is not None:
            report("installing HolisticTraceAnalysis", 0, 0)
        return bench.run(files, hta=None if hta is None else hta_environment(hta), progress=report)

    _measure("reading and explaining traces, in seconds and MiB", json, run)


def _make_trace(files: list[Path], size: str, source: Path | None) -> None:
    from deltacell.bench.trace import find_real_trace, make_trace, parse_size
    from deltacell.errors import InputError
    from deltacell.report.progress import progress_bar

    if len(files) != 1:
        raise InputError(f"--make writes one trace, got {len(files)} files", code="one-file")
    real = find_real_trace() if source is None else source
    with progress_bar() as report:
        events = make_trace(real, files[0], parse_size(size), progress=report)
    written = files[0].stat().st_size / 1e6
    typer.echo(f"{files[0]}: {events:,} events, {written:,.1f} MB, {real.name} repeated")


def train(
    steps: Annotated[int, typer.Option(help="Measured steps per run.")] = 12,
    repeats: Annotated[int, typer.Option(help="Turns: a run with phases and one without.")] = 5,
    models: Annotated[
        str | None, typer.Option(help="Some of them, such as dango,hetero_cell_late.")
    ] = None,
    folder: Folder = None,
    screen: OfFolder = None,
    quick: Quick = False,
    json: Json = None,
) -> None:
    """Measure training from end to end: each model, the loader's share, the phase timers.

    On the yeast-sized cell and two cores it takes about half an hour.

    Example: deltacell bench train --json train.json
    """
    from deltacell.bench import train as bench

    result = _measure(
        "training, the whole loop",
        json,
        lambda report: bench.run(
            report,
            quick,
            steps=steps,
            repeats=repeats,
            folder=None if folder is None else str(folder),
            screen=screen,
            models=tuple(_names(models) or bench.CONFIGS),
        ),
    )
    for name, ratio in result["ratios"].items():
        model = name.removesuffix("_over_dango_s_per_sample")
        typer.echo(f"A sample of {model} takes {ratio:.3g} times as long as one of DANGO.")
