"""The strategy `subgraph`: a graph of its own for every mutant, cut out and collated by PyG."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch

from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Aggregate, Hop, State
from deltacell.propagate.ladder.collated import propagated, read_out, wild_type_of
from deltacell.propagate.ladder.link import Link, links_of
from deltacell.propagate.ladder.masked import not_prepared
from deltacell.propagate.pool import Readout
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Mutants, WildType


@dataclass(frozen=True, eq=False)
class Subgraphs(Deleted):
    """A batch with the graphs of its mutants, which is what its loader sends.

    Parameters
    ----------
    graphs
        A PyG `HeteroDataBatch` with a node type a kind, whose ``rows`` say which nodes of the cell
        are left, and an edge type a link.
    """

    graphs: Any = None

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of the graphs a genotype, all of their tensors."""
        if self.graphs is None:
            return 0.0
        tensors = (v for part in self.graphs.stores for v in part.values())
        total = sum(v.nbytes for v in tensors if isinstance(v, torch.Tensor))
        return total / len(self)


@dataclass(frozen=True)
class Subgraph:
    """The definition as a PyG user writes it down.

    The subgraph that the living nodes induce is cut out of the cell for every genotype; the
    subgraphs of a batch are collated into one large graph, and messages pass over that. Every
    mutant has a copy of nearly all edges of the cell: cut, copied, sent, and then gathered along,
    one message a time.
    """

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "subgraph"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Subgraphs:
        """Cut out the subgraphs and collate them."""
        from torch_geometric.data import Batch

        if not len(deleted):
            return Subgraphs(deleted.genotypes, deleted.nodes)
        whole = _whole(links_of(hops))
        graphs = []
        for genotype in range(len(deleted)):
            living = {}
            for kind in whole.node_types:
                kept = torch.ones(whole[kind].num_nodes, dtype=torch.bool)
                if kind in deleted.nodes:
                    lost = deleted.nodes[kind]
                    kept[lost.nodes[lost.starts[genotype] : lost.starts[genotype + 1]]] = False
                living[kind] = kept
            graphs.append(whole.subgraph(living))
        return Subgraphs(deleted.genotypes, deleted.nodes, Batch.from_data_list(graphs))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the whole cell, edge by edge."""
        whole = copy(_whole(links_of(hops))).to(state[GENE].device)
        return wild_type_of(hops, state, _Convolution(hops, whole))

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the collated subgraphs, edge by edge."""
        if not isinstance(deleted, Subgraphs):
            raise not_prepared(self.name)
        first, graphs = wild_type.first, deleted.graphs
        if graphs is None:
            nothing = torch.zeros(0, dtype=torch.int64, device=first[GENE].device)
            none = first[GENE][nothing]
            return read_out(
                none, nothing, wild_type, deleted, readout, vectors=vectors, owner=nothing
            )
        # A kind without edges, such as one that no layer reads, is in no graph.
        rows = {kind: graphs[kind].rows for kind in first if kind in graphs.node_types}
        state = {kind: first[kind].index_select(0, at) for kind, at in rows.items()}
        genes = propagated(hops, state, rows, _Convolution(hops, graphs))[-1][GENE]
        return read_out(
            genes,
            rows[GENE],
            wild_type,
            deleted,
            readout,
            vectors=vectors,
            owner=graphs[GENE].batch,
        )


class _Convolution:
    """PyG's message passing: gather along the edges of a graph, scatter at their targets."""

    def __init__(self, hops: Sequence[Hop], graph: Any) -> None:
        from torch_geometric.nn import SimpleConv

        self._types = {link: _edge_type(i, link) for i, link in enumerate(links_of(hops))}
        self._graph = graph
        self._by = {mean: SimpleConv(aggr="mean" if mean else "sum") for mean in (False, True)}

    def __call__(self, a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        """Return what each target receives, [n_targets, hidden]."""
        edges = self._graph[self._types[Link(a.matrix, target, a.source)]]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        weight = None if a.matrix.values is None else edges.edge_weight.to(x.dtype)
        size = (len(x), self._graph[target].num_nodes)
        received: torch.Tensor = self._by[a.mean](
            (x, x.new_zeros(size[1], 0)), edges.edge_index, weight, size=size
        )
        return received


def _edge_type(number: int, link: Link) -> tuple[str, str, str]:
    return link.source, f"link{number}", link.target


def _whole(links: tuple[Link, ...]) -> Any:
    """Return the cell as a PyG `HeteroData`; kept for the next call."""
    from torch_geometric.data import HeteroData

    kept = _WHOLE.setdefault(links[0].matrix, {})
    # Without the first, which the dictionary must not keep alive.
    key = (links[0][1:], links[1:])
    if key in kept:
        return kept[key]
    data = HeteroData()
    for number, link in enumerate(links):
        for kind, n in zip((link.target, link.source), link.matrix.shape, strict=True):
            data[kind].num_nodes = n
            data[kind].rows = torch.arange(n)
        row, column, values = link.matrix.entries(device="cpu", dtype=torch.float64)
        edges = data[_edge_type(number, link)]
        edges.edge_index = torch.stack([column, row])
        if link.matrix.values is not None:
            edges.edge_weight = values
    kept[key] = data
    return data


_WHOLE: WeakKeyDictionary[SparseMatrix, dict[Any, Any]] = WeakKeyDictionary()
