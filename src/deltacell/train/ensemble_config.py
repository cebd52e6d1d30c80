"""The settings of an ensemble of runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

from deltacell.models.config import ModelConfig


@dataclass
class EnsembleConfig(ModelConfig):
    """Several runs as one predictor, weighted by the validation part: model.runs=[runs/a,runs/b].

    The data and the split are those of the runs.
    """

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.train.ensemble:Ensemble"
    needs_data: ClassVar[bool] = False

    name: str = "ensemble"
    runs: list[str] = field(default_factory=list)

    def with_paths(self, convert: Callable[[str], str]) -> Self:
        """Return the settings with the places of the runs converted."""
        return replace(self, runs=[convert(run) for run in self.runs])

    def data_from(self) -> str | None:
        """Return the first run, since all have the same data."""
        return self.runs[0] if self.runs else None
