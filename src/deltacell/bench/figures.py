"""The figures of benchmarks, drawn from what they returned; measures nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltacell.errors import InputError
from deltacell.files import write_figure
from deltacell.report.figures import check_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_ladder(result: Mapping[str, Any], path: Path) -> None:
    """Draw time and memory of each strategy as bars, from `propagation.run`."""
    from matplotlib.figure import Figure

    check_figure(path)
    rows = result["rows"]
    figure = Figure(figsize=(10, 0.45 * len(rows) + 1.6), layout="constrained")
    by_time, by_memory = figure.subplots(1, 2, sharey=True)
    names = [row["strategy"] for row in rows]
    for axes, column, title in (
        (by_time, "s_per_genotype", "seconds per genotype, forward and backward"),
        (by_memory, "peak_mib", "peak memory of a step, MiB"),
    ):
        values = [row[column] for row in rows]
        bars = axes.barh(names, values, color=[_colour(name) for name in names])
        axes.bar_label(bars, labels=[f"{value:.3g}" for value in values], padding=3, fontsize=8)
        axes.set_xscale("log")
        # Bars of a logarithmic axis have no natural start; a decade has an end.
        axes.set_xlim(left=10 ** np.floor(np.log10(max(min(values), 1e-9))) / 2)
        axes.set_title(title, fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.2)
    by_time.invert_yaxis()
    least = result["roofline_s_per_genotype"]
    by_time.axvline(least, color="black", linestyle=":", linewidth=1)
    by_time.text(
        least, 1.0, " roofline", transform=by_time.get_xaxis_transform(), va="top", fontsize=8
    )
    sizes = result["settings"]
    figure.suptitle(
        f"{sizes['genes']:,} genes, {sizes['edges']:,} edges, {sizes['layers']} layers, "
        f"batch {sizes['batch']}",
        fontsize=11,
    )
    _write(figure, path)


def draw_scaling(result: Mapping[str, Any], path: Path) -> None:
    """Draw how the time of a step grows, log against log with its fits, from `scaling.run`."""
    from matplotlib.figure import Figure

    check_figure(path)
    sweeps = list(dict.fromkeys(row["sweep"] for row in result["rows"]))
    figure = Figure(figsize=(3.1 * len(sweeps), 3.4), layout="constrained")
    all_axes = figure.subplots(1, len(sweeps), squeeze=False, sharey=True)[0]
    for axes, sweep in zip(all_axes, sweeps, strict=True):
        _draw_sweep(axes, result, sweep)
    all_axes[0].set_ylabel("seconds per step")
    _write(figure, path)


def _draw_sweep(axes: Axes, result: Mapping[str, Any], sweep: str) -> None:
    for fit in result["fits"]:
        if fit["sweep"] != sweep:
            continue
        name = fit["strategy"]
        rows = [r for r in result["rows"] if r["sweep"] == sweep and r["strategy"] == name]
        x = np.array([row["size"] for row in rows], dtype=float)
        axes.plot(x, [row["s_per_step"] for row in rows], "o", color=_colour(name), markersize=5)
        axes.plot(
            x,
            fit["factor"] * x ** fit["exponent"],
            color=_colour(name),
            linewidth=1,
            label=f"{name}: exponent {fit['exponent']:.2f}",
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    sizes = sorted({row["size"] for row in result["rows"] if row["sweep"] == sweep})
    axes.set_xticks(sizes, [_short(size) for size in sizes])
    axes.xaxis.minorticks_off()
    axes.set_xlabel("edges, and genes with them" if sweep == "cell" else sweep)
    axes.legend(fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)


def _short(size: int) -> str:
    for unit, letter in ((1_000_000, " M"), (1_000, " k")):
        if size >= unit:
            return f"{size / unit:.2g}{letter}"
    return str(size)


_COLOURS = {"shared": "#2a6f97", "delta": "#c1440e", "auto": "#7b2d8b", "wild_type": "#444444"}


def _colour(name: str) -> str:
    return _COLOURS.get(name, "#b0b0b0")


def _write(figure: Figure, path: Path) -> None:
    # Without a date, so that the same result is the same file.
    dateless = {"Date": None} if path.suffix.lower() == ".svg" else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_figure(figure, path, dpi=150, metadata=dateless)
    except OSError as error:
        what = f"cannot be written: {error.strerror}"
        raise InputError(what, code="not-written", where=path) from error
