"""The settings of predictors and losses, which need no PyTorch.

A model's config stands beside it, in a module that `deltacell.models.registry` imports by name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Self

import numpy as np
from msgspec import Meta
from omegaconf import MISSING as NO_VALUE

from deltacell.base.errors import InputError
from deltacell.models.variation import Variation, VariationKind

if TYPE_CHECKING:
    from deltacell.cell import Cell
    from deltacell.models.interface import BuildContext, Predictor
    from deltacell.models.losses import Loss
    from deltacell.screen import Screen

# OmegaConf checks types, but supports neither literals nor ranges, which `check` checks.
_MOST = sys.float_info.max
AtLeast0 = Annotated[int, Meta(ge=0)]
AtLeast1 = Annotated[int, Meta(ge=1)]
AtLeast2 = Annotated[int, Meta(ge=2)]
Weight = Annotated[float, Meta(ge=0, le=_MOST)]
Positive = Annotated[float, Meta(gt=0, le=_MOST)]
Share = Annotated[float, Meta(gt=0, lt=1)]
BelowOne = Annotated[float, Meta(ge=0, lt=1)]
ToOne = Annotated[float, Meta(gt=0, le=1)]


def one_of(names: str) -> Meta:
    """Return the annotation of a text that is one of some names, which are given by spaces."""
    return Meta(pattern=f"^({names.replace(' ', '|')})$")


LARGEST_RELATION = "largest"
"""What ``model.relations=[largest]`` contains; a relation of that name comes first."""

MOST_GENOTYPES = 1_000_000
"""How many genotypes settings chosen for a screen train on, to limit the memory."""

_BATCHES = 100  # per epoch, if batches are neither too small nor too large
_BATCH_SIZES = (32, 4096)


@dataclass
class ModelConfig:
    """The settings of a predictor; the first line of a subclass's docstring is its help."""

    trained_by: ClassVar[Literal["loop", "fit"]]
    """Whether the training loop trains it, as a `Model`, or a call of `FittedPredictor.fit`."""

    predictor: ClassVar[str] = ""
    """The class that `build` calls, as ``module:Class``, with the fields of the config."""

    default_loss: ClassVar[str] = "none"

    reads_context: ClassVar[bool] = False
    """Whether the predictor takes other studies into account."""

    needs_data: ClassVar[bool] = True
    """False for a predictor that uses the data of other runs, see `data_from`."""

    kinds_of_options: ClassVar[Mapping[str, VariationKind]] = {
        "relations": VariationKind.relations,
        "propagation": VariationKind.propagation,
        "max_bytes": VariationKind.propagation,
        "metabolism": VariationKind.metabolism,
        "hidden": VariationKind.width,
        "layers": VariationKind.layers,
    }
    """What `deltacell compare` calls a difference in an option; of others it is an option."""

    name: str = NO_VALUE

    @classmethod
    def predictor_class(cls) -> Any:
        """Import the class of the predictor, and with it PyTorch."""
        if not cls.predictor:
            fix = "Set predictor = 'module:Class', or define build(context)."
            raise InputError(f"{cls.__name__} names no class", code="broken-model", fix=fix)
        module, _, name = cls.predictor.partition(":")
        return getattr(import_module(module), name)

    def options(self) -> dict[str, Any]:
        """Return the settings except the name."""
        return {key: value for key, value in asdict(self).items() if key != "name"}

    def build(self, context: BuildContext) -> Predictor:
        """Return a new predictor; settings that contradict each other raise here."""
        of_cell = (context.cell,) if self.trained_by == "loop" else ()
        predictor: Predictor = self.predictor_class()(*of_cell, **self.options())
        return predictor

    def conflicts(self) -> Iterator[str]:
        """Yield a sentence for each pair of settings that contradict each other."""
        yield from ()

    def gives(self) -> dict[str, int | None]:
        """Return the intermediate results that a loss can read, with the width of vectors."""
        return {}

    def leaves_parameters_unused(self, loss: LossConfig) -> bool:
        """Return whether a step can leave parameters without a gradient; True is always safe."""
        return True

    def settings_for(self, cell: Cell, screen: Screen) -> dict[str, Any]:
        """Return settings of a run that suit a cell and a screen, by key."""
        if self.trained_by == "fit":
            return {}
        n = min(len(screen), MOST_GENOTYPES)
        return {"data.batch_size": 2 ** int(np.log2(np.clip(n // _BATCHES, *_BATCH_SIZES)))}

    def variations(self) -> Iterator[Variation]:
        """Yield what can be varied to find out what the time of a training depends on.

        `deltacell compare` tries it on the slower one of two trainings.
        """
        yield from ()

    def rounds_of_fit(self, *, has_zeros: bool) -> int:
        """Return how many rounds, such as trees, a fit takes; 0 if it is not made of rounds."""
        return 0

    def with_rounds(self, rounds: int) -> ModelConfig:
        """Return a config of a fit with fewer rounds, which tells how long one takes."""
        return self

    @classmethod
    def upgraded(cls, settings: dict[str, Any], saved_format: int) -> dict[str, Any]:
        """Return settings that an earlier version saved, changed so that they mean the same now."""
        return settings

    def with_paths(self, convert: Callable[[str], str]) -> Self:
        """Return the settings with every path in them converted; by default there is none."""
        return self

    def data_from(self) -> str | None:
        """Return the directory of the run whose data and split it uses; None for its own."""
        return None


def null_as_no_features(settings: dict[str, Any], saved_format: int) -> dict[str, Any]:
    """Return saved settings of a model for which, in format 1, ``features: null`` meant none."""
    if saved_format == 1 and settings.get("features", []) is None:
        return settings | {"features": []}
    return settings


@dataclass
class LossConfig:
    """The settings of a loss; the first line of a subclass's docstring is its help."""

    name: str = NO_VALUE

    def reads(self) -> tuple[str, ...]:
        """Return the intermediate results of the model that it needs."""
        return ()

    def fits(self, model: ModelConfig) -> bool:
        """Return whether a model can be trained with it."""
        return model.trained_by == "loop" and set(self.reads()) <= model.gives().keys()

    def variations(self) -> Iterator[Variation]:
        """Yield what can be varied, as `ModelConfig.variations` does."""
        yield from ()

    def build(self, model: ModelConfig, epochs: int) -> Loss:
        """Return a new loss for a model that is trained for so many epochs."""
        raise NotImplementedError

    def options(self) -> dict[str, Any]:
        """Return the settings except the name."""
        return {key: value for key, value in asdict(self).items() if key != "name"}
