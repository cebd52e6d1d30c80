"""Messages between pairs: the screen as a relation, which PairCell and PairTrees share."""

from typing import TYPE_CHECKING

from deltacell.models.lazy import exports

if TYPE_CHECKING:
    from deltacell.models.fitted.predictor import Zeros
    from deltacell.models.pair_cell.model import PairCell
    from deltacell.models.pair_trees.model import PairTrees
    from deltacell.models.pairs.columns import Known, PairColumns, training_columns
    from deltacell.models.pairs.messages import (
        Measured,
        Neighbours,
        larger_set_sums,
        pair_sums,
        votes_on,
    )

__all__ = ["Known", "Measured", "Neighbours", "PairCell", "PairColumns", "PairTrees", "Zeros"]
__all__ += ["larger_set_sums", "pair_sums", "training_columns", "votes_on"]

_MESSAGES = ("Measured", "Neighbours", "larger_set_sums", "pair_sums", "votes_on")
_COLUMNS = ("Known", "PairColumns", "training_columns")
__getattr__ = exports(
    __name__,
    {
        **dict.fromkeys(_MESSAGES, "pairs.messages"),
        **dict.fromkeys(_COLUMNS, "pairs.columns"),
        "PairCell": "pair_cell.model",
        "PairTrees": "pair_trees.model",
        "Zeros": "fitted.predictor",
    },
)
