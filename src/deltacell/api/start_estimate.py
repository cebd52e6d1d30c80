"""How long the stages of `start` will take, by a trial on a few genotypes."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import comb
from pathlib import Path

import numpy as np
import torch

from deltacell.api.start_record import files_of
from deltacell.base.text import duration_text
from deltacell.models.config import ModelConfig
from deltacell.models.fitted.gene_sets import GeneOrder
from deltacell.models.fitted.predictor import SETS_PER_BLOCK, FittedPredictor
from deltacell.models.registry import config_class
from deltacell.models.scoring import genotypes_of
from deltacell.ranking.gene_sets import AllPairs
from deltacell.ranking.request import PAIRS
from deltacell.train.config import Config
from deltacell.train.data import TrainingData
from deltacell.train.predictor import build_fitted

BYTES_PER_SECOND = 5e6  # reading speed for compressed tables, of one core of 2020
TREE_SECONDS = 1e-7  # per tree and set, on one core
TRIED_ROWS = 4_000  # maximum number of genotypes in a trial
FEWER = 4  # a second trial has so many times fewer genotypes
TRIED_ROUNDS = 6  # maximum number of trees in a trial


@dataclass(frozen=True)
class StartEstimate:
    """Seconds that the stages take, good to a factor of two."""

    fit: float
    test: float  # the fit of a baseline
    refit: float  # 0 without one
    ranking: float
    n_training: int
    n_sets: int  # to rank
    sets: str  # pairs or triples

    @property
    def sentence(self) -> str:
        """The estimate in words."""
        total = self.fit + self.test + self.refit + self.ranking
        again = f"fitting on all measurements {_range(self.refit)}, " if self.refit else ""
        return (
            f"By a trial on a few of {self.n_training:,} genotypes: fitting takes "
            f"{_range(self.fit)}, testing {_range(self.test)}, {again}ranking {self.n_sets:,} "
            f"{self.sets} {_range(self.ranking)}; {_range(total)} in all. Ctrl-C stops it; rerun "
            "the command to resume."
        )


def reading_text(folder: Path) -> str:
    """Return how many megabytes a folder has, and how long reading them takes."""
    n_bytes = sum(path.stat().st_size for path in files_of(folder))
    seconds = max(2.0, n_bytes / BYTES_PER_SECOND)
    return f"reading {n_bytes / 1e6:,.1f} MB takes about {duration_text(seconds)}"


def estimate(
    config: Config,
    data: TrainingData,
    sets: str,
    baseline: str,
    *,
    refits: bool,
) -> StartEstimate:
    """Estimate the time of a predictor that is fitted in one call and ranks pairs or triples."""
    predictor, fit_seconds = _trial(config.model, data)
    _, test_seconds = _trial(config_class(baseline)(), data)
    order = GeneOrder(data.cell.genes).gene
    genes = order[np.isin(order, data.screen.genotypes.genes.numpy())]
    n_sets = comb(len(genes), 2 if sets == PAIRS else 3)
    # The trial has few trees and one thread.
    n_rounds = config.model.rounds_of_fit(has_zeros=data.grid is not None)
    per_set = _seconds_per_pair(predictor, data, genes) + n_rounds * TREE_SECONDS
    return StartEstimate(
        fit=fit_seconds,
        test=test_seconds,
        refit=fit_seconds * _growth(data) if refits else 0.0,
        ranking=n_sets * per_set / torch.get_num_threads(),
        n_training=len(data.split.train),
        n_sets=n_sets,
        sets=sets,
    )


def _growth(data: TrainingData) -> float:
    """Return how many times as many measurements a refit has as the first fit."""
    return len(data.screen) / len(data.split.train)


def _seconds_per_pair(
    predictor: FittedPredictor,
    data: TrainingData,
    genes: np.ndarray,
) -> float:
    """Return how long it takes to score a pair, once the predictor has prepared itself."""
    first_piece = next(AllPairs(genes, sets_per_piece=SETS_PER_BLOCK).pieces(0, 1))
    pairs = genotypes_of(first_piece)
    predictor(data.cell, pairs)
    began = time.perf_counter()
    predictor(data.cell, pairs)
    return (time.perf_counter() - began) / len(pairs)


def _trial(model: ModelConfig, data: TrainingData) -> tuple[FittedPredictor, float]:
    """Fit a few trees on some genotypes; return them, and the seconds that a whole fit takes.

    Part of the time does not grow with the genotypes, so a smaller trial tells how much does.
    """
    n_training = len(data.split.train)
    predictor, seconds = _seconds_of_fit(model, data, TRIED_ROWS)
    if n_training <= TRIED_ROWS:
        return predictor, seconds
    n_fewer = TRIED_ROWS // FEWER
    _, seconds_of_fewer = _seconds_of_fit(model, data, n_fewer)
    seconds_per_row = max(0.0, seconds - seconds_of_fewer) / (TRIED_ROWS - n_fewer)
    return predictor, seconds + seconds_per_row * (n_training - TRIED_ROWS)


def _seconds_of_fit(
    model: ModelConfig,
    data: TrainingData,
    n_rows: int,
) -> tuple[FittedPredictor, float]:
    """Fit a few trees on some genotypes; return them, and how long all trees take on these."""
    predictor = build_fitted(Config(model=model.with_rounds(TRIED_ROUNDS)), data)
    times = [time.perf_counter()]

    def report(what: str, done: int, total: int) -> None:
        if what == "trees":
            times.append(time.perf_counter())

    shuffled = np.random.default_rng(0).permutation(data.split.train)
    rows = np.sort(shuffled[:n_rows])
    context = data.context if predictor.reads_context else ()
    predictor.fit(data.cell, *data.part(rows), seed=0, progress=report, context=context)
    if len(times) == 1:
        times.append(time.perf_counter())
    n_trees = max(1, len(times) - 2)
    seconds_per_tree = (times[-1] - times[1]) / n_trees
    n_fits = max(1, round(n_trees / TRIED_ROUNDS))  # the mean of several is predicted
    n_rounds = n_fits * model.rounds_of_fit(has_zeros=data.grid is not None)
    return predictor, times[1] - times[0] + n_rounds * seconds_per_tree


def _range(seconds: float) -> str:
    """Return a time in words, as the estimate is good to a factor of two."""
    if seconds < 5:
        return "seconds"
    return f"{duration_text(seconds / 2)} to {duration_text(2 * seconds)}"
