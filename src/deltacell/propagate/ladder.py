"""The ladder: the slower ways of propagating mutants that led to `shared` and `delta`.

All are exact, and pass messages along the edges of a batch of mutants as one large graph. They
differ in where the mask over its edges comes from; docs/why/the-ladder.md tells what each costs.
"""

from __future__ import annotations

import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor

from deltacell import store
from deltacell.errors import InputError
from deltacell.propagate.base import Batch, Deleted, Mutants, Propagation, WildType, propagate
from deltacell.propagate.hop import ALL, GENE, Aggregate, Hop, State
from deltacell.propagate.pool import Terms, pool_difference
from deltacell.propagate.product import SparseMatrix


class Link(NamedTuple):
    """A matrix and the kinds of node that its rows and columns are; its entries are the edges."""

    matrix: SparseMatrix
    target: str
    source: str


def links_of(hops: Sequence[Hop]) -> tuple[Link, ...]:
    links = (Link(a.matrix, hop.target, a.source) for hop in hops for a in hop.aggregates)
    return tuple(dict.fromkeys(links))


@dataclass(frozen=True, eq=False)
class Sent(Deleted):
    """A batch with what its loader sends about the edges, so many tensors per link."""

    tensors: tuple[Tensor, ...] = ()

    @property
    def loader_bytes_per_genotype(self) -> float:
        sent = sum(x.nbytes for x in self.tensors)
        return (sent + self.genotypes.nbytes) / max(len(self), 1)


class Edges(NamedTuple):
    """The edges of one link in a batch of mutants; node i of mutant b is number ``b * n + i``."""

    sources: Tensor
    targets: Tensor
    weights: Tensor | None
    kept: Tensor | None = None  # which of them are there; None is all


class EdgeMask(Propagation):
    """Masks that the loader makes, by an index from every gene to the positions of its edges."""

    name: ClassVar[str] = "edge_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        masks = tuple(mask_of(link, deleted) for link in links_of(hops))
        return Sent(deleted.genotypes, deleted.nodes, masks)

    def mask(self, number: int, link: Link, deleted: Any) -> Tensor:
        mask: Tensor = deleted.tensors[number]
        return mask

    def edges(self, number: int, link: Link, deleted: Any) -> Edges:
        mask = self.mask(number, link, deleted)
        return repeated(link, len(deleted), mask.device)._replace(kept=mask.flatten())

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        device = state[GENE].device
        receive = _receive_along(hops, 1, lambda _, link: repeated(link, 1, device))
        return WildType(tuple(propagate(hops, state, dict.fromkeys(state, ALL), receive)))

    def _mutants(self, batch: Batch) -> Mutants:
        """Propagate the batch as one graph.

        Deleted nodes are there too; no message reaches or leaves them, and nothing reads them.
        """
        hops, deleted, first = batch.hops, batch.deleted, batch.wild_type.first
        b, n, device = len(deleted), *first[GENE].shape[:1], first[GENE].device
        rows = {k: torch.arange(len(x), device=device).repeat(b) for k, x in first.items()}
        state = {kind: x.repeat(b, 1) for kind, x in first.items()}
        receive = _receive_along(hops, b, lambda i, link: self.edges(i, link, deleted))
        genes = propagate(hops, state, rows, receive)[-1][GENE]
        gate, value = batch.readout.terms(genes)
        terms = Terms(gate.view(b, n).t(), value.view(b, n, -1).transpose(0, 1))
        lost = deleted.nodes[GENE]
        living = torch.ones(n, b, dtype=torch.bool, device=device)
        living[lost.nodes, lost.owner] = False
        vectors = genes.view(b, n, -1).masked_fill(~living.t().unsqueeze(2), 0)
        z = pool_difference(batch.pool, terms, living)
        return Mutants(z, batch.pool.pooled, vectors if batch.vectors else None)


class Subgraph(EdgeMask):
    """The subgraph that the living nodes induce, cut out of the cell for every genotype.

    This is how a PyG user writes down the definition; the subgraphs of a batch are collated.
    """

    name: ClassVar[str] = "subgraph"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        tensors = []
        for link in links_of(hops):
            living = mask_of(link, deleted).flatten()
            sources, targets, weights, _ = repeated(link, len(deleted), torch.device("cpu"))
            own = torch.zeros(0) if weights is None else weights[living]
            tensors += [torch.stack([sources[living], targets[living]]), own]
        return Sent(deleted.genotypes, deleted.nodes, tuple(tensors))

    def edges(self, number: int, link: Link, deleted: Any) -> Edges:
        index, weights = deleted.tensors[2 * number : 2 * number + 2]
        return Edges(index[0], index[1], None if link.matrix.values is None else weights)


class DeviceMask(EdgeMask):
    """Masks that are made on the device, by one indexed write from the batch's list of genes."""

    name: ClassVar[str] = "device_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        return deleted

    def mask(self, number: int, link: Link, deleted: Any) -> Tensor:
        return mask_of(link, deleted)


class Stored(EdgeMask):
    """One array per genotype and link, made ahead by `fill` and read from disk by the loader.

    Genotypes are found by their set of genes, in whatever order. A store of another cell, or of
    another screen, is refused.
    """

    kind: ClassVar[str]
    dtype: ClassVar[type[np.generic]]

    def __init__(self, store: str | os.PathLike[str] | None = None) -> None:
        self._path = store
        # The parts, the number of each genotype, and the links that it was checked for.
        self._opened: tuple[dict[str, Any], dict[tuple[int, ...], int], tuple[Link, ...]]
        self._opened = {}, {}, ()

    @abstractmethod
    def array_of(self, mask: Tensor) -> Tensor:
        """Return what is stored of one genotype and link, whose mask is given."""

    def fill(self, hops: Sequence[Hop], deleted: Deleted) -> None:
        links, genotypes = links_of(hops), deleted.genotypes
        parts = {"genotypes": pa.table({"genes": [sorted(g.tolist()) for g in genotypes]})}
        for number, link in enumerate(links):
            arrays = [self.array_of(mask).numpy().tobytes() for mask in mask_of(link, deleted)]
            parts[f"link{number}"] = pa.table({"array": pa.array(arrays, pa.large_binary())})
        store.write(self._given(), self.kind, parts, {"cell": _checksum_of_links(links)})

    def read(self, hops: Sequence[Hop], deleted: Deleted) -> list[list[Tensor]]:
        """Return what is stored of a batch, for each link a list with one array per genotype."""
        links = links_of(hops)
        if self._opened[2] != links:
            there = store.read(self._given(), self.kind)
            if there.meta["cell"] != _checksum_of_links(links):
                raise self._refused("store-of-another-cell", "the checksum of its cell differs")
            genes = there.parts["genotypes"]["genes"].to_pylist()
            self._opened = there.parts, {tuple(g): i for i, g in enumerate(genes)}, links
        parts, number, _ = self._opened
        keys = [tuple(sorted(genes.tolist())) for genes in deleted.genotypes]
        if absent := [key for key in keys if key not in number]:
            raise self._refused("store-of-another-screen", f"it lacks the genotype {absent[0]}")
        return [
            [
                torch.from_numpy(np.frombuffer(column[number[key]].as_buffer(), self.dtype).copy())
                for key in keys
            ]
            for column in (parts[f"link{i}"]["array"] for i in range(len(links)))
        ]

    def _given(self) -> str | os.PathLike[str]:
        if self._path is None:
            raise self._refused("no-store", f"give one: strategy('{self.name}', store=PATH)")
        return self._path

    def _refused(self, code: str, why: str) -> InputError:
        what = f"the propagation '{self.name}' cannot use this {self.kind}: {why}"
        fix = "Fill a new one from this cell and this screen, with the strategy's `fill`."
        return InputError(what, code=code, where=self._path, fix=fix)


class StoredEdges(Stored):
    """The positions of each genotype's removed edges in a store, and masks made in the step."""

    name: ClassVar[str] = "stored_edges"
    kind, dtype = "store of removed edges", np.int64

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        """Read the removed edges of a batch: for each link, how many per genotype and which."""
        tensors = []
        for positions in self.read(hops, deleted):
            tensors.append(torch.tensor([len(p) for p in positions], dtype=torch.int64))
            tensors.append(torch.cat([torch.zeros(0, dtype=torch.int64), *positions]))
        return Sent(deleted.genotypes, deleted.nodes, tuple(tensors))

    def mask(self, number: int, link: Link, deleted: Any) -> Tensor:
        sizes, positions = deleted.tensors[2 * number : 2 * number + 2]
        owner = torch.arange(len(deleted), device=sizes.device).repeat_interleave(sizes)
        return mask_of(link, deleted, (positions, owner))

    def array_of(self, mask: Tensor) -> Tensor:
        return (~mask).nonzero().squeeze(1)


class StoredMasks(Stored):
    """The masks themselves in a store: reading them is all that is left to do."""

    name: ClassVar[str] = "stored_masks"
    kind, dtype = "store of edge masks", np.bool_

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Sent:
        masks = (torch.stack(read) for read in self.read(hops, deleted) if read)
        return Sent(deleted.genotypes, deleted.nodes, tuple(masks))

    def array_of(self, mask: Tensor) -> Tensor:
        return mask


def _receive_along(
    hops: Sequence[Hop], batch: int, edges: Callable[[int, Link], Edges]
) -> Callable[[Aggregate, str, Tensor], Tensor]:
    """Return the sum or mean of messages along edges: gather at the sources, scatter at targets."""
    number = {link: i for i, link in enumerate(links_of(hops))}

    def receive(a: Aggregate, target: str, x: Tensor) -> Tensor:
        link = Link(a.matrix, target, a.source)
        sources, targets, weights, kept = edges(number[link], link)
        messages = x.to(torch.promote_types(x.dtype, torch.float32)).index_select(0, sources)
        if weights is not None:
            messages = messages * weights.to(messages.dtype).unsqueeze(1)
        if kept is not None:
            messages = messages * kept.unsqueeze(1)
        n_targets = batch * a.matrix.shape[0]
        # Not index_add, which would keep the messages of every layer for a backward without need.
        at = targets.unsqueeze(1).expand_as(messages)
        total = messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, at, messages)
        if not a.mean:
            return total
        there = torch.ones_like(targets) if kept is None else kept
        counts = total.new_zeros(n_targets).index_add(0, targets, there.to(total.dtype))
        return total / counts.clamp(min=1).unsqueeze(1)

    return receive


def repeated(link: Link, batch: int, device: torch.device) -> Edges:
    rows, columns, values = link.matrix.entries(device=device, dtype=torch.float64)
    mutant = torch.arange(batch, device=device).unsqueeze(1)
    return Edges(
        (columns + mutant * link.matrix.shape[1]).flatten(),
        (rows + mutant * link.matrix.shape[0]).flatten(),
        None if link.matrix.values is None else values.repeat(batch),
    )


def mask_of(link: Link, deleted: Deleted, removed: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Return which edges each mutant has, bool [b, n_edges], made where the deleted nodes are."""
    positions, owner = removed_edges(link, deleted) if removed is None else removed
    shape = len(deleted), link.matrix.n_entries
    mask = torch.ones(shape, dtype=torch.bool, device=positions.device)
    mask[owner, positions] = False
    return mask


def removed_edges(link: Link, deleted: Deleted) -> tuple[Tensor, Tensor]:
    """Return the edges that genotypes remove and whose each is; one may be there twice.

    An edge's position is its place among the entries of the matrix, row by row.
    """
    matrix, device = link.matrix, deleted.nodes[GENE].nodes.device
    order = matrix.tensor("transpose_order", device, torch.int64)
    positions, owners = [order[:0]], [order[:0]]
    in_place = torch.arange(len(order), device=device)
    ends = (link.target, matrix, in_place), (link.source, matrix.transpose, order)
    for kind, rows, position in ends:
        if (lost := deleted.nodes.get(kind)) is not None:
            offsets = rows.tensor("indptr", device, torch.int64)
            starts, lengths = offsets[lost.nodes], offsets.diff()[lost.nodes]
            which = torch.arange(len(lengths), device=device).repeat_interleave(lengths)
            within = torch.arange(len(which), device=device) - (lengths.cumsum(0) - lengths)[which]
            positions.append(position[starts[which] + within])
            owners.append(lost.owner[which])
    return torch.cat(positions), torch.cat(owners)


def _checksum_of_links(links: Sequence[Link]) -> str:
    whole = hashlib.sha256()
    for link in links:
        matrix = link.matrix
        whole.update(f"{link.target} {link.source} {matrix.shape}".encode())
        whole.update(np.ascontiguousarray(matrix.indptr).data)
        whole.update(np.ascontiguousarray(matrix.indices, dtype=np.int64).data)
    return whole.hexdigest()
