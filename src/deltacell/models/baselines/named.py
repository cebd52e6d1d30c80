"""The baselines that a model must beat; all have the same interface."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from deltacell.base.checks import check_choice
from deltacell.models.baselines.additive import Additive, GlobalMean
from deltacell.models.baselines.boosted_trees import BoostedTrees
from deltacell.models.baselines.factorisation import MatrixFactorisation
from deltacell.models.baselines.low_rank import LowRank
from deltacell.models.baselines.nearest_profiles import NearestProfiles
from deltacell.models.baselines.query_pairs import AdditivePair, QueryPair, QueryPairMean
from deltacell.models.fitted.predictor import FittedPredictor

BASELINES: Mapping[str, type[FittedPredictor]] = {
    "global_mean": GlobalMean,
    "additive": Additive,
    "query_pair": QueryPair,
    "query_pair_mean": QueryPairMean,
    "additive_pair": AdditivePair,
    "matrix_factorisation": MatrixFactorisation,
    "low_rank": LowRank,
    "nearest_profiles": NearestProfiles,
    "boosted_trees": BoostedTrees,
}


def baseline(name: str, **parameters: Any) -> FittedPredictor:
    """Return a new baseline, one of `BASELINES`, with the parameters of its class."""
    check_choice("baseline", name, BASELINES)
    return BASELINES[name](**parameters)
