"""What a model must beat to be worth its cost; all are fitted, called and saved in the same way."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from deltacell.models.base import check_choice
from deltacell.models.baselines.additive import Additive, GlobalMean, QueryPairMean
from deltacell.models.baselines.baseline import FittedPredictor
from deltacell.models.baselines.boosted_trees import BoostedTrees
from deltacell.models.baselines.embedding_mlp import EmbeddingMLP

BASELINES: MappingProxyType[str, type[FittedPredictor]] = MappingProxyType(
    {
        "global_mean": GlobalMean,
        "additive": Additive,
        "query_pair_mean": QueryPairMean,
        "embedding_mlp": EmbeddingMLP,
        "boosted_trees": BoostedTrees,
    }
)


def baseline(name: str, **parameters: Any) -> FittedPredictor:
    """Return a new baseline, one of `BASELINES`, with the parameters of its class."""
    check_baseline(name)
    return BASELINES[name](**parameters)


def check_baseline(name: str) -> None:
    """Raise unless a name is one of `BASELINES`."""
    check_choice("baseline", name, BASELINES)


__all__ = [
    "BASELINES",
    "Additive",
    "BoostedTrees",
    "EmbeddingMLP",
    "FittedPredictor",
    "GlobalMean",
    "QueryPairMean",
    "baseline",
    "check_baseline",
]
