"""The ladder: the slower ways of propagating mutants that led to `shared` and `delta`.

Each is exact, and written as it would be used, so that anyone can see what it costs.
"""

from deltacell.propagate.ladder.masks import DeviceMask, EdgeMask, StoredEdges, StoredMasks
from deltacell.propagate.ladder.subgraph import Subgraph

__all__ = ["DeviceMask", "EdgeMask", "StoredEdges", "StoredMasks", "Subgraph"]
