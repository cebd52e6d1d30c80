"""What other studies say of gene sets, as columns of numbers.

No score of the target enters these columns, so they need no cross-fitting.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from deltacell.base.arrays import Doubles, Floats, Ints
from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.fitted.gene_sets import GeneOrder, GeneSets, aggregated, look_up
from deltacell.models.fitted.predictor import Part, State
from deltacell.models.interface import Study, StudyEvidence, StudyPredictor
from deltacell.models.pairs.columns import Known, PairColumns
from deltacell.models.pairs.messages import Measured, named_votes
from deltacell.screen import Genotypes, Grid, Screen
from deltacell.screen.gene_keys import comparable_keys, set_keys
from deltacell.screen.genotypes import sets_with
from deltacell.screen.hit_rule import HitRule

_EXPECTED = ("score", "hit", "given_hit")  # what is read of the prediction of a study's predictor
_OVER_PAIRS = ("min", "max", "mean")


@dataclass(frozen=True, eq=False)
class StudySets:
    """The measured sets of a study on the genes of a cell."""

    name: str
    measured: Part  # each set once, with the mean of its scores, in the order of the keys
    zeros: Ints  # pairs that were tested and are no hits, as n_genes * first + second, ascending
    digest: str  # of genes and scores; does not depend on the order of genes or rows
    predictor: StudyPredictor | None
    hits: HitRule

    @property
    def centred(self) -> Part:
        """The measured sets with their scores less the mean, so that no unit's zero matters."""
        return Part(self.measured.sets, self.measured.targets - self.measured.mean)

    @classmethod
    def of(cls, study: Study, cell: Cell, order: GeneOrder) -> StudySets:
        """Find the sets of two or more genes of the cell; a list of signs has signs as scores."""
        screen = _readable(study, cell)
        measured = _merged(screen, order)
        return cls(
            study.name,
            measured,
            _zeros(screen, order),
            _digest(measured, order, study.predictor_checksum),
            study.predictor,
            study.screen.hit_rule,
        )


def studies_of(context: Sequence[Study], cell: Cell, order: GeneOrder) -> list[StudySets]:
    """Return the distinct studies in an order that does not depend on that of the context.

    A study without a predictor is left out if the same measurements come with one.
    """
    distinct: dict[str, StudySets] = {}
    for study in context:
        sets = StudySets.of(study, cell, order)
        distinct.setdefault(sets.digest, sets)
    studies = [distinct[digest] for digest in sorted(distinct)]
    with_predictor = {_measurements(s.digest) for s in studies if s.predictor is not None}
    return [
        study
        for study in studies
        if study.predictor is not None or _measurements(study.digest) not in with_predictor
    ]


class StudyColumns:
    """The columns that one study contributes to gene sets of the target.

    These are its own score of the set (NaN if it was not measured), whether it was measured (0 for
    a tested pair that a list of hits leaves out, NaN if unknown), the columns of `PairColumns` from
    its measured sets, and the prediction of its predictor. Trees do not depend on the unit or the
    sign of a column, so scores stay as they are.
    """

    def __init__(self, study: StudySets, known: Known, columns: PairColumns) -> None:
        self.study, self.known = study, known
        self.n_genes, self.largest = columns.n_genes, columns.largest
        self._columns = columns.for_another_study()
        self._sets = Measured.of(study.centred, self.n_genes)

    def __call__(self, cell: Cell, order: GeneOrder, sets: GeneSets) -> Floats:
        """Return the columns of sets, [sets, columns]."""
        none = np.empty((len(sets), 0), dtype=np.float32)
        sums = self._columns.sums(self._sets, sets)
        parts = [
            self._own_scores(sets),
            self._columns(self.known, sets, sums, fixed=none),
            _expected(self.study.predictor, cell, order, sets),
        ]
        return np.concatenate(parts, axis=1, dtype=np.float32)

    def scores(self, sets: GeneSets) -> Doubles:
        """Return the study's own score of each set, NaN if it was not measured, [sets]."""
        measured = self.study.measured
        keys, wanted = comparable_keys(
            self.n_genes,
            (measured.sets.genes, measured.sets.offsets),
            (sets.genes, sets.offsets),
        )
        ascending = np.argsort(keys, kind="stable")
        position, is_measured = look_up(keys[ascending], wanted)
        scores = np.full(len(sets), np.nan)
        scores[is_measured] = measured.targets[ascending[position[is_measured]]]
        return scores

    def evidence(self, cell: Cell, order: GeneOrder, genes: Sequence[int]) -> StudyEvidence:
        """Return what the study says of a set, whose genes are those of the cell."""
        places = tuple(sorted(int(order.place[gene]) for gene in genes))
        one_set = GeneSets(np.array(places), np.array([0, len(places)]))
        score, tested = self._score_and_tested(one_set)[0].tolist()
        expected = float(_expected(self.study.predictor, cell, order, one_set)[0, 0])
        neighbours = self._columns.neighbours.joined(self.known.alike)
        votes = named_votes(self._sets, neighbours, places, order)
        mean = self.study.measured.mean
        return StudyEvidence(
            self.study.name,
            score=None if np.isnan(score) else score,
            is_tested=None if np.isnan(tested) else bool(tested),
            is_hit=bool(self.study.hits.reaches(np.array([score]))[0]),
            expected=None if np.isnan(expected) else expected,
            votes=[replace(vote, score=vote.score + mean) for vote in votes],
        )

    def _own_scores(self, sets: GeneSets) -> Floats:
        own = [self._score_and_tested(sets)]
        if self.largest > 2:
            pairs = sets.pairs()
            genes = np.stack([pairs.first, pairs.second], axis=1).ravel()
            each = GeneSets(genes, np.arange(0, len(genes) + 1, 2))
            of_pairs = self._score_and_tested(each)
            own.append(aggregated(of_pairs, pairs.offsets, _OVER_PAIRS, skip_missing=True))
        return np.concatenate(own, axis=1)

    def _score_and_tested(self, sets: GeneSets) -> Floats:
        score = self.scores(sets)
        tested = np.where(np.isnan(score), np.nan, 1.0)
        tested[self._is_zero(sets)] = 0.0
        return np.stack([score, tested], axis=1).astype(np.float32)

    def _is_zero(self, sets: GeneSets) -> Ints:
        """Return the rows of the pairs that were tested and that the list of hits leaves out."""
        rows = np.flatnonzero(sets.sizes == 2)
        first, second = sets.take(rows).genes.reshape(-1, 2).T
        _, is_zero = look_up(self.study.zeros, first * self.n_genes + second)
        return rows[is_zero]


@dataclass(frozen=True)
class ContextColumns:
    """The columns of all studies of a context, side by side."""

    columns: tuple[StudyColumns, ...] = ()

    @classmethod
    def of(
        cls,
        context: Sequence[Study],
        cell: Cell,
        order: GeneOrder,
        columns: PairColumns,
        penalty: float,
    ) -> ContextColumns:
        """Compute the statistics of every study."""
        studies = []
        for study in studies_of(context, cell, order):
            known = Known.of(study.centred, len(order), penalty)
            studies.append(StudyColumns(study, known, columns))
        return cls(tuple(studies))

    @classmethod
    def from_state(
        cls,
        context: Sequence[Study],
        cell: Cell,
        order: GeneOrder,
        columns: PairColumns,
        state: Sequence[State],
    ) -> ContextColumns:
        """Restore what `state` returned, for the same studies."""
        studies = studies_of(context, cell, order)
        if [study.digest for study in studies] != [one["digest"] for one in state]:
            names = ", ".join(one["name"] for one in state) or "no study"
            what = f"it was fitted with other context: {names}"
            fix = "Pass the same studies, unchanged, or fit it again."
            raise InputError(what, code="other-context", fix=fix)
        restored = []
        for study, one in zip(studies, state, strict=True):
            known = Known.from_state(one, study.centred, len(order))
            restored.append(StudyColumns(study, known, columns))
        return cls(tuple(restored))

    def state(self) -> list[State]:
        return [
            {"name": one.study.name, "digest": one.study.digest, **one.known.state()}
            for one in self.columns
        ]

    def __call__(self, cell: Cell, order: GeneOrder, sets: GeneSets) -> Floats:
        """Return the columns of sets, [sets, columns]; there is at least one study."""
        return np.concatenate([of_study(cell, order, sets) for of_study in self.columns], axis=1)


def _readable(study: Study, cell: Cell) -> Screen:
    """Return the rows of a study with two or more genes of the cell and a score or a sign."""
    new_index = cell.genes.resolve(study.screen.genes.systematic)
    genes = new_index[study.screen.genotypes.genes.numpy()]
    has_other_gene = sets_with(genes < 0, study.screen.offsets)
    if has_other_gene.all():
        raise _nothing_measured(study)
    screen = study.screen.take(~has_other_gene).on(cell, on_unknown="drop")
    is_readable = (np.diff(screen.offsets) > 1) & np.isfinite(_scores_or_signs(screen))
    if not is_readable.any():
        raise _nothing_measured(study)
    return screen.take(is_readable)


def _nothing_measured(study: Study) -> InputError:
    what = f"the study '{study.name}' has no measured set of two or more genes of the cell"
    fix = "Leave it out of the context, or check that it is of the same organism."
    return InputError(what, code="context-without-sets", fix=fix)


def _scores_or_signs(screen: Screen) -> Doubles:
    score = screen.column("score").astype(np.float64)
    if np.isfinite(score).any():
        return score
    sign = screen.column("sign").astype(np.float64)
    return np.where(sign != 0, sign, np.nan)


def _merged(screen: Screen, order: GeneOrder) -> Part:
    """Return each set once with the mean of its scores, in the order of the keys."""
    sets = order.sets(screen.genotypes)
    score = _scores_or_signs(screen)
    keys = set_keys(sets.genes, sets.offsets, len(order))
    # Sorted by score too, so that the rounding of a mean does not depend on the order of rows.
    sorted_rows = np.lexsort((score, keys))
    _, first, number = np.unique(keys[sorted_rows], return_index=True, return_inverse=True)
    total = np.bincount(number.ravel(), score[sorted_rows])
    count = np.bincount(number.ravel())
    return Part(sets.take(sorted_rows[first]), total / count)


def _zeros(screen: Screen, order: GeneOrder) -> Ints:
    grid = Grid.of(screen)
    if grid is None:
        return np.empty(0, dtype=np.int64)
    one, other = np.divmod(grid.zeros, len(order))
    places = np.sort(np.stack([order.place[one], order.place[other]]), axis=0)
    return np.sort(places[0] * len(order) + places[1])


def _digest(measured: Part, order: GeneOrder, predictor_checksum: str) -> str:
    """Return a digest of the measurements, a colon, and the checksum of the predictor."""
    digest = hashlib.sha256("\n".join(order.names).encode())
    for array in (measured.sets.genes, measured.sets.offsets):
        digest.update(array.astype("<i8").tobytes())
    digest.update(measured.targets.astype("<f4").tobytes())
    return f"{digest.hexdigest()}:{predictor_checksum}"


def _measurements(digest: str) -> str:
    return digest.partition(":")[0]


def _expected(
    predictor: StudyPredictor | None,
    cell: Cell,
    order: GeneOrder,
    sets: GeneSets,
) -> Floats:
    """Return what a study's predictor expects, [sets, 3]; NaN for genes that it does not know."""
    expected = np.full((len(sets), len(_EXPECTED)), np.nan, dtype=np.float32)
    if predictor is None:
        return expected
    of_predictor = predictor.cell.genes.resolve(cell.genes.systematic)
    genes = of_predictor[order.gene[sets.genes]]
    rows = np.flatnonzero(~sets_with(genes < 0, sets.offsets))
    if not len(rows):
        return expected
    known = GeneSets(genes, sets.offsets).take(rows)
    genotypes = Genotypes(torch.from_numpy(known.genes), torch.from_numpy(known.offsets))
    prediction = predictor.predict(genotypes)
    for column, name in enumerate(_EXPECTED):
        values = getattr(prediction, name)
        if values is not None:
            expected[rows, column] = values.double().numpy()
    return expected
