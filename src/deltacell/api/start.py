"""The steps of `deltacell start`: from a folder of tables to a ranked list with evidence."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltacell.base.errors import InputError
from deltacell.base.files import TEMPORARY, read_json, write_json
from deltacell.base.text import duration_text, hydra_text, listed
from deltacell.models.config import ModelConfig
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.models.fitted.predictor import SETS_PER_BLOCK, FittedPredictor
from deltacell.models.registry import config_class
from deltacell.models.scoring import genotypes_of
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.ranking.gene_sets import AllPairs
from deltacell.ranking.status import STATUSES, UNTESTED, Statuses, phenotypes_of
from deltacell.storage import MANIFEST, remove, sha256_of_file
from deltacell.train.config import Config
from deltacell.train.config.choose_settings import MODEL, suited_config
from deltacell.train.config.compose import compose
from deltacell.train.data import TrainingData, load_data
from deltacell.train.places import Change, changes
from deltacell.train.predictor import build_fitted
from deltacell.train.run_directory import may_change, remove_run, resumed_config

# Results in the output folder; a step whose result exists is not repeated.
SOURCES, TABLES, PAGE = "sources.json", "evaluation.md", "ranking.html"
EVALUATION, RANKING = "evaluation.json", "ranking.parquet"
OF_RUN = (TABLES, EVALUATION, PAGE, "ranking.csv", RANKING)

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
    *,
    overwrite: bool = False,
) -> Iterator[tuple[str, bool, list[str]]]:
    """Import a folder, fit, test, rank ``top`` sets and write the page.

    Yields the title of each step, whether its result exists, and its command, which must have run
    before the next step. ``overrides`` are settings of the training, such as ``data.screen=NAME``,
    and ``tell`` is called with the expected time. Results of other files or settings are an error,
    or are replaced with ``overwrite``.
    """
    data, run, ranking = out / "data", out / "run", as_word(out / "ranking")
    settings = [f"data.folder={hydra_text(data)}", *overrides, f"directory={hydra_text(run)}"]
    # Mistakes in the settings raise here, before anything is written.
    compose([f"model={MODEL}", *settings])
    _check_sources(folder, out, overwrite=overwrite)
    size = sum(path.stat().st_size for path in _files_of(folder))
    seconds = duration_text(max(2.0, size / BYTES_PER_SECOND))
    title = f"reading {size / 1e6:,.1f} MB takes about {seconds}"
    words = ["data", "import", as_word(folder), "--out", as_word(data)]
    yield title, (data / MANIFEST).exists(), words
    config, chosen = suited_config(settings)
    _check_results(out, config, overwrite=overwrite)
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
    files = ["--json", as_word(out / EVALUATION), "--markdown", as_word(out / TABLES)]
    words = ["evaluate", as_word(run), "--baselines", others, *files]
    yield title, (out / TABLES).exists(), words
    files = ["--out", f"{ranking}.parquet", "--html", as_word(out / PAGE)]
    files += ["--csv", f"{ranking}.csv", *(["--overwrite"] if overwrite else [])]
    which = ["--sets", sets, "--status", status, "--top", str(top)]
    title = f"ranking {sets} that are {status.replace(',', ' or ')}"
    yield title, False, ["predict", as_word(run), *which, *files]


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
    pairs = genotypes_of(next(AllPairs(genes, sets_per_piece=SETS_PER_BLOCK).pieces(0, 1)))
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


def as_word(path: Path) -> str:
    """Return a path as an argument of a command, where a leading dash would begin an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


def _check_results(out: Path, config: Config, *, overwrite: bool) -> None:
    """Raise if the results in ``out`` are of other settings; with ``overwrite``, remove them."""
    run = out / "run"
    has_run = (run / RUN_FILE).is_file()
    if not has_run and not any((out / name).exists() for name in OF_RUN):
        return
    changed: list[Change] = []
    if has_run:
        every = changes(resumed_config(run), config)
        changed = [change for change in every if _decides(change.key)]
        if not changed:
            return
    if overwrite:
        _remove_results(out)
        return
    what = "the run that these results were made from is missing, so its settings are unknown"
    if changed:
        what = f"these are the results of other settings: {'; '.join(map(str, changed))}"
    fix = "Choose another --out, repeat the earlier settings, or replace them with --overwrite."
    raise InputError(what, code="other-settings", where=out, fix=fix, changes=changed)


def _decides(key: str) -> bool:
    """Return whether a setting can change the results."""
    trains_longer = key in ("trainer.epochs", "trainer.patience")
    return trains_longer or not (may_change(key) or key == "data.folder")


def _remove_results(out: Path) -> None:
    """Remove what was made from the run, and then the run; a kill leaves no result without it."""
    for name in OF_RUN:
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / f"{RANKING}.partial", ignore_errors=True)
    if (out / "run" / RUN_FILE).is_file():
        remove_run(out / "run")


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that an import may read: those that are not hidden."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return [path for path in paths if not _is_hidden(path.relative_to(folder))]


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)


def _check_sources(folder: Path, out: Path, *, overwrite: bool) -> None:
    """Raise if there is no folder, or if its files are not those that ``out`` was made from."""
    record = out / SOURCES
    inside = out.resolve().is_relative_to(folder.resolve())
    full = not record.is_file() and out.exists() and any(_entries_of(out))
    for wrong, code, what in (
        (not folder.is_dir(), "no-such-folder", f"{folder} is not a folder of tables"),
        (inside, "out-in-sources", "the results would be among the sources; choose another --out"),
        ((folder / MANIFEST).is_file(), "already-imported", f"{folder} is an import; train on it"),
        (full, "not-empty", "the folder is not empty; choose another --out"),
    ):
        if wrong:
            raise InputError(what, code=code, where=out)
    if record.is_file():
        differing = _differing(folder, read_json(record, what="the list of sources"))
        if not differing:
            return
        if not overwrite:
            what = f"the results were made from other files than those in {folder}: "
            fix = "Choose another --out, or replace the results with --overwrite."
            what += listed(differing[:5])
            raise InputError(what, code="sources-changed", where=out, fix=fix, files=differing)
        _remove_results(out)
        remove(out / "data", "import")
    files = {
        str(path.relative_to(folder)): {
            "bytes": path.stat().st_size,
            "modified": path.stat().st_mtime_ns,
            "sha256": sha256_of_file(path),
        }
        for path in _files_of(folder)
    }
    write_json(record, {"files": files}, what="the list of sources")


def _entries_of(folder: Path) -> Iterator[Path]:
    """Yield what is in a folder, without the temporary files that a killed process left there."""
    return (entry for entry in folder.iterdir() if not entry.name.endswith(TEMPORARY))


def _differing(folder: Path, record: Any) -> list[str]:
    """Return the files that were added, removed or changed since they were recorded.

    A file that was copied may have another time, so its content counts.
    """
    known = record.get("files") if isinstance(record, dict) else None
    if isinstance(known, list):  # as earlier versions wrote it, without checksums
        known = {name: {"bytes": size, "modified": time} for name, size, time in known}
    if not isinstance(known, dict):
        return [SOURCES]
    now = {str(path.relative_to(folder)): path for path in _files_of(folder)}
    removed = {name for name in known if name not in now and not _is_hidden(Path(name))}
    changed = {name for name, path in now.items() if not _is_recorded(path, known.get(name))}
    return sorted(removed | changed)


def _is_recorded(path: Path, record: Mapping[str, Any] | None) -> bool:
    state = path.stat()
    if record is None or record["bytes"] != state.st_size:
        return False
    return record["modified"] == state.st_mtime_ns or record.get("sha256") == sha256_of_file(path)
