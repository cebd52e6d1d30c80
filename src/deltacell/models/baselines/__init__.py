"""The baselines that a model must beat."""

from typing import TYPE_CHECKING

from deltacell.models.lazy import exports

if TYPE_CHECKING:
    from deltacell.models.baselines.additive import Additive, GlobalMean
    from deltacell.models.baselines.boosted_trees import BoostedTrees
    from deltacell.models.baselines.factorisation import MatrixFactorisation
    from deltacell.models.baselines.low_rank import LowRank
    from deltacell.models.baselines.named import BASELINES, baseline
    from deltacell.models.baselines.nearest_profiles import NearestProfiles
    from deltacell.models.baselines.query_pairs import AdditivePair, QueryPair, QueryPairMean
    from deltacell.models.fitted.predictor import FittedPredictor

__all__ = ["BASELINES", "Additive", "AdditivePair", "BoostedTrees", "FittedPredictor"]
__all__ += ["GlobalMean", "LowRank", "MatrixFactorisation", "NearestProfiles", "QueryPair"]
__all__ += ["QueryPairMean", "baseline"]

__getattr__ = exports(
    __name__,
    {
        **dict.fromkeys(("Additive", "GlobalMean"), "baselines.additive"),
        **dict.fromkeys(("BASELINES", "baseline"), "baselines.named"),
        **dict.fromkeys(("AdditivePair", "QueryPair", "QueryPairMean"), "baselines.query_pairs"),
        "BoostedTrees": "baselines.boosted_trees",
        "FittedPredictor": "fitted.predictor",
        "LowRank": "baselines.low_rank",
        "MatrixFactorisation": "baselines.factorisation",
        "NearestProfiles": "baselines.nearest_profiles",
    },
)
