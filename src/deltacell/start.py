"""From a folder of tables to a ranked list with evidence: what `deltacell start` does."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.errors import InputError
from deltacell.files import read_json, write_json, write_text
from deltacell.models.baselines import baseline
from deltacell.models.baselines.baseline import FittedPredictor
from deltacell.predict.rank import duration
from deltacell.predict.ranking import write_table
from deltacell.predict.status import STATUSES, UNTESTED, Statuses, phenotypes_of
from deltacell.predict.verbs import Ranked, rank
from deltacell.profile.record import RUN_FILE, Status, read_run
from deltacell.report.evaluate import markdown_evaluation
from deltacell.report.progress import progress_bar
from deltacell.screen import Genotypes
from deltacell.screen.import_folder import import_folder
from deltacell.store import MANIFEST
from deltacell.train.build import build_fitted
from deltacell.train.config import Config
from deltacell.train.data import TrainingData, load_data
from deltacell.train.suited import suited_config
from deltacell.verbs import Run, evaluate, trained

DATA, RUN, SOURCES = "data", "run", "sources.json"
EVALUATION, TABLES = "evaluation.json", "evaluation.md"
RANKING, PAGE, TABLE = "ranking.parquet", "ranking.html", "ranking.csv"
"""What the steps leave in the folder; one that is there is not made again."""

BASELINES = ("additive", "boosted_trees")
"""What the predictor is tested beside."""

BYTES_PER_SECOND = 5e6
"""How fast source files are read: compressed tables on one core of 2020, or slower."""

# Trials are on a sixteenth and a quarter of the genotypes, or on so many of a large screen.
_SHARES, _FEWEST, _MOST = (16, 4), 50, (1_000, 8_000)
_TRIED_ROUNDS = 6
_SCORED = 2_048
_FEWEST_UNTESTED = 0.01

Tell = Callable[[str], None]


def start(
    folder: Path, out: Path, *, top: int = 100, overrides: Sequence[str] = (), tell: Tell
) -> Ranked | None:
    """Import a folder, fit, test, rank and write the page; rerun it to resume.

    Parameters
    ----------
    folder
        The source files: a screen, and networks if there are any.
    out
        Where all of it goes.
    top
        Sets of each end of the ranking.
    overrides
        Further settings of the training, such as ``data.screen=NAME``.
    tell
        Called with sentences: what is done, and how long it will take.

    Returns
    -------
    Ranked | None
        The ranking; None where the training was stopped.
    """
    _check_sources(folder, out)
    if not (out / DATA / MANIFEST).is_file():
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        seconds = duration(max(2.0, size / BYTES_PER_SECOND))
        tell(f"1 of 4: reading {size / 1e6:,.1f} MB takes about {seconds}; the rest is told then.")
        with progress_bar() as bar:
            import_folder(folder, progress=bar).save(out / DATA)
    else:
        tell(f"1 of 4: the import is there: {out / DATA}")
    place = _quoted(out / DATA)
    config, said = suited_config([f"data.folder={place}", *overrides])
    config = replace(config, directory=str(out / RUN))
    for sentence in said:
        tell(sentence)
    data = load_data(config)
    sets, status = _what_to_rank(data)
    _tell_how_long(config, data, sets, out, tell)
    run = _run(config, data, out, tell)
    if run is None:
        return None
    _evaluate(run, out, tell)
    tell(f"4 of 4: ranking {sets} that are {status.replace(',', ' or ')}")
    ranking = rank(run, sets, top=top, status=status, out=out / RANKING, tell=tell)
    if ranking is not None:
        ranking.page(out / PAGE)
        write_table(ranking.path, out / TABLE)
    return ranking


def _run(config: Config, data: TrainingData, out: Path, tell: Tell) -> Run | None:
    path = out / RUN
    there = (path / RUN_FILE).is_file()
    if there and read_run(path).status is Status.finished:
        tell(f"2 of 4: the run is there: {path}")
        return Run(path)
    tell(f"2 of 4: fitting {config.model.name} on {len(data.split.train):,} genotypes")
    outcome = trained(config, data=data, command=("deltacell", "start"))
    return None if outcome.signal else Run(path)


def _evaluate(run: Run, out: Path, tell: Tell) -> None:
    if (out / EVALUATION).is_file() and (out / TABLES).is_file():
        tell(f"3 of 4: the evaluation is there: {out / TABLES}")
        return
    tell(f"3 of 4: testing it beside {' and '.join(BASELINES)}")
    result = evaluate([run, *BASELINES]).evaluation.to_json()
    write_text(out / TABLES, markdown_evaluation(result), what="the tables")
    write_json(out / EVALUATION, result, what="the evaluation")
    for verdict in result["verdicts"][:1]:
        tell(verdict["sentence"])


def _what_to_rank(data: TrainingData) -> tuple[str, str]:
    """Return which sets to rank and their status: untested ones, unless there are hardly any."""
    sizes = np.diff(data.screen.offsets)
    size = 2 if (sizes == 2).any() else 3
    genes = np.unique(data.screen.genotypes.genes.numpy())
    rng = np.random.default_rng(0)
    drawn = np.sort(rng.choice(genes, (_SCORED, size)), axis=1)
    drawn = drawn[(np.diff(drawn, axis=1) > 0).all(axis=1)]
    whole = data.screen if data.whole is None else data.whole
    screens = [whole.on(data.cell, on_unknown="drop")]
    codes = Statuses(screens, set(phenotypes_of(data.screen))).of(drawn)
    untested = (codes == STATUSES.index(UNTESTED)).mean() if len(codes) else 1.0
    status = UNTESTED if untested >= _FEWEST_UNTESTED else f"tested,{UNTESTED}"
    return ("pairs" if size == 2 else "triples"), status


@dataclass(frozen=True)
class Trial:
    """What a short fit on some of the genotypes took, in seconds of the processor.

    Parameters
    ----------
    rows
        Genotypes that it was fitted on.
    columns, each_round
        Before the first round, and for each round.
    each_set
        To score one set, beside others that share a gene with it.
    rounds
        The most rounds that the whole fit will have.
    """

    rows: int
    columns: float
    each_round: float
    each_set: float
    rounds: int


def _tell_how_long(config: Config, data: TrainingData, sets: str, out: Path, tell: Tell) -> None:
    """Say how long the steps that are left will take, by fits on a few of the genotypes."""
    if (out / RUN / RUN_FILE).is_file() and read_run(out / RUN).status is Status.finished:
        return
    n = len(data.split.train)
    few, many = (min(n, max(_FEWEST, n // share)) for share in _SHARES)
    few, many = min(few, _MOST[0]), min(many, _MOST[1])
    began, used = time.perf_counter(), time.process_time()
    seconds: list[tuple[float, float]] = []
    trials: list[Trial] = []
    for predictor in (build_fitted, lambda _: baseline(BASELINES[1])):
        trials = [_tried(predictor(config), data, config, rows) for rows in (few, many)]
        rounds = trials[0].rounds * (2 if data.grid is not None and not seconds else 1)
        columns = _extrapolated([(t.rows, t.columns) for t in trials], n)
        each = _extrapolated([(t.rows, t.each_round) for t in trials], n)
        seconds.append((columns + rounds * each, trials[-1].each_set))
    # On a machine that is busy, or with several threads, the clock goes otherwise.
    pace = (time.perf_counter() - began) / max(1e-3, time.process_time() - used)
    genes = len(np.unique(data.screen.genotypes.genes.numpy()))
    n_sets = comb(genes, 2 if sets == "pairs" else 3)
    (fit, each_set), (test, _) = seconds
    fit, test, ranking = pace * fit, pace * test, pace * n_sets * each_set
    tell(
        f"By a trial on {many:,} of {n:,} genotypes: fitting takes {_range(fit)}, testing "
        f"{_range(test)}, ranking {n_sets:,} {sets} {_range(ranking)}; "
        f"{_range(fit + test + ranking)} in all. Ctrl-C stops it, and the same command resumes."
    )


def _tried(predictor: FittedPredictor, data: TrainingData, config: Config, rows: int) -> Trial:
    """Time a short fit on some of the training part."""
    chosen = np.sort(np.random.default_rng(0).permutation(data.split.train)[:rows])
    all_rounds: int = predictor.rounds  # type: ignore[attr-defined]
    predictor.rounds = _TRIED_ROUNDS  # type: ignore[attr-defined]
    stamps: list[float] = []

    def report(what: str, done: int, total: int) -> None:
        if what == "trees":
            stamps.append(time.process_time())

    began = time.process_time()
    predictor.fit(data.cell, *data.part(chosen), seed=config.seed, progress=report)
    first = stamps[0] if stamps else time.process_time()
    each = (stamps[-1] - first) / max(1, len(stamps) - 1) if stamps else 0.0
    genes = np.unique(data.screen.genotypes.genes.numpy())
    # A ranking goes through sets that share their first gene, which share most of the work.
    pairs = [[int(genes[0]), int(other)] for other in genes[1 : _SCORED + 1]]
    predictor(data.cell, Genotypes.of(pairs[:2]))
    scored = time.process_time()
    predictor(data.cell, Genotypes.of(pairs))
    each_set = (time.process_time() - scored) / max(1, len(pairs))
    return Trial(rows, first - began, each, each_set, all_rounds)


def _extrapolated(seconds: Sequence[tuple[int, float]], rows: int) -> float:
    """Return the time of all rows by those of two trials, on the line through them.

    Parameters
    ----------
    seconds
        The rows and the seconds of a small and of a larger trial.
    rows
        How many rows there are.
    """
    (few, short), (many, long) = seconds
    slope = max(0.0, (long - short) / max(1, many - few))
    return long + slope * (rows - many)


def _range(seconds: float) -> str:
    """Return a time as a range: a trial tells it within a factor of two."""
    if seconds < 5:
        return "seconds"
    return f"{duration(seconds / 2)} to {duration(2 * seconds)}"


def _check_sources(folder: Path, out: Path) -> None:
    """Raise where the folder is none, or has changed since what is in ``out`` was made of it."""
    if not folder.is_dir():
        raise InputError(
            "there is no such folder", where=folder, fix="Give the folder that holds your tables."
        )
    if out.resolve().is_relative_to(folder.resolve()):
        raise InputError(
            "the results would be among the source files", where=out, fix="Name another --out."
        )
    if (folder / MANIFEST).is_file():
        raise InputError(
            "this folder is an import already",
            where=folder,
            fix=f"Train on it: deltacell train data.folder={folder}",
        )
    files = [
        [str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns]
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    ]
    now = {
        "folder": str(folder.resolve()),
        "files": hashlib.sha256(repr(files).encode()).hexdigest(),
    }
    kept = out / SOURCES
    if kept.is_file():
        was: dict[str, Any] = read_json(kept, what="the list of sources")
        if was != now:
            raise InputError(
                f"the files in {folder} have changed since this was made, or it was made of another"
                " folder",
                where=out,
                fix="Name another --out, or remove this one.",
            )
        return
    if out.exists() and any(out.iterdir()):
        raise InputError("the folder is not empty", where=out, fix="Name another --out.")
    out.mkdir(parents=True, exist_ok=True)
    write_json(kept, now, what="the list of sources")


def _quoted(path: Path) -> str:
    text = str(path).replace("\\", "\\\\").replace("'", "\\'")
    return f"'{text}'"
