"""Messages between pairs: the screen as a relation, and the predictors that use it."""

from deltacell.models.baselines.baseline import Zeros
from deltacell.models.pairs.columns import Known, PairColumns, training_columns
from deltacell.models.pairs.messages import Measured, Neighbours, pair_votes, set_votes, voters
from deltacell.models.pairs.pair_cell import PairCell
from deltacell.models.pairs.trees import PairTrees

__all__ = ["Known", "Measured", "Neighbours", "PairCell", "PairColumns", "PairTrees", "Zeros"]
__all__ += ["pair_votes", "set_votes", "training_columns", "voters"]
