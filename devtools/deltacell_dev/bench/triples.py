"""Predictors on the measured triples of a screen, in folds of sets and in folds of query pairs.

Every triple is predicted by a predictor that was fitted on the other folds. The query pair of a
triple is the one of its pairs that most triples of the screen have, so that in folds of query pairs
no predictor has seen the query pair of a triple that it predicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from deltacell.api.fit import fit
from deltacell.api.run import Run
from deltacell.base.arrays import AnyArray, Doubles, Ints, commonest, numbered
from deltacell.base.errors import InputError
from deltacell.bench import process
from deltacell.cell import Cell
from deltacell.data.import_folder import open_screen
from deltacell.evaluation import Bootstrap
from deltacell.evaluation.bootstrap import ENOUGH_DEFINED
from deltacell.evaluation.metrics import Column, Weights, pearson
from deltacell.models import registry
from deltacell.models.baselines import baseline
from deltacell.profile.record import Status
from deltacell.screen import Screen, Split
from deltacell.screen.gene_keys import all_pairs, sorted_matrix

BASELINES = ("query_pair", "additive", "additive_pair", "nearest_profiles", "low_rank")
TREES = ("boosted_trees", "pair_trees")
NETWORKS = ("dango", "hetero_cell")
OF_PAIRS = "nearest_profiles of pairs"
REFERENCE = "additive"
FOLDS_BY = ("set", "query pair")
RELATIONS = ("physical", "biogrid", "regulatory", "string_database")
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "dango": {
        "model.relations": list(RELATIONS),
        "model.lambdas": dict.fromkeys(RELATIONS, 1.0),
        "data.batch_size": 64,
        "optimizer.lr": 1e-3,
        "optimizer.weight_decay": 1e-2,
    },
    "hetero_cell": {
        "model.relations": list(RELATIONS),
        "model.hidden": 32,
        "model.layers": 2,
        "model.mutant_layers": 1,
        "model.epistasis": True,
        "model.local_heads": 4,
        "model.aggregation": "mean",
        "data.batch_size": 64,
        "loss.lambda_w": 0.0,
        "optimizer.lr": 1e-3,
        "optimizer.weight_decay": 1e-2,
    },
}
_PARTS_PER_FOLD = 2  # one of the parts of the next fold is for validation


def run(
    out: Path,
    folder: Path,
    screen: str = "kuzmin_trigenic_tau_in_space",
    pairs: str = "costanzo2010",
    folds: int = 5,
    epochs: int = 10,
    only: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Predict every triple of a screen from the other folds, and return the correlations.

    ``pairs`` is a screen of the folder that a further predictor is fitted on, which then predicts
    the triples unchanged. Runs that exist in ``out`` are not trained again; ``only`` names some of
    the predictors.
    """
    names = _chosen((*BASELINES, *TREES, *NETWORKS, OF_PAIRS), only)
    whole_cell = Cell.load(folder / "cell")
    triples = _measured_triples(open_screen(folder / "screens" / screen).on(whole_cell))
    cell = whole_cell.subset(np.unique(triples.genotypes.genes.numpy()))
    on_cell = triples.on(cell)
    rows: list[dict[str, Any]] = []
    for by in FOLDS_BY:
        fold = Folds.of(on_cell, by, folds)
        predictions: dict[str, Doubles] = {}
        for number, name in enumerate(names):
            process.progress(f"{name}, folds by {by}", number, len(names))
            if name == OF_PAIRS:
                predictions[name] = predicted_from_pairs(
                    whole_cell,
                    open_screen(folder / "screens" / pairs).on(whole_cell),
                    triples,
                )
            else:
                directory = out / by.replace(" ", "_")
                predictions[name] = predicted_by_fold(name, cell, on_cell, fold, directory, epochs)
        rows += compared_by_fold(on_cell, fold, predictions, by)
    return {"rows": rows, "triples": len(triples), "folds": folds, "epochs": epochs}


@dataclass(frozen=True, eq=False)
class Folds:
    """The part of each row, [rows]; each fold tests some parts and validates with another one."""

    part: Ints
    n_folds: int

    @classmethod
    def of(cls, screen: Screen, by: str, n_folds: int, seed: int = 0) -> Folds:
        """Divide the gene sets, or the query pairs, of a screen of triples into equal folds."""
        group = numbered(screen.keys) if by == "set" else query_pairs(screen)
        size = np.bincount(group)
        shuffled = np.random.default_rng(seed).permutation(len(size))
        largest_first = shuffled[np.argsort(-size[shuffled], kind="stable")]
        n_rows = np.zeros(_PARTS_PER_FOLD * n_folds, dtype=np.int64)
        part_of_group = np.zeros(len(size), dtype=np.int64)
        for one_group in largest_first:
            smallest_part = int(np.argmin(n_rows))
            part_of_group[one_group] = smallest_part
            n_rows[smallest_part] += size[one_group]
        return cls(part_of_group[group], n_folds)

    @property
    def tested_in(self) -> Ints:
        """The fold that tests each row."""
        return self.part // _PARTS_PER_FOLD

    def split(self, screen: Screen, fold: int) -> Split:
        """Return the split of a fold: its parts are tested, and a part of the next validates."""
        validates = (_PARTS_PER_FOLD * (fold + 1)) % (_PARTS_PER_FOLD * self.n_folds)
        names = np.full(len(self.part), "train", dtype="<U10")
        names[self.part == validates] = "validation"
        names[self.tested_in == fold] = "test"
        matrix = screen.genotypes.genes.numpy().reshape(len(screen), -1)
        sets = [[screen.genes.systematic[gene] for gene in genes] for genes in matrix.tolist()]
        return Split.named(screen, sets, names.tolist())


def query_pairs(screen: Screen) -> Ints:
    """Return the number of each row's query pair: the pair that most rows of the screen have."""
    pairs = all_pairs(screen.genotypes.genes.numpy(), screen.offsets, len(screen.genes))
    return numbered(pairs.key[commonest(*pairs)])


def predicted_by_fold(
    name: str,
    cell: Cell,
    screen: Screen,
    folds: Folds,
    out: Path,
    epochs: int,
) -> Doubles:
    """Return a prediction for each row, by a predictor that was fitted on other folds."""
    trains = registry.config_class(name).trained_by == "loop"
    predictions = np.empty(len(screen))
    for fold in range(folds.n_folds):
        split = folds.split(screen, fold)
        directory = out / f"{name}-{fold}"
        if not directory.exists():
            options: dict[str, Any] = {"epochs": epochs} if trains else {}
            settings = {"trainer.threads": 1, **SETTINGS.get(name, {})}
            fit(
                *(name, cell, screen, split),
                directory=directory,
                settings=settings,
                progress=False,
                **options,
            )
        fitted = Run(directory)
        if fitted.record.status is not Status.finished:
            what = f"the run is {fitted.record.status}"
            fix = f"Run deltacell train --resume {directory}."
            raise InputError(what, code="unfinished-run", where=directory, fix=fix)
        of_all = fitted.loaded.predictor.predict(screen.genotypes).among_hits.double().numpy()
        predictions[split.test] = of_all[split.test]
    return predictions


def predicted_from_pairs(cell: Cell, pairs: Screen, triples: Screen) -> Doubles:
    """Return the predictions for triples of a predictor that was fitted on a screen of pairs."""
    merged = pairs.merge("mean")
    scores = merged.column("score").astype(np.float64)
    predictor = baseline("nearest_profiles").fit(cell, merged.genotypes, scores)
    return predictor(cell, triples.genotypes).score.double().numpy()


def compared_by_fold(
    screen: Screen,
    folds: Folds,
    predictions: Mapping[str, Doubles],
    by: str,
) -> list[dict[str, Any]]:
    """Return the correlation of each predictor within folds, and what it has over additive.

    The value is the mean over the folds, its interval is over resampled genes, and the spread is
    the standard deviation over the folds.
    """
    truth = screen.column("score").astype(np.float64)
    units = sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets)
    within = fold_correlations(predictions, truth, folds, units)
    reference = within.get(REFERENCE)
    return [
        {
            "folds by": by,
            "predictor": name,
            "rows": len(screen),
            "Pearson": one.value,
            **_interval_columns(one.resampled, "low", "high"),
            "spread": one.spread,
            **_over_reference(one, reference),
        }
        for name, one in within.items()
    ]


class TestedFold(NamedTuple):
    """The rows that a fold tests, with their predictions and scores."""

    rows: Ints
    prediction: Column
    truth: Column

    def correlation(self, weights: AnyArray) -> Doubles:
        """Return the correlation in each resample, by the weights [resamples, all rows]."""
        return pearson(self.prediction, self.truth, Weights(weights[:, self.rows]))


@dataclass(frozen=True, eq=False)
class FoldCorrelations:
    """The correlations of predictions with scores within each fold."""

    of_fold: Doubles  # [folds], NaN where the prediction is constant
    resampled: Doubles  # the mean over the folds in each resample, [resamples]

    @property
    def value(self) -> float | None:
        """The mean over folds; None if it is undefined in one."""
        mean = float(self.of_fold.mean())
        return mean if np.isfinite(mean) else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over folds; None if it is undefined."""
        spread = float(self.of_fold.std(ddof=1))
        return spread if np.isfinite(spread) else None


def fold_correlations(
    predictions: Mapping[str, Doubles],
    truth: Doubles,
    folds: Folds,
    units: Ints,
) -> dict[str, FoldCorrelations]:
    """Correlate predictions with scores within folds, on the same resamples of units [rows, genes].

    A row counts in a resample as often as the product of its units, see `Bootstrap`.
    """
    rows_of_fold = [np.flatnonzero(folds.tested_in == fold) for fold in range(folds.n_folds)]
    tested = {
        name: [TestedFold(rows, Column(one[rows]), Column(truth[rows])) for rows in rows_of_fold]
        for name, one in predictions.items()
    }
    resampled: dict[str, list[Doubles]] = {name: [] for name in predictions}
    for weights in Bootstrap().weights(units):
        for name, several in tested.items():
            of_folds = np.stack([fold.correlation(weights) for fold in several])
            resampled[name].append(of_folds.mean(axis=0))
    once = np.ones((1, len(truth)))
    return {
        name: FoldCorrelations(
            np.concatenate([fold.correlation(once) for fold in several]),
            np.concatenate(resampled[name]),
        )
        for name, several in tested.items()
    }


def _interval_columns(resampled: Doubles, low: str, high: str) -> dict[str, float | None]:
    """Return the ends of the 95 % interval by name; None if many resamples are undefined."""
    defined = resampled[np.isfinite(resampled)]
    if len(defined) < ENOUGH_DEFINED * len(resampled):
        return {low: None, high: None}
    ends = np.quantile(defined, [0.025, 0.975])
    return {low: float(ends[0]), high: float(ends[1])}


def _over_reference(one: FoldCorrelations, other: FoldCorrelations | None) -> dict[str, Any]:
    """Return the difference to the reference on the same resamples, with its interval."""
    if other is None or one.value is None or other.value is None:
        return {"over additive": None, "over low": None, "over high": None}
    difference = one.resampled - other.resampled
    ends = _interval_columns(difference, "over low", "over high")
    return {"over additive": one.value - other.value, **ends}


def _measured_triples(screen: Screen) -> Screen:
    """Return the rows of three genes that have a score."""
    has_score = np.isfinite(screen.column("score"))
    rows = np.flatnonzero(has_score & (np.diff(screen.offsets) == 3))
    if not len(rows):
        raise InputError("the screen has no triple with a score", code="no-triples")
    return screen.take(rows).merge("mean")


def _chosen(names: Sequence[str], only: Sequence[str] | None) -> list[str]:
    chosen = list(names) if only is None else list(only)
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        what = f"unknown predictor '{unknown[0]}'; expected some of {', '.join(names)}"
        raise InputError(what, code="unknown-name", key="only")
    return chosen
