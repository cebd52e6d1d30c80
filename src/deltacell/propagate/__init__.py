"""Message passing on many mutants of one cell."""

from deltacell.propagate.auto import STRATEGIES, Auto, strategy
from deltacell.propagate.base import Deleted, DeletedNodes, Mutants, Propagation, WildType
from deltacell.propagate.delta import Delta, Shared
from deltacell.propagate.hop import GENE, METABOLITE, REACTION, Aggregate, Hop, Message
from deltacell.propagate.late import Late, Touched
from deltacell.propagate.pool import Terms
from deltacell.propagate.product import SparseMatrix

__all__ = ["GENE", "METABOLITE", "REACTION", "STRATEGIES", "Aggregate", "Auto", "Deleted"]
__all__ += ["DeletedNodes", "Delta", "Hop", "Late", "Message", "Mutants", "Propagation"]
__all__ += ["Shared", "SparseMatrix", "Terms", "Touched", "WildType", "strategy"]
