"""Groups of test rows, and how predictors do on one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from deltacell.base.arrays import Bools, Ints
from deltacell.base.text import count_text
from deltacell.evaluation.comparison import Differences, Scores
from deltacell.evaluation.metrics import CONSTANT
from deltacell.screen import Screen, Split
from deltacell.screen.hit_rule import HitRule
from deltacell.screen.screen import PERTURBATIONS

MAIN = "pearson"  # the metric by which a predictor is best

By = Literal["test", "unseen", "context", "kind", "perturbation", "beyond"]


@dataclass(frozen=True)
class GroupResult:
    """All predictors on the ``test`` part or on a group of its rows.

    Rows of a group share the number of ``unseen`` genes, the ``kind`` or the ``perturbation``, or
    whether the ``context`` measured the set, or their scores lie ``beyond`` a threshold.
    """

    by: By
    label: str  # such as "1 unseen gene"
    rows: int  # test rows that have a score
    gene_sets: int
    genes: int
    labelled: int  # rows that AUROC and AUPR use
    positives: int
    scores: Scores
    differences: Differences

    def beats(self, one: str, other: str) -> bool:
        """Return whether the interval of the difference in Pearson correlation lies above 0.

        If the other's predictions are constant, the predictor's own interval has to.
        """
        is_constant = self.scores[other][MAIN].reason == CONSTANT
        estimate = self.scores[one][MAIN] if is_constant else self.differences[one][other][MAIN]
        return estimate.low is not None and estimate.low > 0


class Group(NamedTuple):
    """Some of the test rows: what they have in common, and which they are, [test rows]."""

    by: By
    label: str
    members: Bools


def groups_of(
    screen: Screen,
    split: Split,
    beyond: HitRule | None,
    in_context: Bools | None,
) -> Iterator[Group]:
    """Yield the groups of the test rows, without the whole test part.

    They are by the number of unseen genes, by whether a study of the context measured the set
    (``in_context``, None without context), by the number of deleted genes, by the perturbations,
    and, if any row is that far, the rows whose score is ``beyond`` a threshold.
    """
    yield from _by_unseen_genes(split)
    if in_context is not None:
        yield from _by_context(in_context)
    yield from _by_kind(screen, split)
    yield from _by_perturbation(screen, split)
    if beyond is not None:
        is_beyond = beyond.reaches(screen.column("score")[split.test])
        if is_beyond.any():
            yield Group("beyond", f"a score of {beyond.limits_text}", is_beyond)


def _by_unseen_genes(split: Split) -> Iterator[Group]:
    for number in np.unique(split.unseen):
        label = count_text(int(number), "unseen gene")
        yield Group("unseen", label, split.unseen == number)


def _by_context(in_context: Bools) -> Iterator[Group]:
    """Yield the sets that a study of the context measured, and those that are new to all."""
    if in_context.any():
        yield Group("context", "measured by the context", in_context)
    if not in_context.all():
        yield Group("context", "new to all studies", ~in_context)


def _by_kind(screen: Screen, split: Split) -> Iterator[Group]:
    """Yield the groups by the number of deleted genes, the smallest sets first."""
    kinds = np.array(screen.kind)[split.test]
    sizes = np.diff(screen.offsets)[split.test]
    for size in np.unique(sizes):
        members = sizes == size
        yield Group("kind", str(kinds[np.argmax(members)]), members)


def _by_perturbation(screen: Screen, split: Split) -> Iterator[Group]:
    """Yield the groups by which perturbations the genes of a row have."""
    owner = screen.genotypes.owner.numpy()
    perturbation = screen.column("perturbation")
    codes: Ints = np.zeros(len(screen), dtype=np.int64)  # one bit for each perturbation
    for bit, name in enumerate(PERTURBATIONS):
        codes[np.unique(owner[perturbation == name])] |= 1 << bit
    codes_of_test = codes[split.test]
    for code in np.unique(codes_of_test):
        names = [name for bit, name in enumerate(PERTURBATIONS) if code >> bit & 1]
        yield Group("perturbation", " + ".join(names) or "other", codes_of_test == code)
