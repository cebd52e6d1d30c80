"""The settings of PairTrees."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from deltacell.models.config import (
    MOST_GENOTYPES,
    AtLeast0,
    AtLeast1,
    AtLeast2,
    ModelConfig,
    Positive,
    ToOne,
    Weight,
)

if TYPE_CHECKING:
    from deltacell.cell import Cell
    from deltacell.screen import Screen

# Chosen among 7, 15 and 63 leaves by validation on samples of Costanzo 2010: 7 were best for 3,000
# pairs (Pearson 0.101, and 0.074 with 63) and 15 for 12,000 pairs (0.251, and 0.243 with 63).
_ROWS_PER_LEAF = 800
_LEAVES = (7, 63)


@dataclass
class PairTreesConfig(ModelConfig):
    """Gradient-boosted trees on votes, additive effects, gene features and networks."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "fit"
    predictor: ClassVar[str] = "deltacell.models.pair_trees.model:PairTrees"
    reads_context: ClassVar[bool] = True

    name: str = "pair_trees"
    rounds: AtLeast1 = 400
    patience: AtLeast1 = 40
    leaves: AtLeast2 = 63
    learning_rate: ToOne = 0.05
    column_share: ToOne = 0.3
    row_share: ToOne = 0.6
    penalty: Positive = 3.0
    folds: AtLeast2 = 5
    gene_folds: AtLeast2 = 5
    gene_rounds: AtLeast0 = 1
    zeros: Weight = 1.0
    features: list[str] | None = None

    def settings_for(self, cell: Cell, screen: Screen) -> dict[str, Any]:
        n = min(len(screen), MOST_GENOTYPES)
        return {"model.leaves": int(np.clip(n // _ROWS_PER_LEAF, *_LEAVES))}

    def rounds_of_fit(self, *, has_zeros: bool) -> int:
        # With a list of hits, a second fit is for the tested pairs that are not listed.
        return self.rounds * (2 if has_zeros else 1)

    def with_rounds(self, rounds: int) -> PairTreesConfig:
        return replace(self, rounds=rounds)
