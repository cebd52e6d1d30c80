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
        pair_votes,
        set_votes,
        voters,
    )

__all__ = ["Known", "Measured", "Neighbours", "PairCell", "PairColumns", "PairTrees", "Zeros"]
__all__ += ["pair_votes", "set_votes", "training_columns", "voters"]

_MESSAGES = ("Measured", "Neighbours", "pair_votes", "set_votes", "voters")
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
