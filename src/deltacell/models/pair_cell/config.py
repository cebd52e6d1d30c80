"""The settings of PairCell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from deltacell.models.config import AtLeast1, AtLeast2, BelowOne, ModelConfig, Positive


@dataclass
class PairCellConfig(ModelConfig):
    """PairCell: a neural network on the scores measured next to a set."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "loop"
    predictor: ClassVar[str] = "deltacell.models.pair_cell.model:PairCell"
    default_loss: ClassVar[str] = "point_distribution_contrast"

    name: str = "pair_cell"
    features: list[str] | None = None
    hidden: AtLeast1 = 64
    heads: AtLeast1 = 8
    nearest: AtLeast1 = 48
    nearest_both: AtLeast1 = 12
    drop_genes: BelowOne = 0.2
    dropout: BelowOne = 0.1
    penalty: Positive = 3.0
    folds: AtLeast2 = 5
