"""The steps of `deltacell start`: from a folder of tables to a ranked list with evidence."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from math import comb
from pathlib import Path

import numpy as np
import torch

from deltacell.errors import InputError
from deltacell.files import read_json, write_json
from deltacell.models.config import ModelConfig
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.models.fitted.predictor import SETS_PER_BLOCK, FittedPredictor
from deltacell.models.registry import config_class
from deltacell.models.scoring import genotypes_of
from deltacell.predict.gene_sets import Pairs
from deltacell.predict.status import STATUSES, UNTESTED, Statuses, phenotypes_of
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.store import MANIFEST
from deltacell.train.compose import suited_config
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, load_data
from deltacell.train.predictor import build_fitted
from deltacell.words import duration_text, hydra_text

# Results in the output folder; a step whose result exists is not repeated.
SOURCES, TABLES, PAGE = "sources.json", "evaluation.md", "ranking.html"

BASELINES = ("additive", "boosted_trees")
BYTES_PER_SECOND = 5e6  # reading speed for compressed tables, of one core of 2020
TREE_SECONDS = 1e-7  # per tree and set, on one core
TRIED_ROWS, TRIED_ROUNDS = 4_000, 6  # maximum numbers of genotypes and trees in a trial
DRAWN = 2_048  # sets, to estimate the share that is untested
FEWEST_UNTESTED = 0.01


def steps(
    folder: Path,
    out: Path,
    top: int,
    overrides: Sequence[str],
    tell: Callable[[str], None],
) -> Iterator[tuple[str, bool, list[str]]]:
    """Import a folder, fit, test, rank ``top`` sets and write the page.

    Yields the title of each step, whether its result exists, and its command, which must have run
    before the next step. ``overrides`` are settings of the training, such as ``data.screen=NAME``,
    and ``tell`` is called with the expected time.
    """
    _check_sources(folder, out)
    data, run, ranking = out / "data", out / "run", out / "ranking"
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    seconds = duration_text(max(2.0, size / BYTES_PER_SECOND))
    title = f"reading {size / 1e6:,.1f} MB takes about {seconds}"
    yield title, (data / MANIFEST).exists(), ["data", "import", str(folder), "--out", str(data)]
    settings = [f"data.folder={hydra_text(data)}", *overrides, f"directory={hydra_text(run)}"]
    config, chosen = suited_config(settings)
    if any(word.startswith("model=") for word in overrides):
        # `train` chooses settings only if it also chooses the model.
        del chosen["model"]
        settings = [*(f"{key}={hydra_text(value)}" for key, value in chosen.items()), *settings]
    loaded = load_data(config)
    sets, status = _what_to_rank(loaded)
    exists = (run / RUN_FILE).is_file() and read_run(run).status is Status.finished
    if not exists:
        _tell_how_long(config, loaded, sets, tell)
    title = f"fitting {config.model.name} on {len(loaded.split.train):,} genotypes"
    yield title, exists, ["train", *settings]
    title, others = f"comparing it with {' and '.join(BASELINES)}", ",".join(BASELINES)
    files = ["--json", f"{out / 'evaluation.json'}", "--markdown", f"{out / TABLES}"]
    yield title, (out / TABLES).exists(), ["evaluate", str(run), "--baselines", others, *files]
    files = ["--out", f"{ranking}.parquet", "--html", f"{out / PAGE}", "--csv", f"{ranking}.csv"]
    which = ["--sets", sets, "--status", status, "--top", str(top)]
    title = f"ranking {sets} that are {status.replace(',', ' or ')}"
    yield title, False, ["predict", str(run), *which, *files]


def _what_to_rank(data: TrainingData) -> tuple[str, str]:
    """Return which sets to rank and their status: untested, unless hardly any are."""
    size = 2 if (np.diff(data.screen.offsets) == 2).any() else 3
    genes = np.unique(data.screen.genotypes.genes.numpy())
    drawn = np.sort(np.random.default_rng(0).choice(genes, (DRAWN, size)), axis=1)
    drawn = drawn[(np.diff(drawn, axis=1) > 0).all(axis=1)]
    whole = data.screen if data.whole is None else data.whole
    statuses = Statuses([whole.on(data.cell, on_unknown="drop")], phenotypes_of(data.screen))
    untested = statuses.of(drawn) == STATUSES.index(UNTESTED)
    enough = not len(drawn) or untested.mean() >= FEWEST_UNTESTED
    return ("pairs" if size == 2 else "triples"), UNTESTED if enough else f"tested,{UNTESTED}"


def _tell_how_long(
    config: Config,
    data: TrainingData,
    sets: str,
    tell: Callable[[str], None],
) -> None:
    if config.model.trained_by != "fit":
        tell(f"{config.model.name} trains for {config.trainer.epochs} epochs; Ctrl-C stops it.")
        return
    predictor, fit = _trial(config.model, data)
    test = _trial(config_class(BASELINES[1])(), data)[1]
    rounds = config.model.rounds_of_fit(has_zeros=data.grid is not None)
    order = GeneOrder(data.cell.genes).gene
    genes = order[np.isin(order, data.screen.genotypes.genes.numpy())]
    pairs = genotypes_of(next(Pairs(genes, sets_per_piece=SETS_PER_BLOCK).pieces(0, 1)))
    predictor(data.cell, pairs)
    began = time.perf_counter()
    predictor(data.cell, pairs)
    n_sets = comb(len(genes), 2 if sets == "pairs" else 3)
    # The trial has few trees and one thread.
    each = (time.perf_counter() - began) / len(pairs) + rounds * TREE_SECONDS
    ranking = n_sets * each / torch.get_num_threads()
    tell(
        f"By a trial on a few of {len(data.split.train):,} genotypes: fitting takes {_range(fit)}, "
        f"testing {_range(test)}, ranking {n_sets:,} {sets} {_range(ranking)}; "
        f"{_range(fit + test + ranking)} in all. Ctrl-C stops it; rerun the command to resume.",
    )


def _trial(model: ModelConfig, data: TrainingData) -> tuple[FittedPredictor, float]:
    """Fit a few trees on some genotypes; return them, and the seconds that a whole fit takes."""
    quick = model.with_rounds(TRIED_ROUNDS)
    predictor = build_fitted(Config(model=quick), data)
    rounds = model.rounds_of_fit(has_zeros=data.grid is not None)
    train, trees = data.split.train, [time.perf_counter()]
    rows = np.sort(np.random.default_rng(0).permutation(train)[:TRIED_ROWS])

    def report(what: str, done: int, total: int) -> None:
        if what == "trees":
            trees.append(time.perf_counter())

    predictor.fit(data.cell, *data.part(rows), seed=0, progress=report)
    trees = trees if len(trees) > 1 else [*trees, time.perf_counter()]
    per_round = (trees[-1] - trees[1]) / max(1, len(trees) - 2)
    seconds = (trees[1] - trees[0] + rounds * per_round) * len(train) / len(rows)
    return predictor, seconds


def _range(seconds: float) -> str:
    # The estimate is good to a factor of two.
    low, high = map(duration_text, (seconds / 2, 2 * seconds))
    return "seconds" if seconds < 5 else f"{low} to {high}"


def _check_sources(folder: Path, out: Path) -> None:
    """Raise if there is no folder, or if it has changed since ``out`` was made from it."""
    files = [
        [str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    now, kept = {"folder": str(folder.resolve()), "files": files}, out / SOURCES
    made = kept.is_file()
    inside = out.resolve().is_relative_to(folder.resolve())
    changed = made and read_json(kept, what="the list of sources") != now
    full = not made and out.exists() and any(out.iterdir())
    for wrong, code, what in (
        (not folder.is_dir(), "no-such-folder", f"{folder} is not a folder of tables"),
        (inside, "out-in-sources", "the results would be among the sources; choose another --out"),
        ((folder / MANIFEST).is_file(), "already-imported", f"{folder} is an import; train on it"),
        (changed, "sources-changed", f"the files in {folder} have changed; choose another --out"),
        (full, "not-empty", "the folder is not empty; choose another --out"),
    ):
        if wrong:
            raise InputError(what, code=code, where=out)
    out.mkdir(parents=True, exist_ok=True)
    if not made:
        write_json(kept, now, what="the list of sources")
