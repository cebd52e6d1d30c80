"""Models and baselines side by side on the test part of a split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import AnyArray, Bools, Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.bootstrap import Bootstrap, Comparison
from deltacell.evaluate.diagnostics import not_additive, replicate_ceiling
from deltacell.evaluate.evaluation import By, Estimate, Evaluation, GroupResult, verdicts
from deltacell.evaluate.hits import Columns, Positives, Threshold, Zeros, among_tested, positives
from deltacell.evaluate.metrics import METRICS, Column, Weights
from deltacell.models import Prediction
from deltacell.screen import Screen, Split
from deltacell.screen.columns import PERTURBATIONS
from deltacell.screen.genotypes import sorted_matrix
from deltacell.words import Progress

Values = npt.ArrayLike | torch.Tensor | Prediction
Predictions = Mapping[str, Values | Mapping[int, Values]]
_Given = dict[str, dict[int | None, Columns]]


def evaluate(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Predictions,
    *,
    threshold: Threshold | None = None,
    repeats: Screen | None = None,
    bootstrap: Bootstrap | None = None,
    zeros: Zeros | None = None,
    beyond: float | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Return how well predictors do on the test part, with intervals, side by side.

    Among the rows of a list of hits, and among rows beyond a threshold, the prediction of a
    predictor of two parts is its score given a hit; elsewhere it is the score to expect. Every
    metric is of the rows of a group at once. With several seeds of a predictor it is the mean over
    them of each seed's metric, not the metric of their mean. Intervals are over resamples of genes
    (see `Bootstrap`), the same for all predictors of a group, so that differences are paired; they
    cover the choice of test genes, and `Estimate.seed_deviation` that of the seeds.
    """
    bootstrap = Bootstrap() if bootstrap is None else bootstrap
    threshold = Threshold() if threshold is None else threshold
    check_fit(cell, screen, split)
    given = _checked(predictions, screen, split, zeros)
    test = _TestRows(screen, split, positives(screen, split.test, threshold))
    results: list[GroupResult] = []
    for group in _groups(screen, split, beyond):
        if results and group.members.all():
            results.append(replace(results[0], by=group.by, label=group.label))
        else:
            results.append(_group_result(group, test, given, bootstrap, progress))
    notes = []
    unscored = int((~test.scored).sum())
    if unscored:
        notes.append(
            f"{unscored:,} of {len(test.score):,} test rows {'has' if unscored == 1 else 'have'} "
            "no score; Pearson, Spearman and MSE leave them out."
        )
    if not len(split.unseen):
        notes.append("The split does not say how many genes of a test genotype are unseen.")
    return Evaluation(
        cell=cell.checksum,
        screen=screen.checksum,
        split=split.to_json(),
        leakage=split.leakage(screen).sentence,
        predictors={name: tuple(of_name) for name, of_name in given.items()},
        metrics={
            name: {"title": m.title, "of": m.of, "better": m.better} for name, m in METRICS.items()
        },
        bootstrap=asdict(bootstrap),
        positives=test.positives.to_json(),
        ceiling=replicate_ceiling(
            screen, split.test, repeats=repeats, only_hits=test.only_hits, bootstrap=bootstrap
        ),
        groups=tuple(results),
        verdicts=verdicts(results, bootstrap.level),
        not_additive={name: _not_additive(test, of_name) for name, of_name in given.items()},
        tested=among_tested(
            screen, split, test.genes, given, threshold, zeros, bootstrap, progress
        ),
        notes=tuple(notes),
    )


def check_fit(cell: Cell, screen: Screen, split: Split) -> None:
    """Raise where a screen is not over a cell's genes, or a split not of the screen with a test."""
    if cell.genes.systematic != screen.genes.systematic:
        raise InputError(
            f"the screen is over {len(screen.genes):,} genes that are not the {cell.n_genes:,} "
            "of the cell in their order",
            code="other-genes",
            fix="Bring it onto the cell: screen.on(cell)",
        )
    split.check(screen)
    if not len(split.test):
        raise InputError(
            "the split has no test part, and nothing else may be evaluated on",
            code="no-test-part",
            fix="Split the screen with a test share above 0.",
        )


class _TestRows:
    """What was measured in the test rows, and which of them have a score and a class."""

    def __init__(self, screen: Screen, split: Split, labelled: Positives) -> None:
        self.keys: AnyArray = screen.keys[split.test]
        self.genes: Ints = sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets)[split.test]
        self.score: Doubles = screen.column("score").astype(np.float64)[split.test]
        self.positives = labelled
        self.only_hits = labelled.among == "hits"
        self.scored: Bools = np.isfinite(self.score)
        self.labelled: Bools = np.isfinite(labelled.label)


def _checked(predictions: Predictions, screen: Screen, split: Split, zeros: Zeros | None) -> _Given:
    given: _Given = {}
    for name, values in predictions.items():
        by_seed: Mapping[Any, Values] = values if isinstance(values, Mapping) else {None: values}
        given[name] = {}
        for seed, one in by_seed.items():
            said = f"'{name}'" if seed is None else f"'{name}' with seed {seed}"
            parts = one if isinstance(one, Prediction) else Prediction(one)  # type: ignore[arg-type]
            columns = [
                None if part is None else _column(part, said, screen, split, zeros)
                for part in (parts.score, parts.hit, parts.given_hit)
            ]
            given[name][None if seed is None else int(seed)] = Columns(*columns)  # type: ignore[arg-type]
    if not given or not all(given.values()):
        raise InputError("a predictor without predictions was given", code="no-predictions")
    return given


def _column(
    values: npt.ArrayLike | torch.Tensor,
    said: str,
    screen: Screen,
    split: Split,
    zeros: Zeros | None,
) -> Doubles:
    plain = values.detach().cpu() if isinstance(values, torch.Tensor) else values
    column = np.asarray(plain, dtype=np.float64)
    n, n_zeros = len(split.test), 0 if zeros is None else len(zeros.genotypes)
    if column.shape not in ((n,), (n + n_zeros,)):
        and_zeros = f", and {n_zeros:,} zeros follow" if n_zeros else ""
        raise InputError(
            f"the predictions of {said} have the shape {column.shape}, and the test part has "
            f"{n:,} rows{and_zeros}",
            code="prediction-shape",
            fix="Predict the rows of split.test, in their order.",
        )
    wrong = np.flatnonzero(~np.isfinite(column))
    if len(wrong):
        at = f"zero {wrong[0] - n}"
        if wrong[0] < n:
            row = int(split.test[wrong[0]])
            genes = screen.genotypes.genes[screen.offsets[row] : screen.offsets[row + 1]]
            at = f"{' '.join(screen.genes[int(gene)] for gene in genes)} (row {row} of the screen)"
        raise InputError(
            f"{len(wrong):,} of {len(column):,} predictions of {said} are not finite numbers, "
            f"first that of {at}",
            code="prediction-not-finite",
        )
    return column


class _Group(NamedTuple):
    """Some of the test rows: what they have in common, its name, and which, [test rows]."""

    by: By
    label: str
    members: Bools


def _groups(screen: Screen, split: Split, beyond: float | None) -> list[_Group]:
    """Return the whole test part, then its groups."""
    found = [_Group("test", "test", np.ones(len(split.test), dtype=bool))]
    for number in np.unique(split.unseen):
        label = f"{number} unseen gene{'' if number == 1 else 's'}"
        found.append(_Group("unseen", label, split.unseen == number))
    kind = np.array(screen.kind)[split.test]
    sizes = np.diff(screen.offsets)[split.test]
    # By size and not by name, so that digenic comes before trigenic.
    for size in np.unique(sizes):
        members: Bools = sizes == size
        found.append(_Group("kind", str(kind[np.argmax(members)]), members))
    # One number per row with one bit for each perturbation among its genes.
    owner, perturbation = screen.genotypes.owner.numpy(), screen.gene_column("perturbation")
    codes = np.zeros(len(screen), dtype=np.int64)
    for bit, name in enumerate(PERTURBATIONS):
        codes[np.unique(owner[perturbation == name])] |= 1 << bit
    code = codes[split.test]
    for number in np.unique(code):
        names = [name for bit, name in enumerate(PERTURBATIONS) if number >> bit & 1]
        found.append(_Group("perturbation", " + ".join(names) or "other", code == number))
    if beyond is not None:
        far = np.abs(screen.column("score")[split.test]) >= np.float32(beyond)
        if far.any():
            found.append(_Group("beyond", f"a score of {beyond:g} or more from 0", far))
    return found


def _group_result(
    group: _Group, test: _TestRows, given: _Given, bootstrap: Bootstrap, progress: Progress | None
) -> GroupResult:
    members = group.members
    given_hit = test.only_hits or group.by == "beyond"
    used = {"score": test.scored & members, "class": test.labelled & members}
    direction = {"score": 1, "class": test.positives.direction}
    truth = {
        "score": Column(test.score[used["score"]]),
        "class": Column(test.positives.label[used["class"]]),
    }
    comparison = Comparison()
    for name, by_seed in given.items():
        for columns in by_seed.values():
            values = (columns.among_hits if given_hit else columns.score)[: len(members)]
            mine = {of: Column(direction[of] * values[rows]) for of, rows in used.items()}
            for metric in METRICS.values():
                comparison.add(name, metric, mine[metric.of], truth[metric.of])
    done = 0
    everywhere = all(rows[members].all() for rows in used.values())
    for block in bootstrap.weights(test.genes[members], group.label):
        if everywhere:
            # The same ranks then serve both.
            weights = dict.fromkeys(used, Weights(block))
        else:
            weights = {of: Weights(block[:, rows[members]]) for of, rows in used.items()}
        comparison.resample(weights)
        done += len(block)
        if progress is not None:
            progress(f"resamples of {group.label}", done, bootstrap.resamples)
    scores, differences = comparison.result(bootstrap)
    return GroupResult(
        by=group.by,
        label=group.label,
        rows=int(used["score"].sum()),
        gene_sets=len(np.unique(test.keys[members])),
        genes=int((np.unique(test.genes[members]) >= 0).sum()),
        labelled=int(used["class"].sum()),
        positives=int(np.nansum(test.positives.label[members])),
        scores=scores,
        differences=differences,
    )


def _not_additive(test: _TestRows, by_seed: Mapping[int | None, Columns]) -> Estimate:
    n = len(test.genes)
    found = [
        not_additive(test.genes, (one.among_hits if test.only_hits else one.score)[:n])
        for one in by_seed.values()
    ]
    shares = tuple(share for share, _ in found)
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        reason = next(reason for share, reason in found if share is None)
        return Estimate(None, None, None, reason=reason, seeds=shares)
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Estimate(float(np.mean(known)), None, None, None, shares, deviation)
