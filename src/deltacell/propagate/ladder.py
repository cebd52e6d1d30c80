"""The ladder: the slower ways of propagating mutants that led to `shared` and `delta`.

All are exact, and pass messages along the edges of a batch of mutants as one large graph. They
differ in where the mask over its edges comes from; docs/why/the-ladder.md compares their costs.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from deltacell import storage
from deltacell.base.errors import InputError
from deltacell.profile.record import Messages
from deltacell.propagate.base import Batch, Deleted, Mutants, Propagation, WildType, propagate
from deltacell.propagate.hop import GENE, Aggregate, Hop, State
from deltacell.propagate.pool import Terms, pool_difference
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.workers import ALL


class Link(NamedTuple):
    """A matrix whose entries are edges, and the kinds of node of its rows and columns."""

    matrix: SparseMatrix
    target: str
    source: str


def links_of(hops: Sequence[Hop]) -> tuple[Link, ...]:
    links = (Link(a.matrix, hop.target, a.source) for hop in hops for a in hop.aggregates)
    return tuple(dict.fromkeys(links))


class Edges(NamedTuple):
    """The edges of one link in a batch of mutants; node i of mutant b has index ``b * n + i``."""

    sources: Tensor
    targets: Tensor
    weights: Tensor | None
    kept: Tensor | None = None  # a mask over the edges; None keeps all


class EdgeMask(Propagation):
    """The loader makes the masks, with an index from every gene to the positions of its edges."""

    name: ClassVar[str] = "edge_mask"
    passes: ClassVar[Messages] = Messages.masked_edges

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Return the tensors that the loader sends for each link."""
        return [(mask_of(link, deleted),) for link in links]

    def mask(self, link: Link, deleted: Deleted, *sent: Tensor) -> Tensor:
        """Return which edges of a link each mutant has, from the tensors that were sent."""
        return sent[0]

    def edges(self, link: Link, deleted: Deleted, *sent: Tensor) -> Edges:
        mask = self.mask(link, deleted, *sent)
        return repeated(link, len(deleted), mask.device)._replace(kept=mask.flatten())

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        plan = tuple(self.sent(links_of(hops), deleted))
        return replace(deleted, plan=plan, sent=sum(x.nbytes for sent in plan for x in sent))

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        def receive(a: Aggregate, target: str, x: Tensor) -> Tensor:
            return received(a, x, 1, repeated(Link(a.matrix, target, a.source), 1, x.device))

        return WildType(tuple(propagate(hops, state, dict.fromkeys(state, ALL), receive)))

    def _mutants(self, batch: Batch) -> Mutants:
        # The graph contains the deleted nodes too, but no message reaches or leaves them.
        hops, deleted, first = batch.hops, batch.deleted, batch.wild_type.states[0]
        b, n, device = len(deleted), *first[GENE].shape[:1], first[GENE].device
        sent = dict(zip(links_of(hops), deleted.plan, strict=True))

        def receive(a: Aggregate, target: str, x: Tensor) -> Tensor:
            link = Link(a.matrix, target, a.source)
            return received(a, x, b, self.edges(link, deleted, *sent[link]))

        rows = {k: torch.arange(len(x), device=device).repeat(b) for k, x in first.items()}
        state = {kind: x.repeat(b, 1) for kind, x in first.items()}
        genes = propagate(hops, state, rows, receive)[-1][GENE]
        gate, value = batch.readout.terms(genes, rows[GENE])
        terms = Terms(gate.view(b, n).t(), value.view(b, n, -1).transpose(0, 1))
        lost = deleted.nodes[GENE]
        living = torch.ones(n, b, dtype=torch.bool, device=device)
        living[lost.nodes, lost.owner] = False
        return Mutants(pool_difference(batch.pool, terms, living), batch.pool.pooled)


class Subgraph(EdgeMask):
    """The subgraph that the living nodes induce, cut out of the cell for every genotype.

    This is how a PyG user would implement the definition; the subgraphs of a batch are collated.
    """

    name: ClassVar[str] = "subgraph"
    passes: ClassVar[Messages] = Messages.graph_per_mutant

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        found = []
        for link, (mask,) in zip(links, super().sent(links, deleted), strict=True):
            edges = repeated(link, len(deleted), mask.device)[:3]
            found.append(tuple(x[mask.flatten()] for x in edges if x is not None))
        return found

    def edges(self, link: Link, deleted: Deleted, *sent: Tensor) -> Edges:
        sources, targets, *weights = sent
        return Edges(sources, targets, weights[0] if weights else None)


class DeviceMask(EdgeMask):
    """The masks are made on the device, by indexed writes from the batch's list of genes."""

    name: ClassVar[str] = "device_mask"

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        return [()] * len(links)

    def mask(self, link: Link, deleted: Deleted, *sent: Tensor) -> Tensor:
        return mask_of(link, deleted)


class Stored(EdgeMask):
    """One array per genotype and link, computed by `fill` and read from disk by the loader.

    Genotypes are looked up by their set of genes, in any order. A store of another cell or screen
    raises an error.
    """

    kind: ClassVar[str]
    dtype: ClassVar[type[np.generic]]

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        self._path = store
        # The parts, the row of each genotype, and the links that the store was checked for.
        self._opened: tuple[dict[str, Any], dict[tuple[int, ...], int], Sequence[Link]]
        self._opened = {}, {}, ()

    def array_of(self, mask: Tensor) -> Tensor:
        """Return the array to store for one genotype and link with this mask."""
        return mask

    def fill(self, hops: Sequence[Hop], deleted: Deleted) -> None:
        links, genotypes = links_of(hops), deleted.lost
        parts = {"genotypes": pa.table({"genes": [sorted(g.tolist()) for g in genotypes]})}
        for number, link in enumerate(links):
            arrays = [self.array_of(mask).numpy().tobytes() for mask in mask_of(link, deleted)]
            parts[f"link{number}"] = pa.table({"array": pa.array(arrays, pa.large_binary())})
        storage.write(self._given(), self.kind, parts, {"cell": _checksum_of_links(links)})

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Read the stored arrays of a batch: for each link, their lengths and all values."""
        if self._opened[2] != links:
            there = storage.read(self._given(), self.kind)
            if there.meta["cell"] != _checksum_of_links(links):
                raise self._refused("store-of-another-cell", "the checksum of its cell differs")
            genes = there.parts["genotypes"]["genes"].to_pylist()
            self._opened = there.parts, {tuple(g): i for i, g in enumerate(genes)}, links
        parts, number, _ = self._opened
        keys = [tuple(sorted(genes.tolist())) for genes in deleted.lost]
        if absent := [key for key in keys if key not in number]:
            raise self._refused("store-of-another-screen", f"it lacks the genotype {absent[0]}")
        found = []
        for i in range(len(links)):
            column = parts[f"link{i}"]["array"]
            arrays = [np.frombuffer(column[number[k]].as_buffer(), self.dtype) for k in keys]
            whole = np.concatenate([np.empty(0, self.dtype), *arrays])
            sizes = torch.tensor([len(a) for a in arrays], dtype=torch.int64)
            found.append((sizes, torch.from_numpy(whole)))
        return found

    def _given(self) -> str | os.PathLike[str]:
        if self._path is None:
            raise self._refused("no-store", f"give one: strategy('{self.name}', store=PATH)")
        return self._path

    def _refused(self, code: str, why: str) -> InputError:
        what = f"the propagation '{self.name}' cannot use this {self.kind}: {why}"
        fix = "Fill a new one from this cell and this screen, with the strategy's `fill`."
        return InputError(what, code=code, where=self._path, fix=fix)


class StoredEdges(Stored):
    """The store has the positions of the removed edges; the masks are made in the step."""

    name: ClassVar[str] = "stored_edges"
    kind, dtype = "store of removed edges", np.int64

    def mask(self, link: Link, deleted: Deleted, *sent: Tensor) -> Tensor:
        sizes, positions = sent
        owner = torch.arange(len(deleted), device=sizes.device).repeat_interleave(sizes)
        mask = sizes.new_ones(len(deleted), link.matrix.n_entries, dtype=torch.bool)
        mask[owner, positions] = False
        return mask

    def array_of(self, mask: Tensor) -> Tensor:
        return (~mask).nonzero().squeeze(1)


class StoredMasks(Stored):
    """The store has the masks themselves, so they only have to be read."""

    name: ClassVar[str] = "stored_masks"
    kind, dtype = "store of edge masks", np.bool_

    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        return [(masks,) for _, masks in super().sent(links, deleted)]


def received(a: Aggregate, x: Tensor, batch: int, edges: Edges) -> Tensor:
    """Return the sum or mean of messages: gather at the sources, scatter at the targets."""
    sources, targets, weights, kept = edges
    messages = x.to(torch.promote_types(x.dtype, torch.float32)).index_select(0, sources)
    if weights is not None:
        messages = messages * weights.to(messages.dtype).unsqueeze(1)
    if kept is not None:
        messages = messages * kept.unsqueeze(1)
    n_targets = batch * a.matrix.shape[0]
    # index_add would needlessly keep the messages of every layer for the backward.
    at = targets.unsqueeze(1).expand_as(messages)
    total = messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, at, messages)
    if not a.mean:
        return total
    there = torch.ones_like(targets) if kept is None else kept
    counts = total.new_zeros(n_targets).index_add(0, targets, there.to(total.dtype))
    return total / counts.clamp(min=1).unsqueeze(1)


def repeated(link: Link, batch: int, device: torch.device) -> Edges:
    matrix, mutant = link.matrix, torch.arange(batch, device=device).unsqueeze(1)
    rows, columns = (matrix.tensor(name, device, torch.int64) for name in ("rows", "indices"))
    weights = None
    if matrix.values is not None:
        weights = matrix.tensor("values", device, torch.float64).repeat(batch)
    sources, targets = columns + mutant * matrix.shape[1], rows + mutant * matrix.shape[0]
    return Edges(sources.flatten(), targets.flatten(), weights)


def mask_of(link: Link, deleted: Deleted) -> Tensor:
    """Return which edges, the entries of the matrix, each mutant has, bool [b, n_edges]."""
    matrix, device = link.matrix, deleted.nodes[GENE].nodes.device
    mask = torch.ones(len(deleted), matrix.n_entries, dtype=torch.bool, device=device)
    order = matrix.tensor("transpose_order", device, torch.int64)
    in_place = torch.arange(len(order), device=device)
    ends = (link.target, matrix, in_place), (link.source, matrix.transpose, order)
    for kind, rows, position in ends:
        if (lost := deleted.nodes.get(kind)) is not None:
            offsets = rows.tensor("indptr", device, torch.int64)
            starts, lengths = offsets[lost.nodes], offsets.diff()[lost.nodes]
            which = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
            within = torch.arange(len(which), device=device) - (lengths.cumsum(0) - lengths)[which]
            mask[lost.owner[which], position[starts[which] + within]] = False
    return mask


def _checksum_of_links(links: Sequence[Link]) -> str:
    whole = hashlib.sha256()
    for link in links:
        matrix = link.matrix
        whole.update(f"{link.target} {link.source} {matrix.shape}".encode())
        whole.update(np.ascontiguousarray(matrix.indptr).data)
        whole.update(np.ascontiguousarray(matrix.indices, dtype=np.int64).data)
    return whole.hexdigest()
