"""What everything that predicts has in common: a network, a baseline, an ensemble, a table.

The training loop, evaluations, rankings and explanations know these classes and none of the models.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor, nn

from deltacell.base.arrays import Floats
from deltacell.base.errors import InputError
from deltacell.base.files import JsonObject
from deltacell.cell import Cell
from deltacell.models.config import LARGEST_RELATION
from deltacell.models.prediction import Prediction as Prediction
from deltacell.models.prediction import TargetScale as TargetScale
from deltacell.models.scoring import BatchScorer, Scorer
from deltacell.profile.record import Messages
from deltacell.screen import Genotypes, Screen


class StudyPredictor(Protocol):
    """A trained predictor of a study, on a cell of its own."""

    @property
    def cell(self) -> Cell: ...

    def predict(self, genotypes: Genotypes) -> Prediction:
        """Return the predictions in the unit of the study."""


@dataclass(frozen=True, eq=False)
class Study:
    """Measurements of others, and optionally a predictor that was trained on them.

    A study keeps its own scale, sign convention and coverage. Predictors that read context learn
    how its scores relate to those of the target.
    """

    name: str
    screen: Screen  # on any cell; genes are matched by name
    predictor: StudyPredictor | None = None
    predictor_checksum: str = ""  # of the weights of the predictor


@dataclass(frozen=True, eq=False)
class LabelledSets:
    """Genotypes with their targets, and the studies that help to predict them."""

    genotypes: Genotypes
    targets: Tensor  # standardised, [n]
    context: Sequence[Study] = ()


@dataclass(frozen=True)
class Vote:
    """One measured set that a prediction for another set rests on.

    What predictors read are sums of votes, see `deltacell.models.pairs.messages.SummedVotes`.
    """

    genes: tuple[int, ...]  # the measured set
    replaced: int  # the gene of the other set that is not in it
    by: int  # the gene in its place
    score: float  # the measured score
    relation: str  # that links both genes
    weight: float


@dataclass(frozen=True)
class StudyEvidence:
    """What another study says of a set, in the unit of that study."""

    study: str
    score: float | None  # measured for the very same set; None if it was not measured
    is_tested: bool | None  # False for a tested set that is no hit; None if it is unknown
    is_hit: bool  # whether the score is beyond a threshold of the study
    expected: float | None  # by the predictor of the study
    votes: Sequence[Vote]  # its measured sets next to this one, by descending weight


class RelationWeights(NamedTuple):
    """How much a predictor reads each relation for some genes."""

    relations: tuple[str, ...]
    values: Floats  # [genes, relations]


class GatedScore(Protocol):
    """The score of one genotype as a function of gates, in double precision.

    A relation's gate multiplies the messages over it: at 1 the score is the predictor's, at 0 that
    on a cell in which the relation has no edges. A gene's gate multiplies its first vector. The
    score is in the unit of the predictor, which is standardised for a network.
    """

    relations: tuple[str, ...]  # names of the gates of relations

    def score(self, relation_gates: Tensor, gene_gates: Tensor) -> Tensor:
        """Return the score for gates of the relations, and of the genes of the genotype."""
        ...


class Predictor:
    """Whatever gives a set of genes a score.

    Only `__call__` is required. Everything else has a default that works.
    """

    made_with: dict[str, Any]
    """The arguments of the constructor except the cell, for the config of a run."""

    sets_per_call: int | None = None
    """Genotypes per call in validation and prediction; None is the batch size of the training."""

    sets_per_block: int = 131_072
    """Sets of a block of a ranking: a few seconds of work, within which nothing is saved."""

    shares_first_gene: bool = False
    """Whether sets with the same first gene are cheaper together."""

    relations: tuple[str, ...] | None = None
    """The relations that it reads; None is all of the cell."""

    reads_conditions: bool = False
    """Whether it takes the conditions of genotypes into account."""

    reads_context: bool = False
    """Whether it takes other studies into account."""

    def __new__(cls, *args: Any, **options: Any) -> Self:
        instance = super().__new__(cls)
        # copy.deepcopy calls this without arguments and then sets the state.
        try:
            bound = inspect.signature(cls.__init__).bind(instance, *args, **options).arguments
        except TypeError:
            bound = {}
        # nn.Module does not accept attributes before its constructor has run.
        arguments = {name: value for name, value in bound.items() if name not in ("self", "cell")}
        instance.__dict__["made_with"] = arguments
        return instance

    def __call__(
        self,
        cell: Cell,
        genotypes: Genotypes,
        *,
        wanted: Collection[str] = (),
    ) -> Prediction:
        """Return the predictions for genotypes, with the intermediate results that are wanted."""
        raise NotImplementedError

    def on_device(self, cell: Cell, genotypes: Genotypes) -> Any:
        """Return genotypes as a call takes them: as they are, unless a network is on a device."""
        return genotypes

    def check_conditions(self, genotypes: Genotypes) -> None:
        """Raise for conditions of genotypes that would be ignored."""
        if genotypes.condition is not None and not self.reads_conditions:
            what = f"{type(self).__name__} does not read the conditions of genotypes"
            raise InputError(what, code="no-conditions", fix="Leave out the conditions.")

    def check_context(self, context: Sequence[Study]) -> None:
        """Raise for studies that would be ignored."""
        if context and not self.reads_context:
            what = f"{type(self).__name__} does not read other studies"
            fix = "Leave out the context, or use the model pair_trees."
            raise InputError(what, code="no-context", fix=fix)

    def scorer(self, cell: Cell, scale: TargetScale) -> Scorer:
        """Return exact scores, in the unit of the screen, that do not depend on the batch."""
        return BatchScorer(self, cell, scale)

    def gated(self, cell: Cell, genes: Sequence[int]) -> GatedScore | None:
        """Return a genotype's score as a function of gates; None if it has no contributions."""
        return None

    def evidence(self, cell: Cell, genes: Sequence[int]) -> list[Vote]:
        """Return the measured sets that the prediction for a set rests on, by weight."""
        return []

    def context_evidence(self, cell: Cell, genes: Sequence[int]) -> list[StudyEvidence]:
        """Return what each study of the context says of a set."""
        return []

    def relation_weights(self, cell: Cell, genes: Tensor) -> RelationWeights | None:
        """Return how much each relation is read for some genes; None if it is not learned."""
        return None

    def facts(self) -> JsonObject:
        """Return what the record of a run keeps and `BuildContext.recorded` gives back."""
        return {}

    def messages(self) -> Messages | None:
        """Return on what messages are passed in a step; None if this is not known yet."""
        return Messages.nothing


class Model(nn.Module, Predictor):
    """A network that the training loop trains. Its scores and targets are standardised."""

    if TYPE_CHECKING:

        def __call__(
            self,
            cell: Cell,
            genotypes: Any,  # what `prepare` returns
            *,
            wanted: Collection[str] = (),
        ) -> Prediction: ...

    @property
    def device(self) -> torch.device:
        """The device of the parameters; the CPU without any."""
        first = next(self.parameters(), None)
        return torch.device("cpu") if first is None else first.device

    def on_device(self, cell: Cell, genotypes: Genotypes) -> Any:
        """Return genotypes as a call on the device of the model takes them."""
        if self.device.type == "cpu":
            return genotypes
        return self.prepare(cell, genotypes).to(self.device, non_blocking=True)

    def begin(self, cell: Cell, training: LabelledSets) -> None:
        """Take in the training part, before the first step and when a run is loaded."""

    def prepare(self, cell: Cell, genotypes: Genotypes) -> Any:
        """Do the host's part of a step; the result has a method ``to``, as tensors have."""
        return genotypes

    def compile_parts(self, **options: Any) -> None:
        """Compile what `torch.compile` can speed up; the options are passed to it."""
        self.compile(**options)

    def scorer(self, cell: Cell, scale: TargetScale) -> Scorer:
        """Return exact scores, computed by a copy on the device of the model."""
        # In double precision, so that a rounded score does not depend on the batch.
        exact = copy.deepcopy(self).double().eval().requires_grad_(False)
        return BatchScorer(exact, cell, scale)


@dataclass(frozen=True, eq=False)
class BuildContext:
    """What a predictor is built for."""

    cell: Cell
    largest_set: int  # genes of the largest genotype of the screen
    merged_relations: Mapping[str, str] = field(default_factory=dict)  # old name -> merged into
    recorded: Mapping[str, Any] = field(default_factory=dict)  # `facts` of an earlier attempt

    def relations_named(
        self,
        names: Sequence[str],
        usable: Collection[str] | None = None,
    ) -> list[str]:
        """Return the names of relations of the cell; a merged one is named by its successor.

        The name `LARGEST_RELATION` alone stands for the relation with the most edges, the first of
        equals, among those that the model can use (``usable``; None is all of the cell).
        """
        if list(names) == [LARGEST_RELATION] and LARGEST_RELATION not in self.cell.relations:
            return [self._largest_relation(usable)]
        return list(dict.fromkeys(self.merged_relations.get(name, name) for name in names))

    def _largest_relation(self, usable: Collection[str] | None) -> str:
        names = [name for name in self.cell.relations if usable is None or name in usable]
        if not names:
            raise InputError("the cell has no relation for this model", code="no-relation")
        return max(names, key=lambda name: self.cell.relation(name).n_edges)
