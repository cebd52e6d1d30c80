"""Sums over edges that a mask keeps or drops."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from deltacell.errors import InputError
from deltacell.propagate.deleted import Deleted
from deltacell.propagate.hop import Aggregate, Hop, State
from deltacell.propagate.ladder.collated import mutants_of, wild_type_of
from deltacell.propagate.ladder.link import Link, links_of
from deltacell.propagate.pool import Readout
from deltacell.propagate.protocol import Mutants, WildType


@dataclass(frozen=True, eq=False)
class Masks(Deleted):
    """A batch with its edge masks, which is what its loader sends.

    Parameters
    ----------
    masks
        Which edges each mutant has, bool [b, n_edges], one a link.
    """

    masks: tuple[torch.Tensor, ...] = ()

    @property
    def loader_bytes_per_genotype(self) -> float:
        """Bytes of masks and genes a genotype."""
        masks = sum(m.nbytes for m in self.masks)
        return (masks + self.genotypes.nbytes) / max(len(self), 1)


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges of a link in b mutants that lie one after the other along the rows.

    Parameters
    ----------
    sources, targets
        Rows of the edges' ends, int64 [b * n_edges].
    values
        One number an edge, [b * n_edges, 1], or None for 1.
    n_targets
        Number of rows of all targets.
    """

    sources: torch.Tensor
    targets: torch.Tensor
    values: torch.Tensor | None
    n_targets: int

    @classmethod
    def of(cls, link: Link, batch: int, like: torch.Tensor) -> Edges:
        """Make them for a batch, on the device of a tensor and in its type, float32 at least."""
        dtype = torch.promote_types(like.dtype, torch.float32)
        rows, columns, values = link.matrix.entries(device=like.device, dtype=dtype)
        mutant = torch.arange(batch, device=like.device).unsqueeze(1)
        n_targets, n_sources = link.matrix.shape
        return cls(
            (columns + mutant * n_sources).flatten(),
            (rows + mutant * n_targets).flatten(),
            None if link.matrix.values is None else values.repeat(batch).unsqueeze(1),
            batch * n_targets,
        )

    def total(self, x: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Return the sum of messages at each target, [n_targets, hidden].

        ``y[i] = sum over edges e into i of mask[e] values[e] x[source of e]``.

        Parameters
        ----------
        x
            Of all sources, [n_sources, hidden].
        mask
            Bool [b * n_edges]; None keeps all.
        """
        return gathered(x, self.sources, self.targets, self.values, mask, self.n_targets)

    def counts(self, mask: torch.Tensor | None, like: torch.Tensor) -> torch.Tensor:
        """Return the number of edges at each target that the mask keeps, at least 1."""
        kept = torch.ones_like(self.targets) if mask is None else mask
        none = like.new_zeros(self.n_targets)
        return none.index_add(0, self.targets, kept.to(like.dtype)).clamp(min=1).unsqueeze(1)


def gathered(
    x: torch.Tensor,
    sources: torch.Tensor,
    targets: torch.Tensor,
    values: torch.Tensor | None,
    mask: torch.Tensor | None,
    n_targets: int,
) -> torch.Tensor:
    """Return the messages of x [m, hidden] along edges, masked and added up at their targets."""
    messages = x.to(torch.promote_types(x.dtype, torch.float32)).index_select(0, sources)
    if values is not None:
        messages = messages * values
    if mask is not None:
        messages = messages * mask.unsqueeze(1)
    # Not index_add, which would keep the messages of every layer for a backward without need.
    at = targets.unsqueeze(1).expand_as(messages)
    return messages.new_zeros(n_targets, x.shape[1]).scatter_add(0, at, messages)


def unmasked_wild_type(hops: Sequence[Hop], state: State) -> WildType:
    """Propagate the wild type along all edges."""
    edges: dict[Link, Edges] = {}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        link = Link(a.matrix, target, a.source)
        if link not in edges:
            edges[link] = Edges.of(link, 1, x)
        total = edges[link].total(x, None)
        return total / edges[link].counts(None, total) if a.mean else total

    return wild_type_of(hops, state, receive)


def masked_mutants(
    hops: Sequence[Hop],
    wild_type: WildType,
    deleted: Deleted,
    readout: Readout,
    masks: Sequence[torch.Tensor],
    *,
    vectors: bool,
) -> Mutants:
    """Propagate mutants along the edges that their masks keep.

    Parameters
    ----------
    hops, wild_type, deleted, readout, vectors
        As in `Propagation.mutants`.
    masks
        Bool [b, n_edges], one a link of the hops.
    """
    kept = dict(zip(links_of(hops), masks, strict=True))
    edges: dict[Link, Edges] = {}

    def receive(a: Aggregate, target: str, x: torch.Tensor) -> torch.Tensor:
        link = Link(a.matrix, target, a.source)
        if link not in edges:
            edges[link] = Edges.of(link, len(deleted), x)
        mask = kept[link].flatten()
        total = edges[link].total(x, mask)
        return total / edges[link].counts(mask, total) if a.mean else total

    return mutants_of(hops, wild_type, deleted, readout, receive, vectors=vectors)


def not_prepared(name: str) -> InputError:
    """Return the error of a batch that was not prepared by the strategy it was given to."""
    return InputError(
        f"the genotypes were not prepared by the propagation '{name}'",
        fix="Prepare them with this model's `prepare`.",
    )
