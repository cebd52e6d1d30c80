"""Tables and functions of others as predictors beside runs, on the same rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from deltacell.base.arrays import Bools, Ints
from deltacell.base.errors import InputError
from deltacell.base.text import count_text
from deltacell.evaluation.ceiling import replicate_ceiling
from deltacell.evaluation.given_predictions import (
    GivenPredictions,
    PredictionTable,
    predictions_of_function,
)
from deltacell.evaluation.metrics import METRICS, Column
from deltacell.evaluation.other_screen import taken
from deltacell.evaluation.rows import EvaluatedRows, only
from deltacell.models.interface import Prediction
from deltacell.screen import Genotypes
from deltacell.train.data import TrainingData

#: The path of a table, a data frame, or a function from gene sets to scores.
AnyPredictions = str | os.PathLike[str] | Any

FEWEST_TRAINING_ROWS = 30  # with fewer, nothing is said about the training part
BELIEVABLE = 0.98  # Pearson correlation on training rows, if repeats do not say what is possible
_N_EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class GivenOnRows:
    """Predictions of others, and the rows that all of them cover."""

    rows: EvaluatedRows
    predictions: dict[str, Prediction]  # for the test rows and then the zeros
    notes: list[str]
    warnings: list[str]


def is_given(predictor: Any) -> bool:
    """Return whether a predictor is a table or a function, and not a run."""
    if hasattr(predictor, "loaded"):
        return False
    if isinstance(predictor, str | os.PathLike):
        return Path(predictor).is_file()
    return callable(predictor) or hasattr(predictor, "columns")


def compare_given(
    given: Sequence[AnyPredictions],
    data: TrainingData,
    rows: EvaluatedRows,
    covers: float,
) -> GivenOnRows:
    """Return the predictions of others for the rows that all of them cover.

    Every one has to cover at least the share ``covers`` of the test rows. The tested pairs that are
    not hits are left out if any of them lacks one. Without a test part nothing is read, because the
    evaluation raises then.
    """
    if not 0 < covers <= 1:
        message = f"--covers is {covers:g}; expected a share above 0 and up to 1"
        raise InputError(message, code="out-of-range")
    sources = [_source(predictor, number, data) for number, predictor in enumerate(given, 1)]
    names = [source.name for source in sources]
    if len(set(names)) < len(names):
        message = f"two predictors share a name: {', '.join(names)}"
        raise InputError(message, code="same-name", fix="Rename a file or a function.")
    n_test = len(rows.split.test)
    if not (sources and n_test):
        return GivenOnRows(rows, {}, [], [])
    n_rows = len(rows.genotypes)
    is_covered: Bools = np.ones(n_rows, dtype=bool)
    answers: list[GivenPredictions] = []
    notes: list[str] = []
    for source in sources:
        answer = source.of(rows.genotypes)
        _check_covers(answer, rows, n_test, covers)
        is_covered &= answer.is_given
        notes += answer.notes
        answers.append(answer)
    is_used = is_covered[:n_test]
    if n_test and not is_used.any():
        message = "no test row is covered by all given predictions"
        raise InputError(message, code="missing-predictions")
    has_all_zeros = bool(is_covered[n_test:].all())
    notes += _notes_on_coverage(is_covered, n_test)
    is_kept = np.concatenate([is_used, np.full(n_rows - n_test, has_all_zeros)])
    return GivenOnRows(
        only(rows, is_used, with_zeros=has_all_zeros),
        {answer.name: answer.of(is_kept) for answer in answers},
        notes,
        [sentence for source in sources for sentence in _doubts(source, data)],
    )


@dataclass(frozen=True, eq=False)
class _Source:
    """A predictor of somebody else."""

    name: str
    of: Callable[[Genotypes], GivenPredictions]
    is_table: bool


def _source(predictor: AnyPredictions, number: int, data: TrainingData) -> _Source:
    genes = data.cell.genes
    if isinstance(predictor, str | os.PathLike):
        table = PredictionTable.read(Path(predictor), genes)
        return _Source(table.name, table.of, is_table=True)
    if hasattr(predictor, "columns"):
        table = PredictionTable.from_memory(predictor, f"predictions {number}", genes)
        return _Source(table.name, table.of, is_table=True)
    name = getattr(predictor, "__name__", f"predictor {number}")

    def answer(genotypes: Genotypes) -> GivenPredictions:
        return predictions_of_function(name, predictor, genes, genotypes)

    return _Source(name, answer, is_table=False)


def _check_covers(
    answer: GivenPredictions,
    rows: EvaluatedRows,
    n_test: int,
    covers: float,
) -> None:
    """Raise if predictions cover fewer of the test rows than they have to."""
    is_given = answer.is_given[:n_test]
    n_missing = int((~is_given).sum())
    if is_given.mean() >= covers:
        return
    genes = rows.data.cell.genes
    missing = np.flatnonzero(~is_given)[:_N_EXAMPLES]
    sets = list(taken(rows.data.screen, rows.split.test[missing]))
    examples = ", ".join(" ".join(genes[gene] for gene in genotype.tolist()) for genotype in sets)
    message = (
        f"'{answer.name}' has no prediction for {n_missing:,} of {count_text(n_test, 'test row')}, "
        f"such as {examples}, and should cover {covers:.0%}"
    )
    fix = (
        "Predict all sets of `deltacell data split --csv`, or allow a smaller share with --covers; "
        "all predictors are then tested on the rows that are covered."
    )
    raise InputError(message, code="missing-predictions", fix=fix, missing=n_missing)


def _notes_on_coverage(is_covered: Bools, n_test: int) -> Iterator[str]:
    n_missing = int((~is_covered[:n_test]).sum())
    if n_missing:
        yield (
            f"{count_text(n_missing, 'test row')} of {n_test:,} are left out for all predictors, "
            "because given predictions lack them."
        )
    n_zeros = len(is_covered) - n_test
    n_missing_zeros = int((~is_covered[n_test:]).sum())
    if n_missing_zeros:
        yield (
            f"Hits among all tested pairs are not reported, because given predictions lack "
            f"{n_missing_zeros:,} of {n_zeros:,} tested pairs that are not hits."
        )


def _doubts(source: _Source, data: TrainingData) -> Iterator[str]:
    """Yield a warning if a table predicts the training part better than measurements repeat."""
    if not source.is_table:
        return
    rows: Ints = data.split.train
    answer = source.of(taken(data.screen, rows))
    is_given = answer.is_given
    if is_given.sum() < FEWEST_TRAINING_ROWS:
        return
    measured = data.screen.column("score")[rows[is_given]]
    predicted = answer.parts.among_hits[is_given]
    pearson, _ = METRICS["pearson"].measure(Column(predicted), Column(measured))
    ceiling = replicate_ceiling(data.screen, rows[is_given], data.repeats).pearson
    limit = BELIEVABLE if ceiling is None else min(ceiling, BELIEVABLE)
    if pearson is not None and pearson > limit:
        yield (
            f"{source.name} has a Pearson correlation of {pearson:.3f} on {int(is_given.sum()):,} "
            f"training rows, above {limit:.3f}, which is more than a predictor of noisy "
            "measurements reaches: it may look scores up. Make sure that it has not seen those of "
            "the test part."
        )
