"""Predictors side by side on the test part of a split, and which of them is best."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch

from deltacell.arrays import Bools, Doubles, Ints
from deltacell.cell import Cell
from deltacell.errors import InputError
from deltacell.evaluate.diagnostics import Ceiling, not_additive, replicate_ceiling
from deltacell.evaluate.hits import THRESHOLD, AmongTested, Zeros, among_tested, positives
from deltacell.evaluate.metrics import (
    CONSTANT,
    METRICS,
    Bootstrap,
    Differences,
    Estimate,
    Scores,
    compared,
)
from deltacell.models import Prediction
from deltacell.models.baselines.baseline import Parts
from deltacell.report.page import sentences
from deltacell.screen import Screen, Split
from deltacell.screen.columns import PERTURBATIONS
from deltacell.screen.genotypes import sorted_matrix
from deltacell.words import Progress, count_text

SCHEMA = 2

#: The metric by which a predictor is best.
MAIN = "pearson"

By = Literal["test", "unseen", "kind", "perturbation", "beyond"]
Values = npt.ArrayLike | torch.Tensor | Prediction
Predictions = Mapping[str, Values | Mapping[int, Values]]


@dataclass(frozen=True)
class GroupResult:
    """All predictors on some of the test rows.

    The rows are all of the ``test`` part; or they have the same number of ``unseen`` genes,
    ``kind`` or ``perturbation``; or their scores lie ``beyond`` a threshold.
    """

    by: By
    label: str  # such as "1 unseen gene"
    rows: int  # test rows that have a score
    gene_sets: int
    genes: int
    labelled: int  # rows that AUROC and AUPR look at
    positives: int
    scores: Scores
    differences: Differences

    def beats(self, one: str, other: str) -> bool:
        """Whether the interval of the difference in Pearson correlation lies above 0.

        Where the other predicts the same of every row, the predictor's own interval has to.
        """
        constant = self.scores[other][MAIN].reason == CONSTANT
        counts = self.scores[one][MAIN] if constant else self.differences[one][other][MAIN]
        return counts.low is not None and counts.low > 0


@dataclass(frozen=True)
class Verdict:
    """Which predictor is best on a group of the test rows, and whether others are level with it."""

    group: str
    best: str | None  # with the highest Pearson correlation
    beats: tuple[str, ...]  # the interval of the difference lies above 0
    level: tuple[str, ...]  # those it does not beat
    above_chance: bool  # whether the interval of its own correlation lies above 0
    sentence: str


@dataclass(frozen=True)
class Evaluation:
    """Models and baselines side by side on the test part of one split."""

    cell: str  # checksum
    screen: str  # checksum
    split: Mapping[str, Any]
    leakage: str  # what the test part shares with training, in a sentence
    predictors: Mapping[str, tuple[int | None, ...]]  # the seeds; one None where none was given
    metrics: Mapping[str, Mapping[str, str]]  # title, direction and what it looks at
    bootstrap: Mapping[str, float]
    positives: Mapping[str, Any]
    ceiling: Ceiling
    groups: tuple[GroupResult, ...]  # the whole test part first
    verdicts: tuple[Verdict, ...]  # of the whole test part, by unseen genes, beyond a threshold
    not_additive: Mapping[str, Estimate]  # share of a predictor's variance over the test sets
    tested: AmongTested | None = None  # among all tested sets; None where these are not known
    notes: tuple[str, ...] = ()
    on: Mapping[str, Any] | None = None  # of another screen: checksum, and what was left out

    @property
    def test(self) -> GroupResult:
        return self.groups[0]

    def beats(self, one: str, other: str, group: str = "test") -> bool:
        """Whether one predictor beats another on a group of rows; see `GroupResult.beats`."""
        return next(found for found in self.groups if found.label == group).beats(one, other)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON-serialisable dict, which `deltacell.report.evaluate` renders."""
        return {"schema": SCHEMA, **asdict(self)}


def evaluate(
    cell: Cell,
    screen: Screen,
    split: Split,
    predictions: Predictions,
    *,
    threshold: float = THRESHOLD,
    repeats: Screen | None = None,
    bootstrap: Bootstrap | None = None,
    zeros: Zeros | None = None,
    beyond: float | None = None,
    progress: Progress = lambda what, done, total: None,
) -> Evaluation:
    """Return how well predictors do on the test part, with intervals, side by side.

    Among the rows of a list of hits, and among rows beyond a threshold, the prediction of a
    predictor of two parts is its score given a hit; elsewhere it is the score to expect. With
    several seeds a metric is the mean over them of each seed's metric, not the metric of their
    mean. Intervals are over the same resamples of genes for all predictors of a group, so that
    differences are paired; they cover the choice of test genes, and not that of the seeds.
    """
    bootstrap = bootstrap or Bootstrap()
    check_fit(cell, screen, split)
    given = _checked(predictions, len(split.test), 0 if zeros is None else len(zeros.genotypes))
    hits = positives(screen, split.test, threshold)
    keys, score = screen.keys[split.test], screen.column("score").astype(np.float64)[split.test]
    genes = sorted_matrix(screen.genotypes.genes.numpy(), screen.offsets)[split.test]

    def result(by: By, label: str, members: Bools) -> GroupResult:
        truth = {"score": score[members], "class": hits.label[members]}

        def columns(one: Parts) -> dict[str, Doubles]:
            found = one.among_hits if hits.only_hits or by == "beyond" else one.score
            own = found[: len(members)][members]
            # A positive has a low score.
            return {"score": own, "class": -own}

        scores, differences = compared(
            METRICS,
            truth,
            {name: list(map(columns, seeds.values())) for name, seeds in given.items()},
            genes[members],
            bootstrap,
            label,
            progress=progress,
        )
        return GroupResult(
            by=by,
            label=label,
            rows=int(np.isfinite(truth["score"]).sum()),
            gene_sets=len(np.unique(keys[members])),
            genes=int((np.unique(genes[members]) >= 0).sum()),
            labelled=int(np.isfinite(truth["class"]).sum()),
            positives=int(np.nansum(truth["class"])),
            scores=scores,
            differences=differences,
        )

    def additivity(seeds: Mapping[int | None, Parts]) -> Estimate:
        found = (one.among_hits if hits.only_hits else one.score for one in seeds.values())
        return Estimate.over_seeds([not_additive(genes, one[: len(genes)]) for one in found])

    groups = [result("test", "test", np.ones(len(split.test), dtype=bool))]
    for by, label, members in _groups(screen, split, beyond):
        whole = members.all()
        same = replace(groups[0], by=by, label=label)
        groups.append(same if whole else result(by, label, members))
    notes, unscored = [], int(np.isnan(score).sum())
    if unscored:
        notes.append(
            f"{unscored:,} of {len(split.test):,} test rows {'has' if unscored == 1 else 'have'} "
            "no score; Pearson, Spearman and MSE leave them out."
        )
    if not len(split.unseen):
        notes.append("The split does not say how many genes of a test genotype are unseen.")
    return Evaluation(
        cell=cell.checksum,
        screen=screen.checksum,
        split=split.to_json(),
        leakage=split.leakage(screen).sentence,
        predictors={name: tuple(seeds) for name, seeds in given.items()},
        metrics={name: metric.to_json() for name, metric in METRICS.items()},
        bootstrap=asdict(bootstrap),
        positives=hits.to_json(),
        ceiling=replicate_ceiling(screen, split.test, repeats),
        groups=tuple(groups),
        verdicts=tuple(_verdicts(groups, bootstrap.level)),
        not_additive={name: additivity(seeds) for name, seeds in given.items()},
        tested=among_tested(screen, split, genes, given, hits, zeros, bootstrap, progress),
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


def _checked(
    predictions: Predictions, rows: int, n_zeros: int
) -> dict[str, dict[int | None, Parts]]:
    given: dict[str, dict[int | None, Parts]] = {}
    for name, values in predictions.items():
        by_seed: Mapping[Any, Any] = values if isinstance(values, Mapping) else {None: values}
        given[name] = {}
        for seed, one in by_seed.items():
            parts = one if isinstance(one, Prediction) else Prediction(one)
            columns: dict[str, Any] = {
                part: np.asarray(getattr(parts, part), dtype=np.float64)
                for part in Parts._fields
                if getattr(parts, part) is not None
            }
            for column in columns.values():
                shapes = ((rows,), (rows + n_zeros,))
                if column.shape not in shapes or not np.isfinite(column).all():
                    raise InputError(
                        f"{np.count_nonzero(np.isfinite(column)):,} finite predictions of '{name}'"
                        f", seed {seed}, in the shape {column.shape}; expected {rows:,}, one for "
                        f"each test row, which {n_zeros:,} zeros may follow",
                        code="wrong-predictions",
                        fix="Predict the rows of split.test, in their order.",
                    )
            given[name][None if seed is None else int(seed)] = Parts(**columns)
    if not given or not all(given.values()):
        raise InputError("a predictor without predictions was given", code="no-predictions")
    return given


def _groups(screen: Screen, split: Split, beyond: float | None) -> Iterator[tuple[By, str, Bools]]:
    """Yield groups of the test rows: what they have in common, its name, and which."""
    for number in np.unique(split.unseen):
        yield "unseen", count_text(int(number), "unseen gene"), split.unseen == number
    kind, sizes = np.array(screen.kind)[split.test], np.diff(screen.offsets)[split.test]
    # By size and not by name, so that digenic comes before trigenic.
    for size in np.unique(sizes):
        yield "kind", str(kind[np.argmax(sizes == size)]), sizes == size
    # One number per row with one bit for each perturbation among its genes.
    owner, perturbation = screen.genotypes.owner.numpy(), screen.gene_column("perturbation")
    codes: Ints = np.zeros(len(screen), dtype=np.int64)
    for bit, name in enumerate(PERTURBATIONS):
        codes[np.unique(owner[perturbation == name])] |= 1 << bit
    for code in np.unique(codes[split.test]):
        names = [name for bit, name in enumerate(PERTURBATIONS) if code >> bit & 1]
        yield "perturbation", " + ".join(names) or "other", codes[split.test] == code
    if beyond is not None:
        far = np.abs(screen.column("score")[split.test]) >= np.float32(beyond)
        if far.any():
            yield "beyond", f"a score of {beyond:g} or more from 0", far


def _verdicts(groups: Sequence[GroupResult], level: float) -> Iterator[Verdict]:
    by_unseen = sum(group.by == "unseen" for group in groups) > 1
    for group in groups:
        if group.by not in ("test", "beyond") and not (group.by == "unseen" and by_unseen):
            continue
        own = {name: scores[MAIN] for name, scores in group.scores.items()}
        defined = {name: one.value for name, one in own.items() if one.value is not None}
        best = max(defined, key=defined.__getitem__, default=None)
        found: dict[str, Any] = {"best": best, "beats": (), "level": (), "above_chance": False}
        if best is not None:
            others = [name for name in own if name != best]
            found["beats"] = tuple(name for name in others if group.beats(best, name))
            found["level"] = tuple(name for name in others if name not in found["beats"])
            found["above_chance"] = (own[best].low or 0) > 0
        differences = {n: d[MAIN] for n, d in group.differences.get(best or "", {}).items()}
        about = {"group": group, "own": own, "differences": differences, "percent": 100 * level}
        yield Verdict(
            group=group.label, **found, sentence=sentences("verdict.txt", **found, **about)[0]
        )
