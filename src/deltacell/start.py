"""From a folder of tables to a ranked list with evidence: what `deltacell start` does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import NamedTuple

import numpy as np

from deltacell.errors import InputError
from deltacell.files import read_json, write_json, write_text
from deltacell.models.baselines import baseline
from deltacell.models.baselines.baseline import FittedPredictor
from deltacell.predict.ranking_file import write_table
from deltacell.predict.status import STATUSES, UNTESTED, Statuses, phenotypes_of
from deltacell.predict.verbs import Ranked, rank
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.report.evaluate import markdown_evaluation
from deltacell.report.progress import progress_bar
from deltacell.screen import Genotypes
from deltacell.screen.import_folder import import_folder
from deltacell.store import MANIFEST
from deltacell.train.build import build_fitted
from deltacell.train.compose import suited_config
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, load_data
from deltacell.verbs import Run, evaluate, trained
from deltacell.words import duration_text

# What the steps leave in the folder; a step whose result exists is not repeated.
DATA, RUN, SOURCES = "data", "run", "sources.json"
EVALUATION, TABLES = "evaluation.json", "evaluation.md"
RANKING, PAGE, TABLE = "ranking.parquet", "ranking.html", "ranking.csv"

BASELINES = ("additive", "boosted_trees")
BYTES_PER_SECOND = 5e6  # of compressed tables that one core of 2020 reads
# Trials are on a sixteenth and a quarter of the genotypes, with a least and a most for each.
TRIALS = ((16, 50, 1_000), (4, 50, 8_000))
TRIED_ROUNDS = 6
SCORED = 2_048  # sets that are scored in a trial, or drawn to see how many are untested
FEWEST_UNTESTED = 0.01

Tell = Callable[[str], None]


def start(
    folder: Path, out: Path, *, top: int = 100, overrides: Sequence[str] = (), tell: Tell
) -> Ranked | None:
    """Import a folder, fit, test, rank ``top`` sets and write the page; rerun it to resume.

    ``overrides`` are settings of the training, such as ``data.screen=NAME``, and ``tell`` is called
    with sentences on what is done. Returns None where the training was stopped.
    """
    _check_sources(folder, out)
    if (out / DATA / MANIFEST).is_file():
        tell(f"1 of 4: the import exists: {out / DATA}")
    else:
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        seconds = duration_text(max(2.0, size / BYTES_PER_SECOND))
        tell(f"1 of 4: reading {size / 1e6:,.1f} MB takes about {seconds}")
        with progress_bar() as bar:
            import_folder(folder, progress=bar).save(out / DATA)
    quoted = str(out / DATA).replace("\\", "\\\\").replace("'", "\\'")
    config, said = suited_config([f"data.folder='{quoted}'", *overrides])
    config = replace(config, directory=str(out / RUN))
    for sentence in said:
        tell(sentence)
    data = load_data(config)
    sets, status = _what_to_rank(data)
    path = out / RUN
    if (path / RUN_FILE).is_file() and read_run(path).status is Status.finished:
        tell(f"2 of 4: the run exists: {path}")
    else:
        _tell_how_long(config, data, sets, tell)
        tell(f"2 of 4: fitting {config.model.name} on {len(data.split.train):,} genotypes")
        if trained(config, data=data, command=("deltacell", "start")).signal:
            return None
    run = Run(path)
    if (out / EVALUATION).is_file() and (out / TABLES).is_file():
        tell(f"3 of 4: the evaluation exists: {out / TABLES}")
    else:
        tell(f"3 of 4: testing it beside {' and '.join(BASELINES)}")
        result = evaluate([run, *BASELINES]).evaluation.to_json()
        write_text(out / TABLES, markdown_evaluation(result), what="the tables")
        write_json(out / EVALUATION, result, what="the evaluation")
        for verdict in result["verdicts"][:1]:
            tell(verdict["sentence"])
    tell(f"4 of 4: ranking {sets} that are {status.replace(',', ' or ')}")
    ranking = rank(run, sets, top=top, status=status, out=out / RANKING, tell=tell)
    if ranking is not None:
        ranking.page(out / PAGE)
        write_table(ranking.path, out / TABLE)
    return ranking


def _what_to_rank(data: TrainingData) -> tuple[str, str]:
    """Return which sets to rank and their status: untested, unless there are hardly any."""
    size = 2 if (np.diff(data.screen.offsets) == 2).any() else 3
    genes = np.unique(data.screen.genotypes.genes.numpy())
    drawn = np.sort(np.random.default_rng(0).choice(genes, (SCORED, size)), axis=1)
    drawn = drawn[(np.diff(drawn, axis=1) > 0).all(axis=1)]
    whole = data.screen if data.whole is None else data.whole
    statuses = Statuses([whole.on(data.cell, on_unknown="drop")], phenotypes_of(data.screen))
    untested = statuses.of(drawn) == STATUSES.index(UNTESTED)
    enough = not len(drawn) or untested.mean() >= FEWEST_UNTESTED
    return ("pairs" if size == 2 else "triples"), UNTESTED if enough else f"tested,{UNTESTED}"


class Trial(NamedTuple):
    """What a short fit took, in seconds of the processor."""

    rows: int  # genotypes that it was fitted on
    columns: float  # before the first round
    each_round: float
    each_set: float  # to score a set, beside others that share a gene with it
    rounds: int  # the most rounds that the whole fit will have


def _tell_how_long(config: Config, data: TrainingData, sets: str, tell: Tell) -> None:
    """Say how long the steps will take, by fits on a few of the genotypes."""
    n = len(data.split.train)
    rows = [min(n, max(least, n // share), most) for share, least, most in TRIALS]
    began, used = time.perf_counter(), time.process_time()
    fits: list[tuple[float, float]] = []
    for predictor in (build_fitted, lambda _: baseline(BASELINES[1])):
        trials = [_try(predictor(config), data, config, n_rows) for n_rows in rows]
        # A grid of settings means a second fit.
        rounds = trials[0].rounds * (2 if data.grid is not None and not fits else 1)
        columns = _extrapolate([(t.rows, t.columns) for t in trials], n)
        each = _extrapolate([(t.rows, t.each_round) for t in trials], n)
        fits.append((columns + rounds * each, trials[-1].each_set))
    # On a busy machine, or with several threads, the clock and the processor differ.
    pace = (time.perf_counter() - began) / max(1e-3, time.process_time() - used)
    genes = len(np.unique(data.screen.genotypes.genes.numpy()))
    n_sets = comb(genes, 2 if sets == "pairs" else 3)
    (fit, each_set), (test, _) = fits
    fit, test, ranking = pace * fit, pace * test, pace * n_sets * each_set
    tell(
        f"By a trial on {rows[1]:,} of {n:,} genotypes: fitting takes {_range(fit)}, testing "
        f"{_range(test)}, ranking {n_sets:,} {sets} {_range(ranking)}; "
        f"{_range(fit + test + ranking)} in all. Ctrl-C stops it; rerun the command to resume."
    )


def _try(predictor: FittedPredictor, data: TrainingData, config: Config, rows: int) -> Trial:
    """Time a short fit on some of the training part."""
    chosen = np.sort(np.random.default_rng(0).permutation(data.split.train)[:rows])
    all_rounds: int = predictor.rounds  # type: ignore[attr-defined]
    predictor.rounds = TRIED_ROUNDS  # type: ignore[attr-defined]
    stamps: list[float] = []

    def report(what: str, done: int, total: int) -> None:
        if what == "trees":
            stamps.append(time.process_time())

    began = time.process_time()
    predictor.fit(data.cell, *data.part(chosen), seed=config.seed, progress=report)
    if not stamps:
        stamps.append(time.process_time())
    genes = np.unique(data.screen.genotypes.genes.numpy())
    # A ranking goes through sets that share their first gene, which share most of the work.
    pairs = [[int(genes[0]), int(other)] for other in genes[1 : SCORED + 1]]
    predictor(data.cell, Genotypes.of(pairs[:2]))
    scored = time.process_time()
    predictor(data.cell, Genotypes.of(pairs))
    each_set = (time.process_time() - scored) / max(1, len(pairs))
    each_round = (stamps[-1] - stamps[0]) / max(1, len(stamps) - 1)
    return Trial(rows, stamps[0] - began, each_round, each_set, all_rounds)


def _extrapolate(seconds: Sequence[tuple[int, float]], rows: int) -> float:
    """Return the time of all rows, on the line through a small and a larger trial."""
    (few, short), (many, long) = seconds
    slope = max(0.0, (long - short) / max(1, many - few))
    return long + slope * (rows - many)


def _range(seconds: float) -> str:
    """Return a time as a range: a trial tells it within a factor of two."""
    if seconds < 5:
        return "seconds"
    return f"{duration_text(seconds / 2)} to {duration_text(2 * seconds)}"


def _check_sources(folder: Path, out: Path) -> None:
    """Raise where the folder is none, or has changed since what is in ``out`` was made of it."""

    def refuse(wrong: bool, code: str, what: str, where: Path, fix: str) -> None:
        if wrong:
            raise InputError(what, code=code, where=where, fix=fix)

    another = "Choose another --out."
    refuse(not folder.is_dir(), "no-such-folder", "not a folder", folder, "Give your tables.")
    inside = out.resolve().is_relative_to(folder.resolve())
    refuse(inside, "out-in-sources", "the results would be among the source files", out, another)
    refuse(
        (folder / MANIFEST).is_file(),
        "already-imported",
        "this folder is an import already",
        folder,
        f"Train on it: deltacell train data.folder={folder}",
    )
    files = [
        [str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    digest = hashlib.sha256(repr(files).encode()).hexdigest()
    now = {"folder": str(folder.resolve()), "files": digest}
    kept = out / SOURCES
    if kept.is_file():
        changed = read_json(kept, what="the list of sources") != now
        what = f"the files in {folder} have changed since this was made, or it was made of others"
        refuse(changed, "sources-changed", what, out, another)
        return
    refuse(
        out.exists() and any(out.iterdir()), "not-empty", "the folder is not empty", out, another
    )
    out.mkdir(parents=True, exist_ok=True)
    write_json(kept, now, what="the list of sources")
