"""How message passing is carried out on many mutants of one cell."""

from deltacell.propagate.deleted import Deleted, DeletedNodes
from deltacell.propagate.dense import Dense
from deltacell.propagate.gradients import gradients_of
from deltacell.propagate.hop import (
    GENE,
    METABOLITE,
    REACTION,
    Aggregate,
    Hop,
    Message,
    MessageGradients,
    RowWise,
)
from deltacell.propagate.pool import Readout, Terms
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Mutants, Propagation, WildType
from deltacell.propagate.registry import STRATEGIES, strategy
from deltacell.propagate.shared import Shared

__all__ = [
    "GENE",
    "METABOLITE",
    "REACTION",
    "STRATEGIES",
    "Aggregate",
    "Deleted",
    "DeletedNodes",
    "Dense",
    "Hop",
    "Message",
    "MessageGradients",
    "Mutants",
    "Propagation",
    "Readout",
    "RowWise",
    "Shared",
    "SparseMatrix",
    "Terms",
    "WildType",
    "gradients_of",
    "strategy",
]
