"""The ladder: the slower ways of propagating mutants that led to `shared` and `delta`.

Each is exact, and written as it would be used, so that anyone can see what it costs.
"""

from deltacell.propagate.ladder.device_mask import DeviceMask
from deltacell.propagate.ladder.edge_mask import EdgeMask
from deltacell.propagate.ladder.stored_edges import StoredEdges
from deltacell.propagate.ladder.stored_masks import StoredMasks
from deltacell.propagate.ladder.subgraph import Subgraph

__all__ = ["DeviceMask", "EdgeMask", "StoredEdges", "StoredMasks", "Subgraph"]
