"""Mutants as one large graph: its links, its edges, and message passing along them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

import torch
from torch import Tensor

from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import GENE, Aggregate, Hop, HopShape, State
from deltacell.propagate.parallel.chunks import ALL
from deltacell.propagate.pool import Terms, pool_difference
from deltacell.propagate.product import SparseMatrix
from deltacell.propagate.strategy import Mutants, Plan, Step, Strategy, WildType, propagate


class Link(NamedTuple):
    """A matrix whose entries are edges, and the kinds of node of its rows and columns."""

    matrix: SparseMatrix
    target: str
    source: str

    @classmethod
    def of(cls, aggregate: Aggregate, target: str) -> Link:
        """Return the link of an aggregate of some nodes."""
        return cls(aggregate.matrix, target, aggregate.source)


def links_of(shapes: Iterable[HopShape]) -> tuple[Link, ...]:
    """Return the distinct links of some hops."""
    links: dict[Link, None] = {}
    for shape in shapes:
        for aggregate in shape.aggregates:
            links[Link.of(aggregate, shape.target)] = None
    return tuple(links)


@dataclass(frozen=True, eq=False)
class MutantEdges:
    """The edges of one link in a batch of mutants; node i of mutant b has index ``b * n + i``."""

    sources: Tensor
    targets: Tensor
    weights: Tensor | None
    is_kept: Tensor | None = None  # a mask over the edges; None keeps all


@dataclass(frozen=True, eq=False)
class EdgePlan(Plan):
    """What a mutant lacks, and what the loader sends for each link."""

    deleted: Deleted
    sent: Mapping[Link, tuple[Tensor, ...]]

    @property
    def sent_bytes(self) -> int:
        """The bytes of the tensors that are sent for all links."""
        tensors = chain.from_iterable(self.sent.values())
        return sum(tensor.nbytes for tensor in tensors)


class EdgeStrategy(Strategy[EdgePlan]):
    """Gather at the source of every edge, scatter at its target."""

    @abstractmethod
    def sent(self, links: Sequence[Link], deleted: Deleted) -> Sequence[tuple[Tensor, ...]]:
        """Return the tensors that the loader sends for each link."""

    @abstractmethod
    def edges(self, link: Link, deleted: Deleted, sent: Sequence[Tensor]) -> MutantEdges:
        """Return the edges of a link in a batch of mutants, from the tensors that were sent."""

    def plan(
        self,
        shapes: Sequence[HopShape],
        deleted: Deleted,
        device: torch.device,
        *,
        dtype: torch.dtype = torch.float32,
        epistasis: bool = False,
    ) -> EdgePlan:
        """Return what the loader sends for a batch of mutants."""
        links = links_of(shapes)
        sent = dict(zip(links, self.sent(links, deleted), strict=True))
        return EdgePlan(len(deleted), deleted, sent)

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type along all edges."""

        def receive(aggregate: Aggregate, target: str, x: Tensor) -> Tensor:
            edges = edges_of_batch(Link.of(aggregate, target), 1, x.device)
            return received_along(edges, aggregate, x, 1)

        return WildType(tuple(propagate(hops, state, dict.fromkeys(state, ALL), receive)))

    def _mutants(self, plan: EdgePlan, step: Step) -> Mutants:
        # The graph contains the deleted nodes too, but no message reaches or leaves them.
        first = step.wild_type.states[0]
        b = plan.n_mutants

        def receive(aggregate: Aggregate, target: str, x: Tensor) -> Tensor:
            link = Link.of(aggregate, target)
            edges = self.edges(link, plan.deleted, plan.sent[link])
            return received_along(edges, aggregate, x, b)

        rows = {kind: torch.arange(len(x), device=x.device).repeat(b) for kind, x in first.items()}
        state = {kind: x.repeat(b, 1) for kind, x in first.items()}
        genes = propagate(step.hops, state, rows, receive)[-1][GENE]
        return self._read_out(plan, step, genes, rows[GENE])

    def _read_out(self, plan: EdgePlan, step: Step, genes: Tensor, rows: Tensor) -> Mutants:
        b = plan.n_mutants
        n = len(step.pool.value)
        gate, value = step.readout.terms(genes, rows)
        terms = Terms(gate.view(b, n).t(), value.view(b, n, -1).transpose(0, 1))
        lost = plan.deleted.nodes[GENE]
        places = lost.nodes * b + lost.owner
        living = torch.ones(n * b, dtype=torch.bool, device=genes.device)
        living = living.index_fill(0, places, False).view(n, b)
        return Mutants(pool_difference(step.pool, terms, living), step.pool.pooled)


def edges_of_batch(link: Link, n_mutants: int, device: torch.device) -> MutantEdges:
    """Return all edges of a link, once for each mutant."""
    matrix = link.matrix
    n_targets, n_sources = matrix.shape
    mutant = torch.arange(n_mutants, device=device).unsqueeze(1)
    sources = matrix.tensor("indices", device, torch.int64) + mutant * n_sources
    targets = matrix.tensor("rows", device, torch.int64) + mutant * n_targets
    weights = None
    if matrix.values is not None:
        weights = matrix.tensor("values", device, torch.float64).repeat(n_mutants)
    return MutantEdges(sources.flatten(), targets.flatten(), weights)


def masked(edges: MutantEdges, is_kept: Tensor) -> MutantEdges:
    """Return the edges with a mask [b, n_edges]."""
    return replace(edges, is_kept=is_kept.flatten())


def received_along(edges: MutantEdges, aggregate: Aggregate, x: Tensor, n_mutants: int) -> Tensor:
    """Return the sum or mean of messages: gather at the sources, scatter at the targets."""
    messages = x.to(torch.promote_types(x.dtype, torch.float32)).index_select(0, edges.sources)
    if edges.weights is not None:
        messages = messages * edges.weights.to(messages.dtype).unsqueeze(1)
    if edges.is_kept is not None:
        messages = messages * edges.is_kept.unsqueeze(1)
    n_targets = n_mutants * aggregate.matrix.shape[0]
    # index_add would needlessly keep the messages of every layer for the backward.
    places = edges.targets.unsqueeze(1).expand_as(messages)
    total = messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, places, messages)
    if not aggregate.mean:
        return total
    is_kept = torch.ones_like(edges.targets) if edges.is_kept is None else edges.is_kept
    counts = total.new_zeros(n_targets).index_add(0, edges.targets, is_kept.to(total.dtype))
    return total / counts.clamp(min=1).unsqueeze(1)
