"""`start`: from a folder of tables to a ranked list with evidence."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.api.evaluate import evaluate
from deltacell.api.rank import Ranked, Stopped, rank
from deltacell.api.refit import refit
from deltacell.api.run import Run
from deltacell.api.showing import training_rendering
from deltacell.api.start_context import public_context, public_names, saved_context
from deltacell.api.start_estimate import estimate, reading_text
from deltacell.api.start_record import (
    CSV,
    DATA,
    EVALUATION,
    PAGE,
    RANKING,
    REFITTED,
    RUN,
    TABLES,
    check_results,
    check_sources,
)
from deltacell.base.errors import InputError, did_you_mean
from deltacell.base.files import read_json, write_text
from deltacell.base.rendering import progress_bar, report_function
from deltacell.base.text import Progress, hydra_text
from deltacell.cell import Cell
from deltacell.data.import_folder import Imported, import_folder
from deltacell.evaluation.runs import EvaluatedRuns
from deltacell.profile.record import RUN_FILE, SPLIT, Status, read_run
from deltacell.profile.refitted import Refitted
from deltacell.ranking.exports import write_table
from deltacell.ranking.filter import STATUSES, TESTED, UNTESTED, Codes, Statuses, phenotypes_of
from deltacell.ranking.request import PAIRS, TRIPLES
from deltacell.screen import Screen
from deltacell.storage import MANIFEST, read_manifest
from deltacell.train.config import Config, DataConfig
from deltacell.train.config.choose_settings import MODEL, chosen_sentence, suited_config
from deltacell.train.config.compose import compose
from deltacell.train.data import TrainingData, load_data, sources, with_everything
from deltacell.train.launch import needs_launch
from deltacell.train.launch_training import launch_training
from deltacell.train.loaded_runs import LoadedRun, load_run
from deltacell.train.outcome import Outcome
from deltacell.train.run import train

BASELINES = ("additive", "boosted_trees")
DRAWN = 2_048  # sets, to estimate the share that is untested
FEWEST_UNTESTED = 0.01  # with a smaller share, tested sets are ranked too


@dataclass(frozen=True)
class Stage:
    """A stage of `start`."""

    number: int  # from 1
    of: int  # the number of all stages
    title: str
    exists: bool  # its result exists, so it is not repeated
    command: tuple[str, ...]  # the arguments of `deltacell` that do the same


class StartObserver:
    """What `start` tells while it works; a subclass shows it."""

    def begin(self, stage: Stage) -> None:
        """Show that a stage begins."""

    def tell(self, sentence: str) -> None:
        """Show what is to be expected."""

    def imported(self, imported: Imported) -> None:
        """Show what was read."""

    def trained(self, outcome: Outcome, config: Config) -> None:
        """Show how the training ended."""

    def evaluated(self, evaluated: EvaluatedRuns) -> None:
        """Show the results of the test."""

    def refitted(self, refitted: Refitted) -> None:
        """Show that the predictor was fitted on all measurements."""

    def ranked(self, page_data: dict[str, Any], path: Path) -> None:
        """Show a ranking, from `Ranked.page_data`, which is in a file."""


@dataclass(frozen=True, eq=False)
class Started:
    """The results of `start`, and where they are."""

    out: Path
    run: Run  # which was tested
    evaluation: dict[str, Any]  # see `Evaluation.to_json`
    ranking: Ranked
    refitted: Run | None = None  # which ranks, if it was fitted on all measurements

    @property
    def page(self) -> Path:
        """The HTML page of the ranking."""
        return self.out / PAGE

    @property
    def tables(self) -> Path:
        """The tables of the evaluation, as Markdown."""
        return self.out / TABLES


def start(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str] | None = None,
    *,
    target: str | None = None,
    context: Sequence[str] | None = None,
    condition: str | None = None,
    columns: Sequence[str] = (),
    top: int = 100,
    settings: Sequence[str] = (),
    refit: bool = True,
    overwrite: bool = False,
    progress: bool = True,
    observer: StartObserver | None = None,
) -> Started:
    """Import a folder of tables, fit a predictor, test it, and rank ``top`` sets at each end.

    After the test the predictor is fitted on all measurements, and ranks with these, unless
    ``refit`` is False or the predictor is a network or an ensemble, see `deltacell.Run.refit`.

    The results are written to ``out``, by default a folder named after the tables. A stage whose
    result exists is not repeated, so the same call resumes what was stopped. ``settings`` are
    those of the training, such as ``model=dango``. Results of other files or settings are an error,
    or are replaced with ``overwrite``.

    ``target`` is the screen to predict, required if the folder has several. ``context`` names other
    screens of the folder, and paths of screens and finished runs, that help to predict it; by
    default these are all other screens of the folder, and public studies of the same genes of which
    `deltacell data get` keeps a copy. Nothing is downloaded.

    A table with several conditions gives a screen for each; ``condition`` names the one to predict,
    as in ``K562``. ``columns`` say what the columns of tables mean, as in
    ``gene1=ORF,gene2=Partner,score=S``.

    The cell and the screen are loaded once and passed on from stage to stage.
    """
    tables = Path(folder)
    results = Path(f"{tables.resolve().name}-results") if out is None else Path(out)
    observer = StartObserver() if observer is None else observer
    screens = _Screens(target, None if context is None else tuple(context), condition)
    work = _Start(
        tables,
        results,
        tuple(settings),
        tuple(columns),
        screens,
        refit,
        overwrite,
        observer,
        progress,
    )
    work.import_tables()
    config, words, data = work.prepare()
    loaded = work.train(config, words, data)
    evaluation = work.evaluate(loaded)
    final = work.refit(loaded)
    ranking = work.rank(loaded if final is None else final, top)
    return Started(
        results,
        Run(results / RUN, loaded=loaded),
        evaluation,
        ranking,
        None if final is None else Run(results / REFITTED, loaded=final),
    )


@dataclass(frozen=True)
class _Screens:
    """Which screen of an import is the target, and which studies are its context."""

    target: str | None
    context: tuple[str, ...] | None  # None for all other screens, if the model reads context
    condition: str | None = None  # that of the target, if a table has several

    def settings(self, data: Path, given: Sequence[str]) -> list[str]:
        """Return the settings of a training that say so, or raise if the target is not clear."""
        meta = read_manifest(data)["meta"]
        names = list(meta["screens"])
        if not names:
            raise _no_screen(data, meta["left_alone"])
        if self.condition is not None:
            target = self._target_of_condition(data, names)
            return replace(self, target=target, condition=None).settings(data, given)
        keys = {text.partition("=")[0].lstrip("+") for text in given}
        if self.target is not None and self.target not in names:
            what = f"the folder has no screen '{self.target}'{did_you_mean(self.target, names)}"
            fix = f"Choose from: {', '.join(names) or 'none'}."
            raise InputError(what, code="unknown-screen", where=data, fix=fix)
        if self.target is None and "data.screen" not in keys and len(names) > 1:
            what = f"the folder has {len(names)} screens: {', '.join(names)}"
            fix = "Say which one to predict with --target NAME; the others help as its context."
            raise InputError(what, code="several-screens", where=data, fix=fix, screens=names)
        settings = [] if self.target is None else [f"data.screen={hydra_text(self.target)}"]
        context = self._context(names, given)
        if context:
            settings.append(f"data.context={hydra_text(list(context))}")
        return settings

    def _target_of_condition(self, data: Path, names: Sequence[str]) -> str:
        """Return the screen of the condition, or raise unless there is exactly one."""
        ending = f"_{self.condition}".lower()
        of_table = [name for name in names if name.lower().endswith(ending)]
        if self.target is not None:
            of_table = [name for name in of_table if name.startswith(self.target)]
        if len(of_table) == 1:
            return of_table[0]
        number = "no screen" if not of_table else f"{len(of_table)} screens"
        what = f"the folder has {number} of the condition '{self.condition}'"
        fix = f"Name a screen with --target: {', '.join(of_table or names)}."
        raise InputError(what, code="unknown-condition", where=data, fix=fix, screens=names)

    def _context(self, names: Sequence[str], given: Sequence[str]) -> Sequence[str]:
        if self.context is not None:
            return self.context
        model = compose([f"model={MODEL}", "data.synthetic=demo", *_models_in(given)]).model
        if self.target is None or not model.reads_context:
            return ()
        return [name for name in names if name != self.target]


def _no_screen(data: Path, left_alone: Sequence[Mapping[str, str]]) -> InputError:
    """Return the error that no file of a folder is a screen, with why some were not read."""
    reasons = [f"{file['file']}: {file['why']}." for file in left_alone]
    fix = "A screen has two or more genes and a score per row; two genes alone are a network."
    what = "no table of the folder is a screen"
    return InputError(what, code="no-screen", where=data, fix="\n  ".join([fix, *reasons]))


def _models_in(settings: Sequence[str]) -> list[str]:
    return [text for text in settings if text.startswith("model=")]


@dataclass(frozen=True, eq=False)
class _Start:
    """The stages of `start`, in the order of its methods."""

    folder: Path
    out: Path
    settings: tuple[str, ...]
    columns: tuple[str, ...]
    screens: _Screens
    wants_refit: bool
    overwrite: bool
    observer: StartObserver
    progress: bool

    @property
    def n_stages(self) -> int:
        """The number of stages, of which the last is the ranking."""
        words = [f"model={MODEL}", *self._overrides()]
        return 5 if self._refits(compose(words)) else 4

    def import_tables(self) -> None:
        """Read the tables into a cell and screens, unless an earlier call did."""
        # Mistakes in the settings raise here, before anything is written.
        compose([f"model={MODEL}", *self._overrides()])
        check_sources(self.folder, self.out, self.columns, overwrite=self.overwrite)
        data = self.out / DATA
        exists = (data / MANIFEST).exists()
        columns = chain.from_iterable(("--columns", text) for text in self.columns)
        command = ("data", "import", as_word(self.folder), "--out", as_word(data), *columns)
        self._begin(1, reading_text(self.folder), exists, command)
        if not exists:
            with self._bar() as bar:
                imported = import_folder(self.folder, columns=self.columns, progress=bar)
            imported.save(data)
            self.observer.imported(imported)

    def prepare(self) -> tuple[Config, list[str], TrainingData]:
        """Return the config that suits the data, the words that compose it, and the data."""
        source = _LoadedOnce()
        overrides = [*self._overrides(), *self.screens.settings(self.out / DATA, self.settings)]
        overrides = self._with_public_context(overrides, source)
        config, chosen = suited_config(overrides, read=source)
        check_results(self.out, config, overwrite=self.overwrite)
        words = overrides
        if any(word.startswith("model=") for word in self.settings):
            # `train` chooses settings only if it also chooses the model.
            del chosen["model"]
            words = [*(f"{key}={hydra_text(value)}" for key, value in chosen.items()), *words]
        else:
            self.observer.tell(chosen_sentence(chosen))
        saved_split = self.out / RUN / SPLIT
        split = saved_split if saved_split.exists() else None
        return config, words, load_data(config, split, read=source)

    def _with_public_context(self, overrides: list[str], source: _LoadedOnce) -> list[str]:
        """Add the public studies that help, or those that are named, unless context is not read."""
        config = compose([f"model={MODEL}", *overrides])
        keys = {text.partition("=")[0].lstrip("+") for text in self.settings}
        if "data.context" in keys or not config.model.reads_context:
            return overrides
        names = list(read_manifest(self.out / DATA)["meta"]["screens"])
        wanted = public_names(self.screens.context, names)
        if (self.out / RUN / RUN_FILE).is_file():
            places = saved_context(self.out, self.screens.context)
        elif wanted:
            settings = replace(config.data, screen=config.data.screen or names[0])
            cell, screen = source(settings)
            places = public_context(cell, screen.on(cell), self.out, wanted, self.observer.tell)
        else:
            places = []
        if not places:
            return overrides
        others = [word for word in overrides if not word.startswith("data.context=")]
        entries = [entry for entry in config.data.context if entry not in wanted]
        return [*others, f"data.context={hydra_text([*entries, *places])}"]

    def train(self, config: Config, words: list[str], data: TrainingData) -> LoadedRun:
        """Train the predictor, unless an earlier call did, and return its run."""
        run = self.out / RUN
        exists = (run / RUN_FILE).is_file() and read_run(run).status is Status.finished
        if not exists:
            self.observer.tell(_expected_time(config, data, refits=self._refits(config)))
        title = f"fitting {config.model.name} on {len(data.split.train):,} genotypes"
        self._begin(2, title, exists, ("train", *words))
        if not exists:
            self._train(config, words, data)
        return load_run(run, data=data)

    def evaluate(self, run: LoadedRun) -> dict[str, Any]:
        """Compare the predictor with baselines, unless an earlier call did."""
        exists = (self.out / TABLES).exists()
        title = f"comparing it with {' and '.join(BASELINES)}"
        files = ("--json", as_word(self.out / EVALUATION), "--markdown", as_word(self.out / TABLES))
        names = ",".join(BASELINES)
        command = ("evaluate", as_word(self.out / RUN), "--baselines", names, *files)
        self._begin(3, title, exists, command)
        if exists:
            saved: dict[str, Any] = read_json(self.out / EVALUATION, what="the evaluation")
            return saved
        evaluated = evaluate([run], baselines=BASELINES, progress=self.progress)
        values = evaluated.to_json()
        text = json.dumps(values, indent=1, ensure_ascii=False)
        write_text(self.out / EVALUATION, f"{text}\n", what="the result")
        markdown = report_function("evaluate:markdown_evaluation")(values)
        write_text(self.out / TABLES, markdown, what="the result")
        self.observer.evaluated(evaluated)
        return values

    def refit(self, run: LoadedRun) -> LoadedRun | None:
        """Fit the predictor on all measurements, unless an earlier call did or it is not wanted."""
        if not self._refits(run.config):
            return None
        path = self.out / REFITTED
        exists = (path / RUN_FILE).is_file() and read_run(path).status is Status.finished
        data = with_everything(run.data)
        title = f"fitting {run.config.model.name} on all {len(data.split.train):,} measurements"
        command = ("refit", as_word(self.out / RUN), "--out", as_word(path))
        self._begin(4, title, exists, command)
        if not exists:
            outcome = refit(run, path, progress=self.progress)
            if outcome.signal:
                raise Stopped(outcome.signal)
        final = load_run(path, data=data)
        assert final.record.refitted is not None
        self.observer.refitted(final.record.refitted)
        return final

    def rank(self, run: LoadedRun, top: int) -> Ranked:
        """Rank the sets that were not tested, and write the page and the table."""
        sets, status = what_to_rank(run.data)
        path = self.out / RANKING
        which = ("--sets", sets, "--status", status, "--top", str(top))
        files = ["--out", as_word(path), "--html", as_word(self.out / PAGE)]
        files += ["--csv", as_word(self.out / CSV)]
        if self.overwrite:
            files.append("--overwrite")
        title = f"ranking {sets} that are {status.replace(',', ' or ')}"
        command = ("predict", as_word(run.record.path), *which, *files)
        self._begin(self.n_stages, title, exists=False, command=command)
        ranking = rank(
            [run],
            sets,
            status=status,
            top=top,
            out=path,
            overwrite=self.overwrite,
            progress=self.progress,
            tell=self.observer.tell,
        )
        if ranking is None:
            message = "start ranks in one process, and this is one of several"
            fix = "Run it without torchrun, or rank with `deltacell predict`."
            raise InputError(message, code="several-processes", fix=fix)
        with self._bar() as bar:
            page_data = ranking.page_data(progress=bar)
        html = report_function("predict:ranking_page")(page_data)
        write_text(self.out / PAGE, html, what="the page")
        write_table(path, self.out / CSV)
        self.observer.ranked(page_data, path)
        return ranking

    def _refits(self, config: Config) -> bool:
        return self.wants_refit and config.model.trained_by == "fit" and config.model.needs_data

    def _begin(
        self,
        number: int,
        title: str,
        exists: bool,
        command: tuple[str, ...],
    ) -> None:
        self.observer.begin(Stage(number, self.n_stages, title, exists, command))

    def _bar(self) -> AbstractContextManager[Progress]:
        return progress_bar() if self.progress else nullcontext(lambda what, done, total: None)

    def _overrides(self) -> list[str]:
        folder = f"data.folder={hydra_text(self.out / DATA)}"
        return [folder, *self.settings, f"directory={hydra_text(self.out / RUN)}"]

    def _train(self, config: Config, words: list[str], data: TrainingData) -> None:
        if config.model.trained_by == "loop" and needs_launch(config.trainer):
            # Each process has to load the data.
            signal = launch_training(config, words)
        else:
            outcome = train(
                config,
                data=data,
                command=("deltacell", "train", *words),
                rendering=training_rendering(),
            )
            self.observer.trained(outcome, config)
            signal = outcome.signal
        if signal:
            raise Stopped(signal)


class _LoadedOnce:
    """Loads the cell and the screen of a config, and returns the same objects again."""

    def __init__(self) -> None:
        self._loaded: dict[str, tuple[Cell, Screen]] = {}

    def __call__(self, config: DataConfig) -> tuple[Cell, Screen]:
        source = repr((config.folder, config.cell, config.screen, config.synthetic))
        if source not in self._loaded:
            self._loaded[source] = sources(config)
        return self._loaded[source]


def what_to_rank(data: TrainingData) -> tuple[str, str]:
    """Return which sets to rank and their status: untested, unless hardly any are."""
    has_pairs = bool((np.diff(data.screen.offsets) == 2).any())
    size = 2 if has_pairs else 3
    genes = np.unique(data.screen.genotypes.genes.numpy())
    drawn = np.sort(np.random.default_rng(0).choice(genes, (DRAWN, size)), axis=1)
    has_distinct_genes = (np.diff(drawn, axis=1) > 0).all(axis=1)
    sets = drawn[has_distinct_genes]
    whole = data.screen if data.whole is None else data.whole
    statuses = Statuses([whole.on(data.cell, on_unknown="drop")], phenotypes_of(data.screen))
    ranked = _statuses_to_rank(statuses.of(sets))
    return (PAIRS if has_pairs else TRIPLES), ",".join(ranked)


def _statuses_to_rank(drawn: Codes) -> Sequence[str]:
    """Return the fewest statuses that enough of some random sets have, by their status [sets].

    Of a complete map every set is measured, and then measured sets are ranked too.
    """
    for ranked in ((UNTESTED,), (TESTED, UNTESTED)):
        codes = [STATUSES.index(status) for status in ranked]
        if not len(drawn) or np.isin(drawn, codes).mean() >= FEWEST_UNTESTED:
            return ranked
    return STATUSES


def _expected_time(config: Config, data: TrainingData, *, refits: bool) -> str:
    model = config.model
    if model.trained_by != "fit":
        n_epochs = config.trainer.epochs
        return f"{model.name} trains for {n_epochs} epochs; Ctrl-C stops it."
    sets, _ = what_to_rank(data)
    return estimate(config, data, sets, BASELINES[1], refits=refits).sentence


def as_word(path: Path) -> str:
    """Return a path as an argument of a command, where a leading dash would begin an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text
