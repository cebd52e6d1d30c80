"""The settings of HeteroCell."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from deltacell.models.config import (
    LARGEST_RELATION,
    AtLeast1,
    BelowOne,
    LossConfig,
    ModelConfig,
    null_as_no_features,
    one_of,
)
from deltacell.models.variation import Variation, VariationKind

if TYPE_CHECKING:
    from deltacell.models.interface import BuildContext, Predictor

PROPAGATIONS = one_of("shared delta late auto subgraph edge_mask device_mask")


@dataclass
class HeteroCellConfig(ModelConfig):
    """HeteroCell: the difference between the graphs of the wild type and the mutant."""

    trained_by: ClassVar[Literal["loop", "fit"]] = "loop"
    predictor: ClassVar[str] = "deltacell.models.hetero_cell.model:HeteroCell"
    default_loss: ClassVar[str] = "point_distribution_contrast"

    name: str = "hetero_cell"
    relations: list[str] | None = None
    hidden: AtLeast1 = 64
    layers: AtLeast1 = 3
    features: list[str] | None = field(default_factory=list)
    gin_layers: AtLeast1 = 2
    combine: Annotated[str, one_of("sum mean attention pairwise")] = "sum"
    output: Annotated[str, one_of("mean gate global")] = "mean"
    residual: bool = False
    metabolism: bool = False
    local_heads: AtLeast1 = 8
    local_layers: AtLeast1 = 2
    aggregation: Annotated[str, one_of("sum mean")] = "sum"
    z_norm: Annotated[str, one_of("scale norm none")] = "norm"
    dropout: BelowOne = 0.0
    mutant_layers: AtLeast1 | None = None
    epistasis: bool = False
    mutants: Annotated[str, one_of("true matched none")] = "true"
    propagation: Annotated[str, PROPAGATIONS] = "auto"
    max_bytes: AtLeast1 | None = None

    def build(self, context: BuildContext) -> Predictor:
        """Return the model, with the strategy that an earlier attempt has recorded."""
        from deltacell.propagate.choose import strategy

        options = self.options()
        bound = options.pop("max_bytes")
        recorded = (context.recorded.get("propagation") or {}).get("choice")
        bounds = {} if bound is None else {"max_bytes": bound}
        options["propagation"] = strategy(self.propagation, **(recorded or bounds))
        options["largest"] = context.largest_set
        if self.relations is not None:
            options["relations"] = context.relations_named(self.relations)
        model: Predictor = self.predictor_class()(context.cell, **options)
        return model

    def conflicts(self) -> Iterator[str]:
        """Yield what is wrong with the settings together."""
        if self.max_bytes is not None and self.propagation not in ("auto", "delta"):
            yield (
                f"model.max_bytes is for model.propagation=auto and delta, not {self.propagation}"
            )

    def variations(self) -> Iterator[Variation]:
        """Yield the faster strategies, and models that pass fewer messages."""
        for strategy in ("auto", "delta", "shared"):
            if self.propagation != strategy and not (self.epistasis and strategy != "auto"):
                settings = {"model.propagation": strategy, "model.max_bytes": None}
                yield Variation(VariationKind.propagation, settings, is_same_model=True)
        if self.relations is None or len(self.relations) > 1:
            yield Variation(VariationKind.relations, {"model.relations": [LARGEST_RELATION]})
        if self.metabolism:
            yield Variation(VariationKind.metabolism, {"model.metabolism": False})
        mutant_layers = self.layers if self.mutant_layers is None else self.mutant_layers
        if mutant_layers > 1:
            yield Variation(VariationKind.layers, {"model.mutant_layers": 1})

    @classmethod
    def upgraded(cls, settings: dict[str, Any], saved_format: int) -> dict[str, Any]:
        """Return settings of an earlier format in the present one."""
        return null_as_no_features(settings, saved_format)

    def gives(self) -> dict[str, int | None]:
        """Return the intermediate results that a loss can read, with their widths."""
        return {} if self.mutants == "none" else {"z": self.hidden}

    def leaves_parameters_unused(self, loss: LossConfig) -> bool:
        """Return whether some parameters never get a gradient."""
        # No gene reads the last layer of the metabolism.
        return self.metabolism
