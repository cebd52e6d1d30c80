"""The verbs of the program, on objects: `fit`, `evaluate`, `rank` and `why`.

The commands are shells of these, so a run that Python wrote is a run of the command line and the
other way round.
"""

from __future__ import annotations

import hashlib
import logging
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from deltacell import store
from deltacell.cell import Cell
from deltacell.errors import InputError, did_you_mean
from deltacell.evaluate.hits import ZEROS, Threshold
from deltacell.evaluate.runs import EvaluatedRuns, evaluate_on, evaluate_runs
from deltacell.models.base import Recorded
from deltacell.models.baselines import BASELINES
from deltacell.predict.request import GeneNames
from deltacell.predict.verbs import Explanation, Ranked, rank, why
from deltacell.profile.record import METRICS_FILE, RUN_FILE, RunRecord, read_metrics, read_run
from deltacell.report.progress import progress_bar
from deltacell.report.terminal import as_html
from deltacell.screen import Genotypes, Screen, Split
from deltacell.screen.convert import need
from deltacell.train.compose import MODEL, compose, suited, with_settings
from deltacell.train.config import MODELS, Config, SplitConfig, is_fitted
from deltacell.train.data import TrainingData, load_data
from deltacell.train.loaded_run import AnyRun, LoadedRun, load_run, load_runs
from deltacell.train.run import fit_run, resume_fit
from deltacell.train.run_directory import Outcome, new_path, resumed_config

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

__all__ = ["Explanation", "History", "Ranked", "Run", "evaluate", "fit", "rank", "trained", "why"]

#: What `fit` calls the predictor of the experiment costanzo2010_pairs.
PAIRS = "pairs"


class Run:
    """A run: a trained predictor with its data, in a directory.

    Parameters
    ----------
    path
        The directory, which `fit` or ``deltacell train`` made.
    weights
        ``best`` by validation, ``last``, or the name of a checkpoint.
    """

    def __init__(self, path: str | os.PathLike[str], weights: str = "best") -> None:
        self.path = Path(path).absolute()
        self.weights = weights
        self.config: Config = resumed_config(self.path)

    @property
    def record(self) -> RunRecord:
        """What ``run.json`` says."""
        return read_run(self.path)

    @cached_property
    def loaded(self) -> LoadedRun:
        """The predictor with its weights, and its data."""
        return load_run(self.path, self.weights)

    @property
    def history(self) -> History:
        """The metrics of the training, a row per epoch or per validation."""
        return History(read_metrics(self.path / METRICS_FILE).to_dicts())

    def predict(self, sets: Iterable[Sequence[str]] | Any) -> pd.DataFrame:
        """Return the predicted score of each gene set, in the unit of the screen.

        The columns are ``gene1``, ``gene2``, … (names as they are in the cell), ``score`` and, of
        a predictor that knows what a hit is, ``hit`` (its probability) and ``given_hit`` (the
        score to expect of it then).

        Parameters
        ----------
        sets
            Gene sets as sequences of names of any kind; or a data frame of which every column
            holds genes.
        """
        need("pandas", "A table of predictions", "pandas")
        import pandas as pd

        if isinstance(sets, pd.DataFrame):
            sets = sets.itertuples(index=False, name=None)
        names = GeneNames.of_runs([self.loaded])
        genes = [names.indices([str(name) for name in one]).tolist() for one in sets]
        found = self.loaded.predictor.predict(Genotypes.of(genes))
        texts = [names.genes.standard[g] or names.genes[g] for g in range(len(names.genes))]
        widest = max((len(one) for one in genes), default=0)
        columns: dict[str, Any] = {
            f"gene{i + 1}": [texts[one[i]] if i < len(one) else None for one in genes]
            for i in range(widest)
        }
        for name in ("score", "hit", "given_hit"):
            values = getattr(found, name)
            if values is not None:
                columns[name] = values.double().cpu().numpy()
        return pd.DataFrame(columns)

    def why(self, *genes: str) -> Explanation:
        """Explain the score of one gene set; see `why`."""
        return why(self, *genes)

    def resume(self, *, progress: bool = True, **settings: Any) -> Run:
        """Resume a run that was stopped, with ``epochs=`` to train longer, and return it."""
        overrides = [f"trainer.{name}={value}" for name, value in settings.items()]
        config = resumed_config(self.path, [*overrides, f"trainer.progress={progress}".lower()])
        trained(config, resume=self.path)
        return Run(self.path, self.weights)

    def __repr__(self) -> str:
        record = self.record
        return f"Run({record.name}, {self.config.model.name}, {record.status}: {self.path})"

    def _repr_html_(self) -> str:
        from deltacell.report.terminal import print_facts

        last = self.history.rows[-1] if self.history.rows else {}
        facts = {
            "model": self.config.model.name,
            "status": str(self.record.status),
            "seed": self.record.seed,
            "directory": str(self.path),
            **{name: value for name, value in last.items() if value is not None},
        }
        return as_html(lambda: print_facts(f"run {self.record.name}", facts))


@dataclass(frozen=True, eq=False)
class History:
    """The metrics of a training: a row per epoch or per validation, as in ``metrics.csv``."""

    rows: Sequence[Mapping[str, float | None]]

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a data frame."""
        need("pandas", "A table of metrics", "pandas")
        import pandas as pd

        return pd.DataFrame(self.rows)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot the training loss and the validation's correlation."""
        from deltacell.report.figures import plot_learning

        return plot_learning(self.rows, axes)

    def __len__(self) -> int:
        return len(self.rows)

    def _repr_html_(self) -> str:
        return str(self.to_pandas()._repr_html_())


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

    A cell or a screen that was not loaded from a directory is saved beside the run, in ``data``, so
    that the run can be loaded, evaluated and resumed anywhere.

    Parameters
    ----------
    model
        ``pairs``, boosted trees on what was measured next to a set, with settings that suit the
        size of the screen; or the name of any model (``dango``, ``boosted_trees``); or a model
        such as ``PairCell(cell, hidden=32)``, which stands for its settings: the weights to begin
        with are drawn with ``seed``.
    cell, screen
        Every row of the screen needs a score.
    split
        A split of this screen; random by default.
    epochs
        For a network: how often to go through the training part.
    directory
        The run directory; by default a new one under ``runs``.
    settings
        Any other keys of the config, by name: ``{"optimizer.lr": 1e-3}``.
    **options
        Settings of the model: ``hidden=32``, ``rounds=200``.
    """
    name, of_model = _model_settings(model)
    if not np.isfinite(screen.column("score")).all():
        raise InputError(
            "some genotypes of the screen have no score",
            code="missing-target",
            fix="Leave them out: screen.take(np.isfinite(screen.column('score')))",
        )
    split = Split.random(screen) if split is None else split
    split.check(screen)
    config = compose([f"model={name}", "data.synthetic=demo"])
    chosen = dict(suited(cell, screen, name).settings)
    chosen |= {f"model.{key}": value for key, value in {**of_model, **options}.items()}
    if epochs is not None:
        if hasattr(config.model, "epochs"):
            chosen["model.epochs"] = epochs
        elif is_fitted(config.model):
            warnings.warn(
                f"{name} is fitted in one call and has no epochs; it stops by validation, and "
                "rounds= bounds its trees",
                stacklevel=2,
            )
        else:
            chosen["trainer.epochs"] = epochs
    chosen |= {"name": name if model != PAIRS else PAIRS, "seed": seed}
    chosen |= {"trainer.progress": progress, **dict(settings or {})}
    if directory is not None:
        chosen["directory"] = str(directory)
    config = with_settings(config, chosen)
    path = new_path(config)
    config, data = _data_of(config, path.absolute().parent / "data", cell, screen, split)
    config = with_settings(config, {"directory": str(path)})
    outcome = trained(config, data=data, command=("deltacell.fit", name))
    if outcome.signal:
        warnings.warn(f"stopped; Run('{path}').resume() resumes it", stacklevel=2)
    return Run(outcome.path)


def _data_of(
    config: Config, home: Path, cell: Cell, screen: Screen, split: Split
) -> tuple[Config, TrainingData]:
    """Return the data of objects with the config that names them, saved if not on the disk."""
    options = dict(split.options)
    studies = options.pop("test", []) if split.method == "source" else []
    named = SplitConfig(split.method, split.seed, studies=list(studies), **options)
    base = with_settings(
        config,
        {
            "data.synthetic": None,
            "data.cell": str(_on_disk(cell, home, "cell")),
            "data.screen": str(_on_disk(screen, home, "screen")),
            "split": named,
        },
    )
    # Whatever has the same settings has the same rows; only a split made by hand has not.
    data = load_data(base)
    parts = ("train", "validation", "test")
    if all(np.array_equal(getattr(data.split, part), getattr(split, part)) for part in parts):
        return base, data
    same = split.on(data.screen, screen)
    rows = b"".join(getattr(same, part).tobytes() for part in parts)
    path = home / f"split-{hashlib.sha256(rows).hexdigest()[:12]}"
    if not path.exists():
        same.save(path)
    base = with_settings(base, {"split": SplitConfig("saved", split.seed, path=str(path))})
    return base, load_data(base)


def _on_disk(one: Cell | Screen, home: Path, kind: str) -> Path:
    """Return where a cell or a screen is on the disk, and put it there where it is not."""
    if one.path is not None and _holds(one.path, kind, one.checksum):
        return one.path
    path = home / f"{kind}-{one.checksum[:12]}"
    if not (path.exists() and _holds(path, kind, one.checksum)):
        one.save(path, overwrite=True)
    return path


def _holds(path: Path, kind: str, checksum: str) -> bool:
    try:
        return store.read(path, kind, verify=False).checksum == checksum
    except InputError:
        return False


def _model_settings(model: Any) -> tuple[str, dict[str, Any]]:
    """Return the name of a model and the settings it was made with."""
    if isinstance(model, str):
        name = MODEL if model == PAIRS else model
        if name not in MODELS:
            raise InputError(
                f"unknown model '{model}'{did_you_mean(model, MODELS)}; there are "
                f"{', '.join((PAIRS, *MODELS))}",
                code="unknown-model",
            )
        return name, {}
    for name, registered in MODELS.items():
        if isinstance(model, Recorded) and type(model) is registered.built():
            fields = registered.__dataclass_fields__
            made: Mapping[str, Any] = model.made_with
            given = {key: value for key, value in made.items() if key in fields}
            return name, {k: list(v) if isinstance(v, tuple) else v for k, v in given.items()}
    raise InputError(
        f"a {type(model).__name__} is not a model that a run can be made of; there are "
        f"{', '.join(MODELS)}",
        code="unknown-model",
        fix="Register its class in deltacell.train.config, or train it in a loop of your own: "
        "docs/how-to/plain-loop.md.",
    )


def trained(
    config: Config,
    *,
    data: TrainingData | None = None,
    resume: Path | None = None,
    which: str = "last",
    command: Sequence[str] = (),
) -> Outcome:
    """Carry out the training that a config describes, with a bar where someone watches.

    `data` is what the config names, if that is loaded already; `resume` is the directory of a run
    to resume, from its checkpoint `which`, in place of a new run.
    """
    if is_fitted(config.model):
        with progress_bar() as bar:
            report = bar if config.trainer.progress else None
            if resume is not None:
                return resume_fit(resume, config, data=data, progress=report)
            return fit_run(config, command=command, data=data, progress=report)
    # Only a network needs Lightning, which takes a second to load.
    from deltacell.report.progress import TrainingBar
    from deltacell.train import run
    from deltacell.train.loop import Latest

    # It announces every process on a line of its own.
    for part in ("fabric", "pytorch"):
        logging.getLogger(f"lightning.{part}").setLevel(logging.WARNING)
    # A rank's loss is its share of the batch's.
    latest, ranks = Latest(), config.trainer.devices * config.trainer.nodes
    tell = [TrainingBar(lambda loss: ranks * latest.look(loss), watched=config.trainer.progress)]
    if resume is not None:
        return run.resume(resume, config, which=which, tell=tell)
    return run.train(config, command=command, tell=tell, data=data)


def evaluate(
    predictors: AnyRun | Sequence[AnyRun],
    screen: Screen | None = None,
    split: Split | None = None,
    *,
    cell: Cell | None = None,
    baselines: Sequence[str] = (),
    on: str | os.PathLike[str] | Screen | None = None,
    weights: str = "best",
    samples: int | None = None,
    threshold: float = -0.08,
    beyond: float = 0.08,
    zeros: int = ZEROS,
    progress: bool = True,
) -> EvaluatedRuns:
    """Test runs and baselines on the same rows: metrics with intervals, and which one is best.

    Parameters
    ----------
    predictors
        Runs, directories of runs, and names of baselines such as ``boosted_trees``, which are
        fitted on the training part of the runs.
    screen, split
        What they are tested on: the test part of this split, which must be that of the runs.
    cell
        Required where there are only baselines.
    baselines
        Further names of baselines.
    on
        Another screen to test on in place of the test part; leaves out what was trained on.
    weights
        The weights of a run that is given by its directory: ``best`` by validation, or ``last``.
    samples
        Test rows to look at, the same for all; all by default.
    threshold
        A score at or below it is a hit, for AUROC and AUPR.
    beyond
        With ``on``: also test the rows at least this far from 0.
    zeros
        For a list of hits: tested pairs without a hit to draw. This assumes that every query gene
        was crossed with every array gene; 0 turns it off.
    """
    several = isinstance(predictors, Sequence) and not isinstance(predictors, str)
    given = list(cast(Sequence[AnyRun], predictors)) if several else [cast(AnyRun, predictors)]
    names = [*(str(one) for one in given if _is_baseline(one)), *baselines]
    paths = [one for one in given if not _is_baseline(one)]
    if not paths:
        if cell is None or screen is None:
            raise InputError(
                "only baselines are given, and nothing to fit them on",
                code="no-data",
                fix="Give a run too, or cell=, screen= and split=.",
            )
        paths = [fit(names.pop(0), cell, screen, split, progress=progress)]
    with progress_bar() as bar:
        report = bar if progress else None
        runs = load_runs(paths, weights)
        _check_same_rows(runs, screen, split)
        options: dict[str, Any] = {
            "baseline_names": names,
            "samples": samples,
            "threshold": Threshold(threshold),
            "progress": report,
        }
        if on is None:
            return evaluate_runs(runs, zeros=zeros, **options)
        return evaluate_on(runs, on, beyond=beyond, **options)


def _is_baseline(one: AnyRun) -> bool:
    return isinstance(one, str) and one in BASELINES and not (Path(one) / RUN_FILE).is_file()


def _check_same_rows(runs: Sequence[LoadedRun], screen: Screen | None, split: Split | None) -> None:
    """Raise where runs were trained on another screen or split than the one that is named."""
    for run in runs:
        data = run.data
        if screen is not None and len(screen) != len(data.screen):
            what = f"a screen of {len(data.screen):,} genotypes; this one has {len(screen):,}"
        elif split is not None and not np.array_equal(split.test, data.split.test):
            what = f"another split, {data.split!r}"
        else:
            continue
        raise InputError(
            f"the run was trained on {what}",
            code="other-split",
            where=run.record.path,
            fix="Give the screen and the split that it was trained with, or on=SCREEN to test on "
            "another one.",
        )
