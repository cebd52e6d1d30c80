"""The baselines that a model must beat."""

from typing import TYPE_CHECKING

from deltacell.models.lazy import exports

if TYPE_CHECKING:
    from deltacell.models.baselines.additive import Additive, GlobalMean, QueryPairMean
    from deltacell.models.baselines.boosted_trees import BoostedTrees
    from deltacell.models.baselines.named import BASELINES, baseline
    from deltacell.models.fitted.predictor import FittedPredictor

__all__ = ["BASELINES", "Additive", "BoostedTrees", "FittedPredictor", "GlobalMean"]
__all__ += ["QueryPairMean", "baseline"]

__getattr__ = exports(
    __name__,
    {
        **dict.fromkeys(("Additive", "GlobalMean", "QueryPairMean"), "baselines.additive"),
        **dict.fromkeys(("BASELINES", "baseline"), "baselines.named"),
        "BoostedTrees": "baselines.boosted_trees",
        "FittedPredictor": "fitted.predictor",
    },
)
