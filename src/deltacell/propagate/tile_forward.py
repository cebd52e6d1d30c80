"""A tile of mutants, forward."""

from __future__ import annotations

from typing import NamedTuple

import torch

from deltacell.propagate.given import After, MessagesOf
from deltacell.propagate.hop import GENE, Message
from deltacell.propagate.tile_state import Heard, TileState

Sums = dict[tuple[int, int], torch.Tensor]
"""Sums over the aggregates k of the hops h that were kept, by (h, k)."""


class Kept(NamedTuple):
    """What the backward of a tile starts from.

    Parameters
    ----------
    changed
        After each hop, the new vectors where they are not the wild type's.
    sums
        Those that were kept.
    """

    changed: dict[int, torch.Tensor]
    sums: Sums


class TileForward(TileState):
    """Propagates a tile of mutants and reads it out."""

    def run(self, *, keep_sums: bool) -> tuple[torch.Tensor, torch.Tensor, Kept]:
        """Return z [t, hidden], the genes' vectors [t, n, hidden], and what is kept.

        Parameters
        ----------
        keep_sums
            Whether to keep the sums for the backward, which else computes them again.
        """
        kept: Sums = {}
        with torch.no_grad(), self.job.autocast():
            for h, hop in enumerate(self.job.hops):
                with hop.around():
                    self.remember(h, self._after(h, kept if keep_sums else None))
            genes = self.vectors(GENE, len(self.job.hops))
            z = self.read(genes, self.pool())
            vectors = genes.view(-1, self.t, genes.shape[1]).transpose(0, 1)
        return z, vectors, Kept(self.changed, kept)

    def _after(self, h: int, kept: Sums | None) -> torch.Tensor:
        """Return the new vectors of a hop's target, [n * t, hidden]."""
        hop = self.job.hops[h]
        x, changed = self.vectors(hop.target, h), self.tile.hops[h].changed
        if changed is None:
            new = torch.zeros_like(x)
        else:
            new = self.spread(self.given[After(h)]).index_fill_(0, changed.at, 0)
        if hop.messages is None:
            self._update(h, x, new, kept)
        else:
            for k, message in enumerate(hop.messages):
                self._add_message(h, k, message, x, new, kept)
            if hop.residual:
                for piece in self.pieces(changed, x):
                    piece.add(new, piece.of(x))
        return self.without_deleted(hop.target, new)

    def _add_message(
        self,
        h: int,
        k: int,
        message: Message,
        x: torch.Tensor,
        new: torch.Tensor,
        kept: Sums | None,
    ) -> None:
        received = self.tile.hops[h].received[k]
        if received.computed is None or len(received.computed):
            heard = self._heard(h, k, kept)
            for piece in self.pieces(received.computed, x):
                piece.add(new, message.function(piece.of(x), heard.of(piece), piece.nodes))
        if received.taken is not None:
            taken = self.given[MessagesOf(h)][k].index_select(0, received.taken.nodes)
            new.index_add_(0, received.taken.at, taken)

    def _update(self, h: int, x: torch.Tensor, new: torch.Tensor, kept: Sums | None) -> None:
        hop = self.job.hops[h]
        heard = [self._heard(h, k, kept) for k in range(len(hop.aggregates))]
        for piece in self.pieces(self.tile.hops[h].changed, x):
            received = torch.stack([one.of(piece) for one in heard])
            made = hop.update(piece.of(x).unsqueeze(1), received.unsqueeze(2), piece.nodes)
            piece.put(new, made.squeeze(1))

    def _heard(self, h: int, k: int, kept: Sums | None) -> Heard:
        heard = self.heard(h, k)
        # Few where they are differences, and found again at no cost.
        if kept is not None and self.tile.hops[h].received[k].difference is None:
            kept[h, k] = heard.sums
        return heard
