"""What a small screen gains from what others measured.

By seed, a fifth of the target's genes is held out. A small laboratory measured some pairs of the
other genes; tests are on further pairs of these genes (seen) and on pairs with a gene that was held
out (unseen), each also without the pairs that the context measured (new).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from deltacell.base.arrays import Bools, Doubles, Ints
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.bench import process, subjects
from deltacell.cell import Cell
from deltacell.data.import_folder import open_screen
from deltacell.evaluation.bootstrap import Bootstrap, Estimate
from deltacell.evaluation.metrics import Column, Weights, pearson
from deltacell.models.interface import Study
from deltacell.screen import Genotypes, Screen
from deltacell.train.config.compose import compose
from deltacell.train.context import check_not_repeated, study_of_run
from deltacell.train.data import load_data
from deltacell.train.loaded_runs import load_run

HELD_OUT = 0.2  # of the genes
OWN, WITH, SHUFFLED, OTHERS = "own pairs", "own pairs and context", "shuffled context", "context"
TESTS = ("seen", "unseen", "new_seen", "new_unseen")
_RESAMPLES = Bootstrap(resamples=500)


@dataclass(frozen=True)
class Sizes:
    """How many pairs of the target each part has."""

    training: int = 5_000
    validation: int = 625
    test: int = 8_000  # of pairs without, and of pairs with, a held-out gene


@dataclass(frozen=True, eq=False)
class TargetParts:
    """The rows of the target by part; no set of genes is in two of them."""

    training: Ints
    validation: Ints
    seen: Ints
    unseen: Ints


@dataclass(frozen=True, eq=False)
class Problem:
    """A target, what others measured, and which of its rows others measured too."""

    cell: Cell
    target: Screen  # one row per pair
    study: Study
    is_new: Bools  # pairs that the study did not measure, [rows]
    sizes: Sizes
    options: Mapping[str, Any]  # of the trees


def run(
    folder: Path | None = None,
    run: Path | None = None,
    target: str = "collins2007_chromosome_emap",
    context: str = "costanzo2010",
    pairs: int = Sizes.training,
    seeds: int = 3,
    quick: bool = False,
) -> JsonObject:
    """Compare predictors with and without context; ``run`` is one that was trained on the context.

    Without a folder, the target and the context are two halves of a synthetic screen.
    """
    if folder is None:
        problem = planted_problem()
    else:
        problem = real_problem(folder, run, target, context, pairs)
    return compare(checked(problem), seeds=1 if quick else seeds)


def checked(problem: Problem) -> Problem:
    """Return the problem; raise if the study repeats the target's own measurements."""
    check_not_repeated(problem.target, [problem.study])
    return problem


def real_problem(
    folder: Path,
    run: Path | None,
    target: str,
    context: str,
    pairs: int,
) -> Problem:
    """Return the target merged by mean, on the genes and networks of the context's screen."""
    if run is None:
        words = ["experiment=costanzo2010_pairs", f"data.folder={folder}", f"data.screen={context}"]
        data = load_data(compose(words))
        study = Study(context, data.screen)
    else:
        loaded = load_run(run)
        data = loaded.data
        study = study_of_run(loaded)
    screen = open_screen(folder, target).on(data.cell, on_unknown="drop").merge("mean")
    is_new = ~np.isin(screen.keys, data.screen.keys)
    return Problem(data.cell, screen, study, is_new, Sizes(training=pairs), {"leaves": 7})


def planted_problem() -> Problem:
    """Return a synthetic screen whose rows two laboratories share, one of them on another scale."""
    cell = Cell.synthetic("demo")
    screen = Screen.synthetic(cell, n=4_000)
    screen = screen.take(np.diff(screen.offsets) == 2).merge("mean")
    is_own = np.random.default_rng(0).permutation(len(screen)) < len(screen) // 2
    others = screen.take(~is_own)
    others = others.with_scores(3 - 20 * others.column("score"))
    own = screen.take(is_own)
    is_new = np.ones(len(own), dtype=bool)
    sizes = Sizes(training=150, validation=40, test=150)
    return Problem(cell, own, Study("others", others), is_new, sizes, {"rounds": 20, "leaves": 7})


def draw_parts(target: Screen, sizes: Sizes, seed: int) -> TargetParts:
    """Hold out a fifth of the genes, and draw pairs without and with one of them."""
    rng = np.random.default_rng([seed, 34])
    genes = target.genotypes.genes.numpy().reshape(-1, 2)
    distinct = np.unique(genes)
    held_out = rng.permutation(distinct)[: round(HELD_OUT * len(distinct))]
    has_held_out = np.isin(genes, held_out).any(axis=1)
    without = rng.permutation(np.flatnonzero(~has_held_out))
    with_one = rng.permutation(np.flatnonzero(has_held_out))
    ends = np.cumsum([sizes.training, sizes.validation, sizes.test])
    if len(without) < ends[-1] or len(with_one) < sizes.test:
        what = f"the target has {len(without):,} pairs without and {len(with_one):,} with a gene "
        what += f"that is held out; {ends[-1]:,} and {sizes.test:,} are needed"
        fix = "Choose a larger target, or set fewer --pairs."
        raise InputError(what, code="too-few-pairs", fix=fix)
    training, validation, seen, _ = np.split(without, ends)
    unseen = with_one[: sizes.test]
    return TargetParts(*(np.sort(rows) for rows in (training, validation, seen, unseen)))


def compare(problem: Problem, seeds: int) -> JsonObject:
    """Fit every predictor for every seed and measure Pearson's correlation on the four tests."""
    drawn = [draw_parts(problem.target, problem.sizes, seed) for seed in range(seeds)]
    fits = fit_all(problem, drawn)
    tests = [rows_of_tests(parts, problem.is_new) for parts in drawn]
    resampled = {
        name: _resampled_tests(problem.target, predictions, tests)
        for name, predictions in fits.predictions.items()
    }
    measured = {test: resampled[WITH][test].mean for test in TESTS}
    return {
        "rows": _mean_rows(resampled, fits.seconds),
        "intervals": _interval_rows(resampled),
        "gains": _gain_rows(resampled),
        "measured": measured,
    }


@dataclass(frozen=True, eq=False)
class Fits:
    """What each predictor says of the target's rows for each seed, and its mean seconds per fit."""

    predictions: Mapping[str, Sequence[Doubles]]
    seconds: Mapping[str, float]


def fit_all(problem: Problem, drawn: Sequence[TargetParts]) -> Fits:
    """Fit every predictor on the parts that were drawn for each seed, the first for seed 0."""
    ways = _predictors(problem)
    predictions: dict[str, list[Doubles]] = {name: [] for name in ways}
    seconds = dict.fromkeys(ways, 0.0)
    n_fits = len(ways) * len(drawn)
    for seed, parts in enumerate(drawn):
        for number, (name, way) in enumerate(ways.items()):
            process.progress(f"{name}, seed {seed}", seed * len(ways) + number, n_fits)
            began = time.perf_counter()
            predictions[name].append(way(parts, seed))
            seconds[name] += (time.perf_counter() - began) / len(drawn)
    return Fits(predictions, seconds)


def _predictors(problem: Problem) -> dict[str, Callable[[TargetParts, int], Doubles]]:
    """Return by name the functions that predict all rows from the parts of a seed."""
    shuffled = Study(problem.study.name, _shuffled(problem.study.screen))
    ways: dict[str, Callable[[TargetParts, int], Doubles]] = {}
    if problem.study.predictor is not None:
        ways[OTHERS] = lambda parts, seed: expected(problem, parts)
    ways[OWN] = lambda parts, seed: fitted(problem, parts, seed, ())
    ways[SHUFFLED] = lambda parts, seed: fitted(problem, parts, seed, (shuffled,))
    ways[WITH] = lambda parts, seed: fitted(problem, parts, seed, (problem.study,))
    return ways


def _mean_rows(
    resampled: Mapping[str, Mapping[str, _Resampled]],
    seconds: Mapping[str, float],
) -> list[JsonObject]:
    """Return the mean over seeds of each predictor in each test, and its seconds."""
    rows = []
    for name, by_test in resampled.items():
        means = {test: values.mean for test, values in by_test.items()}
        rows.append({"predictor": name, **means, "seconds": seconds[name]})
    return rows


def _interval_rows(resampled: Mapping[str, Mapping[str, _Resampled]]) -> list[JsonObject]:
    """Return the interval of each predictor in each test, and its value for each seed."""
    rows = []
    for name, by_test in resampled.items():
        for test, values in by_test.items():
            row = {"predictor": name, "test": test, **_shown(values)}
            rows.append({**row, "by_seed": list(values.of_seeds)})
    return rows


def _gain_rows(resampled: Mapping[str, Mapping[str, _Resampled]]) -> list[JsonObject]:
    """Return what context, and shuffled context, add to the target's own pairs in each test."""
    rows = []
    for name in (WITH, SHUFFLED):
        for test in TESTS:
            gain = resampled[name][test].less(resampled[OWN][test])
            rows.append({"predictor": name, "less": OWN, "test": test, **_shown(gain)})
    return rows


def fitted(problem: Problem, parts: TargetParts, seed: int, context: Sequence[Study]) -> Doubles:
    """Return the scores of all rows of the target by trees that learned from the training part."""
    scores = problem.target.column("score").astype(np.float64)

    def labelled(rows: Ints) -> tuple[Genotypes, Doubles]:
        """Return the gene sets of some rows, and their scores."""
        return _genotypes(problem.target, rows), scores[rows]

    trees = subjects.fitted("pair_trees", problem.cell, **problem.options).fit(
        problem.cell,
        *labelled(parts.training),
        validation=labelled(parts.validation),
        seed=seed,
        context=context,
    )
    tested = np.concatenate([parts.seen, parts.unseen])
    predicted = np.full(len(problem.target), np.nan)
    found = trees(problem.cell, _genotypes(problem.target, tested))
    predicted[tested] = found.score.double().numpy()
    return predicted


def expected(problem: Problem, parts: TargetParts) -> Doubles:
    """Return what the predictor of the context expects of the test parts, on its own scale."""
    assert problem.study.predictor is not None
    tested = np.concatenate([parts.seen, parts.unseen])
    prediction = problem.study.predictor.predict(_genotypes(problem.target, tested))
    predicted = np.full(len(problem.target), np.nan)
    predicted[tested] = prediction.score.double().numpy()
    return predicted


def rows_of_tests(parts: TargetParts, is_new: Bools) -> dict[str, Ints]:
    """Return the rows of each test by name."""
    return {
        "seen": parts.seen,
        "unseen": parts.unseen,
        "new_seen": parts.seen[is_new[parts.seen]],
        "new_unseen": parts.unseen[is_new[parts.unseen]],
    }


@dataclass(frozen=True, eq=False)
class _Resampled:
    """A correlation for each seed, and its mean over seeds in each resample of the genes."""

    of_seeds: tuple[float, ...]
    resamples: Doubles

    @property
    def mean(self) -> float:
        """The mean correlation over seeds."""
        return float(np.mean(self.of_seeds))

    def less(self, other: _Resampled) -> _Resampled:
        """Return by how much these correlations exceed others, by seed and by resample."""
        pairs = zip(self.of_seeds, other.of_seeds, strict=True)
        return _Resampled(tuple(a - b for a, b in pairs), self.resamples - other.resamples)


def _resampled_tests(
    target: Screen,
    predictions: Sequence[Doubles],
    tests: Sequence[Mapping[str, Ints]],
) -> dict[str, _Resampled]:
    """Return the correlations of a predictor by test; `predictions` and `tests` are by seed."""
    return {test: _resampled(target, predictions, tests, test) for test in TESTS}


def _resampled(
    target: Screen,
    predictions: Sequence[Doubles],
    tests: Sequence[Mapping[str, Ints]],
    test: str,
) -> _Resampled:
    scores = target.column("score").astype(np.float64)
    genes = target.genotypes.genes.numpy().reshape(-1, 2)
    of_seeds = []
    resamples = []
    for predicted, rows_of_test in zip(predictions, tests, strict=True):
        rows = rows_of_test[test]
        prediction, truth = Column(predicted[rows]), Column(scores[rows])
        once = Weights(np.ones((1, len(rows))))
        of_seeds.append(float(pearson(prediction, truth, once)[0]))
        blocks = [
            pearson(prediction, truth, Weights(weights))
            for weights in _RESAMPLES.weights(genes[rows], test)
        ]
        resamples.append(np.concatenate(blocks))
    return _Resampled(tuple(of_seeds), np.mean(resamples, axis=0))


def _shown(values: _Resampled) -> dict[str, float | None]:
    estimate = _RESAMPLES.with_interval(Estimate(values.mean), values.resamples)
    return {"value": estimate.value, "low": estimate.low, "high": estimate.high}


def _shuffled(screen: Screen) -> Screen:
    """Return a screen whose scores were given to other sets."""
    order = np.random.default_rng(0).permutation(len(screen))
    return screen.with_scores(screen.column("score")[order])


def _genotypes(screen: Screen, rows: Ints) -> Genotypes:
    return screen.genotypes.take(torch.from_numpy(rows))
