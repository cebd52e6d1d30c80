"""Mutants as graphs of their own, and the strategy `subgraph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import torch

from deltacell.errors import InputError
from deltacell.propagate.hop import (
    ALL,
    GENE,
    Aggregate,
    Hop,
    Readout,
    Rows,
    State,
    Terms,
    pool_difference,
    wild_pool,
)
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Deleted, Mutants, WildType


class Link(NamedTuple):
    """A matrix and the kinds of node that its rows and columns are; its entries are the edges."""

    matrix: SparseMatrix
    target: str
    source: str


def links_of(hops: Sequence[Hop]) -> tuple[Link, ...]:
    """Return the links of all hops, each once, in the order in which they are first used."""
    links = (Link(a.matrix, hop.target, a.source) for hop in hops for a in hop.aggregates)
    return tuple(dict.fromkeys(links))


Receive = Callable[[Aggregate, str, torch.Tensor], torch.Tensor]
"""From an aggregate, its kind of target and the sources' x [m, hidden] to what targets receive."""


def propagate(
    hops: Sequence[Hop], state: State, rows: Mapping[str, Rows], receive: Receive
) -> list[State]:
    """Return the vectors [m, hidden] before each hop and after the last.

    `rows` says which nodes of the cell they are, by kind.
    """
    states = [state]
    for hop in hops:
        with hop.around():
            old = states[-1]
            received = [receive(a, hop.target, old[a.source]) for a in hop.aggregates]
            new = hop.update(
                old[hop.target].unsqueeze(1), torch.stack(received).unsqueeze(2), rows[hop.target]
            )
            states.append({**old, hop.target: new.squeeze(1).to(old[hop.target].dtype)})
    return states


def read_out(
    genes: torch.Tensor,
    rows: torch.Tensor,
    owner: torch.Tensor,
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    *,
    vectors: bool,
) -> Mutants:
    """Pool mutants and take them from the pooled wild type.

    From the vectors of the genes of all mutants [m, hidden], which gene each is, and whose.
    """
    batch, wild = len(deleted), wild_type.last[GENE]
    lost = deleted.nodes[GENE]
    living = torch.ones(len(wild), batch, dtype=torch.bool, device=wild.device)
    living[lost.nodes, lost.owner] = False

    def spread(x: torch.Tensor) -> torch.Tensor:
        return x.new_zeros(len(wild), batch, *x.shape[1:]).index_put((rows, owner), x)

    pool = wild_pool(readout.terms(wild, ALL))
    z = pool_difference(pool, Terms(*map(spread, readout.terms(genes, rows))), living)
    if not vectors:
        return Mutants(z, pool.pooled)
    per_gene = spread(genes).masked_fill(~living.unsqueeze(2), 0).transpose(0, 1)
    return Mutants(z, pool.pooled, per_gene)


@dataclass(frozen=True, eq=False)
class Subgraphs(Deleted):
    """A batch with the graphs of its mutants, which is what its loader sends.

    A PyG `HeteroDataBatch` with a node type per kind, whose ``rows`` say which nodes of the cell
    are left, and an edge type per link.
    """

    graphs: Any = None

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of the graphs per genotype, all of their tensors."""
        tensors = (v for part in self.graphs.stores for v in part.values())
        return sum(v.nbytes for v in tensors if isinstance(v, torch.Tensor)) / len(self)


@dataclass(frozen=True)
class Subgraph:
    """The definition as a PyG user writes it down.

    The subgraph that the living nodes induce is cut out of the cell for every genotype; the
    subgraphs of a batch are collated into one large graph, and messages pass over that. Every
    mutant has a copy of nearly all edges of the cell: cut, copied, sent, and then gathered along,
    one message at a time.
    """

    name = "subgraph"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Cut out the subgraphs and collate them."""
        from torch_geometric.data import Batch

        if not len(deleted):
            return deleted
        whole = _whole(links_of(hops))
        graphs = []
        for genotype in range(len(deleted)):
            living = {}
            for kind in whole.node_types:
                kept = torch.ones(whole[kind].num_nodes, dtype=torch.bool)
                if kind in deleted.nodes:
                    kept[deleted.nodes[kind].tile(genotype, genotype + 1).nodes] = False
                living[kind] = kept
            graphs.append(whole.subgraph(living))
        return Subgraphs(deleted.genotypes, deleted.nodes, Batch.from_data_list(graphs))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the whole cell, edge by edge."""
        whole = copy(_whole(links_of(hops))).to(state[GENE].device)
        receive = _convolution(hops, whole)
        return WildType(tuple(propagate(hops, state, dict.fromkeys(state, ALL), receive)))

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
        first = wild_type.first
        if not isinstance(deleted, Subgraphs):
            if len(deleted):
                raise not_prepared(self.name)
            none = torch.zeros(0, dtype=torch.int64, device=first[GENE].device)
            genes = first[GENE][none]
            return read_out(genes, none, none, wild_type, deleted, readout, vectors=vectors)
        graphs = deleted.graphs
        # A kind without edges, such as one that no layer reads, is in no graph.
        rows = {kind: graphs[kind].rows for kind in first if kind in graphs.node_types}
        state = {kind: first[kind].index_select(0, at) for kind, at in rows.items()}
        genes = propagate(hops, state, rows, _convolution(hops, graphs))[-1][GENE]
        owner = graphs[GENE].batch
        return read_out(genes, rows[GENE], owner, wild_type, deleted, readout, vectors=vectors)


def not_prepared(name: str) -> InputError:
    """Return the error of a batch that was not prepared by the strategy it was given to."""
    return InputError(
        f"the genotypes were not prepared by the propagation '{name}'",
        code="not-prepared",
        fix="Prepare them with this model's `prepare`.",
    )


def _convolution(hops: Sequence[Hop], graph: Any) -> Receive:
    """Return PyG's message passing: gather along the edges of a graph, scatter at their targets."""
    from torch_geometric.nn import SimpleConv

    types = {link: _edge_type(i, link) for i, link in enumerate(links_of(hops))}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        edges = graph[types[Link(a.matrix, target, a.source)]]
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        weight = None if a.matrix.values is None else edges.edge_weight.to(x.dtype)
        n = graph[target].num_nodes
        both = (x, x.new_zeros(n, 0))
        convolution = SimpleConv(aggr="mean" if a.mean else "sum")
        found: torch.Tensor = convolution(both, edges.edge_index, weight, size=(len(x), n))
        return found

    return receive


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
