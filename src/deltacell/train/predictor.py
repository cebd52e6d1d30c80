"""Predictors of scores: that of a config, and a trained one with the scale of its targets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch

from deltacell.base.errors import InputError
from deltacell.cell import Cell
from deltacell.models.fitted.predictor import FittedPredictor
from deltacell.models.interface import BuildContext, Model, Prediction, Predictor, TargetScale
from deltacell.models.scoring import Scorer
from deltacell.profile.record import ModelFacts
from deltacell.screen import Genotypes
from deltacell.train.config import Config
from deltacell.train.data import TrainingData


@dataclass(frozen=True, eq=False)
class TrainedPredictor:
    """A trained predictor with its cell and the scale of its targets."""

    model: Predictor
    cell: Cell
    scale: TargetScale
    batch_size: int = 64  # of a predictor that has no opinion: that of its training

    def rescaled(self, factor: float, shift: float) -> TrainedPredictor:
        """Return a predictor of ``factor * score + shift``."""
        mean = factor * self.scale.mean + shift
        return replace(self, scale=TargetScale(mean, factor * self.scale.std))

    def scorer(self) -> Scorer:
        """Return exact scores that do not depend on the batch."""
        return self.model.scorer(self.cell, self.scale)

    def __call__(self, genotypes: Genotypes) -> torch.Tensor:
        """Return the expected scores [b] in the screen's unit."""
        return self.predict(genotypes).score

    @torch.no_grad()
    def predict(
        self,
        genotypes: Genotypes,
        progress: Callable[[int, int], None] | None = None,
    ) -> Prediction:
        """Return the predictions in the screen's unit, on the host and without other results.

        They are computed on the device of the model.
        """
        self.model.check_conditions(genotypes)
        n = len(genotypes)
        per_call = self.model.sets_per_call or self.batch_size
        parts: list[Prediction] = []
        for begin in range(0, max(n, 1), per_call):
            if progress is not None:
                progress(begin, n)
            rows = torch.arange(begin, min(begin + per_call, n))
            part = genotypes if len(rows) == n else genotypes.take(rows)
            prediction = self.model(self.cell, self.model.on_device(self.cell, part))
            parts.append(prediction.on_host())
        spread = _joined([part.spread for part in parts])
        given_hit = _joined([part.given_hit for part in parts])
        return Prediction(
            self.scale.undo(torch.cat([part.score for part in parts])),
            hit=_joined([part.hit for part in parts]),
            given_hit=None if given_hit is None else self.scale.undo(given_hit),
            spread=None if spread is None else spread * abs(self.scale.std),
        )


def _joined(parts: Sequence[torch.Tensor | None]) -> torch.Tensor | None:
    present = [part for part in parts if part is not None]
    return torch.cat(present) if len(present) == len(parts) else None


def build_predictor(
    config: Config,
    data: TrainingData,
    recorded: Mapping[str, Any] | None = None,
) -> Predictor:
    """Return a new predictor of a config; a network has taken in the training part.

    `recorded` are the facts of an earlier attempt. The name of a merged relation stands for the
    relation that it was merged into.
    """
    merged: dict[str, str] = {}
    for new, olds in config.data.merge_relations.items():
        merged |= dict.fromkeys(olds, new)
    context = BuildContext(
        data.cell,
        data.largest,
        merged_relations=merged,
        recorded=recorded or {},
    )
    predictor = config.model.build(context)
    if isinstance(predictor, Model):
        predictor.begin(data.cell, data.labelled(data.split.train))
    return predictor


def build_model(
    config: Config,
    data: TrainingData,
    recorded: Mapping[str, Any] | None = None,
) -> Model:
    """Return `build_predictor` for a config whose predictor the training loop trains."""
    return _of_kind(Model, build_predictor(config, data, recorded), config)


def build_fitted(config: Config, data: TrainingData) -> FittedPredictor:
    """Return `build_predictor` for a config whose predictor is fitted in one call."""
    return _of_kind(FittedPredictor, build_predictor(config, data), config)


Kind = TypeVar("Kind", Model, FittedPredictor)


def _of_kind(kind: type[Kind], predictor: Predictor, config: Config) -> Kind:
    if not isinstance(predictor, kind):
        what = f"model={config.model.name} builds a {type(predictor).__name__}, which is not a "
        fix = "Let the config say trained_by='loop' for a Model, and 'fit' for a FittedPredictor."
        raise InputError(f"{what}{kind.__name__}", code="broken-model", fix=fix)
    return predictor


def model_record(config: Config, model: Model, cell: Cell) -> ModelFacts:
    """Return what the record of a run says of its model and loss."""
    relations = tuple(cell.relations) if model.relations is None else model.relations
    return ModelFacts(
        name=config.model.name,
        loss=config.loss.name,
        relations=relations,
        messages=model.messages(),
    )
