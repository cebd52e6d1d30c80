"""How message passing is carried out on many mutants of one cell."""

from deltacell.propagate.auto import STRATEGIES, Auto, Choice, strategy
from deltacell.propagate.changed import Rates
from deltacell.propagate.delta import Delta
from deltacell.propagate.dense import Dense
from deltacell.propagate.hop import (
    GENE,
    METABOLITE,
    REACTION,
    Aggregate,
    Hop,
    Message,
    MessageGradients,
    Readout,
    RowWise,
    Terms,
    gradients_of,
)
from deltacell.propagate.late import Late, by_difference, smaller_sets
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Deleted, DeletedNodes, Mutants, Propagation, WildType
from deltacell.propagate.shared import Shared
from deltacell.propagate.touched import Touched

__all__ = [
    "GENE",
    "METABOLITE",
    "REACTION",
    "STRATEGIES",
    "Aggregate",
    "Auto",
    "Choice",
    "Deleted",
    "DeletedNodes",
    "Delta",
    "Dense",
    "Hop",
    "Late",
    "Message",
    "MessageGradients",
    "Mutants",
    "Propagation",
    "Rates",
    "Readout",
    "RowWise",
    "Shared",
    "SparseMatrix",
    "Terms",
    "Touched",
    "WildType",
    "by_difference",
    "gradients_of",
    "smaller_sets",
    "strategy",
]
