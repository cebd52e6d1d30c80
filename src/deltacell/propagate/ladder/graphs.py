"""Mutants as graphs: their links, the batch as one large graph, and the strategy `subgraph`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch

from deltacell.arrays import offsets_of
from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, Rows, State
from deltacell.propagate.pool import Readout, Terms, pool_difference, wild_pool
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.protocol import Mutants, WildType


def not_prepared(name: str) -> InputError:
    """Return the error of a batch that was not prepared by the strategy it was given to."""
    return InputError(
        f"the genotypes were not prepared by the propagation '{name}'",
        fix="Prepare them with this model's `prepare`.",
    )


class Link(NamedTuple):
    """A matrix and the kinds of node that its rows and columns are.

    Its entries are the edges; an edge's position is its place among them, row by row.

    Parameters
    ----------
    matrix
        Row = target, column = source.
    target, source
        The kinds.
    """

    matrix: SparseMatrix
    target: str
    source: str

    @property
    def n_edges(self) -> int:
        """Number of entries: of an undirected relation, both directions."""
        return self.matrix.n_entries


def links_of(hops: Sequence[Hop]) -> tuple[Link, ...]:
    """Return the links of all hops, each once, in the order in which they are first used."""
    links = (Link(a.matrix, hop.target, a.source) for hop in hops for a in hop.aggregates)
    return tuple(dict.fromkeys(links))


@dataclass(frozen=True, eq=False)
class Incidence:
    """Which edges of a link touch each node of one kind, as a target or as a source.

    Parameters
    ----------
    offsets
        Where each node's positions begin, and the end, int64 [n + 1].
    positions
        Of the edges, node after node, int64.
    """

    offsets: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(cls, link: Link, device: torch.device | str = "cpu") -> dict[str, Incidence]:
        """Return the index of each kind of node of a link; kept for the next call."""
        kept = _OF_MATRIX.setdefault(link.matrix, {})
        key = (link.target, link.source, torch.device(device))
        if key not in kept:
            made = {kind: cls._made(link, kind) for kind in (link.target, link.source)}
            kept[key] = {
                kind: cls(index.offsets.to(device), index.positions.to(device))
                for kind, index in made.items()
            }
        return kept[key]

    @classmethod
    def _made(cls, link: Link, kind: str) -> Incidence:
        matrix = link.matrix
        row = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        ends = [row] if link.target == kind else []
        if link.source == kind:
            ends.append(matrix.indices.astype(np.int64))
        node = np.concatenate(ends)
        order = np.argsort(node, kind="stable")
        n_nodes = matrix.shape[0] if link.target == kind else matrix.shape[1]
        return cls(
            torch.from_numpy(offsets_of(np.bincount(node, minlength=n_nodes))),
            torch.from_numpy(order % max(matrix.n_entries, 1)),
        )

    def of_node(self, node: int) -> torch.Tensor:
        """Return the positions of one node's edges."""
        return self.positions[self.offsets[node] : self.offsets[node + 1]]

    def of_nodes(self, nodes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the positions of many nodes' edges, and which of the nodes each belongs to."""
        starts, lengths = self.offsets[nodes], self.offsets[nodes + 1] - self.offsets[nodes]
        which = torch.repeat_interleave(torch.arange(len(nodes), device=nodes.device), lengths)
        before = lengths.cumsum(0) - lengths
        at = torch.arange(len(which), device=nodes.device) - before[which] + starts[which]
        return self.positions[at], which


def removed_edges(link: Link, deleted: Deleted, genotype: int) -> torch.Tensor:
    """Return the positions of the edges that a genotype removes, ascending, each once.

    Parameters
    ----------
    link
        The matrix.
    deleted
        What a batch deletes, on the host.
    genotype
        Which of the batch.
    """
    found = [torch.zeros(0, dtype=torch.int64)]
    for kind, index in Incidence.of(link).items():
        if kind in deleted.nodes:
            lost = deleted.nodes[kind]
            begin, end = lost.starts[genotype], lost.starts[genotype + 1]
            found.extend(index.of_node(node) for node in lost.nodes[begin:end].tolist())
    return torch.from_numpy(np.unique(torch.cat(found).numpy()))


_Kept = dict[tuple[str, str, torch.device], dict[str, Incidence]]
_OF_MATRIX: WeakKeyDictionary[SparseMatrix, _Kept] = WeakKeyDictionary()


Receive = Callable[[Aggregate, str, torch.Tensor], torch.Tensor]
"""From an aggregate, its kind of target and the sources' x [m, hidden] to what targets receive."""


def propagated(
    hops: Sequence[Hop], state: State, rows: Mapping[str, Rows], receive: Receive
) -> list[State]:
    """Return the vectors before each hop and after the last.

    Everything in between is kept for the backward, as a plain model does.

    Parameters
    ----------
    hops
        Message passing, in order.
    state
        The vectors of each kind of node, [m, hidden].
    rows
        Which nodes of the cell these are, by kind.
    receive
        How messages are added up.
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


def wild_type_of(hops: Sequence[Hop], state: State, receive: Receive) -> WildType:
    """Propagate the wild type by the given way of adding up messages."""
    return WildType(tuple(propagated(hops, state, dict.fromkeys(state, ALL), receive)))


def mutants_of(
    hops: Sequence[Hop],
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    receive: Receive,
    *,
    vectors: bool,
) -> Mutants:
    """Propagate and read out whole mutants, one after the other along the rows.

    Node i of mutant b is row ``b * n + i``. Deleted nodes are there too; no message may reach or
    leave them, and nothing reads them.

    Parameters
    ----------
    hops, wild_type, deleted, readout, vectors
        As in `Propagation.mutants`.
    receive
        How messages are added up.
    """
    batch, first = len(deleted), wild_type.first
    rows = {k: torch.arange(len(x), device=x.device).repeat(batch) for k, x in first.items()}
    state = {kind: x.repeat(batch, 1) for kind, x in first.items()}
    genes = propagated(hops, state, rows, receive)[-1][GENE]
    return read_out(genes, rows[GENE], wild_type, deleted, readout, vectors=vectors)


def read_out(
    vectors_of_rows: torch.Tensor,
    rows: torch.Tensor,
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    *,
    vectors: bool,
    owner: torch.Tensor | None = None,
) -> Mutants:
    """Pool mutants and take them from the pooled wild type.

    Parameters
    ----------
    vectors_of_rows
        Of the genes of all mutants, [m, hidden].
    rows
        Which gene each is, [m].
    wild_type, deleted, readout, vectors
        As in `Propagation.mutants`.
    owner
        Whose gene each is, [m]; where not given, all genes of one mutant after the other.
    """
    batch, wild = len(deleted), wild_type.last[GENE]
    n_genes, lost = len(wild), deleted.nodes[GENE]
    living = torch.ones(batch, n_genes, dtype=torch.bool, device=wild.device)
    living[lost.owner, lost.nodes] = False

    def spread(x: torch.Tensor) -> torch.Tensor:
        if owner is None:
            return x.reshape(batch, n_genes, *x.shape[1:])
        empty = x.new_zeros(batch, n_genes, *x.shape[1:])
        return empty.index_put((owner, rows), x)

    pool = wild_pool(readout.terms(wild, ALL))
    gate, value = readout.terms(vectors_of_rows, rows)
    terms = Terms(spread(gate).transpose(0, 1), spread(value).transpose(0, 1))
    return Mutants(
        pool_difference(pool, terms, living.t()),
        pool.pooled,
        spread(vectors_of_rows).masked_fill(~living.unsqueeze(2), 0) if vectors else None,
    )


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
