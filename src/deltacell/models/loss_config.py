"""The settings of the losses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from deltacell.models.config import (
    AtLeast0,
    AtLeast1,
    LossConfig,
    ModelConfig,
    Positive,
    Weight,
    one_of,
)
from deltacell.models.variation import Variation, VariationKind

if TYPE_CHECKING:
    from deltacell.models.losses import Loss

LOSS_SCHEDULES = one_of("pre_then_post linear_until_uniform linear_until_flipped additive")


@dataclass
class DangoLossConfig(LossConfig):
    """Interaction loss plus reconstruction loss of the networks; the default of model=dango."""

    name: str = "dango"
    schedule: Annotated[str, LOSS_SCHEDULES] = "linear_until_uniform"
    turn: AtLeast1 = 10
    factor: Weight = 0.001

    def reads(self) -> tuple[str, ...]:
        """Return the name of the reconstruction loss."""
        return ("reconstruction",)

    def build(self, model: ModelConfig, epochs: int) -> Loss:
        """Return a new loss, which is imported with PyTorch."""
        from deltacell.models.losses import DangoLoss

        return DangoLoss(**self.options())


@dataclass
class LogCoshConfig(LossConfig):
    """Mean log cosh of the error."""

    name: str = "log_cosh"

    def build(self, model: ModelConfig, epochs: int) -> Loss:
        """Return a new loss, which is imported with PyTorch."""
        from deltacell.models.losses import LogCosh

        return LogCosh()


@dataclass
class NoLossConfig(LossConfig):
    """No loss, for predictors that are fitted in one call."""

    name: str = "none"

    def fits(self, model: ModelConfig) -> bool:
        """Return whether the model is fitted in one call."""
        return model.trained_by == "fit"


@dataclass
class PointDistributionContrastConfig(LossConfig):
    """Squared error, Wasserstein distance and contrastive loss; the default of most networks."""

    name: str = "point_distribution_contrast"
    lambda_mse: Weight = 1.0
    lambda_w: Weight = 0.1
    lambda_c: Weight = 0.0
    buffer: AtLeast0 = 256
    warmup: AtLeast1 = 100
    stable: AtLeast1 = 500
    temperature: Positive = 1.0
    final_temperature: Positive = 0.1
    gather_interval: AtLeast0 = 1

    def reads(self) -> tuple[str, ...]:
        """Return the vectors to contrast, if they are contrasted."""
        return ("z",) if self.lambda_c else ()

    def variations(self) -> Iterator[Variation]:
        """Yield the loss without the rows of other processes, and each of its terms left out."""
        if self.gather_interval:
            yield Variation(VariationKind.gather, {"loss.gather_interval": 0})
        for term in ("lambda_w", "lambda_c"):
            if getattr(self, term):
                yield Variation(VariationKind.loss, {f"loss.{term}": 0.0})

    def build(self, model: ModelConfig, epochs: int) -> Loss:
        """Return a new loss, which is imported with PyTorch."""
        from deltacell.models.losses import PointDistributionContrast

        width = model.gives().get("z") or 0
        return PointDistributionContrast(**self.options(), width=width, max_epochs=epochs)
