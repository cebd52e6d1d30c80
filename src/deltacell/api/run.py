"""A run: a trained predictor with its data, in a directory."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deltacell.api.refit import refit
from deltacell.api.showing import training_rendering
from deltacell.api.why import ScoreExplanation, why
from deltacell.base.frames import data_frame
from deltacell.base.rendering import as_html, report_function
from deltacell.cell import Cell
from deltacell.profile.record import RunRecord, read_run
from deltacell.ranking.gene_names import gene_indices, gene_texts
from deltacell.ranking.given_sets import gene_sets_of
from deltacell.screen import Genotypes, Screen, Split
from deltacell.train.config import Config
from deltacell.train.loaded_runs import LoadedRun, load_run
from deltacell.train.run import train
from deltacell.train.run_config import resumed_config
from deltacell.train.run_directory import metrics_of

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


class Run:
    """A trained predictor with its data, in a directory that `fit` or a command made.

    `weights` are ``best`` by validation, ``last``, or the name of a checkpoint; ``loaded`` is the
    run with these weights, if it is loaded already. Its network computes on the `device`: ``cpu``,
    ``cuda``, or ``auto``, a GPU if there is one.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        weights: str = "best",
        device: str = "auto",
        *,
        loaded: LoadedRun | None = None,
    ) -> None:
        self.path = Path(path).absolute()
        self.weights = weights
        self.device = device
        self.config: Config = resumed_config(self.path)
        self._loaded = loaded

    @property
    def record(self) -> RunRecord:
        """The contents of ``run.json``."""
        return read_run(self.path)

    @property
    def loaded(self) -> LoadedRun:
        """The predictor with its weights, and its data, which are loaded when first asked for."""
        if self._loaded is None:
            self._loaded = load_run(self.path, self.weights, device=self.device)
        return self._loaded

    @property
    def cell(self) -> Cell:
        """The cell as the predictor sees it."""
        return self.loaded.data.cell

    @property
    def screen(self) -> Screen:
        """The screen that `split` divides: with scores, and merged as the config says."""
        return self.loaded.data.screen

    @property
    def split(self) -> Split:
        """Which genotypes of `screen` it was trained, validated and tested on."""
        return self.loaded.data.split

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
        score of a hit). ``low`` and ``high`` are the ends of a 90 % interval of the measured score,
        or of that of a hit from a two-part predictor; they are missing without a validation part.
        """
        genes = self.loaded.data.cell.genes
        indices = [gene_indices(genes, names).tolist() for names in gene_sets_of(sets)]
        prediction = self.loaded.predict(Genotypes.of(indices))
        texts = gene_texts(genes)
        table = data_frame([texts[gene] for gene in row] for row in indices)
        table.columns = [f"gene{i + 1}" for i in range(table.shape[1])]
        for name in ("score", "hit", "given_hit", "low", "high"):
            values = getattr(prediction, name)
            if values is not None:
                table[name] = values.double().numpy()
        return table

    def why(self, *genes: str) -> ScoreExplanation:
        """Explain the score of one gene set; see `deltacell.why`."""
        return why(self, *genes)

    def resume(self, *, progress: bool = True, **settings: Any) -> Run:
        """Resume a stopped run, or train longer with ``epochs=``, and return it."""
        overrides = [f"trainer.{name}={value}" for name, value in settings.items()]
        config = resumed_config(self.path, [*overrides, f"trainer.progress={progress}".lower()])
        train(config, resume=self.path, rendering=training_rendering())
        return Run(self.path, self.weights, self.device)

    def refit(
        self,
        directory: str | os.PathLike[str] | None = None,
        *,
        progress: bool = True,
    ) -> Run:
        """Fit the predictor on all measurements of the screen, and return this as a run.

        The new run, by default in a directory with ``-refitted`` after the name of this one, has
        the numbers of trees and the calibration that this run chose by its validation part. It has
        seen the test part, so only this run can be evaluated. A predictor that is trained in epochs
        cannot be refitted.
        """
        outcome = refit(self.loaded, directory, progress=progress)
        if outcome.signal:
            warnings.warn("stopped; call refit again to fit it from the beginning", stacklevel=2)
        return Run(outcome.path, self.weights, self.device)

    def __repr__(self) -> str:
        record = self.record
        return f"Run({record.name}, {self.config.model.name}, {record.status}: {self.path})"

    def _repr_html_(self) -> str:
        record = self.record
        facts: dict[str, Any] = {
            "model": self.config.model.name,
            "status": str(record.status),
            "seed": record.seed,
            "directory": str(self.path),
        }
        for row in self.history[-1:]:
            facts |= {name: value for name, value in row.items() if value is not None}
        return as_html("terminal:print_run", {"name": record.name, "facts": facts})


class History(list[Mapping[str, Any]]):
    """The metrics of a training: one row per epoch or validation, as in ``metrics.csv``."""

    def to_pandas(self) -> pd.DataFrame:
        """Return the metrics with a column for each."""
        return data_frame(self)

    def plot(self, axes: Axes | None = None) -> Axes:
        """Plot the training loss and the validation correlation."""
        plotted: Axes = report_function("figures:plot_learning")(self, axes)
        return plotted

    def _repr_html_(self) -> str:
        return str(self.to_pandas()._repr_html_())
