"""Models and baselines side by side on the test part of a split."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import AnyArray, Bools, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.bootstrap import Bootstrap, Comparison
from deltacell.evaluate.ceiling import replicate_ceiling
from deltacell.evaluate.diagnostics import not_additive
from deltacell.evaluate.evaluation import By, Estimate, Evaluation, GroupResult, verdicts
from deltacell.evaluate.metrics import METRICS, Column, Weights
from deltacell.evaluate.positives import Positives, Threshold, positives
from deltacell.evaluate.tested import Columns, Zeros, among_tested
from deltacell.models import Prediction
from deltacell.screen import Screen, Split
from deltacell.screen.columns import PERTURBATIONS
from deltacell.screen.keys import sorted_matrix

Doubles = npt.NDArray[np.float64]
Values = npt.ArrayLike | torch.Tensor | Prediction
Predictions = Mapping[str, Values | Mapping[int, Values]]
Progress = Callable[[str, int, int], None]


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
    tell the chance of the test genes, and `Estimate.seed_deviation` that of the seeds.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured, over the genes of the cell.
    split
        Its parts.
    predictions
        By name of the predictor, one score per test row in the order of ``split.test`` and in the
        units of the screen, or a `Prediction` of these rows; or such by seed. With ``zeros``, those
        of the zeros follow; a predictor that does not have them is left out of `Evaluation.tested`.
    threshold
        From where on a score is a hit, for AUROC and AUPR.
    repeats
        The screen before its repeats were merged, for the replicate ceiling.
    bootstrap
        How intervals are found.
    zeros
        Tested pairs of the test part that a list of hits does not have.
    beyond
        Rows whose score is at least as far from 0 as this are one more group.
    progress
        Called as ``progress(what, done, total)``.
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
    return Evaluation(
        cell=cell.checksum,
        screen=screen.checksum,
        split=split.to_json(),
        leakage=split.leakage(screen).sentence,
        predictors={name: tuple(of_name) for name, of_name in given.items()},
        metrics={
            name: {"title": m.title, "of": m.of, "better": m.better} for name, m in METRICS.items()
        },
        bootstrap={
            "resamples": bootstrap.resamples,
            "level": bootstrap.level,
            "seed": bootstrap.seed,
        },
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
        notes=_notes(test, split),
    )


def check_fit(cell: Cell, screen: Screen, split: Split) -> None:
    """Raise where a screen is not over a cell's genes, or a split not of the screen with a test.

    Parameters
    ----------
    cell
        The wild type.
    screen
        What was measured.
    split
        Its parts.
    """
    if cell.genes.systematic != screen.genes.systematic:
        raise InputError(
            f"the screen is over {len(screen.genes):,} genes that are not the {cell.n_genes:,} "
            "of the cell in their order",
            fix="Bring it onto the cell: screen.on(cell)",
        )
    split.check(screen)
    if not len(split.test):
        raise InputError(
            "the split has no test part, and nothing else may be evaluated on",
            fix="Split the screen with a test share above 0.",
        )


_Given = dict[str, dict[int | None, Columns]]


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
    if not predictions:
        raise InputError("there is nothing to evaluate: no predictions were given")
    given: _Given = {}
    for name, values in predictions.items():
        by_seed: Mapping[Any, Values] = values if isinstance(values, Mapping) else {None: values}
        if not by_seed:
            raise InputError(f"the predictions of '{name}' are of no seed at all")
        given[name] = {
            None if seed is None else int(seed): _columns(
                one,
                f"'{name}'" if seed is None else f"'{name}' with seed {seed}",
                screen,
                split,
                zeros,
            )
            for seed, one in by_seed.items()
        }
    return given


def _columns(
    values: Values, said: str, screen: Screen, split: Split, zeros: Zeros | None
) -> Columns:
    if not isinstance(values, Prediction):
        values = Prediction(values)  # type: ignore[arg-type]
    parts = {
        name: None if part is None else _column(part, said, screen, split, zeros)
        for name, part in (
            ("score", values.score),
            ("hit", values.hit),
            ("given_hit", values.given_hit),
        )
    }
    return Columns(**parts)  # type: ignore[arg-type]


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
            fix="Predict the rows of split.test, in their order.",
        )
    wrong = ~np.isfinite(column)
    if wrong.any():
        first = int(np.argmax(wrong))
        at = f"zero {first - n}"
        if first < n:
            row = int(split.test[first])
            genes = screen.genotypes.genes[screen.offsets[row] : screen.offsets[row + 1]]
            at = f"{' '.join(screen.genes[int(gene)] for gene in genes)} (row {row} of the screen)"
        raise InputError(
            f"{int(wrong.sum()):,} of {len(column):,} predictions of {said} "
            f"{'is not a finite number' if wrong.sum() == 1 else 'are not finite numbers'}, "
            f"first that of {at}"
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
    found += [
        _Group(
            "unseen", f"{number} unseen gene{'' if number == 1 else 's'}", split.unseen == number
        )
        for number in np.unique(split.unseen)
    ]
    kind = np.array(screen.kind)[split.test]
    sizes = np.diff(screen.offsets)[split.test]
    # By size and not by name, so that digenic comes before trigenic.
    for size in np.unique(sizes):
        members: Bools = sizes == size
        found.append(_Group("kind", str(kind[np.argmax(members)]), members))
    code = _perturbation_codes(screen)[split.test]
    for number in np.unique(code):
        names = [name for bit, name in enumerate(PERTURBATIONS) if number >> bit & 1]
        found.append(_Group("perturbation", " + ".join(names) or "other", code == number))
    if beyond is not None:
        far = np.abs(screen.column("score")[split.test]) >= np.float32(beyond)
        if far.any():
            found.append(_Group("beyond", f"a score of {beyond:g} or more from 0", far))
    return found


def _perturbation_codes(screen: Screen) -> Ints:
    """Return one number per row with one bit for each perturbation among its genes."""
    owner = screen.genotypes.owner.numpy()
    perturbation = screen.gene_column("perturbation").astype(str)
    code: Ints = np.zeros(len(screen), dtype=np.int64)
    for bit, name in enumerate(PERTURBATIONS):
        there = np.zeros(len(screen), dtype=bool)
        there[owner[perturbation == name]] = True
        code |= there.astype(np.int64) << bit
    return code


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
            values = columns.among_hits if given_hit else columns.score
            mine = {
                of: Column(direction[of] * values[: len(members)][rows])
                for of, rows in used.items()
            }
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
    present = np.unique(test.genes[members])
    return GroupResult(
        by=group.by,
        label=group.label,
        rows=int((test.scored & members).sum()),
        gene_sets=len(np.unique(test.keys[members])),
        genes=int((present >= 0).sum()),
        labelled=int((test.labelled & members).sum()),
        positives=int(np.nansum(test.positives.label[members])),
        scores=scores,
        differences=differences,
    )


def _not_additive(test: _TestRows, by_seed: Mapping[int | None, Columns]) -> Estimate:
    found = [
        not_additive(
            test.genes, (one.among_hits if test.only_hits else one.score)[: len(test.genes)]
        )
        for one in by_seed.values()
    ]
    shares = tuple(share for share, _ in found)
    known = [share for share in shares if share is not None]
    if len(known) < len(shares):
        reason = next(reason for share, reason in found if share is None)
        return Estimate(None, None, None, reason=reason, seeds=shares)
    deviation = float(np.std(known, ddof=1)) if len(known) > 1 else None
    return Estimate(float(np.mean(known)), None, None, None, shares, deviation)


def _notes(test: _TestRows, split: Split) -> tuple[str, ...]:
    notes = []
    unscored = int((~test.scored).sum())
    if unscored:
        notes.append(
            f"{unscored:,} of {len(test.score):,} test rows {'has' if unscored == 1 else 'have'} "
            "no score; Pearson, Spearman and MSE leave them out."
        )
    if not len(split.unseen):
        notes.append("The split does not say how many genes of a test genotype are unseen.")
    return tuple(notes)
