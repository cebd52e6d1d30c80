"""What a model must beat to be worth its cost; all are fitted, called and saved in the same way."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

from deltacell.errors import InputError, did_you_mean
from deltacell.models.baselines.additive import Additive
from deltacell.models.baselines.baseline import FittedPredictor, Progress
from deltacell.models.baselines.boosted_trees import BoostedTrees
from deltacell.models.baselines.embedding_mlp import EmbeddingMLP
from deltacell.models.baselines.global_mean import GlobalMean
from deltacell.models.baselines.query_pair_mean import QueryPairMean

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
    """Return a new baseline by its name, one of `BASELINES`.

    Parameters
    ----------
    name
        Such as ``additive``.
    **parameters
        The parameters of its class.
    """
    check_baseline(name)
    return BASELINES[name](**parameters)


def check_baseline(name: str) -> None:
    """Raise where there is no baseline of that name."""
    if name not in BASELINES:
        raise InputError(
            f"there is no baseline '{name}'{did_you_mean(name, BASELINES)}; "
            f"there are {', '.join(BASELINES)}"
        )


__all__ = [
    "BASELINES",
    "Additive",
    "BoostedTrees",
    "EmbeddingMLP",
    "FittedPredictor",
    "GlobalMean",
    "Progress",
    "QueryPairMean",
    "baseline",
    "check_baseline",
]
