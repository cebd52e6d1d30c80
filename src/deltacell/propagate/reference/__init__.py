"""The slower ways of propagating mutants that led to `shared` and `delta`.

All are exact, and pass messages along the edges of a batch of mutants as one large graph. They
differ in where the edges or the mask over them come from; docs/why/the-ladder.md compares their
costs.
"""

from deltacell.propagate.reference.edge_masks import DeviceMask, EdgeMask
from deltacell.propagate.reference.stores import StoredArrays, StoredEdges, StoredMasks
from deltacell.propagate.reference.subgraphs import Subgraph

__all__ = ["DeviceMask", "EdgeMask", "StoredArrays", "StoredEdges", "StoredMasks", "Subgraph"]
