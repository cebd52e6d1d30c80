"""Every predictor by its name: its config, and where it is made.

A predictor joins with one line in `MODELS`, its config in `deltacell.train.config`, and a file in
``conf/model``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any

from deltacell.train.config import (
    AdditiveConfig,
    BoostedTreesConfig,
    DangoConfig,
    DangoLossConfig,
    EmbeddingMLPConfig,
    EnsembleConfig,
    GlobalMeanConfig,
    HeteroCellConfig,
    LogCoshConfig,
    LossConfig,
    ModelConfig,
    NoLossConfig,
    PairCellConfig,
    PairTreesConfig,
    PointDistributionContrastConfig,
    QueryPairMeanConfig,
)


@dataclass(frozen=True)
class Registered:
    """How a predictor is made from its config.

    Parameters
    ----------
    config
        Its config.
    home
        ``module:name`` of its class or of a function that makes it. That of a fitted predictor is
        called with the keys of the config but its name; that of a network trained by the loop
        with ``(config, cell, largest, propagation)``, see `deltacell.train.build`.
    fitted
        Whether it is a `FittedPredictor`, or a network that the training loop trains.
    describes
        ``module:name`` of the class whose docstring explains the keys; ``home`` where not given.
    """

    config: type[ModelConfig]
    home: str
    fitted: bool = True
    describes: str | None = None

    def load(self) -> Any:
        """Import what makes it; only now is PyTorch loaded."""
        return _imported(self.home)

    def described(self) -> type:
        """Import the class whose docstring explains the keys."""
        described: type = _imported(self.describes or self.home)
        return described


_BASELINES = "deltacell.models.baselines"
_BUILD = "deltacell.train.build"
_MODELS = "deltacell.models"

MODELS: Mapping[str, Registered] = MappingProxyType(
    {
        "additive": Registered(AdditiveConfig, f"{_BASELINES}:Additive"),
        "boosted_trees": Registered(BoostedTreesConfig, f"{_BASELINES}:BoostedTrees"),
        "dango": Registered(DangoConfig, f"{_BUILD}:build_dango", False, f"{_MODELS}:Dango"),
        "embedding_mlp": Registered(EmbeddingMLPConfig, f"{_BASELINES}:EmbeddingMLP"),
        "ensemble": Registered(EnsembleConfig, "deltacell.train.ensemble:Ensemble"),
        "global_mean": Registered(GlobalMeanConfig, f"{_BASELINES}:GlobalMean"),
        "hetero_cell": Registered(
            HeteroCellConfig, f"{_BUILD}:build_hetero_cell", False, f"{_MODELS}:HeteroCell"
        ),
        "pair_cell": Registered(
            PairCellConfig, f"{_BUILD}:build_pair_cell", False, "deltacell.models.pairs:PairCell"
        ),
        "pair_trees": Registered(PairTreesConfig, "deltacell.models.pairs:PairTrees"),
        "query_pair_mean": Registered(QueryPairMeanConfig, f"{_BASELINES}:QueryPairMean"),
    }
)
"""Every predictor that can be trained, by its name."""

MODEL_CONFIGS: Mapping[str, type[ModelConfig]] = MappingProxyType(
    {name: registered.config for name, registered in MODELS.items()}
)
"""The config of each predictor, by its name."""

LOSS_CONFIGS: Mapping[str, type[LossConfig]] = MappingProxyType(
    {
        "dango": DangoLossConfig,
        "log_cosh": LogCoshConfig,
        "none": NoLossConfig,
        "point_distribution_contrast": PointDistributionContrastConfig,
    }
)
"""The config of each loss, by its name."""


def is_fitted(model: ModelConfig) -> bool:
    """Return whether a config's predictor is fitted in one call, without the training loop."""
    return model.name in MODELS and MODELS[model.name].fitted


def options_of(config: ModelConfig | LossConfig) -> dict[str, Any]:
    """Return the keys of a config with their values, but its name."""
    return {name: value for name, value in asdict(config).items() if name != "name"}


def _imported(place: str) -> Any:
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
