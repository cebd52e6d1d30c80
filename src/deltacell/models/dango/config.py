"""The settings of DANGO."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from deltacell.models.config import (
    LARGEST_RELATION,
    AtLeast1,
    LossConfig,
    ModelConfig,
    null_as_no_features,
)
from deltacell.models.variation import Variation, VariationKind

if TYPE_CHECKING:
    from deltacell.cell import Cell
    from deltacell.models.interface import BuildContext, Predictor
    from deltacell.screen import Screen

STRING_LAMBDAS: Mapping[str, float] = {
    "string_neighborhood": 1.0,
    "string_fusion": 1.0,
    "string_cooccurence": 1.0,
    "string_coexpression": 0.1,
    "string_experimental": 0.1,
    "string_database": 1.0,
}
"""The weight of a non-edge in the reconstruction of each channel of STRING."""

STRING_RELATIONS = tuple(STRING_LAMBDAS)
UNION_LAMBDA = 0.1  # for the union of all STRING channels; the value of the densest one


@dataclass
class DangoConfig(ModelConfig):
    """DANGO: gene embeddings that reconstruct the networks and score gene sets."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "loop"
    predictor: ClassVar[str] = "deltacell.models.dango.model:Dango"
    default_loss: ClassVar[str] = "dango"

    name: str = "dango"
    relations: list[str] | None = None
    hidden: AtLeast1 = 64
    layers: AtLeast1 = 2
    features: list[str] | None = field(default_factory=list)
    lambdas: dict[str, float] = field(default_factory=lambda: {"string": UNION_LAMBDA})
    heads: AtLeast1 = 4

    def build(self, context: BuildContext) -> Predictor:
        """Return the model for the relations of the cell that have a lambda."""
        relations = STRING_RELATIONS if self.relations is None else self.relations
        lambdas = {**STRING_LAMBDAS, **self.lambdas}
        options = self.options() | {
            "relations": context.relations_named(relations, usable=lambdas),
            "lambdas": lambdas,
            "largest": context.largest_set,
        }
        model: Predictor = self.predictor_class()(context.cell, **options)
        return model

    def variations(self) -> Iterator[Variation]:
        """Yield the model with one network."""
        if self.relations is None or len(self.relations) > 1:
            yield Variation(VariationKind.relations, {"model.relations": [LARGEST_RELATION]})

    @classmethod
    def upgraded(cls, settings: dict[str, Any], saved_format: int) -> dict[str, Any]:
        """Return settings of an earlier format in the present one."""
        return null_as_no_features(settings, saved_format)

    def gives(self) -> dict[str, int | None]:
        """Return the intermediate results that a loss can read, with their widths."""
        return {"z": self.hidden, "reconstruction": None}

    def leaves_parameters_unused(self, loss: LossConfig) -> bool:
        """Return whether some parameters never get a gradient from a loss."""
        # The heads of the reconstruction serve only a loss that reads it.
        return "reconstruction" not in loss.reads()

    def settings_for(self, cell: Cell, screen: Screen) -> dict[str, Any]:
        """Return the STRING channels of a cell or, without any, all relations."""
        channels = [name for name in STRING_RELATIONS if name in cell.relations]
        relations = channels or list(cell.relations)
        settings = super().settings_for(cell, screen)
        if not channels:
            settings["model.lambdas"] = dict.fromkeys(relations, 1.0)
        return settings | {"model.relations": relations}
