"""The strategy `device_mask`: masks that stay on the device and are changed for each batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch

from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Aggregate, Hop, State
from deltacell.propagate.ladder.collated import mutants_of
from deltacell.propagate.ladder.incidence import Incidence
from deltacell.propagate.ladder.link import Link
from deltacell.propagate.ladder.masked import Edges, gathered, unmasked_wild_type
from deltacell.propagate.pool import Readout
from deltacell.propagate.protocol import Mutants, WildType


class DeviceMask:
    """Edge masks without making, sending or storing any.

    One mask a relation lies on the device, all true, as long as the largest batch so far. The index
    from genes to edges lies there too, so that the bits of a whole batch are cleared with one
    indexed write from its list of genes, and set again after. The loader is free at last, and the
    step costs what it did: a message along every edge for every mutant.

    Not for several threads at a time: the masks are shared.
    """

    def __init__(self) -> None:
        self._masks: dict[tuple[Link, torch.device], torch.Tensor] = {}

    @property
    def name(self) -> str:
        """What it is called in configurations."""
        return "device_mask"

    def prepare(self, hops: Sequence[Hop], deleted: Deleted) -> Deleted:
        """Return what was given: everything is found on the device."""
        return deleted

    def wild_type(self, hops: Sequence[Hop], state: State) -> WildType:
        """Propagate the wild type, edge by edge."""
        return unmasked_wild_type(hops, state)

    def mutants(
        self,
        hops: Sequence[Hop],
        wild_type: WildType,
        deleted: Deleted,
        readout: Readout,
        *,
        vectors: bool = False,
    ) -> Mutants:
        """Propagate the batch as one graph, edge by edge, with the masks of the device."""
        changed: dict[Link, _Changed] = {}

        def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
            link = Link(a.matrix, target, a.source)
            if link not in changed:
                mask = self._all_true(link, len(deleted), x.device)
                edges = Edges.of(link, len(deleted), x)
                changed[link] = _Changed(edges, mask, _removed(link, deleted, x.device))
            total = cast(torch.Tensor, _MaskedTotal.apply(x, changed[link]))  # type: ignore[no-untyped-call]
            return total / changed[link].counts(total) if a.mean else total

        return mutants_of(hops, wild_type, deleted, readout, receive, vectors=vectors)

    def _all_true(self, link: Link, batch: int, device: torch.device) -> torch.Tensor:
        needed = batch * link.n_edges
        kept = self._masks.get((link, device))
        if kept is None or len(kept) < needed:
            kept = torch.ones(needed, dtype=torch.bool, device=device)
            self._masks[link, device] = kept
        return kept[:needed]


class _Changed:
    """The edges of a link for one batch, with the mask that is lent to it."""

    def __init__(self, edges: Edges, mask: torch.Tensor, removed: torch.Tensor) -> None:
        self.edges = edges
        self._mask = mask
        self._removed = removed

    @contextmanager
    def mask(self) -> Iterator[torch.Tensor]:
        """Give the mask with the batch's bits cleared, and set them again after."""
        self._mask[self._removed] = False
        try:
            yield self._mask
        finally:
            self._mask[self._removed] = True

    def counts(self, like: torch.Tensor) -> torch.Tensor:
        """Return the number of edges at each target that are left, at least 1."""
        with self.mask() as mask:
            return self.edges.counts(mask, like.detach())


class _MaskedTotal(torch.autograd.Function):
    """`Edges.total` with a mask that is only lent, so the backward changes it once more."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, changed: _Changed) -> torch.Tensor:
        ctx.changed, ctx.n_sources, ctx.dtype = changed, len(x), x.dtype
        with changed.mask() as mask:
            return changed.edges.total(x, mask)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        edges: Edges = ctx.changed.edges
        with ctx.changed.mask() as mask:
            found = gathered(
                gradient, edges.targets, edges.sources, edges.values, mask, ctx.n_sources
            )
        return found.to(ctx.dtype), None


def _removed(link: Link, deleted: Deleted, device: torch.device) -> torch.Tensor:
    """Return the removed edges' places in the mask of the whole batch, some perhaps twice."""
    found = [torch.zeros(0, dtype=torch.int64, device=device)]
    for kind, index in Incidence.of(link, device).items():
        if kind in deleted.nodes:
            lost = deleted.nodes[kind]
            positions, which = index.of_nodes(lost.nodes)
            found.append(lost.owner[which] * link.n_edges + positions)
    return torch.cat(found)
