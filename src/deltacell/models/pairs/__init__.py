"""Messages between pairs: the screen as a relation, and the predictors that read it."""

from deltacell.models.pairs.columns import Known, PairColumns, training_columns
from deltacell.models.pairs.messages import Measured, pair_votes, set_votes, voters
from deltacell.models.pairs.neighbours import Neighbours
from deltacell.models.pairs.pair_cell import PairCell
from deltacell.models.pairs.trees import PairTrees, Zeros

__all__ = [
    "Known",
    "Measured",
    "Neighbours",
    "PairCell",
    "PairColumns",
    "PairTrees",
    "Zeros",
    "pair_votes",
    "set_votes",
    "training_columns",
    "voters",
]
