"""The Python interface: `fit`, `evaluate`, `rank`, `why` and `Run`.

The commands call these, so runs can be exchanged between Python and the command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from deltacell import storage
from deltacell.base.errors import InputError, did_you_mean, need
from deltacell.base.files import write_text
from deltacell.base.text import Progress
from deltacell.cell import Cell
from deltacell.cell.annotation import enrichment
from deltacell.evaluation.runs import evaluate_runs
from deltacell.models import registry
from deltacell.profile.record import RunRecord, read_run
from deltacell.ranking.ensemble import scorer_of
from deltacell.ranking.explain_set import against_measured, explain_set, gene_facts, known_of
from deltacell.ranking.given_sets import gene_sets_of, line_of_set
from deltacell.ranking.ranking_file import SHOWN, Ranking, read_rows
from deltacell.ranking.request import Request, gene_indices, gene_texts, subject_of
from deltacell.ranking.search import rank_sets, ranks_of_environment
from deltacell.report import predict as pages
from deltacell.report import training
from deltacell.report.figures import plot_learning
from deltacell.report.progress import progress_bar
from deltacell.report.terminal import Shown, as_html, print_facts
from deltacell.screen import Genotypes, Screen, Split
from deltacell.train.config import Config, SplitConfig
from deltacell.train.config.choose_settings import MODEL
from deltacell.train.config.compose import compose, with_settings
from deltacell.train.data import TrainingData, load_data, sources
from deltacell.train.predictor import AnyRun, LoadedRun, load_run, load_runs
from deltacell.train.run import train
from deltacell.train.run_directory import metrics_of, new_path, resumed_config
from deltacell.train.signals import StopSignals

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

PAIRS = "pairs"  # the name in `fit` for the model of the experiment costanzo2010_pairs
FIRST = 100  # sets at each end whose expected hits and enriched terms are shown
MOST_TERMS, MOST_Q = 20, 0.05  # maximum number of enriched terms per end, and of their q-values
VOTES = 5  # per set on a page


class Run:
    """A trained predictor with its data, in a directory that `fit` or a command made.

    `weights` are ``best`` by validation, ``last``, or the name of a checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str], weights: str = "best") -> None:
        self.path, self.weights = Path(path).absolute(), weights
        self.config: Config = resumed_config(self.path)

    @property
    def record(self) -> RunRecord:
        """The contents of ``run.json``."""
        return read_run(self.path)

    @cached_property
    def loaded(self) -> LoadedRun:
        """The predictor with its weights, and its data."""
        return load_run(self.path, self.weights)

    @property
    def history(self) -> History:
        """The metrics of the training, one row per epoch or validation."""
        return History(metrics_of(self.path))

    def predict(self, sets: Iterable[Sequence[str]] | Any) -> pd.DataFrame:
        """Return the predicted score of each gene set, in the screen's unit.

        `sets` are sequences of gene names of any kind, or a data frame with a gene in every column;
        see `gene_sets_of`.
        The result has the columns ``gene1``, ``gene2``, … (names of the cell), ``score`` and, from
        a two-part predictor, ``hit`` (the probability of a hit) and ``given_hit`` (the expected
        score of a hit).
        """
        names = self.loaded.data.cell.genes
        genes = [gene_indices(names, one).tolist() for one in gene_sets_of(sets)]
        found, texts = self.loaded.predictor.predict(Genotypes.of(genes)), gene_texts(names)
        table = _frame([[texts[g] for g in one] for one in genes])
        table.columns = [f"gene{i + 1}" for i in range(table.shape[1])]
        for name in ("score", "hit", "given_hit"):
            if (values := getattr(found, name)) is not None:
                table[name] = values.double().numpy()
        return table

    def why(self, *genes: str) -> ScoreExplanation:
        return why(self, *genes)

    def resume(self, *, progress: bool = True, **settings: Any) -> Run:
        """Resume a stopped run, or train longer with ``epochs=``, and return it."""
        overrides = [f"trainer.{name}={value}" for name, value in settings.items()]
        config = resumed_config(self.path, [*overrides, f"trainer.progress={progress}".lower()])
        train(config, resume=self.path, rendering=training)
        return Run(self.path, self.weights)

    def __repr__(self) -> str:
        record = self.record
        return f"Run({record.name}, {self.config.model.name}, {record.status}: {self.path})"

    def _repr_html_(self) -> str:
        record = self.record
        facts: dict[str, Any] = {"model": self.config.model.name, "status": str(record.status)}
        facts |= {"seed": record.seed, "directory": str(self.path)}
        for row in self.history[-1:]:
            facts |= {name: value for name, value in row.items() if value is not None}
        return as_html(lambda: print_facts(f"run {record.name}", facts))


class History(list[Mapping[str, Any]]):
    """The metrics of a training: one row per epoch or validation, as in ``metrics.csv``."""

    def to_pandas(self) -> pd.DataFrame:
        return _frame(self)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot the training loss and the validation correlation."""
        return plot_learning(self, axes)

    def _repr_html_(self) -> str:
        return str(self.to_pandas()._repr_html_())


def _frame(rows: Iterable[Any]) -> pd.DataFrame:
    need("pandas", "A table", "pandas")
    import pandas as pd

    return pd.DataFrame(list(rows))


def fit(
    model: Any,
    cell: Cell,
    screen: Screen,
    split: Split | None = None,
    *,
    epochs: int | None = None,
    seed: int = 0,
    directory: str | os.PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    **options: Any,
) -> Run:
    """Train a predictor, and return its run.

    ``model`` is ``pairs``, boosted trees on the scores measured next to a set, with settings for
    the size of the screen; the name of any model (``dango``, ``boosted_trees``); or a model such
    as ``PairCell(cell, hidden=32)``, whose settings are used but not its weights. Every row
    of the screen needs a score; the split is random by default. ``epochs`` is for networks,
    ``options`` are keys of the model (``hidden=32``), and ``settings`` are other keys of the config
    (``{"optimizer.lr": 1e-3}``).

    The run directory is by default a new one in ``runs``. A cell or screen that was not loaded from
    a directory is saved next to it, in ``data``, so that the run can be loaded later.
    """
    name, of_model = _model_settings(model)
    if not np.isfinite(screen.column("score")).all():
        fix = "Drop them: screen.take(np.isfinite(screen.column('score')))"
        raise InputError("some genotypes have no score", code="missing-target", fix=fix)
    split = Split.random(screen) if split is None else split
    split.check(screen)
    config = compose([f"model={name}", "data.synthetic=demo"])
    chosen = config.model.settings_for(cell, screen)
    chosen |= {f"model.{key}": value for key, value in {**of_model, **options}.items()}
    if epochs is not None:
        if config.model.trained_by == "fit":
            warnings.warn(f"{name} has no epochs; use rounds= for its trees", stacklevel=2)
        else:
            chosen["trainer.epochs"] = epochs
    chosen |= {"name": PAIRS if model == PAIRS else name, "seed": seed}
    chosen |= {"trainer.progress": progress, **dict(settings or {})}
    chosen |= {} if directory is None else {"directory": str(directory)}
    config = with_settings(config, chosen)
    path = new_path(config)
    config, data = _data_of(config, path.absolute().parent / "data", cell, screen, split)
    config = with_settings(config, {"directory": str(path)})
    outcome = train(config, data=data, command=("deltacell.fit", name), rendering=training)
    if outcome.signal:
        warnings.warn(f"stopped; resume with Run('{path}').resume()", stacklevel=2)
    return Run(outcome.path)


def _data_of(
    config: Config,
    home: Path,
    cell: Cell,
    screen: Screen,
    split: Split,
) -> tuple[Config, TrainingData]:
    """Return the config and the data of objects, which are saved if they are not on disk."""
    objects: dict[str, Cell | Screen] = {"cell": cell, "screen": screen}
    places = {f"data.{kind}": str(_on_disk(one, home, kind)) for kind, one in objects.items()}
    config = with_settings(config, {"data.synthetic": None, **places})
    settings = _settings_of(split)
    if settings is not None:
        drawn = with_settings(config, {"split": settings})
        data = load_data(drawn)
        parts = ("train", "validation", "test")
        if all(np.array_equal(getattr(data.split, part), getattr(split, part)) for part in parts):
            return drawn, data
    # A split that its settings do not reproduce, such as one made by hand, is saved.
    saved_cell, saved_screen = sources(config.data)
    same = split.on(saved_screen.on(saved_cell), screen)
    # Two screens can have splits with the same rows.
    digest = hashlib.sha256(f"{same.screen_checksum} {same.checksum}".encode()).hexdigest()
    path = home / f"split-{digest[:12]}"
    if not path.exists():
        same.save(path)
    config = with_settings(config, {"split": SplitConfig("saved", split.seed, path=str(path))})
    return config, load_data(config)


def _settings_of(split: Split) -> SplitConfig | None:
    """Return the settings that draw a split; None for a split by names, which has none."""
    if split.method == "named":
        return None
    options = dict(split.options)
    studies = options.pop("test", []) if split.method == "source" else []
    return SplitConfig(split.method, split.seed, studies=list(studies), **options)


def _on_disk(one: Cell | Screen, home: Path, kind: str) -> Path:
    path = home / f"{kind}-{one.checksum[:12]}"
    for place in (one.path, path):
        with suppress(InputError):
            if place and storage.read(place, kind, verify=False).checksum == one.checksum:
                return place
    one.save(path, overwrite=True)
    return path


def _model_settings(model: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(model, str):
        name = MODEL if model == PAIRS else model
        if name in registry.names():
            return name, {}
    elif (settings := registry.settings_of(model)) is not None:
        return settings
    text = model if isinstance(model, str) else type(model).__name__
    what = f"unknown model '{text}'{did_you_mean(text, registry.names())}; expected one of "
    fix = "To add a model of your own, see docs/how-to/add-a-model.md."
    raise InputError(what + ", ".join((PAIRS, *registry.names())), code="unknown-model", fix=fix)


evaluate = evaluate_runs


@dataclass(frozen=True, eq=False)
class Ranked(Ranking, Shown):
    """A ranking with its runs, and the indices of the ranked genes."""

    runs: Sequence[LoadedRun] = ()
    genes: Sequence[int] = ()

    def why(self, *genes: str) -> ScoreExplanation:
        return why(self.runs, *genes)

    def to_pandas(self) -> pd.DataFrame:
        need("pandas", "A table", "pandas")
        return read_rows(self.path).to_pandas()

    @cached_property
    def expected_hits(self) -> dict[str, float]:
        """The expected number of hits among the first 100 sets of each end."""
        found: dict[str, float] = {}
        for end, sets in self._first.items():
            each = [run.predictor.predict(Genotypes.of(sets)).hit for run in self.runs]
            known = [float(hit.sum()) for hit in each if hit is not None]
            if known:
                found[end] = sum(known) / len(known)
        return found

    def enrichment(self) -> list[dict[str, Any]]:
        """Return the annotation terms that are enriched in the first 100 sets of each end.

        ``genes`` of ``drawn`` have the term; ``q_value`` is the Benjamini-Hochberg correction; the
        background is the genes of all ranked sets.
        """
        cell, found = self.runs[0].data.cell, []
        for end, sets in self._first.items() if cell.annotations else ():
            table = enrichment(cell, sets, self.genes)
            rows = table.filter(table["q_value"] <= MOST_Q).head(MOST_TERMS)
            found += [{"end": end, **row} for row in rows.to_dicts()]
        return found

    @cached_property
    def _first(self) -> dict[str, list[list[int]]]:
        first: dict[str, list[list[int]]] = {}
        for row in super().to_json(most=FIRST)["rows"]:
            if row["end"] is not None:
                first.setdefault(row["end"], []).append(self._indices(row))
        return first

    def _indices(self, row: Mapping[str, Any]) -> list[int]:
        genes = self.runs[0].data.cell.genes
        return [genes.index(gene) for gene in row["genes"]]

    def to_json(self, most: int = SHOWN) -> dict[str, Any]:
        """Return a JSON-serialisable dict, see `Ranking.to_json`, with the expected hits."""
        result = super().to_json(most)
        parts = [
            f"{hits:.1f} of the first {len(self._first[end]):,} {end}"
            for end, hits in self.expected_hits.items()
        ]
        if parts:
            said = "A score is the size of a hit times its probability; evaluate compares sizes."
            result["sentences"].insert(1, f"Expected to be hits: {' and '.join(parts)}. {said}")
        return result

    def page_data(
        self,
        link: str | None = None,
        progress: Progress = lambda what, done, total: None,
    ) -> dict[str, Any]:
        """Return the data of the HTML page as a JSON-serialisable dict: `to_json` with evidence.

        Each row has ``votes`` (the measured sets next to it), ``lost`` (reactions that only the
        whole set loses) and ``terms``; ``link`` is the URL template of a gene.
        """
        result = self.to_json()
        rows = result["rows"]
        sets = [self._indices(row) for row in rows]
        for number, (row, one) in enumerate(zip(rows, sets, strict=True)):
            progress("evidence", number, len(sets))
            row.update(known_of(self.runs, one, VOTES))
        used = sorted({gene for one in sets for gene in one})
        result["gene_facts"] = gene_facts(self.runs[0].data.cell.genes, used, link)
        result["enrichment"] = self.enrichment()
        progress("predicting what was measured", 0, 0)
        sizes = sorted({len(one) for one in sets})
        return {**result, **against_measured(self.runs, scorer_of(self.runs), sizes)}

    def page(self, path: str | os.PathLike[str], link: str | None = None) -> Path:
        """Write the ranking as a self-contained HTML page, see `page_data`; return its path."""
        with progress_bar() as bar:
            return _write_text(path, pages.ranking_page(self.page_data(link, bar)))

    def _print(self) -> None:
        pages.print_ranking(self.to_json())


def _write_text(path: str | os.PathLike[str], text: str) -> Path:
    write_text(path, text, what="the file")
    return Path(path)


def rank(
    runs: AnyRun | Sequence[AnyRun],
    sets: str | os.PathLike[str] | Iterable[Sequence[str]] = "pairs",
    *,
    out: str | os.PathLike[str] | None = None,
    weights: str = "best",
    overwrite: bool = False,
    progress: bool = True,
    tell: Callable[[str], None] = lambda sentence: None,
    **options: Any,
) -> Ranked | None:
    """Rank gene sets by their predicted score, with the evidence for each.

    Several ``runs`` give a mean and a spread. ``sets`` is ``pairs``, ``triples``, ``with GENE
    ...``, a file with one set per line, or the sets themselves. The ``options`` are those of
    `deltacell predict`: ``genes``, ``top``, ``above``, ``below``, ``status``, ``linked``,
    ``distance`` and ``size``. ``tell`` is called with messages about the expected time.

    The ranking is a Parquet file, by default in the folder ``rankings`` of the first run. Repeat
    the call to resume a ranking that was stopped; one that is complete is read from its file.
    Under torchrun only the first process returns it.
    """
    ranks = ranks_of_environment()
    tell = tell if ranks[0] == 0 else lambda sentence: None
    with progress_bar() as bar:
        report = bar if progress and ranks[0] == 0 else lambda label, done, total: None
        report("loading", 0, 0)
        loaded = load_runs(runs, weights)
        scorer = scorer_of(loaded)
        home = loaded[0].record.path / "rankings"
        if not isinstance(sets, str | os.PathLike):
            lines = "".join(f"{line_of_set(one)}\n" for one in gene_sets_of(sets))
            sets = _write_text(home / f"sets-{_digest(lines)}.txt", lines)
        request = Request.of_words(str(sets), **options)
        subject = subject_of(loaded, request, weights)
        identity = json.dumps(dict(subject.identity), sort_keys=True)
        default = home / f"{request.sets}-{_digest(identity)}.parquet"
        path = default if out is None else Path(out)
        # Until here nothing is to be saved, and a signal ends the process even inside a library.
        with StopSignals() as signals:
            found = rank_sets(
                subject,
                scorer,
                path,
                ranks=ranks,
                overwrite=overwrite,
                stop=lambda: signals.received is not None,
                progress=report,
                tell=tell,
            )
    if found is None and signals.received is not None:
        tell(f"Stopped; rerun the command to resume from {path}.partial")
        raise Stopped(signals.received)
    if found is None:
        return None
    return Ranked(found.path, found.about, loaded, subject.genes.tolist())


class Stopped(KeyboardInterrupt):
    """A signal, its argument, stopped a ranking, which can be resumed."""


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True, eq=False)
class ScoreExplanation(Shown):
    """Why a gene set has its score; ``result`` is from `explain_set`."""

    result: Mapping[str, Any]

    @property
    def score(self) -> float:
        return float(self.result["score"])

    @property
    def sentences(self) -> list[str]:
        """The main contributions to the score, in words."""
        return list(self.result["sentences"])

    def votes(self) -> pd.DataFrame:
        """Return the measured sets that the score is based on, the largest weight first."""
        return _frame(self.result["votes"])

    def page(self, path: str | os.PathLike[str]) -> Path:
        """Write the explanation as a self-contained HTML page; return its path."""
        return _write_text(path, pages.explained_page(self.result))

    def _print(self) -> None:
        pages.print_explained_set(self.result)


def why(runs: AnyRun | Sequence[AnyRun], *genes: str, weights: str = "best") -> ScoreExplanation:
    """Explain the score of one gene set: what contributes to it, and the closest measured sets.

    ``genes`` are names of any kind, and ``weights`` is for runs given by their directory.
    """
    loaded = load_runs(runs, weights)
    indices = gene_indices(loaded[0].data.cell.genes, genes)
    if not len(indices):
        raise InputError('no genes; expected: deltacell why RUN "HO STE2"', code="no-gene")
    return ScoreExplanation(explain_set(loaded, indices))
